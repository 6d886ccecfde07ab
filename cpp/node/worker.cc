// The worker's thread: carries calls of other threads to the core and the core's results back.
#include "node/worker.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "node/worker_core.h"

namespace mxrdma::node {
namespace {

constexpr int kInterruptPollMs = 100;
constexpr int kLoopTickMs = 200;
constexpr std::chrono::milliseconds kCompletePoll{1};

// A result that one thread waits for and the progress thread gives. Shared, so that a waiter may
// give up.
template <typename T>
struct Slot {
  std::mutex mutex;
  std::condition_variable given_condition;
  bool given = false;
  T value;

  void give(T result) {
    std::lock_guard<std::mutex> lock(mutex);
    if (given) return;  // the first word counts
    value = std::move(result);
    given = true;
    given_condition.notify_all();
  }

  // False: the interrupt spoke first; `interrupted` says what.
  bool wait(const Interrupt& interrupt, Status* interrupted) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!given_condition.wait_for(lock, std::chrono::milliseconds(kInterruptPollMs),
                                     [this] { return given; })) {
      lock.unlock();
      *interrupted = interrupt ? interrupt() : Status::ok();
      lock.lock();
      if (!interrupted->is_ok()) return false;
    }
    return true;
  }
};

}  // namespace

struct Worker::Implementation {
  using Command = std::function<void(WorkerCore*)>;

  explicit Implementation(const NodeOptions& node_options) : options(node_options) {}

  // The order of commands is the order of the users' calls. Every command is one user operation in
  // flight or a step of one, so the queue is bounded by what the user has in flight.
  void post(Command command, bool wake) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      commands.push_back(std::move(command));
    }
    if (wake) fabric->wake();
  }

  // Signals are for the user's main thread.
  static void block_signals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
  }

  // A forked child has the memory but neither the thread nor the connections.
  Status check_process() const {
    if (!started) return Status(Code::closed, "the store is not connected");
    if (getpid() == pid) return Status::ok();
    return Status(Code::unsupported,
                  "the store was created in process " + std::to_string(pid) +
                      " and cannot be used in its forked child " + std::to_string(getpid()) +
                      "; use it in the parent only, or create it in the child before any fork");
  }

  void loop() {
    block_signals();
    SteadyClock clock;
    WorkerCore core(fabric.get(), &clock, options);
    core.on_failure([this](const Status& status) { note_failure(status); });
    core.start_on_loop();
    std::vector<fabric::Event> events;
    std::vector<Command> batch;
    int64_t next_tick_ms = clock.now_ms() + kLoopTickMs;
    bool told_joined = false;
    while (!finished) {
      events.clear();
      const int64_t wait_ms = std::max<int64_t>(0, next_tick_ms - clock.now_ms());
      fabric->poll(&events, static_cast<int>(wait_ms));
      for (const fabric::Event& event : events) core.on_event_on_loop(event);
      {
        std::lock_guard<std::mutex> lock(mutex);
        batch.swap(commands);
      }
      for (Command& command : batch) command(&core);
      batch.clear();
      if (clock.now_ms() >= next_tick_ms) {
        next_tick_ms = clock.now_ms() + kLoopTickMs;
        core.tick_on_loop();
        publish(core);
      }
      if (!told_joined && core.joined()) {
        told_joined = true;
        book = core.book();
        summary_text = core.summary();
        publish(core);
        start_slot->give(Status::ok());
      }
      if (core.left()) left_slot->give(Status::ok());
    }
    core.fail_on_loop(Status(Code::closed, "the store was closed"), false);
    publish(core);
    {
      std::lock_guard<std::mutex> lock(mutex);
      closed = true;
      batch.swap(commands);
    }
    for (Command& command : batch) command(&core);  // they end in the failure
  }

  void publish(const WorkerCore& core) {
    std::lock_guard<std::mutex> lock(mutex);
    published = core.counters();
  }

  void note_failure(const Status& status) {
    std::function<void(const Status&)> callback;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (failed.is_ok()) failed = status;
      callback = failure_callback;
    }
    start_slot->give(status);
    if (callback && status.code() != Code::closed) callback(status);
  }

  Status failure() const {
    std::lock_guard<std::mutex> lock(mutex);
    return failed;
  }

  NodeOptions options;
  std::unique_ptr<fabric::Fabric> fabric;
  std::thread thread;
  std::atomic<bool> finished{false};
  pid_t pid = 0;
  bool started = false, leaving = false;

  // commands, failed, published, closed, next_ticket, in_flight, configurer
  mutable std::mutex mutex;
  std::condition_variable idle_condition;
  std::vector<Command> commands;
  bool closed = false;
  Status failed;
  std::function<void(const Status&)> failure_callback;
  WorkerCounters published;
  Ticket next_ticket = 1;
  uint64_t in_flight = 0;
  std::thread::id configurer;  // who is in set_optimizer(), which may move keys between servers

  wire::AddressBook book;  // written before start_slot is given, constant afterwards
  std::string summary_text;
  std::shared_ptr<Slot<Status>> start_slot = std::make_shared<Slot<Status>>();
  std::shared_ptr<Slot<Status>> left_slot = std::make_shared<Slot<Status>>();

  Result<Ticket> open(const std::function<Command(Ticket, Completion)>& make, Completion done);
  using Outcome = Result<wire::Release>;
  using EnterSlot = std::shared_ptr<Slot<std::optional<Outcome>>>;
  Result<wire::Release> enter(wire::Enter enter, const Interrupt& interrupt);
  Result<EnterSlot> begin_or_go_on(const wire::Enter& enter);
  // A collective that was interrupted (Ctrl-C) and that the others are still in: whoever repeats
  // the call goes on with it. Guarded by mutex.
  struct Interrupted {
    wire::Enter enter;
    std::vector<std::vector<std::byte>> call;  // encoded, to compare
    EnterSlot slot;
  };
  std::optional<Interrupted> interrupted_call;
  Status complete(const Interrupt& interrupt);

  // While it lives, no other thread pushes, pulls or sets an optimizer.
  class Configuring {
   public:
    explicit Configuring(Implementation* worker) : worker_(worker) {
      std::lock_guard<std::mutex> lock(worker_->mutex);
      alone_ = worker_->configurer == std::thread::id();
      if (alone_) worker_->configurer = std::this_thread::get_id();
    }
    ~Configuring() {
      if (!alone_) return;
      std::lock_guard<std::mutex> lock(worker_->mutex);
      worker_->configurer = std::thread::id();
    }
    Configuring(const Configuring&) = delete;
    Configuring& operator=(const Configuring&) = delete;
    bool alone() const { return alone_; }

   private:
    Implementation* worker_;
    bool alone_ = false;
  };
};

Worker::Worker(const NodeOptions& options) : implementation_(new Implementation(options)) {}

Worker::~Worker() {
  const bool forked = implementation_->started && getpid() != implementation_->pid;
  Status status = leave();
  if (!status.is_ok()) log_debug("leaving: " + status.message());
  if (forked)
    static_cast<void>(
        implementation_.release());  // its destructors would touch the parent's connections
}

Status Worker::start(const Interrupt& interrupt) {
  Implementation& self = *implementation_;
  MXRDMA_CHECK(!self.started, "start() is called once");
  Status status = fabric::viable(self.options.policy);
  if (!status.is_ok()) return status;
  fabric::HostFabricOptions fabric_options;
  fabric_options.policy = self.options.policy;
  fabric_options.token = self.options.token;
  fabric_options.devices = self.options.devices;
  fabric_options.gid_index = self.options.gid_index;
  fabric_options.spin_us = self.options.spin_us;
  self.fabric = fabric::make_host_fabric(fabric_options);
  self.started = true;
  self.pid = getpid();
  self.thread = std::thread([&self] { self.loop(); });
  Status interrupted;
  if (!self.start_slot->wait(interrupt, &interrupted)) return interrupted;
  if (!self.start_slot->value.is_ok()) return self.start_slot->value;
  set_log_identity("worker " + std::to_string(rank()));
  return Status::ok();
}

uint32_t Worker::rank() const { return implementation_->book.your_rank; }
uint32_t Worker::num_workers() const { return implementation_->book.config.workers; }
uint32_t Worker::num_servers() const { return implementation_->book.config.servers; }
const wire::JobConfig& Worker::config() const { return implementation_->book.config; }
std::string Worker::summary() const { return implementation_->summary_text; }

WorkerCounters Worker::counters() const {
  Implementation& self = *implementation_;
  if (self.check_process().is_ok() && !self.finished) {
    auto slot = std::make_shared<Slot<WorkerCounters>>();
    self.post([slot](WorkerCore* core) { slot->give(core->counters()); }, true);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    Status interrupted;
    const Interrupt limit = [deadline] {
      return std::chrono::steady_clock::now() < deadline
                 ? Status::ok()
                 : Status(Code::closed, "the loop has ended");
    };
    if (slot->wait(limit, &interrupted)) return slot->value;
  }
  std::lock_guard<std::mutex> lock(self.mutex);
  return self.published;  // as they were at the end
}

// ---- collectives
// -------------------------------------------------------------------------------------------------

Result<Worker::Implementation::EnterSlot> Worker::Implementation::begin_or_go_on(
    const wire::Enter& enter) {
  std::optional<Interrupted> before;
  {
    std::lock_guard<std::mutex> lock(mutex);
    before.swap(interrupted_call);
  }
  if (before) {
    if (wire::encode(enter) == before->call) return before->slot;
    Status status(Code::invalid_argument,
                  enter.label + " cannot begin: " + before->enter.label +
                      " was interrupted, and the other workers are still in it; repeat that call "
                      "first, with the same arguments");
    std::lock_guard<std::mutex> lock(mutex);
    interrupted_call.swap(before);
    return status;
  }
  auto slot = std::make_shared<Slot<std::optional<Outcome>>>();
  post(
      [enter, slot](WorkerCore* core) {
        core->enter_on_loop(enter, [slot](const Outcome& outcome) { slot->give(outcome); });
      },
      true);
  return slot;
}

Result<wire::Release> Worker::Implementation::enter(wire::Enter enter, const Interrupt& interrupt) {
  Status status = check_process();
  if (status.is_ok()) status = failure();
  if (!status.is_ok()) return status;
  if (leaving) return Status(Code::closed, "the store is not connected");
  Result<EnterSlot> slot = begin_or_go_on(enter);
  if (!slot.is_ok()) return slot.status();
  // The scheduler ends it sooner: it waits so long for all workers, then so long for the servers.
  // This is for a scheduler that beats and does nothing else.
  const int64_t limit_ms = 2 * int64_t{book.config.barrier_timeout_ms} + kLeaveTimeoutMs;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  bool late = false;
  const Interrupt limited = [&] {
    late = std::chrono::steady_clock::now() >= deadline;
    if (late)
      return Status(Code::barrier_timeout, enter.label +
                                               ": the scheduler has not answered within " +
                                               std::to_string(limit_ms / 1000) + " s");
    return interrupt ? interrupt() : Status::ok();
  };
  Status interrupted;
  if (slot.value()->wait(limited, &interrupted)) return *slot.value()->value;
  if (late) {
    post([interrupted](WorkerCore* core) { core->fail_on_loop(interrupted, true); }, true);
  } else {
    std::vector<std::vector<std::byte>> call = wire::encode(enter);
    std::lock_guard<std::mutex> lock(mutex);
    interrupted_call = Interrupted{std::move(enter), std::move(call), slot.value()};
  }
  return interrupted;
}

Status Worker::barrier(const Interrupt& interrupt) {
  wire::Enter enter;
  enter.kind = wire::CollectiveKind::barrier;
  enter.label = "barrier";
  return implementation_->enter(std::move(enter), interrupt).status();
}

Result<std::vector<uint32_t>> Worker::register_keys(const std::vector<wire::KeyRequest>& keys,
                                                    const Interrupt& interrupt) {
  if (keys.empty()) return std::vector<uint32_t>();
  for (const wire::KeyRequest& key : keys) {
    if (key.name.size() > kMaxKeyNameBytes)
      return Status(Code::invalid_argument, "a key's name of " + std::to_string(key.name.size()) +
                                                " bytes; at most " +
                                                std::to_string(kMaxKeyNameBytes) + " are allowed");
    if (!wire::well_formed_name(key.name))
      return Status(Code::invalid_argument,
                    "the key's name '" + key.name + "' starts with neither i: nor s:");
  }
  wire::Enter enter;
  enter.kind = wire::CollectiveKind::register_keys;
  enter.label = "init of key " + wire::shown_name(keys.front().name) +
                (keys.size() > 1 ? " and " + std::to_string(keys.size() - 1) + " more" : "");
  enter.keys = keys;
  Result<wire::Release> release = implementation_->enter(std::move(enter), interrupt);
  if (!release.is_ok()) return release.status();
  std::vector<uint32_t> ids;
  for (const wire::KeySpec& spec : release.value().keys) ids.push_back(spec.id);
  if (ids.size() != keys.size())
    return Status(Code::internal, "the scheduler placed another number of keys");
  return ids;
}

// Waits until the rounds of all operations are complete. That is more than drain(): the memory of a
// push is free as soon as it has left.
Status Worker::Implementation::complete(const Interrupt& interrupt) {
  const int64_t limit_ms = book.config.round_timeout_ms;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  Status status = check_process();
  while (status.is_ok()) {
    auto slot = std::make_shared<Slot<std::string>>();
    post([slot](WorkerCore* core) { slot->give(core->describe_outstanding()); }, true);
    Status interrupted;
    if (!slot->wait(interrupt, &interrupted)) return interrupted;
    if (slot->value.empty()) return failure();
    if (std::chrono::steady_clock::now() >= deadline)
      return Status(Code::round_timeout,
                    "not complete after " + std::to_string(limit_ms) + " ms: " + slot->value);
    std::this_thread::sleep_for(kCompletePoll);
    status = interrupt ? interrupt() : Status::ok();
  }
  return status;
}

Status Worker::set_optimizer(const wire::OptimizerSpec& spec, const Interrupt& interrupt) {
  Implementation& self = *implementation_;
  const Implementation::Configuring configuring(&self);
  if (!configuring.alone())
    return Status(Code::invalid_argument, "set_optimizer is under way in another thread");
  // The rest of the message needs some room too.
  if (spec.pickle.size() > kMaxBlobBytes - kMaxMessageBytes)
    return Status(Code::invalid_argument, "the optimizer " + spec.name + " pickles to " +
                                              std::to_string(spec.pickle.size()) +
                                              " bytes; at most " +
                                              std::to_string(kMaxBlobBytes - kMaxMessageBytes) +
                                              " can be sent to the servers. Does it hold data?");
  Status status = self.complete(interrupt);
  if (!status.is_ok()) return status;
  const int round_limit_ms = static_cast<int>(
      std::min<uint32_t>(config().round_timeout_ms, std::numeric_limits<int>::max()));
  // Keys that would have to move to one server each are read before the servers drop them. Nobody
  // can complete a round meanwhile: that takes our push, and all of ours are complete.
  struct Saved {
    uint32_t id = 0;
    std::vector<std::byte> bytes;
  };
  auto saved = std::make_shared<std::vector<Saved>>();
  if (spec.kind == wire::OptimizerKind::python && rank() == 0 && num_servers() > 1) {
    auto plan = std::make_shared<Slot<bool>>();
    self.post(
        [saved, plan](WorkerCore* core) {
          for (const auto& entry : core->split_keys())
            saved->push_back({entry.first, std::vector<std::byte>(entry.second)});
          plan->give(true);
        },
        true);
    Status interrupted;
    if (!plan->wait(interrupt, &interrupted)) return interrupted;
    for (Saved& key : *saved) {
      Result<Ticket> pull = open_pull(key.id, 0, [](const Status&) {});
      if (!pull.is_ok()) return pull.status();
      grant(pull.value(), key.bytes.data(), key.bytes.size());
    }
    status = drain(round_limit_ms, interrupt);
    if (!status.is_ok()) return status;
  }
  wire::Enter enter;
  enter.kind = wire::CollectiveKind::set_optimizer;
  enter.label = "set_optimizer";
  enter.optimizer = spec;
  if (rank() != 0)
    enter.optimizer.pickle.clear();  // rank 0's is used; the others only have to agree on its name
  Status interrupted;
  const Interrupt noted = [&] { return interrupted = interrupt ? interrupt() : Status::ok(); };
  Result<wire::Release> release = self.enter(std::move(enter), noted);
  if (!interrupted.is_ok()) {
    // Keys may move at any moment, and their values are with this call: it cannot be repeated.
    fail(Status(Code::cancelled,
                "set_optimizer was interrupted half-way: " + interrupted.message()));
    return interrupted;
  }
  if (!release.is_ok()) return release.status();
  if (rank() != 0) return Status::ok();
  for (const wire::KeySpec& moved : release.value().moved) {
    auto found = std::find_if(saved->begin(), saved->end(),
                              [&](const Saved& key) { return key.id == moved.id; });
    if (found == saved->end())
      return Status(Code::internal,
                    "key " + wire::shown_name(moved.request.name) + " moved unexpectedly");
    Result<Ticket> push =
        open_push(moved.id, wire::PushKind::initial, store::Hyper{}, 0, [saved](const Status&) {});
    if (!push.is_ok()) return push.status();
    supply(push.value(), found->bytes.data(), found->bytes.size());
  }
  return drain(round_limit_ms, interrupt);
}

// ---- operations
// --------------------------------------------------------------------------------------------------

Result<Ticket> Worker::Implementation::open(const std::function<Command(Ticket, Completion)>& make,
                                            Completion done) {
  Status process = check_process();
  if (!process.is_ok()) return process;
  std::lock_guard<std::mutex> lock(mutex);
  if (!failed.is_ok()) return failed;
  if (closed || leaving) return Status(Code::closed, "the store is not connected");
  if (configurer != std::thread::id() && configurer != std::this_thread::get_id())
    return Status(
        Code::invalid_argument,
        "set_optimizer is under way in another thread; push and pull after it has returned");
  const Ticket ticket = next_ticket++;
  ++in_flight;
  Completion counted = [this, done = std::move(done)](const Status& status) {
    done(status);
    std::lock_guard<std::mutex> guard(mutex);
    if (--in_flight == 0) idle_condition.notify_all();
  };
  commands.push_back(make(ticket, std::move(counted)));
  return ticket;
}

Result<Ticket> Worker::open_push(uint32_t key, wire::PushKind kind, const store::Hyper& hyper,
                                 int priority, Completion done) {
  return implementation_->open(
      [=](Ticket ticket, Completion completion) {
        return [=](WorkerCore* core) {
          core->open_push_on_loop(ticket, key, kind, hyper, priority, completion);
        };
      },
      std::move(done));
}

Result<Ticket> Worker::open_pull(uint32_t key, int priority, Completion done) {
  return implementation_->open(
      [=](Ticket ticket, Completion completion) {
        return
            [=](WorkerCore* core) { core->open_pull_on_loop(ticket, key, priority, completion); };
      },
      std::move(done));
}

void Worker::supply(Ticket ticket, const void* data, size_t bytes, Hold hold) {
  implementation_->post([=, hold = std::move(hold)](
                            WorkerCore* core) { core->supply_on_loop(ticket, data, bytes, hold); },
                        true);
}

void Worker::grant(Ticket ticket, void* data, size_t bytes, Hold hold) {
  implementation_->post([=, hold = std::move(hold)](
                            WorkerCore* core) { core->grant_on_loop(ticket, data, bytes, hold); },
                        true);
}

void Worker::abandon(Ticket ticket, const Status& why) {
  implementation_->post([=](WorkerCore* core) { core->abandon_on_loop(ticket, why); }, true);
}

// ---- ends
// --------------------------------------------------------------------------------------------------------

Status Worker::drain(int timeout_ms, const Interrupt& interrupt) {
  Implementation& self = *implementation_;
  Status process = self.check_process();
  if (!process.is_ok()) return process;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock<std::mutex> lock(self.mutex);
  while (self.in_flight != 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      const uint64_t count = self.in_flight;
      lock.unlock();
      auto slot = std::make_shared<Slot<std::string>>();
      self.post([slot](WorkerCore* core) { slot->give(core->describe_outstanding()); }, true);
      Status interrupted;
      const std::string what = slot->wait(interrupt, &interrupted) ? slot->value : std::string();
      return Status(Code::round_timeout, std::to_string(count) +
                                             " operations are not complete after " +
                                             std::to_string(timeout_ms) + " ms: " + what);
    }
    self.idle_condition.wait_for(
        lock, std::chrono::milliseconds(std::min(kInterruptPollMs, std::max(1, timeout_ms))));
    lock.unlock();
    Status interrupted = interrupt ? interrupt() : Status::ok();
    if (!interrupted.is_ok()) return interrupted;
    lock.lock();
  }
  return self.failed;
}

Status Worker::failure() const { return implementation_->failure(); }

void Worker::on_failure(std::function<void(const Status&)> callback) {
  std::lock_guard<std::mutex> lock(implementation_->mutex);
  implementation_->failure_callback = std::move(callback);
}

void Worker::fail(const Status& why) {
  if (!implementation_->check_process().is_ok()) return;
  implementation_->post([why](WorkerCore* core) { core->fail_on_loop(why, true); }, true);
}

Status Worker::leave() {
  Implementation& self = *implementation_;
  if (self.started && getpid() != self.pid) {
    // In a forked child there is no thread to join, and the connections are the parent's to end.
    self.thread.detach();
    self.started = false;
    return Status::ok();
  }
  {
    std::lock_guard<std::mutex> lock(self.mutex);
    if (!self.started || self.leaving) return Status::ok();
    self.leaving = true;
  }
  self.post([](WorkerCore* core) { core->leave_on_loop(); }, true);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(kLeaveTimeoutMs);
  Status interrupted;
  const bool acknowledged = self.left_slot->wait(
      [&] {
        return std::chrono::steady_clock::now() < deadline
                   ? Status::ok()
                   : Status(Code::scheduler_lost,
                            "the scheduler did not acknowledge our leave within " +
                                std::to_string(kLeaveTimeoutMs) + " ms");
      },
      &interrupted);
  self.finished = true;
  self.fabric->wake();
  if (self.thread.joinable()) self.thread.join();
  return acknowledged ? Status::ok() : interrupted;
}

}  // namespace mxrdma::node
