// A whole job in one thread and in virtual time: the scheduler's, servers' and workers' cores over
// the simulated network, driven from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fabric/faulty/faulty_fabric.h"
#include "fabric/sim/sim_network.h"
#include "node/scheduler_core.h"
#include "node/server_core.h"
#include "node/worker_core.h"

namespace mxrdma::node {

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}
  uint64_t below(uint64_t bound) { return generator_() % bound; }
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 generator_;
};

// One process. The three roles differ in what they do in a turn.
class Process {
 public:
  static constexpr int64_t kTickMs = 200;  // as the threads of worker.cc, server.cc, scheduler.cc

  Process(fabric::SimNetwork* network, std::string name, const fabric::FaultPlan& plan);
  virtual ~Process() = default;

  // Handles what is due. True: something happened.
  bool turn();
  int64_t next_tick_ms() const { return next_tick_ms_; }
  // Sooner than the tick, if the process means to do something by itself.
  virtual std::optional<int64_t> wants_turn_at_ms() const { return std::nullopt; }
  bool exited() const { return exited_; }
  bool killed() const { return killed_; }
  void kill();
  fabric::Fabric* endpoint() { return faulty_->inner(); }
  const fabric::FaultyFabric& faulty() const { return *faulty_; }
  const std::string& name() const { return name_; }

 protected:
  virtual void on_event(const fabric::Event& event) = 0;
  virtual void on_tick() = 0;
  // After the events of a turn. True: something happened.
  virtual bool act() = 0;
  fabric::Fabric* fabric() { return faulty_.get(); }
  // As a process ends: all connections go.
  void exit_process() { exited_ = true; }

  fabric::SimNetwork* network_;
  std::string name_;
  std::unique_ptr<fabric::FaultyFabric> faulty_;
  int64_t next_tick_ms_;
  bool exited_ = false, killed_ = false;
  std::vector<fabric::Event> events_;
};

class SchedulerProcess final : public Process {
 public:
  SchedulerProcess(fabric::SimNetwork* network, const NodeOptions& options,
                   const wire::JobConfig& config, const fabric::FaultPlan& plan);
  const Status& status() const { return core_.status(); }

 private:
  void on_event(const fabric::Event& event) override { core_.on_event_on_loop(event); }
  void on_tick() override { core_.tick_on_loop(); }
  bool act() override;
  SchedulerCore core_;
};

class ServerProcess final : public Process {
 public:
  ServerProcess(fabric::SimNetwork* network, const NodeOptions& options,
                const fabric::FaultPlan& plan);
  ~ServerProcess() override;
  const ServerCore& core() const { return *core_; }

 private:
  void on_event(const fabric::Event& event) override { core_->on_event_on_loop(event); }
  void on_tick() override { core_->tick_on_loop(); }
  bool act() override;
  std::unique_ptr<ServerCore> core_;
  bool leaving_ = false;
  int64_t leave_deadline_ms_ = 0;
};

// What the workers of a job do. All of it follows from the seed.
struct Script {
  struct Key {
    uint64_t elements = 0;
    uint32_t rounds = 0;
  };
  std::vector<Key> keys;
  size_t first_batch = 0;  // keys registered by the first collective; the rest by a second
  bool sgd = false;        // else the weights are the last round's sum
  bool barrier_after_init = false;
  // All workers make their calls in one order and wait for the oldest when so many are open. Else
  // each has its own order and waits for none: a wait would be the user's own deadlock.
  bool same_order = false;
  uint32_t max_open = 1;
  bool pull_all_first = false;  // as after broadcast of a whole model
  uint32_t burst = 8;           // most calls of one turn
  uint32_t pull_one_in = 2;     // pushes without a pull behind them
  bool supply_late = false;     // arrays become ready in any order, as with MXNet's engine
  bool arrays_repeat = false;   // arrays of earlier calls are used again, most of the time
  size_t most_regions = SIZE_MAX;
  bool keeps_registrations = false, lands_in_own_memory = false;  // see fabric.h
  int64_t slow_ms = 0;  // the slowest worker waits so long between calls

  static Script random(Random* random);
};

// Exact in float32: whole numbers far below 2^24.
float gradient_of(uint32_t rank, uint32_t key, uint32_t round, uint64_t element);
float initial_of(uint32_t key, uint64_t element);
float weight_of(const Script& script, uint32_t workers, uint32_t key, uint32_t round,
                uint64_t element);

class WorkerProcess final : public Process {
 public:
  WorkerProcess(fabric::SimNetwork* network, const NodeOptions& options, const Script& script,
                uint32_t workers, uint64_t seed, const fabric::FaultPlan& plan);
  ~WorkerProcess() override;

  std::optional<int64_t> wants_turn_at_ms() const override;
  const WorkerCore& core() const { return *core_; }
  bool succeeded() const { return succeeded_; }
  const std::string& wrong() const { return wrong_; }
  std::string progress() const;
  int64_t ended_at_ms() const { return ended_at_ms_; }

 private:
  enum class Phase { joining, collective, initialising, running, leaving };
  struct Call {
    bool is_push = false, is_initial = false;
    uint32_t key = 0, round = 0;  // pull: the round whose result it gets
    bool ready = false, ended = false;
    Ticket ticket = 0;
    std::shared_ptr<std::vector<float>> array;  // a pull's has a guard at each end
  };

  void on_event(const fabric::Event& event) override { core_->on_event_on_loop(event); }
  void on_tick() override { core_->tick_on_loop(); }
  bool act() override;
  bool make_call();
  bool ready_one();
  void plan_calls();
  void enter_next();
  void enter(wire::Enter enter);
  Call* open(bool is_push, bool is_initial, uint32_t key, uint32_t round);
  void ended(Call* call, const Status& status);
  std::shared_ptr<std::vector<float>> array_of(size_t elements);
  void check_pull(const Call& call);
  void note(const std::string& what);

  Script script_;
  uint32_t workers_;
  Random random_;
  std::unique_ptr<WorkerCore> core_;
  Phase phase_ = Phase::joining;
  uint32_t collectives_done_ = 0;
  bool waiting_ = false;                         // for a collective
  std::vector<std::pair<bool, uint32_t>> plan_;  // is push, key; in reverse
  std::vector<uint32_t> rounds_;                 // opened, by key
  std::vector<std::unique_ptr<Call>> calls_;     // open ones, and pulls that failed
  std::vector<std::shared_ptr<std::vector<float>>> after_failure_;  // must stay as they are
  std::vector<std::shared_ptr<std::vector<float>>> used_;           // to be used again
  size_t in_flight_ = 0;
  Ticket next_ticket_ = 1;
  int64_t next_call_ms_ = 0, pause_ms_ = 0;
  int64_t leave_deadline_ms_ = 0, ended_at_ms_ = 0;
  bool succeeded_ = false, failed_ = false;
  std::string wrong_;
};

struct ClusterConfig {
  uint64_t seed = 0;
  uint32_t workers = 1, servers = 1;
  wire::JobConfig job;
  Script script;
  std::vector<fabric::FaultPlan> plans;  // by process: scheduler, servers, workers; may be short
  fabric::SimLatency latency;
};

class Cluster {
 public:
  explicit Cluster(const ClusterConfig& config);
  // Until all have exited or nothing can happen before `limit_ms` of virtual time. False: some are
  // still there. `each_turn` may break things.
  bool run(int64_t limit_ms, const std::function<void()>& each_turn = {});

  fabric::SimNetwork& network() { return network_; }
  int64_t elapsed_ms() const { return network_.now_ms() - start_ms_; }
  SchedulerProcess* scheduler() { return scheduler_; }
  const std::vector<ServerProcess*>& servers() const { return servers_; }
  const std::vector<WorkerProcess*>& workers() const { return workers_; }
  std::vector<Process*> all() const;
  std::string describe() const;

 private:
  ClusterConfig config_;
  fabric::SimNetwork network_;
  Random random_;
  int64_t start_ms_;
  std::vector<std::unique_ptr<Process>> processes_;
  SchedulerProcess* scheduler_ = nullptr;
  std::vector<ServerProcess*> servers_;
  std::vector<WorkerProcess*> workers_;
};

}  // namespace mxrdma::node
