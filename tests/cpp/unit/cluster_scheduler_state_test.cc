// The scheduler's rules in virtual time: joining, leaving, loss, collectives.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cluster/scheduler_state.h"

namespace mxrdma::cluster {
namespace {

using Phase = SchedulerState::Phase;
using wire::Role;

SchedulerConfig make_config(uint32_t workers, uint32_t servers) {
  SchedulerConfig config;
  config.job.workers = workers;
  config.job.servers = servers;
  config.job.slot_bytes = 65536;
  config.job.slots_per_worker = 4;
  config.job.heartbeat_interval_ms = 1000;
  config.job.heartbeat_timeout_ms = 15000;
  config.job.stall_report_ms = 60000;
  config.job.round_timeout_ms = 1800000;
  config.job.barrier_timeout_ms = 1800000;
  config.join_timeout_ms = 120000;
  config.leave_timeout_ms = 10000;
  config.generation = 99;
  return config;
}

// A scheduler with its clock and a record of everything it said.
struct Job {
  explicit Job(uint32_t workers = 2, uint32_t servers = 1) : Job(make_config(workers, servers)) {}
  explicit Job(const SchedulerConfig& config) : state(config, 0) {}

  void join(Member member, Role role, uint32_t preferred = wire::kAnyRank) {
    wire::Join join;
    join.role = role;
    join.preferred_rank = preferred;
    join.pid = 1000 + member;
    join.host = "h" + std::to_string(member);
    if (role == Role::server) {
      join.listen_host = "10.0.0." + std::to_string(member);
      join.listen_port = 5000;
    }
    say(member, join);
  }
  void say(Member member, wire::Message message) {
    state.on_message(member, std::move(message), now_ms, &effects);
    sort();
  }
  void enter(Member member, uint64_t sequence, const std::string& label = "barrier",
             wire::CollectiveKind kind = wire::CollectiveKind::barrier) {
    wire::Enter enter;
    enter.sequence = sequence;
    enter.kind = kind;
    enter.label = label;
    say(member, enter);
  }
  void lose(Member member, const std::string& reason = "connection closed by peer") {
    state.connection_lost(member, reason, now_ms, &effects);
    sort();
  }
  void tick() {
    state.tick(now_ms, &effects);
    sort();
  }
  // Ticks each second; those in `alive` beat.
  void pass(int64_t ms, const std::vector<Member>& alive) {
    for (const int64_t end_ms = now_ms + ms; now_ms < end_ms;) {
      now_ms += 1000;
      for (Member member : alive) say(member, wire::Heartbeat{1});
      tick();
    }
  }
  // Files the effects by what they are; answers `complete` at once if asked to.
  void sort() {
    for (size_t i = 0; i < effects.size(); ++i) {
      Effect effect = effects[i];
      switch (effect.kind) {
        case Effect::Kind::send:
          for (Member member : effect.to) heard[member].push_back(effect.message);
          break;
        case Effect::Kind::drop:
          dropped.insert(effect.to[0]);
          break;
        case Effect::Kind::close:
          closed.insert(effect.to[0]);
          break;
        case Effect::Kind::complete:
          completed.push_back(effect);
          if (answer_at_once) state.release(effect.sequence, wire::Release{}, &effects);
          break;
        case Effect::Kind::log:
          logged.push_back(effect.text);
          break;
      }
    }
    effects.clear();
  }
  template <typename T>
  std::vector<T> all(Member member) {
    std::vector<T> found;
    for (const wire::Message& message : heard[member])
      if (const T* body = std::get_if<T>(&message)) found.push_back(*body);
    return found;
  }
  // Two workers (members 1, 2: ranks 0, 1) and a server (member 3).
  Job& started() {
    join(3, Role::server);
    join(1, Role::worker);
    join(2, Role::worker);
    EXPECT_EQ(state.phase(), Phase::running);
    return *this;
  }

  SchedulerState state;
  int64_t now_ms = 0;
  bool answer_at_once = true;
  Effects effects;
  std::map<Member, std::vector<wire::Message>> heard;
  std::set<Member> dropped, closed;
  std::vector<Effect> completed;
  std::vector<std::string> logged;
};

Code code_of(const wire::Release& release) { return static_cast<Code>(release.code); }
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- joining

TEST(ClusterJoin, RanksFollowPreferencesThenArrival) {
  Job job(4, 2);
  job.join(10, Role::worker);
  job.join(11, Role::worker, 0);
  job.join(12, Role::server);
  job.join(13, Role::worker);
  job.join(14, Role::server, 0);
  EXPECT_TRUE(job.heard.empty()) << "nobody hears anything before all have joined";
  job.join(15, Role::worker, 2);
  const std::map<Member, uint32_t> expected = {{10, 1}, {11, 0}, {12, 1},
                                               {13, 3}, {14, 0}, {15, 2}};
  for (const auto& entry : expected) {
    const auto books = job.all<wire::AddressBook>(entry.first);
    ASSERT_EQ(books.size(), 1u);
    const wire::AddressBook& book = books[0];
    EXPECT_EQ(book.your_rank, entry.second);
    EXPECT_EQ(book.generation, 99u);
    EXPECT_EQ(book.config.slot_bytes, 65536u);
    ASSERT_EQ(book.nodes.size(), 6u);
    for (uint32_t i = 0; i < 6; ++i) {
      EXPECT_EQ(book.nodes[i].role, i < 2 ? Role::server : Role::worker);
      EXPECT_EQ(book.nodes[i].rank, i < 2 ? i : i - 2);
    }
    EXPECT_EQ(book.nodes[0].pid, 1014u);
    EXPECT_EQ(book.nodes[0].listen_host, "10.0.0.14");
    EXPECT_EQ(book.nodes[5].host, "h13");
  }
  ASSERT_EQ(job.logged.size(), 1u);
  EXPECT_TRUE(contains(job.logged[0], "4 workers, 2 servers joined: server 0 on host h14"));
}

TEST(ClusterJoin, TheSameRankTwiceIsRefused) {
  Job job;
  job.join(1, Role::worker, 1);
  job.join(2, Role::worker, 1);
  const auto refused = job.all<wire::JoinRefused>(2);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(
      contains(refused[0].reason, "worker rank 1 is taken by worker on host h1 (pid 1001)"));
  EXPECT_EQ(job.dropped, std::set<Member>{2});
  job.join(4, Role::server, 0);
  job.join(5, Role::server, 0);
  EXPECT_EQ(job.all<wire::JoinRefused>(5).size(), 1u);
  job.join(6, Role::worker);
  EXPECT_EQ(job.state.phase(), Phase::running) << "refused ones do no harm";
  EXPECT_EQ(job.all<wire::AddressBook>(6)[0].your_rank, 0u);
  // A refused peer that says goodbye is let go.
  job.say(2, wire::Leave{});
  EXPECT_EQ(job.all<wire::LeaveAcknowledged>(2).size(), 1u);
  EXPECT_EQ(job.state.phase(), Phase::running);
}

TEST(ClusterJoin, OneTooManyAndAnImpossibleRankAreRefused) {
  Job job;
  job.join(1, Role::worker, 2);
  EXPECT_TRUE(contains(job.all<wire::JoinRefused>(1).at(0).reason, "the job has 2 workers"));
  job.join(2, Role::worker);
  job.join(3, Role::worker);
  job.join(4, Role::worker);
  EXPECT_TRUE(contains(job.all<wire::JoinRefused>(4).at(0).reason, "all joined already"));
  job.join(5, Role::scheduler);
  EXPECT_EQ(job.all<wire::JoinRefused>(5).size(), 1u);
  job.join(6, Role::server);
  EXPECT_EQ(job.state.phase(), Phase::running);
  job.join(7, Role::server);
  EXPECT_EQ(job.all<wire::JoinRefused>(7).size(), 1u);
}

TEST(ClusterJoin, TheTimeOutNamesWhoIsMissing) {
  Job job;
  job.join(1, Role::worker);
  job.now_ms = 119999;
  job.tick();
  EXPECT_EQ(job.state.phase(), Phase::joining);
  job.now_ms = 120000;
  job.tick();
  EXPECT_EQ(job.state.status().code(), Code::join_timeout);
  EXPECT_TRUE(contains(job.state.status().message(),
                       "1 of 2 workers and 0 of 1 server; joined: worker on host h1 (pid 1001)"))
      << job.state.status().message();
  EXPECT_EQ(job.all<wire::JoinRefused>(1).at(0).code, static_cast<uint8_t>(Code::join_timeout));
  EXPECT_FALSE(job.state.over());
  job.lose(1);
  EXPECT_TRUE(job.state.over());
}

TEST(ClusterJoin, OneThatGoesBeforeAllJoinedEndsTheJobAtOnce) {
  Job job;
  job.join(1, Role::worker);
  job.join(3, Role::server);
  job.lose(3);
  EXPECT_EQ(job.state.status().code(), Code::server_lost);
  EXPECT_TRUE(contains(job.all<wire::JoinRefused>(1).at(0).reason, "server on host h3 (pid 1003)"));
  job.join(2, Role::worker);
  EXPECT_TRUE(contains(job.all<wire::JoinRefused>(2).at(0).reason, "failed already"));
}

// ---- leaving and loss

TEST(ClusterEnd, AllWorkersLeaveThenServersAreStopped) {
  Job job;
  job.started();
  job.say(1, wire::Leave{});
  EXPECT_EQ(job.all<wire::LeaveAcknowledged>(1).size(), 1u);
  const auto gone = job.all<wire::NodeGone>(3);
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].how, wire::GoneHow::left);
  EXPECT_EQ(gone[0].rank, 0u);
  job.lose(1);  // closing after a goodbye is no loss
  EXPECT_EQ(job.all<wire::Stop>(3).size(), 0u);
  job.say(2, wire::Leave{});
  EXPECT_EQ(job.all<wire::Stop>(3).size(), 1u);
  EXPECT_FALSE(job.state.over());
  job.say(3, wire::Leave{});
  EXPECT_TRUE(job.state.over());
  EXPECT_TRUE(job.state.status().is_ok());
}

TEST(ClusterEnd, AServerThatStaysIsNotWaitedForForEver) {
  Job job;
  job.started();
  job.say(1, wire::Leave{});
  job.say(2, wire::Leave{});
  job.now_ms = 9999;
  job.tick();
  EXPECT_FALSE(job.state.over());
  job.now_ms = 10000;
  job.tick();
  EXPECT_TRUE(job.state.over());
  EXPECT_TRUE(job.state.status().is_ok());
}

TEST(ClusterLoss, TheFirstOneDecidesAndAllAreTold) {
  Job job;
  job.started();
  job.lose(2);
  EXPECT_EQ(job.state.status().code(), Code::worker_lost);
  EXPECT_EQ(job.state.status().message(),
            "worker 1 on host h2 (pid 1002) was lost: connection closed by peer");
  for (Member member : {1, 3}) {
    const auto gone = job.all<wire::NodeGone>(member);
    ASSERT_EQ(gone.size(), 1u);
    EXPECT_EQ(gone[0].role, Role::worker);
    EXPECT_EQ(gone[0].rank, 1u);
    EXPECT_EQ(gone[0].host, "h2");
    EXPECT_EQ(gone[0].how, wire::GoneHow::lost);
    EXPECT_EQ(gone[0].reason, "connection closed by peer");
  }
  // What follows from it does not change the verdict.
  job.say(1, wire::Failed{"worker 1 is gone"});
  job.lose(3);
  EXPECT_TRUE(job.state.over());
  EXPECT_TRUE(contains(job.state.status().message(), "worker 1 on host h2"));
}

TEST(ClusterLoss, AFailureIsToldWithItsReason) {
  Job job;
  job.started();
  job.say(1, wire::Failed{"ValueError: x"});
  EXPECT_EQ(job.all<wire::LeaveAcknowledged>(1).size(), 1u);
  EXPECT_EQ(job.all<wire::NodeGone>(2).at(0).how, wire::GoneHow::failed);
  EXPECT_EQ(job.state.status().message(), "worker 0 on host h1 (pid 1001) failed: ValueError: x");
  job.now_ms = 10000;
  job.tick();
  EXPECT_TRUE(job.state.over()) << "bounded, though nobody went";
}

TEST(ClusterLoss, TheClassOfAFailureReachesAllAndTheSchedulersOwnStays) {
  Job job;
  job.started();
  wire::Enter barrier;
  barrier.sequence = 1;
  job.say(2, barrier);
  job.say(1, wire::Failed{"server 0: the updater failed", static_cast<uint8_t>(Code::updater)});
  const auto gone = job.all<wire::NodeGone>(2);
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(static_cast<Code>(gone[0].code), Code::updater);
  const auto released = job.all<wire::Release>(2);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(static_cast<Code>(released[0].code), Code::updater);
  EXPECT_EQ(job.state.status().code(), Code::worker_lost);
}

TEST(ClusterLoss, AServerThatLeavesEarlyIsALoss) {
  Job job;
  job.started();
  job.say(3, wire::Leave{});
  EXPECT_EQ(job.state.status().code(), Code::server_lost);
  EXPECT_EQ(job.all<wire::NodeGone>(1).at(0).how, wire::GoneHow::failed);
}

TEST(ClusterLoss, SilentNodesAreLostAndAllAreNamed) {
  Job job(3, 1);
  job.join(4, Role::server);
  for (Member member : {1, 2, 3}) job.join(member, Role::worker);
  job.pass(14000, {1, 4});
  EXPECT_EQ(job.state.phase(), Phase::running);
  job.pass(1000, {1, 4});
  EXPECT_EQ(job.state.status().code(), Code::worker_lost);
  EXPECT_TRUE(contains(job.state.status().message(),
                       "worker 1 on host h2 (pid 1002) was lost: no sign of life for 15 s"))
      << job.state.status().message();
  ASSERT_EQ(job.all<wire::NodeGone>(1).size(), 2u);
  EXPECT_EQ(job.all<wire::NodeGone>(1)[0].rank, 1u);
  EXPECT_EQ(job.all<wire::NodeGone>(1)[1].rank, 2u);
}

TEST(ClusterLoss, OurOwnStandstillIsNotTheirs) {
  Job job;
  job.started();
  job.pass(2000, {1, 2, 3});
  job.now_ms += 100000;  // this process was stopped
  job.tick();
  EXPECT_EQ(job.state.phase(), Phase::running);
  job.pass(20000, {1, 2, 3});
  EXPECT_EQ(job.state.phase(), Phase::running);
  job.pass(15000, {1, 2});
  EXPECT_EQ(job.state.status().code(), Code::server_lost) << "and still it sees who is silent";
}

TEST(ClusterLoss, WhoBreaksTheProtocolIsLost) {
  for (const wire::Message& bad : std::vector<wire::Message>{wire::AddressBook{}, wire::ServerAck{},
                                                             wire::Join{}, wire::Enter{}}) {
    Job job;
    job.started();
    job.say(1, bad);
    EXPECT_TRUE(contains(job.state.status().message(),
                         "worker 0 on host h1 (pid 1001) was lost: it broke"));
    EXPECT_EQ(job.closed, std::set<Member>{1});
  }
  Job job;
  job.started();
  job.enter(3, 1);  // a server
  EXPECT_EQ(job.state.status().code(), Code::server_lost);
  Job stranger;
  stranger.say(9, wire::Heartbeat{1});
  EXPECT_EQ(stranger.closed, std::set<Member>{9});
  EXPECT_TRUE(stranger.state.status().is_ok());
}

// ---- collectives

TEST(ClusterCollective, AllEnterThenAllAreReleased) {
  Job job;
  job.started().answer_at_once = false;
  job.enter(2, 1, "init of key 3", wire::CollectiveKind::register_keys);
  EXPECT_TRUE(job.completed.empty());
  job.enter(1, 1, "init of key 3", wire::CollectiveKind::register_keys);
  ASSERT_EQ(job.completed.size(), 1u);
  EXPECT_EQ(job.completed[0].sequence, 1u);
  EXPECT_EQ(job.completed[0].collective, wire::CollectiveKind::register_keys);
  EXPECT_EQ(job.completed[0].enters.size(), 2u);
  EXPECT_TRUE(job.all<wire::Release>(1).empty());
  wire::Release word;
  word.optimizer = wire::OptimizerKind::adam;
  job.state.release(1, word, &job.effects);
  job.state.release(1, word, &job.effects);  // once is enough
  job.sort();
  for (Member member : {1, 2}) {
    const auto released = job.all<wire::Release>(member);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(released[0].sequence, 1u);
    EXPECT_EQ(code_of(released[0]), Code::ok);
    EXPECT_EQ(released[0].optimizer, wire::OptimizerKind::adam);
  }
  EXPECT_EQ(job.state.waiting(), 0u);
}

TEST(ClusterCollective, EntersComeInOrderOfRanks) {
  Job job;
  job.started();
  wire::Enter enter;
  enter.sequence = 1;
  enter.optimizer.name = "of rank 1";
  job.say(2, enter);
  enter.optimizer.name = "of rank 0";
  job.say(1, enter);
  ASSERT_EQ(job.completed.size(), 1u);
  EXPECT_EQ(job.completed[0].enters[0].optimizer.name, "of rank 0");
  EXPECT_EQ(job.completed[0].enters[1].optimizer.name, "of rank 1");
}

TEST(ClusterCollective, DisagreementIsToldToEveryoneAtOnce) {
  Job job(3, 1);
  job.join(4, Role::server);
  for (Member member : {1, 2, 3}) job.join(member, Role::worker);
  job.enter(1, 1, "barrier");
  job.enter(2, 1, "init of key 7", wire::CollectiveKind::register_keys);
  for (Member member : {1, 2}) {
    const auto released = job.all<wire::Release>(member);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(code_of(released[0]), Code::invalid_argument);
    EXPECT_TRUE(contains(released[0].reason, "worker 0 on host h1 (pid 1001) called barrier"));
    EXPECT_TRUE(
        contains(released[0].reason, "worker 1 on host h2 (pid 1002) called init of key 7"));
  }
  job.enter(3, 1, "barrier");
  EXPECT_EQ(code_of(job.all<wire::Release>(3).at(0)), Code::invalid_argument);
  EXPECT_EQ(job.state.open_collectives(), 0u) << "it is remembered for those to come only";
  // The same kind with another label is a disagreement too; and the next call is a fresh one.
  for (Member member : {1, 2, 3}) job.enter(member, 2);
  EXPECT_EQ(code_of(job.all<wire::Release>(1).at(1)), Code::ok);
  job.enter(3, 3, "init of key 1", wire::CollectiveKind::register_keys);
  job.enter(1, 3, "init of key 2", wire::CollectiveKind::register_keys);
  EXPECT_EQ(code_of(job.all<wire::Release>(3).at(2)), Code::invalid_argument);
  EXPECT_EQ(job.state.phase(), Phase::running);
}

TEST(ClusterCollective, OneThatLeftReleasesThoseWhoWait) {
  Job job;
  job.started();
  job.enter(1, 1);
  job.say(2, wire::Leave{});
  const auto released = job.all<wire::Release>(1);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(code_of(released[0]), Code::worker_left);
  EXPECT_EQ(released[0].reason, "barrier: worker 1 on host h2 (pid 1002) has left the job");
  job.enter(1, 2, "init of key 3", wire::CollectiveKind::register_keys);
  EXPECT_EQ(code_of(job.all<wire::Release>(1).at(1)), Code::worker_left);
  EXPECT_EQ(job.state.waiting(), 0u);
  job.say(1, wire::Leave{});
  EXPECT_EQ(job.state.phase(), Phase::ending);
  EXPECT_TRUE(job.state.status().is_ok());
}

TEST(ClusterCollective, OneThatEnteredAndThenLeftIsNotMissed) {
  Job job(3, 1);
  job.join(4, Role::server);
  for (Member member : {1, 2, 3}) job.join(member, Role::worker);
  job.enter(2, 1);
  job.say(2, wire::Leave{});
  job.enter(1, 1);
  EXPECT_TRUE(job.all<wire::Release>(1).empty());
  job.enter(3, 1);
  for (Member member : {1, 3}) EXPECT_EQ(code_of(job.all<wire::Release>(member).at(0)), Code::ok);
  EXPECT_TRUE(job.all<wire::Release>(2).empty());
  EXPECT_EQ(job.state.open_collectives(), 0u);
}

TEST(ClusterCollective, ALossReleasesThoseWhoWaitAndThoseWhoCome) {
  Job job(3, 1);
  job.join(4, Role::server);
  for (Member member : {1, 2, 3}) job.join(member, Role::worker);
  job.enter(1, 1);
  job.lose(2);
  EXPECT_EQ(code_of(job.all<wire::Release>(1).at(0)), Code::worker_lost);
  EXPECT_TRUE(contains(job.all<wire::Release>(1)[0].reason, "barrier: worker 1 on host h2"));
  job.enter(3, 1);
  EXPECT_EQ(code_of(job.all<wire::Release>(3).at(0)), Code::worker_lost);
  EXPECT_EQ(job.state.waiting(), 0u);
}

TEST(ClusterCollective, ALossWhileTheNodeDecidesEndsIt) {
  Job job;
  job.started().answer_at_once = false;
  job.enter(1, 1);
  job.enter(2, 1);
  job.lose(3);
  EXPECT_EQ(code_of(job.all<wire::Release>(1).at(0)), Code::server_lost);
  job.state.release(1, wire::Release{}, &job.effects);
  job.sort();
  EXPECT_EQ(job.all<wire::Release>(1).size(), 1u);
}

TEST(ClusterCollective, ALateRankIsReportedAtDoublingTimes) {
  Job job;
  job.started();
  job.logged.clear();
  job.enter(1, 1);
  std::vector<int64_t> at_ms;
  while (job.now_ms < 1799000) {
    job.pass(1000, {1, 2, 3});
    if (!job.logged.empty()) {
      ASSERT_EQ(job.logged.size(), 1u);
      EXPECT_TRUE(contains(job.logged[0], "barrier: 1 of 2 workers wait"));
      EXPECT_TRUE(contains(job.logged[0], "for worker 1 on host h2 (pid 1002)")) << job.logged[0];
      at_ms.push_back(job.now_ms);
      job.logged.clear();
    }
  }
  EXPECT_EQ(at_ms, (std::vector<int64_t>{60000, 120000, 240000, 480000, 960000}));
  EXPECT_TRUE(job.all<wire::Release>(1).empty());
  job.pass(1000, {1, 2, 3});
  EXPECT_EQ(code_of(job.all<wire::Release>(1).at(0)), Code::barrier_timeout);
  EXPECT_TRUE(contains(job.all<wire::Release>(1)[0].reason, "missing: worker 1 on host h2"));
  job.enter(2, 1);
  EXPECT_EQ(code_of(job.all<wire::Release>(2).at(0)), Code::barrier_timeout);
  EXPECT_EQ(job.state.phase(), Phase::running);
}

TEST(ClusterCollective, TooManyAtOnceOrOutOfOrderIsRefused) {
  Job job;
  job.started();
  for (uint64_t sequence = 1; sequence <= kMaxOpenCollectives; ++sequence) job.enter(1, sequence);
  EXPECT_EQ(job.state.phase(), Phase::running);
  job.enter(1, kMaxOpenCollectives + 1);
  EXPECT_EQ(job.state.status().code(), Code::worker_lost);
  Job other;
  other.started();
  other.enter(1, 2);
  EXPECT_EQ(other.state.status().code(), Code::worker_lost);
}

TEST(ClusterConfig, ImpossibleSettingsAreNamed) {
  const wire::JobConfig good = make_config(2, 1).job;
  EXPECT_FALSE(invalid(good).has_value());
  wire::JobConfig bad = good;
  bad.workers = 0;
  EXPECT_TRUE(contains(*invalid(bad), "workers"));
  bad = good;
  bad.servers = 5000;
  EXPECT_TRUE(contains(*invalid(bad), "servers"));
  bad = good;
  bad.slot_bytes = 100;
  EXPECT_TRUE(contains(*invalid(bad), "slot_bytes"));
  bad = good;
  bad.barrier_timeout_ms = 0;
  EXPECT_TRUE(contains(*invalid(bad), "barrier_timeout_ms"));
  bad = good;
  bad.heartbeat_timeout_ms = 1500;
  EXPECT_TRUE(contains(*invalid(bad), "heartbeat"));
}

// ---- anything in any order

struct RandomRun {
  explicit RandomRun(uint64_t seed)
      : random(seed),
        workers(1 + static_cast<uint32_t>(random() % 4)),
        servers(1 + static_cast<uint32_t>(random() % 3)),
        job(workers, servers) {}

  void join_all() {
    std::vector<Role> roles(workers, Role::worker);
    roles.insert(roles.end(), servers, Role::server);
    roles.push_back(random() % 2 ? Role::worker : Role::server);  // one too many, somewhere
    std::shuffle(roles.begin(), roles.end(), random);
    for (Role role : roles) {
      const uint32_t limit = role == Role::worker ? workers : servers;
      const bool prefers = random() % 3 == 0;
      job.join(next, role, prefers ? static_cast<uint32_t>(random() % limit) : wire::kAnyRank);
      ++next;
    }
    // Refused preferences leave places: fill them.
    for (Role role : {Role::worker, Role::server})
      for (int i = 0; i < 8; ++i) job.join(next++, role);
  }
  bool here(Member member) {
    return !left.count(member) && !job.all<wire::AddressBook>(member).empty();
  }
  void step() {
    const Member member = 1 + static_cast<Member>(random() % (next - 1));
    if (!here(member)) return;
    const bool worker = job.all<wire::AddressBook>(member)[0].your_role == Role::worker;
    const uint64_t dice = random() % 100;
    if (dice < 60 && worker) {
      if (entered[member] > job.all<wire::Release>(member).size()) return;  // it blocks
      const bool odd = random() % 20 == 0;
      job.enter(member, ++entered[member], odd ? "other" : "barrier");
    } else if (dice < 63) {
      left[member] = true;
      job.lose(member);
    } else if (dice < 66 && worker) {
      left[member] = true;
      job.say(member, wire::Leave{});
    } else if (dice < 67) {
      left[member] = true;
      job.say(member, wire::Failed{"it happens"});
    } else if (dice < 75) {
      job.now_ms += 500;
      job.tick();
    } else {
      job.say(member, wire::Heartbeat{1});
    }
  }

  std::mt19937_64 random;
  uint32_t workers, servers;
  Job job;
  Member next = 1;
  std::map<Member, bool> left;
  std::map<Member, uint64_t> entered;
};

TEST(ClusterRandom, EveryEnterIsReleasedOnceAndEveryJobEnds) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run(seed);
    run.join_all();
    ASSERT_EQ(run.job.state.phase(), Phase::running);
    std::set<std::pair<Role, uint32_t>> ranks;
    size_t booked = 0;
    for (Member member = 1; member < run.next; ++member)
      for (const wire::AddressBook& book : run.job.all<wire::AddressBook>(member)) {
        ranks.insert({book.your_role, book.your_rank});
        EXPECT_LT(book.your_rank, book.your_role == Role::worker ? run.workers : run.servers);
        ++booked;
      }
    ASSERT_EQ(ranks.size(), run.workers + run.servers) << "each rank once";
    ASSERT_EQ(booked, ranks.size());
    for (int i = 0; i < 300 && !run.job.state.over(); ++i) run.step();
    // Then nobody does anything more. The limits end it: barrier, heartbeats, going.
    int64_t last_ms = run.job.now_ms;
    for (; !run.job.state.over() && run.job.now_ms < last_ms + 60000; run.job.now_ms += 1000)
      run.job.tick();
    ASSERT_TRUE(run.job.state.over());
    EXPECT_EQ(run.job.state.waiting(), 0u);
    for (const auto& entry : run.entered) {
      std::multiset<uint64_t> released;
      for (const wire::Release& release : run.job.all<wire::Release>(entry.first))
        released.insert(release.sequence);
      const uint64_t owed = entry.second;
      for (uint64_t sequence = 1; sequence <= owed; ++sequence) {
        // One that went while it waited is owed nothing.
        if (run.left.count(entry.first) && sequence == owed && released.count(sequence) == 0)
          continue;
        // Nor one that fell silent itself at the end.
        EXPECT_LE(released.count(sequence), 1u);
        if (sequence < owed) {
          EXPECT_EQ(released.count(sequence), 1u);
        }
      }
      EXPECT_LE(released.size(), owed);
    }
  }
}

}  // namespace
}  // namespace mxrdma::cluster
