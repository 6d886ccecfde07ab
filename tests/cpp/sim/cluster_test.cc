// Whole jobs from seeds: exact results without faults; with faults, every operation ends in its
// result or in an error that names who was lost, within the documented limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"
#include "cluster.h"

namespace mxrdma::node {
namespace {

// More with MXRDMA_SIM_SEEDS=<count>, one alone with MXRDMA_SIM_FIRST=<seed> and a count of 1.
uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

template <typename Function>
void for_each_seed(uint64_t count, Function function) {
  set_log_level(LogLevel::off);
  const uint64_t first = number("MXRDMA_SIM_FIRST", 1);
  const uint64_t end = first + number("MXRDMA_SIM_SEEDS", count);
  for (uint64_t seed = first; seed < end; ++seed) {
    function(seed);
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << "; again with MXRDMA_SIM_FIRST=" << seed
                    << " MXRDMA_SIM_SEEDS=1";
      return;
    }
  }
}

ClusterConfig random_config(uint64_t seed, Random* random) {
  ClusterConfig config;
  config.seed = seed;
  config.workers = static_cast<uint32_t>(random->between(1, 4));
  config.servers = static_cast<uint32_t>(random->between(1, 3));
  config.job.workers = config.workers;
  config.job.servers = config.servers;
  config.job.slot_bytes = random->one_in(2) ? kMinSlotBytes : 16384;
  config.job.slots_per_worker =
      static_cast<uint32_t>(random->one_in(2) ? 2 : random->between(1, 8));
  config.job.staleness = static_cast<uint32_t>(random->between(0, 2));
  config.job.heartbeat_interval_ms = kHeartbeatIntervalMs;
  config.job.heartbeat_timeout_ms = kHeartbeatTimeoutMs;
  config.job.stall_report_ms = kStallReportMs;
  config.job.round_timeout_ms = kRoundTimeoutMs;
  config.job.barrier_timeout_ms = kBarrierTimeoutMs;
  config.latency.max_us = random->one_in(3) ? 20'000 : 50;
  config.script = Script::random(random);
  return config;
}

fabric::FaultPlan delays(uint64_t seed) {
  fabric::FaultPlan plan;
  plan.seed = seed;
  plan.delay_one_in = 4;
  plan.delay_done_one_in = 4;
  return plan;
}

// The slowest worker makes all its calls one after the other; everything else takes seconds.
int64_t limit_without_faults_ms(const ClusterConfig& config) {
  int64_t calls = 0;
  for (const Script::Key& key : config.script.keys) calls += 3 * (key.rounds + 1);
  return calls * config.script.slow_ms + 60'000;
}

void expect_success(Cluster* cluster, const ClusterConfig& config) {
  const bool ended = cluster->run(limit_without_faults_ms(config));
  ASSERT_TRUE(ended) << cluster->describe();
  EXPECT_TRUE(cluster->scheduler()->status().is_ok()) << cluster->describe();
  for (const WorkerProcess* worker : cluster->workers()) {
    EXPECT_EQ(worker->wrong(), "");
    EXPECT_TRUE(worker->succeeded()) << cluster->describe();
  }
  for (WorkerProcess* worker : cluster->workers())
    EXPECT_EQ(fabric::SimNetwork::regions(*worker->endpoint()), 0u) << "arrays still registered";
  for (const ServerProcess* server : cluster->servers()) {
    EXPECT_TRUE(server->core().status().is_ok()) << cluster->describe();
    EXPECT_EQ(server->core().report_on_loop().bytes.accumulators, 0u) << "an open round";
  }
}

TEST(Cluster, SumsAreExactInAnyOrderOfCalls) {
  for_each_seed(600, [](uint64_t seed) {
    Random random(seed);
    const ClusterConfig config = random_config(seed, &random);
    Cluster cluster(config);
    expect_success(&cluster, config);
  });
}

TEST(Cluster, SumsAreExactWhenEventsAreDelayed) {
  for_each_seed(300, [](uint64_t seed) {
    Random random(seed);
    ClusterConfig config = random_config(seed, &random);
    for (uint32_t i = 0; i < 1 + config.servers + config.workers; ++i)
      config.plans.push_back(delays(seed * 100 + i));
    Cluster cluster(config);
    expect_success(&cluster, config);
  });
}

// Workers that do the same in the same order, as in training: what waits for memory gets it.
TEST(Cluster, LittleMemoryThatMayBePinnedDelaysAndLosesNothing) {
  for_each_seed(300, [](uint64_t seed) {
    Random random(seed);
    ClusterConfig config = random_config(seed, &random);
    config.script.same_order = true;
    config.script.lands_in_own_memory = false;
    config.script.most_regions = random.between(1, 3);
    Cluster cluster(config);
    expect_success(&cluster, config);
  });
}

// More requests at once than a connection takes: what is too much has to wait, not to fail.
TEST(Cluster, AllKeysOfALargeModelArePulledAtOnce) {
  for_each_seed(2, [](uint64_t seed) {
    Random random(seed);
    ClusterConfig config = random_config(seed, &random);
    config.script = Script{};
    config.script.keys.assign(600, Script::Key{3, 1});
    config.script.first_batch = 600;
    config.script.pull_all_first = true;
    config.script.burst = 4000;
    Cluster cluster(config);
    expect_success(&cluster, config);
  });
}

// What the survivors may say about it. A worker that was through before the loss has succeeded.
void expect_failure_is_told(Cluster* cluster, const std::string& victim,
                            const std::vector<Code>& codes) {
  for (WorkerProcess* worker : cluster->workers()) {
    EXPECT_EQ(worker->wrong(), "") << cluster->describe();
    if (worker->killed() || worker->succeeded()) continue;
    const Status& failure = worker->core().failure();
    EXPECT_NE(std::find(codes.begin(), codes.end(), failure.code()), codes.end())
        << cluster->describe();
    EXPECT_NE(failure.message().find(victim), std::string::npos)
        << "does not name " << victim << "\n"
        << cluster->describe();
    EXPECT_EQ(worker->core().outstanding(), 0u);
  }
}

// From the loss of a process until all others are gone: its connections break at once, the verdict
// takes kVerdictMs, everyone waits for the scheduler's word up to kLeaveTimeoutMs, and so does the
// scheduler for everyone.
constexpr int64_t kLossLimitMs = kVerdictMs + 2 * kLeaveTimeoutMs + 5 * Process::kTickMs;

void kill_one(uint64_t seed, int role) {
  Random random(seed);
  ClusterConfig config = random_config(seed, &random);
  if (config.script.slow_ms == 0) config.script.slow_ms = 20;
  Cluster cluster(config);
  // After all have joined (some ms), anywhere in the job.
  const int64_t kill_at_ms = static_cast<int64_t>(random.between(1, 1 + random.below(3000)));
  Process* victim = nullptr;
  std::string name;
  int64_t killed_at_ms = -1;
  const bool ended = cluster.run(limit_without_faults_ms(config) + kLossLimitMs, [&] {
    if (victim || cluster.elapsed_ms() < kill_at_ms) return;
    for (const WorkerProcess* worker : cluster.workers())
      if (!worker->core().joined()) return;
    if (role == 0) victim = cluster.scheduler();
    if (role == 1) victim = cluster.servers()[random.below(config.servers)];
    if (role == 2) victim = cluster.workers()[random.below(config.workers)];
    name = role == 0   ? "scheduler"
           : role == 1 ? "on host " + victim->name()
                       : "on host " + victim->name();
    if (victim->exited()) return;
    killed_at_ms = cluster.elapsed_ms();
    victim->kill();
  });
  ASSERT_TRUE(ended) << cluster.describe();
  if (killed_at_ms < 0) return;  // the job was over before
  EXPECT_LE(cluster.elapsed_ms() - killed_at_ms, kLossLimitMs) << cluster.describe();
  const Code code = role == 0   ? Code::scheduler_lost
                    : role == 1 ? Code::server_lost
                                : Code::worker_lost;
  expect_failure_is_told(&cluster, name, {code});
}

TEST(Cluster, AKilledWorkerIsNamedByAll) {
  for_each_seed(300, [](uint64_t seed) { kill_one(seed, 2); });
}

TEST(Cluster, AKilledServerIsNamedByAll) {
  for_each_seed(300, [](uint64_t seed) { kill_one(seed, 1); });
}

TEST(Cluster, AKilledSchedulerIsNamedByAll) {
  for_each_seed(300, [](uint64_t seed) { kill_one(seed, 0); });
}

// A connection breaks while both of its ends live on: whoever is blamed, all are told and all end.
TEST(Cluster, ABrokenConnectionEndsTheWholeJob) {
  for_each_seed(300, [](uint64_t seed) {
    Random random(seed);
    ClusterConfig config = random_config(seed, &random);
    config.plans.resize(1 + config.servers + config.workers);
    fabric::FaultPlan& plan = config.plans[1 + random.below(config.servers + config.workers)];
    plan.seed = seed;
    // Behind the Join: of a node whose first word is lost nobody knows, so the others wait for it.
    plan.break_after_operations = 1 + random.below(120);
    Cluster cluster(config);
    int64_t broken_at_ms = -1;
    const bool ended = cluster.run(limit_without_faults_ms(config) + kLossLimitMs, [&] {
      for (const Process* process : cluster.all())
        if (broken_at_ms < 0 && process->faulty().broke()) broken_at_ms = cluster.elapsed_ms();
    });
    SCOPED_TRACE(plan.to_string());
    // A break before a node's book came leaves it joining until that limit.
    ASSERT_TRUE(ended) << cluster.describe();
    if (broken_at_ms >= 0) {
      EXPECT_LE(cluster.elapsed_ms() - broken_at_ms, kLossLimitMs) << cluster.describe();
    }
    const std::vector<Code> losses = {Code::worker_lost, Code::server_lost, Code::scheduler_lost,
                                      Code::fabric};  // a server that was never reached
    expect_failure_is_told(&cluster, "", losses);
  });
}

// A node falls silent. The others hear it from the scheduler once its heartbeats are missing.
TEST(Cluster, ASilentNodeIsNamedByTheOthers) {
  for_each_seed(200, [](uint64_t seed) {
    Random random(seed);
    ClusterConfig config = random_config(seed, &random);
    config.script.slow_ms = 50;
    Cluster cluster(config);
    const bool is_server = random.one_in(2);
    Process* victim = is_server
                          ? static_cast<Process*>(cluster.servers()[random.below(config.servers)])
                          : cluster.workers()[random.below(config.workers)];
    const int64_t silent_at_ms = static_cast<int64_t>(random.between(1, 500));
    bool silent = false;
    const int64_t limit_ms = silent_at_ms + kHeartbeatTimeoutMs + kLossLimitMs +
                             2 * kHeartbeatIntervalMs + limit_without_faults_ms(config);
    cluster.run(limit_ms, [&] {
      if (silent || cluster.elapsed_ms() < silent_at_ms || victim->exited()) return;
      for (const WorkerProcess* worker : cluster.workers())
        if (!worker->core().joined()) return;
      silent = true;
      cluster.network().isolate(victim->endpoint());
    });
    if (!silent) return;
    for (WorkerProcess* worker : cluster.workers()) {
      if (worker == victim || worker->succeeded()) continue;
      EXPECT_TRUE(worker->exited()) << cluster.describe();
      EXPECT_EQ(worker->wrong(), "");
      EXPECT_EQ(worker->core().failure().code(), is_server ? Code::server_lost : Code::worker_lost)
          << cluster.describe();
    }
    for (ServerProcess* server : cluster.servers())
      EXPECT_TRUE(server == victim || server->exited()) << cluster.describe();
    EXPECT_TRUE(cluster.scheduler()->exited()) << cluster.describe();
  });
}

}  // namespace
}  // namespace mxrdma::node
