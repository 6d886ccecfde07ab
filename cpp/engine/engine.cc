#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/api.h"
#include "engine/array_access.h"

namespace mxrdma::engine {
namespace {

// Numbers of MXNet's C API.
constexpr int kDenseStorage = 0;
constexpr int kCpu = 1, kCpuPinned = 3, kCpuShared = 5;

// The probe operation of detect_inline() touches nothing and waits for nobody; a loaded machine may
// be slow.
constexpr std::chrono::seconds kProbeLimit{30};

// An error for the user's next wait on the array. The prefix lets MXNet's Python raise the class
// that mxrdma has registered under this name.
std::string error_text(const Status& status) {
  return std::string("mxrdma.") + code_name(status.code()) + ": " + status.message();
}

void complete(const OnComplete& on_complete, const Status& status) {
  if (status.is_ok()) {
    on_complete.callback(on_complete.engine, on_complete.parameter, nullptr);
    return;
  }
  // MXNet's bookkeeping of errors is not safe against two of them at the same time.
  static std::mutex* one_error_at_a_time = new std::mutex;
  std::lock_guard<std::mutex> lock(*one_error_at_a_time);
  const dmlc::Error error(error_text(status));
  on_complete.callback(on_complete.engine, on_complete.parameter, &error);
}

class ProbeTask final : public Task {
 public:
  struct Outcome {
    std::mutex mutex;
    std::condition_variable condition;
    bool ended = false;
    std::thread::id thread;
    Status status;
  };
  explicit ProbeTask(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}

  void start(void*, size_t, Hold, Finish finish) override {
    end(Status::ok());
    finish(Status::ok());
  }
  void abandon(const Status& why) override { end(why); }

 private:
  void end(const Status& status) {
    std::lock_guard<std::mutex> lock(outcome_->mutex);
    outcome_->ended = true;
    outcome_->thread = std::this_thread::get_id();
    outcome_->status = status;
    outcome_->condition.notify_all();
  }
  std::shared_ptr<Outcome> outcome_;
};

}  // namespace

// Keeps an array's memory from being reused.
class Reference final : public ArrayHold {
 public:
  static Result<std::shared_ptr<const Reference>> to(const std::shared_ptr<const Api>& api,
                                                     Handle array) {
    Handle copy = nullptr;
    if (api->shallow_copy(array, &copy) != 0) return api->error("taking a reference to the array");
    return std::shared_ptr<const Reference>(new Reference(api, copy));
  }
  ~Reference() override {
    if (api_->free_array(handle_) != 0) log_error(api_->error("releasing an array").message());
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  Handle handle() const { return handle_; }
  // Both only where the layout is known.
  const void* storage() const override { return chunk_of(handle_); }
  bool is_last() const override { return owners_of(handle_) <= 1; }

 private:
  Reference(std::shared_ptr<const Api> api, Handle handle)
      : api_(std::move(api)), handle_(handle) {}
  std::shared_ptr<const Api> api_;
  Handle handle_;
};

struct Engine::Operation {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Task> task;
  std::shared_ptr<const Reference> array;
  Access access = Access::read;
  int priority = 0;
  const char* name = nullptr;
  bool started = false;
};

Engine::Engine(std::shared_ptr<const Api> api) : api_(std::move(api)) {}

Result<std::shared_ptr<Engine>> Engine::open(const std::string& libmxnet_path) {
  Result<std::shared_ptr<const Api>> api = Api::load(libmxnet_path);
  if (!api.is_ok()) return api.status();
  std::shared_ptr<Engine> engine(new Engine(api.value()));
  Status status = engine->detect_inline();
  if (!status.is_ok()) return status;
  return engine;
}

Status Engine::detect_inline() {
  const int64_t shape[1] = {1};
  Handle array = nullptr;
  if (api_->create_array(shape, 1, 1, 0, 0, 0, &array) != 0)
    return api_->error("creating an array");
  auto outcome = std::make_shared<ProbeTask::Outcome>();
  Status status = read(array, 0, "mxrdma_probe", std::make_unique<ProbeTask>(outcome));
  api_->free_array(array);
  if (!status.is_ok()) return status;
  std::unique_lock<std::mutex> lock(outcome->mutex);
  if (!outcome->condition.wait_for(lock, kProbeLimit, [&] { return outcome->ended; }))
    return Status(Code::internal, "MXNet's engine runs no operation");
  runs_inline_ = outcome->thread == std::this_thread::get_id();
  return outcome->status;
}

bool Engine::fits(void* handle, const ArrayLayout& layout) const {
  int storage = 0, dtype = 0, device_type = 0, device_id = 0, dimensions = 0;
  const int64_t* shape = nullptr;
  if (api_->get_storage_type(handle, &storage) != 0 || storage != kDenseStorage ||
      api_->get_context(handle, &device_type, &device_id) != 0 ||
      (device_type != kCpu && device_type != kCpuPinned && device_type != kCpuShared) ||
      api_->get_dtype(handle, &dtype) != 0 || dtype != layout.dtype ||
      api_->get_shape(handle, &dimensions, &shape) != 0)
    return false;
  return std::equal(shape, shape + std::max(dimensions, 0), layout.shape.begin(),
                    layout.shape.end());
}

bool Engine::may_share(void* handle, void* other) const {
  return !api_->known_layout || chunk_of(handle) == chunk_of(other);
}

Status Engine::read(void* handle, int priority, const char* name, std::unique_ptr<Task> task) {
  return push(handle, priority, name, Access::read, std::move(task));
}

Status Engine::write(void* handle, int priority, const char* name, std::unique_ptr<Task> task) {
  return push(handle, priority, name, Access::write, std::move(task));
}

Status Engine::push(void* handle, int priority, const char* name, Access access,
                    std::shared_ptr<Task> task) {
  auto* operation = new Operation;
  operation->engine = shared_from_this();
  operation->task = std::move(task);
  operation->access = access;
  operation->priority = priority;
  operation->name = name;
  Result<std::shared_ptr<const Reference>> reference = Reference::to(api_, handle);
  if (!reference.is_ok()) {
    forget(operation);
    return reference.status();
  }
  operation->array = reference.value();
  Context context;
  Handle arrays[1] = {operation->array->handle()};
  const int property = kCpuPrioritized;
  const bool reads = access == Access::read;
  // From here MXNet owns the operation: it calls `forget` when it is through with it, also if this
  // call fails.
  if (api_->push_async(&Engine::run, operation, &Engine::forget, &context, arrays, reads ? 1 : 0,
                       arrays, reads ? 0 : 1, &property, priority, name, false) != 0)
    return api_->error("putting an operation on MXNet's engine");
  return Status::ok();
}

void Engine::run(void* /*context*/, void* on_complete, void* parameter) {
  auto* operation = static_cast<Operation*>(parameter);
  const OnComplete completion = *static_cast<OnComplete*>(on_complete);
  operation->started = true;
  // The operation may be gone as soon as `finish` was called, possibly inside start().
  std::shared_ptr<Engine> engine = operation->engine;
  std::shared_ptr<Task> task = operation->task;
  const Handle array = operation->array->handle();
  Result<ArrayAccess> access = operation->access == Access::read
                                   ? read_access(engine->api_, array)
                                   : write_access(engine->api_, array);
  if (access.is_ok()) {
    auto held = std::make_shared<ArrayAccess>(std::move(access.value()));
    void* data = held->data();
    const size_t bytes = held->bytes();
    Hold hold;
    if (engine->api_->known_layout && !held->is_copy()) hold = operation->array;
    task->start(data, bytes, std::move(hold), [held, completion](const Status& status) mutable {
      held.reset();
      complete(completion, status);
    });
    return;
  }
  task->abandon(access.status());
  complete(completion, access.status());
}

void Engine::forget(void* parameter) {
  std::unique_ptr<Operation> operation(static_cast<Operation*>(parameter));
  if (operation->started) return;
  operation->task->abandon(Status(
      Code::cancelled,
      "MXNet did not run the operation because the computation of its array had failed before"));
}

}  // namespace mxrdma::engine
