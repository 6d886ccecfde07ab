// A worker with its script: what the user's training loop and MXNet's engine do.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cluster.h"

namespace mxrdma::node {
namespace {
constexpr size_t kGuard = 4;  // floats
constexpr float kGuardValue = -12345.5f;
constexpr size_t kUsedArrays = 6;

class SimHold final : public ArrayHold {
 public:
  explicit SimHold(std::shared_ptr<std::vector<float>> array) : array_(std::move(array)) {}
  const void* storage() const override { return array_.get(); }
  bool is_last() const override { return array_.use_count() == 1; }

 private:
  std::shared_ptr<std::vector<float>> array_;
};

}  // namespace

Script Script::random(Random* random) {
  Script script;
  const size_t keys = random->between(1, 6);
  for (size_t i = 0; i < keys; ++i) {
    Key key;
    // Single elements, parts of a slot, and several slots.
    key.elements = random->one_in(3) ? random->between(1, 20) : random->between(1, 6000);
    key.rounds = static_cast<uint32_t>(random->between(0, 5));
    script.keys.push_back(key);
  }
  script.first_batch = random->between(1, keys);
  script.sgd = random->one_in(2);
  script.barrier_after_init = random->one_in(2);
  script.same_order = random->one_in(2);
  script.max_open = static_cast<uint32_t>(random->between(1, 30));
  script.pull_one_in = static_cast<uint32_t>(random->between(1, 3));
  script.supply_late = random->one_in(2);
  script.arrays_repeat = random->one_in(2);
  script.keeps_registrations = random->one_in(2);
  script.lands_in_own_memory = random->one_in(4);
  script.slow_ms = random->one_in(3) ? static_cast<int64_t>(random->between(1, 3000)) : 0;
  return script;
}

float gradient_of(uint32_t rank, uint32_t key, uint32_t round, uint64_t element) {
  return static_cast<float>(
      (rank * 131 + key * 31 + round * 1009 + static_cast<uint32_t>(element % 997) * 3) % 2003);
}

float initial_of(uint32_t key, uint64_t element) {
  return static_cast<float>(key * 100 + element % 777);
}

float weight_of(const Script& script, uint32_t workers, uint32_t key, uint32_t round,
                uint64_t element) {
  if (round == 0) return initial_of(key, element);
  float weight = script.sgd ? initial_of(key, element) : 0;
  for (uint32_t r = script.sgd ? 1 : round; r <= round; ++r)
    for (uint32_t rank = 0; rank < workers; ++rank) {
      const float gradient = gradient_of(rank, key, r, element);
      weight += script.sgd ? -gradient : gradient;
    }
  return weight;
}

WorkerProcess::WorkerProcess(fabric::SimNetwork* network, const NodeOptions& options,
                             const Script& script, uint32_t workers, uint64_t seed,
                             const fabric::FaultPlan& plan)
    : Process(network, options.host_name, plan),
      script_(script),
      workers_(workers),
      random_(seed),
      core_(std::make_unique<WorkerCore>(fabric(), network, options)),
      rounds_(script.keys.size()) {
  if (script.slow_ms > 0 && random_.one_in(2)) pause_ms_ = script.slow_ms;
  core_->on_failure([this](const Status&) { failed_ = true; });
  core_->start_on_loop();
}

WorkerProcess::~WorkerProcess() { core_.reset(); }

void WorkerProcess::note(const std::string& what) {
  if (wrong_.empty()) wrong_ = name_ + ": " + what;
}

std::string WorkerProcess::progress() const {
  return "phase " + std::to_string(static_cast<int>(phase_)) + ", " +
         std::to_string(collectives_done_) + " collectives, " + std::to_string(plan_.size()) +
         " calls to make, " + std::to_string(in_flight_) + " open, " +
         std::to_string(core_->outstanding()) + " outstanding (" + core_->describe_outstanding() +
         "), failure: " + core_->failure().to_string() +
         (wrong_.empty() ? "" : ", WRONG: " + wrong_);
}

std::optional<int64_t> WorkerProcess::wants_turn_at_ms() const {
  if (phase_ == Phase::running && next_call_ms_ > network_->now_ms()) return next_call_ms_;
  return std::nullopt;
}

// ---- collectives

void WorkerProcess::enter(wire::Enter request) {
  waiting_ = true;
  core_->enter_on_loop(std::move(request), [this](const Result<wire::Release>& release) {
    if (!waiting_) note("a collective ended twice");
    waiting_ = false;
    ++collectives_done_;
    if (!release.is_ok() && core_->failure().is_ok())
      note("a collective was refused: " + release.status().to_string());
  });
}

// The n-th collective, the same on all workers. After the last one the calls are made.
void WorkerProcess::enter_next() {
  std::vector<wire::Enter> plan;
  auto keys = [&](size_t first, size_t end) {
    wire::Enter enter;
    enter.kind = wire::CollectiveKind::register_keys;
    enter.label = "init";
    for (size_t i = first; i < end; ++i) {
      wire::KeyRequest request;
      request.name = "i:" + std::to_string(i);
      request.updater_index = static_cast<int64_t>(i);
      request.elements = script_.keys[i].elements;
      request.shape = {static_cast<int64_t>(request.elements)};
      enter.keys.push_back(request);
    }
    plan.push_back(enter);
  };
  keys(0, script_.first_batch);
  if (script_.first_batch < script_.keys.size()) keys(script_.first_batch, script_.keys.size());
  if (script_.sgd) {
    wire::Enter enter;
    enter.kind = wire::CollectiveKind::set_optimizer;
    enter.label = "set_optimizer";
    enter.optimizer.kind = wire::OptimizerKind::sgd;
    enter.optimizer.name = "SGD";
    plan.push_back(enter);
  }
  if (collectives_done_ < plan.size()) return enter(plan[collectives_done_]);
  if (phase_ == Phase::collective) {
    phase_ = Phase::initialising;
    if (core_->rank() == 0)
      for (uint32_t key = 0; key < script_.keys.size(); ++key) {
        Call* call = open(true, true, key, 0);
        call->ready = true;
        core_->supply_on_loop(call->ticket, call->array->data(),
                              call->array->size() * sizeof(float));
      }
    return;
  }
  if (script_.barrier_after_init && collectives_done_ == plan.size()) {
    wire::Enter barrier;
    barrier.label = "barrier";
    return enter(barrier);
  }
  phase_ = Phase::running;
  plan_calls();
}

// ---- calls

void WorkerProcess::plan_calls() {
  Random shared(script_.keys[0].elements);
  Random& random = script_.same_order ? shared : random_;
  for (uint32_t key = 0; key < script_.keys.size(); ++key)
    for (uint32_t round = 0; round < script_.keys[key].rounds; ++round)
      plan_.emplace_back(true, key);
  // Any order of calls on any worker must be free of deadlock.
  for (size_t i = plan_.size(); i > 1; --i) std::swap(plan_[i - 1], plan_[random.below(i)]);
  for (size_t i = plan_.size(); i-- > 0;) {
    if (!random.one_in(script_.pull_one_in)) continue;
    // A pull at once behind its push, or of any key at any place. (In reverse.)
    const uint32_t key = random.one_in(4) ? static_cast<uint32_t>(random.below(script_.keys.size()))
                                          : plan_[i].second;
    plan_.insert(plan_.begin() + static_cast<std::ptrdiff_t>(i), {false, key});
  }
  if (!script_.pull_all_first) return;
  for (uint32_t key = 0; key < script_.keys.size(); ++key) plan_.emplace_back(false, key);
}

WorkerProcess::Call* WorkerProcess::open(bool is_push, bool is_initial, uint32_t key,
                                         uint32_t round) {
  auto call = std::make_unique<Call>();
  Call* raw = call.get();
  raw->is_push = is_push;
  raw->is_initial = is_initial;
  raw->key = key;
  raw->round = round;
  raw->ticket = next_ticket_++;
  const uint64_t elements = script_.keys[key].elements;
  raw->array = array_of(elements + (is_push ? 0 : 2 * kGuard));
  if (is_push)
    for (uint64_t i = 0; i < elements; ++i)
      (*raw->array)[i] =
          is_initial ? initial_of(key, i) : gradient_of(core_->rank(), key, round, i);
  calls_.push_back(std::move(call));
  ++in_flight_;
  auto done = [this, raw](const Status& status) { ended(raw, status); };
  const int priority = -static_cast<int>(key);
  if (is_push) {
    store::Hyper hyper;
    hyper.lr = 1;
    hyper.update_count = round;
    core_->open_push_on_loop(raw->ticket, key,
                             is_initial ? wire::PushKind::initial : wire::PushKind::gradient, hyper,
                             priority, done);
  } else {
    core_->open_pull_on_loop(raw->ticket, key, priority, done);
  }
  return raw;
}

void WorkerProcess::ended(Call* call, const Status& status) {
  if (call->ended) return note("an operation ended twice");
  call->ended = true;
  --in_flight_;
  if (status.is_ok()) {
    if (!call->ready) note("an operation succeeded before its array was there");
    if (!call->is_push) check_pull(*call);
  } else {
    if (core_->failure().is_ok()) note("an operation failed alone: " + status.to_string());
    if (status.message().empty()) note("a failure without a reason");
  }
  // From here on the array is the user's: who still reads it meets freed memory, and who still
  // writes into it is seen at the end.
  if (!call->is_push && !status.is_ok()) {
    std::fill(call->array->begin(), call->array->end(), kGuardValue);
    after_failure_.push_back(std::move(call->array));
  }
  if (script_.arrays_repeat && call->array) used_.push_back(call->array);
  call->array.reset();
  // Some go, so that others may come to lie at their addresses.
  if (used_.size() > kUsedArrays)
    used_.erase(used_.begin() + static_cast<std::ptrdiff_t>(random_.below(used_.size())));
}

std::shared_ptr<std::vector<float>> WorkerProcess::array_of(size_t elements) {
  for (auto used = used_.begin(); used != used_.end() && !random_.one_in(4); ++used) {
    if ((*used)->size() != elements) continue;
    std::shared_ptr<std::vector<float>> array = std::move(*used);
    used_.erase(used);
    std::fill(array->begin(), array->end(), kGuardValue);
    return array;
  }
  return std::make_shared<std::vector<float>>(elements, kGuardValue);
}

void WorkerProcess::check_pull(const Call& call) {
  const std::vector<float>& array = *call.array;
  for (size_t i = 0; i < kGuard; ++i)
    if (array[i] != kGuardValue || array[array.size() - 1 - i] != kGuardValue)
      return note("written outside of a pull's array");
  for (uint64_t i = 0; i < script_.keys[call.key].elements; ++i) {
    const float expected = weight_of(script_, workers_, call.key, call.round, i);
    if (array[kGuard + i] == expected) continue;
    return note("key " + std::to_string(call.key) + " round " + std::to_string(call.round) +
                " element " + std::to_string(i) + " is " + std::to_string(array[kGuard + i]) +
                ", not " + std::to_string(expected));
  }
}

// Says of one opened call that its array may be read or written.
bool WorkerProcess::ready_one() {
  std::vector<Call*> waiting;
  for (const auto& call : calls_)
    if (!call->ready && !call->ended) waiting.push_back(call.get());
  if (waiting.empty()) return false;
  Call* call = script_.supply_late ? waiting[random_.below(waiting.size())] : waiting.front();
  call->ready = true;
  const uint64_t bytes = script_.keys[call->key].elements * sizeof(float);
  if (call->is_push)
    core_->supply_on_loop(call->ticket, call->array->data(), bytes,
                          std::make_shared<SimHold>(call->array));
  else
    core_->grant_on_loop(call->ticket, call->array->data() + kGuard, bytes,
                         std::make_shared<SimHold>(call->array));
  return true;
}

bool WorkerProcess::make_call() {
  if (plan_.empty() || (script_.same_order && in_flight_ >= script_.max_open) ||
      network_->now_ms() < next_call_ms_)
    return false;
  const auto [is_push, key] = plan_.back();
  plan_.pop_back();
  if (is_push) ++rounds_[key];
  open(is_push, false, key, rounds_[key]);
  next_call_ms_ = network_->now_ms() + pause_ms_;
  return true;
}

bool WorkerProcess::act() {
  calls_.erase(
      std::remove_if(calls_.begin(), calls_.end(), [](const auto& call) { return call->ended; }),
      calls_.end());
  const int64_t now_ms = network_->now_ms();
  if (phase_ == Phase::leaving) {
    if (!core_->left() && now_ms < leave_deadline_ms_) return false;
    core_->fail_on_loop(Status(Code::closed, "the store was closed"), false);
    if (core_->outstanding() != 0 || in_flight_ != 0 || waiting_)
      note("something is outstanding at the end");
    for (const auto& array : after_failure_)
      if (std::any_of(array->begin(), array->end(), [](float x) { return x != kGuardValue; }))
        note("an array was written after its pull had failed");
    exit_process();
    return true;
  }
  const bool through = phase_ == Phase::running && plan_.empty() && in_flight_ == 0;
  if (failed_ || through) {
    succeeded_ = !failed_;
    ended_at_ms_ = now_ms;
    phase_ = Phase::leaving;
    leave_deadline_ms_ = now_ms + kLeaveTimeoutMs;
    core_->leave_on_loop();
    return true;
  }
  if (phase_ == Phase::joining) {
    if (!core_->joined()) return false;
    phase_ = Phase::collective;
  }
  if (waiting_) return false;
  if (phase_ != Phase::running) {
    if (phase_ == Phase::initialising && in_flight_ > 0) return false;
    enter_next();
    return true;
  }
  // Some calls, some arrays ready; the order of the two is any.
  bool happened = false;
  for (uint64_t i = random_.between(1, script_.burst); i > 0; --i) {
    happened = make_call() || happened;
    if (random_.one_in(2)) happened = ready_one() || happened;
  }
  // At least one becomes ready in a turn without calls, else the job would wait for us.
  return happened || ready_one();
}

}  // namespace mxrdma::node
