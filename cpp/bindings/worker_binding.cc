#include <pybind11/stl.h>
#include <unistd.h>

#include <condition_variable>
#include <vector>

#include "bindings/support.h"
#include "bindings/transfer.h"
#include "engine/engine.h"
#include "node/worker.h"

namespace mxrdma::bindings {
namespace {

using engine::Engine;
using node::Ticket;
using node::Worker;

constexpr const char* kSendName = "mxrdma_send";
constexpr const char* kReceiveName = "mxrdma_receive";
constexpr std::chrono::milliseconds kInterruptPoll{100};

// Counts completions down; remembers the first failure.
class Latch {
 public:
  node::Completion expect() {
    std::lock_guard<std::mutex> lock(state_->mutex);
    ++state_->open;
    return [state = state_](const Status& status) {
      std::lock_guard<std::mutex> guard(state->mutex);
      if (!status.is_ok() && state->failed.is_ok()) state->failed = status;
      if (--state->open == 0) state->condition.notify_all();
    };
  }
  // The completion of an operation that could not be opened.
  void withdraw() {
    std::lock_guard<std::mutex> lock(state_->mutex);
    --state_->open;
  }
  // The buffers belong to the worker until all is complete; Ctrl-C therefore ends the job, which
  // completes all.
  Status wait(Worker* worker) {
    Status interrupted;
    std::unique_lock<std::mutex> lock(state_->mutex);
    while (
        !state_->condition.wait_for(lock, kInterruptPoll, [this] { return state_->open == 0; })) {
      if (!interrupted.is_ok()) continue;
      lock.unlock();
      interrupted = check_signals();
      if (!interrupted.is_ok()) worker->fail(interrupted);
      lock.lock();
    }
    return interrupted.is_ok() ? state_->failed : interrupted;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable condition;
    size_t open = 0;
    Status failed;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class PyWorker {
 public:
  explicit PyWorker(const node::NodeOptions& options)
      : worker_(std::make_shared<Worker>(options)), pid_(getpid()) {}
  ~PyWorker() {
    // In a forked child the progress thread and the connections are the parent's: leave them alone.
    if (getpid() != pid_) {
      static_cast<void>(new std::shared_ptr<Worker>(std::move(worker_)));
      return;
    }
    py::gil_scoped_release release;
    worker_.reset();
  }

  void start() {
    wait([&] { return worker_->start(check_signals); });
  }
  void barrier() {
    wait([&] { return worker_->barrier(check_signals); });
  }
  std::vector<uint32_t> register_keys(const std::vector<wire::KeyRequest>& keys) {
    return value_or_raise(without_gil([&] { return worker_->register_keys(keys, check_signals); }));
  }
  void set_optimizer(const wire::OptimizerSpec& spec) {
    wait([&] { return worker_->set_optimizer(spec, check_signals); });
  }
  void drain(int timeout_ms) {
    wait([&] { return worker_->drain(timeout_ms, check_signals); });
  }
  void leave() {
    wait([&] { return worker_->leave(); });
  }

  // ---- on MXNet's engine ----
  void push(const std::shared_ptr<Engine>& engine, uint32_t key, uintptr_t handle,
            const store::Hyper& hyper, int priority, bool initial) {
    wait([&] {
      Opened push = open_push(key, hyper, priority, initial);
      return push.status.is_ok() ? send(engine, handle, priority, push) : push.status;
    });
  }
  void pull(const std::shared_ptr<Engine>& engine, uint32_t key, uintptr_t handle, int priority) {
    wait([&] {
      Opened pull = open_pull(key, priority);
      return pull.status.is_ok() ? receive(engine, handle, priority, pull) : pull.status;
    });
  }
  // Where the arrays allow it, the engine sees the receive first: then the weights' target travels
  // with the gradient.
  void pushpull(const std::shared_ptr<Engine>& engine, uint32_t key, uintptr_t handle,
                uintptr_t out_handle, const store::Hyper& hyper, int priority) {
    wait([&] {
      const bool send_first =
          engine->runs_inline() ||
          engine->may_share(reinterpret_cast<void*>(handle), reinterpret_cast<void*>(out_handle));
      Opened push = open_push(key, hyper, priority, false);
      if (!push.status.is_ok()) return push.status;
      Status sent = send_first ? send(engine, handle, priority, push) : Status::ok();
      Opened pull = open_pull(key, priority);
      Status received =
          pull.status.is_ok() ? receive(engine, out_handle, priority, pull) : pull.status;
      if (!send_first) sent = send(engine, handle, priority, push);
      return sent.is_ok() ? received : sent;
    });
  }

  // ---- on buffers ----
  void push_buffer(uint32_t key, const py::object& data, const store::Hyper& hyper, int priority,
                   bool initial) {
    Buffer buffer(data, false);
    wait([&] {
      Latch latch;
      Result<Ticket> ticket =
          worker_->open_push(key, kind_of(initial), hyper, priority, latch.expect());
      if (!ticket.is_ok()) return ticket.status();
      worker_->supply(ticket.value(), buffer.data(), buffer.bytes());
      return latch.wait(worker_.get());
    });
  }
  void pull_buffer(uint32_t key, const py::object& out, int priority) {
    Buffer buffer(out, true);
    wait([&] {
      Latch latch;
      Result<Ticket> ticket = worker_->open_pull(key, priority, latch.expect());
      if (!ticket.is_ok()) return ticket.status();
      worker_->grant(ticket.value(), buffer.data(), buffer.bytes());
      return latch.wait(worker_.get());
    });
  }
  void pushpull_buffers(const std::vector<uint32_t>& keys, const std::vector<py::object>& data,
                        const std::vector<py::object>& out, const store::Hyper& hyper) {
    if (keys.size() != data.size() || keys.size() != out.size())
      throw CodedError(
          Status(Code::invalid_argument, "keys, data and out must have the same length"));
    std::vector<Buffer> inputs, outputs;
    inputs.reserve(keys.size());
    outputs.reserve(keys.size());
    for (const py::object& object : data) inputs.emplace_back(object, false);
    for (const py::object& object : out) outputs.emplace_back(object, true);
    wait([&] {
      Latch latch;
      Status status;
      for (size_t i = 0; i < keys.size() && status.is_ok(); ++i)
        status =
            pushpull_buffer(keys[i], inputs[i], outputs[i], hyper, -static_cast<int>(i), &latch);
      Status waited = latch.wait(worker_.get());
      return status.is_ok() ? waited : status;
    });
  }

  std::shared_ptr<Worker> worker_;

 private:
  const pid_t pid_;

  struct Opened {
    Status status;
    Ticket ticket = 0;
    std::shared_ptr<Transfer> transfer = std::make_shared<Transfer>();
  };

  template <typename Function>
  void wait(Function function) {
    raise_if_failed(without_gil(function));
  }
  static wire::PushKind kind_of(bool initial) {
    return initial ? wire::PushKind::initial : wire::PushKind::gradient;
  }
  static void note(const Result<Ticket>& ticket, Opened* opened) {
    opened->status = ticket.status();
    if (ticket.is_ok()) opened->ticket = ticket.value();
  }

  Opened open_push(uint32_t key, const store::Hyper& hyper, int priority, bool initial) {
    Opened opened;
    note(worker_->open_push(
             key, kind_of(initial), hyper, priority,
             [transfer = opened.transfer](const Status& status) { transfer->done(status); }),
         &opened);
    return opened;
  }
  Opened open_pull(uint32_t key, int priority) {
    Opened opened;
    note(worker_->open_pull(
             key, priority,
             [transfer = opened.transfer](const Status& status) { transfer->done(status); }),
         &opened);
    return opened;
  }
  Status send(const std::shared_ptr<Engine>& engine, uintptr_t handle, int priority,
              const Opened& opened) {
    Status status = engine->read(reinterpret_cast<void*>(handle), priority, kSendName,
                                 task_of(opened, /*sends=*/true));
    return status.is_ok() && engine->runs_inline() ? opened.transfer->result() : status;
  }
  Status receive(const std::shared_ptr<Engine>& engine, uintptr_t handle, int priority,
                 const Opened& opened) {
    Status status = engine->write(reinterpret_cast<void*>(handle), priority, kReceiveName,
                                  task_of(opened, /*sends=*/false));
    return status.is_ok() && engine->runs_inline() ? opened.transfer->result() : status;
  }
  std::unique_ptr<engine::Task> task_of(const Opened& opened, bool sends) {
    return std::make_unique<TransferTask>(worker_, opened.transfer, opened.ticket, sends);
  }

  Status pushpull_buffer(uint32_t key, const Buffer& input, const Buffer& output,
                         const store::Hyper& hyper, int priority, Latch* latch) {
    Result<Ticket> push =
        worker_->open_push(key, wire::PushKind::gradient, hyper, priority, latch->expect());
    if (!push.is_ok()) {
      latch->withdraw();
      return push.status();
    }
    Result<Ticket> pull = worker_->open_pull(key, priority, latch->expect());
    if (pull.is_ok())
      worker_->grant(pull.value(), output.data(), output.bytes());
    else
      latch->withdraw();
    worker_->supply(push.value(), input.data(), input.bytes());
    return pull.status();
  }
};

py::dict counters_dict(const node::WorkerCounters& counters) {
  const fabric::Counters& fabric = counters.fabric;
  py::dict dict;
  dict["pushes"] = counters.pushes;
  dict["pulls"] = counters.pulls;
  dict["messages"] = counters.messages;
  dict["packed_records"] = counters.packed_records;
  dict["waited_for_credit"] = counters.waited_for_credit;
  dict["writes"] = fabric.writes;
  dict["write_bytes"] = fabric.write_bytes;
  dict["arrivals"] = fabric.arrivals;
  dict["arrival_bytes"] = fabric.arrival_bytes;
  dict["sends"] = fabric.sends;
  dict["send_bytes"] = fabric.send_bytes;
  dict["copied_bytes"] = fabric.copied_bytes;
  dict["busy"] = fabric.busy;
  dict["sleeps"] = fabric.sleeps;
  dict["wakes"] = fabric.wakes;
  dict["rnr"] = fabric.rnr;
  dict["staged_bytes"] = fabric.staged_bytes;
  dict["registrations"] = fabric.registrations;
  dict["registered_bytes"] = fabric.registered_bytes;
  return dict;
}

}  // namespace

void bind_worker(py::module_& module) {
  py::class_<engine::ArrayLayout>(module, "ArrayLayout")
      .def(py::init([](int dtype, std::vector<int64_t> shape) {
             return engine::ArrayLayout{dtype, std::move(shape)};
           }),
           py::arg("dtype"), py::arg("shape"));

  py::class_<Engine, std::shared_ptr<Engine>>(module, "Engine")
      .def(py::init([](const std::string& path) {
             return value_or_raise(without_gil([&] { return Engine::open(path); }));
           }),
           py::arg("libmxnet_path"))
      .def_property_readonly("runs_inline", &Engine::runs_inline)
      .def(
          "fits",
          [](const Engine& self, uintptr_t handle, const engine::ArrayLayout& layout) {
            return self.fits(reinterpret_cast<void*>(handle), layout);
          },
          py::arg("handle"), py::arg("layout"));

  py::class_<PyWorker>(module, "Worker")
      .def(py::init<const node::NodeOptions&>(), py::arg("options"))
      .def("start", &PyWorker::start)
      .def_property_readonly("rank", [](const PyWorker& w) { return w.worker_->rank(); })
      .def_property_readonly("num_workers",
                             [](const PyWorker& w) { return w.worker_->num_workers(); })
      .def_property_readonly("num_servers",
                             [](const PyWorker& w) { return w.worker_->num_servers(); })
      .def_property_readonly("round_timeout_ms",
                             [](const PyWorker& w) { return w.worker_->config().round_timeout_ms; })
      .def_property_readonly("stall_report_ms",
                             [](const PyWorker& w) { return w.worker_->config().stall_report_ms; })
      .def("summary", [](const PyWorker& w) { return w.worker_->summary(); })
      .def("counters", [](const PyWorker& w) { return counters_dict(w.worker_->counters()); })
      .def("barrier", &PyWorker::barrier)
      .def("register_keys", &PyWorker::register_keys, py::arg("keys"))
      .def("set_optimizer", &PyWorker::set_optimizer, py::arg("spec"))
      .def("push", &PyWorker::push, py::arg("engine"), py::arg("key"), py::arg("handle"),
           py::arg("hyper"), py::arg("priority"), py::arg("initial") = false)
      .def("pull", &PyWorker::pull, py::arg("engine"), py::arg("key"), py::arg("handle"),
           py::arg("priority"))
      .def("pushpull", &PyWorker::pushpull, py::arg("engine"), py::arg("key"), py::arg("handle"),
           py::arg("out_handle"), py::arg("hyper"), py::arg("priority"))
      .def("push_buffer", &PyWorker::push_buffer, py::arg("key"), py::arg("data"), py::arg("hyper"),
           py::arg("priority") = 0, py::arg("initial") = false)
      .def("pull_buffer", &PyWorker::pull_buffer, py::arg("key"), py::arg("out"),
           py::arg("priority") = 0)
      .def("pushpull_buffers", &PyWorker::pushpull_buffers, py::arg("keys"), py::arg("data"),
           py::arg("out"), py::arg("hyper"))
      .def("drain", &PyWorker::drain, py::arg("timeout_ms"))
      .def("failure",
           [](const PyWorker& w) -> std::optional<std::pair<std::string, std::string>> {
             const Status status = w.worker_->failure();
             if (status.is_ok()) return std::nullopt;
             return std::make_pair(std::string(code_name(status.code())), status.message());
           })
      .def(
          "fail",
          [](const PyWorker& w, const std::string& message) {
            w.worker_->fail(Status(Code::cancelled, message));
          },
          py::arg("message"))
      .def("leave", &PyWorker::leave);
}

}  // namespace mxrdma::bindings
