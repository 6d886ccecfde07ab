// The scheduler over a fabric that is a list: joins, places keys, hears servers, ends.
#include "node/scheduler_core.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "unit/list_fabric.h"

namespace mxrdma::node {
namespace {

using fabric::Event;
using fabric::PeerId;
using wire::Role;

wire::JobConfig make_config(uint32_t workers, uint32_t servers) {
  wire::JobConfig config;
  config.workers = workers;
  config.servers = servers;
  config.slot_bytes = 65536;
  config.slots_per_worker = 4;
  config.heartbeat_interval_ms = 1000;
  config.heartbeat_timeout_ms = 15000;
  config.stall_report_ms = 2000;
  config.round_timeout_ms = 8000;
  config.barrier_timeout_ms = 8000;
  return config;
}

// Two workers (peers 1, 2) and two servers (peers 3, 4).
struct Rig {
  Rig() : core(&fabric, &clock, NodeOptions{}, make_config(2, 2), 77) {}

  void accept(PeerId peer, Role role, uint64_t generation = 0) {
    wire::Hello hello;
    hello.role = role;
    hello.generation = generation;
    Event event;
    event.kind = Event::Kind::accepted;
    event.peer = peer;
    event.payload = wire::encode(hello);
    core.on_event_on_loop(event);
  }
  void say(PeerId peer, const wire::Message& message) {
    for (std::vector<std::byte>& part : wire::encode(message)) {
      Event event;
      event.kind = Event::Kind::message;
      event.peer = peer;
      event.payload = std::move(part);
      core.on_event_on_loop(event);
    }
  }
  void lose(PeerId peer) {
    Event event;
    event.kind = Event::Kind::lost;
    event.peer = peer;
    event.status = Status(Code::fabric, "connection closed by peer");
    core.on_event_on_loop(event);
  }
  void done(PeerId peer) {
    Event event;
    event.kind = Event::Kind::done;
    event.peer = peer;
    core.on_event_on_loop(event);
  }
  void all_done() {
    for (PeerId peer = 1; peer <= 9; ++peer)
      for (int i = 0; i < 50; ++i) done(peer);
  }
  void join(PeerId peer, Role role) {
    accept(peer, role);
    wire::Join join;
    join.role = role;
    join.pid = 1000 + peer;
    join.host = "h" + std::to_string(peer);
    join.listen_host = "10.0.0.1";
    join.listen_port = static_cast<uint16_t>(5000 + peer);
    say(peer, join);
  }
  void start() {
    for (PeerId peer : {1, 2}) join(peer, Role::worker);
    for (PeerId peer : {3, 4}) join(peer, Role::server);
    ASSERT_EQ(received<wire::AddressBook>(1).size(), 1u);
  }
  wire::Enter register_keys(uint64_t sequence, int64_t rows = 300) {
    wire::Enter enter;
    enter.sequence = sequence;
    enter.kind = wire::CollectiveKind::register_keys;
    enter.label = "init of key 0";
    wire::KeyRequest key;
    key.name = "i:0";
    key.shape = {rows, 1000};
    key.elements = static_cast<uint64_t>(rows) * 1000;
    enter.keys = {key};
    return enter;
  }
  wire::Enter set_optimizer(uint64_t sequence, size_t pickle_bytes) {
    wire::Enter enter;
    enter.sequence = sequence;
    enter.kind = wire::CollectiveKind::set_optimizer;
    enter.label = "set_optimizer";
    enter.optimizer.kind = wire::OptimizerKind::python;
    enter.optimizer.name = "LAMB";
    enter.optimizer.pickle.assign(pickle_bytes, std::byte{7});
    return enter;
  }
  template <typename T>
  std::vector<T> received(PeerId peer) {
    std::vector<T> found;
    wire::Assembler assembler;
    for (const auto& bytes : fabric.sent[peer]) {
      Result<std::optional<wire::Message>> added = assembler.add(bytes.data(), bytes.size());
      EXPECT_TRUE(added.is_ok()) << added.status().to_string();
      if (!added.is_ok() || !added.value()) continue;
      if (const T* body = std::get_if<T>(&*added.value())) found.push_back(*body);
    }
    return found;
  }
  void acknowledge(PeerId server, uint64_t sequence, Code code = Code::ok,
                   const std::string& reason = "") {
    say(server, wire::ServerAck{sequence, static_cast<uint8_t>(code), reason});
  }

  VirtualClock clock;
  ListFabric fabric;
  SchedulerCore core;
};

Code code_of(const wire::Release& release) { return static_cast<Code>(release.code); }
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(SchedulerCore, AnInitThatAServerRefusedCanBeTriedAgain) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  rig.acknowledge(3, 1);
  rig.acknowledge(4, 1, Code::internal, "no memory");
  for (PeerId worker : {1, 2})
    EXPECT_EQ(code_of(rig.received<wire::Release>(worker).at(0)), Code::internal);
  const uint32_t refused = rig.received<wire::PlaceKeys>(3)[0].keys[0].id;
  for (PeerId server : {3, 4}) {
    const auto dropped = rig.received<wire::DropKeys>(server);
    ASSERT_EQ(dropped.size(), 1u) << "the other server has it";
    EXPECT_EQ(dropped[0].keys, std::vector<uint32_t>{refused});
  }
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(2, 100));
  for (PeerId server : {3, 4}) {
    ASSERT_EQ(rig.received<wire::PlaceKeys>(server).size(), 2u);
    EXPECT_NE(rig.received<wire::PlaceKeys>(server)[1].keys[0].id, refused);
    rig.acknowledge(server, 2);
  }
  for (PeerId worker : {1, 2}) {
    const wire::Release release = rig.received<wire::Release>(worker).at(1);
    EXPECT_EQ(code_of(release), Code::ok) << release.reason;
    EXPECT_EQ(release.keys.size(), 1u);
  }
}

TEST(SchedulerCore, ALateRefusalWithdrawsNothing) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  for (PeerId server : {3, 4}) rig.acknowledge(server, 1);
  rig.acknowledge(4, 1, Code::internal, "late");
  EXPECT_TRUE(rig.received<wire::DropKeys>(3).empty());
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(2));
  EXPECT_EQ(code_of(rig.received<wire::Release>(1).at(1)), Code::invalid_argument);
}

TEST(SchedulerCore, KeysAreReleasedOnceAllServersHaveThem) {
  Rig rig;
  rig.start();
  rig.say(1, rig.register_keys(1));
  EXPECT_TRUE(rig.received<wire::PlaceKeys>(3).empty());
  rig.say(2, rig.register_keys(1));
  for (PeerId server : {3, 4}) {
    const auto placed = rig.received<wire::PlaceKeys>(server);
    ASSERT_EQ(placed.size(), 1u);
    ASSERT_EQ(placed[0].keys.size(), 1u);
    EXPECT_EQ(placed[0].keys[0].shares.size(), 2u) << "1.2 MB lie on both servers";
  }
  rig.acknowledge(3, 1);
  rig.acknowledge(3, 1);  // twice the same server is one server
  EXPECT_TRUE(rig.received<wire::Release>(1).empty());
  rig.acknowledge(4, 1);
  for (PeerId worker : {1, 2}) {
    const auto released = rig.received<wire::Release>(worker);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(code_of(released[0]), Code::ok);
    ASSERT_EQ(released[0].keys.size(), 1u);
    EXPECT_EQ(released[0].keys[0].request.name, "i:0");
  }
}

TEST(SchedulerCore, WorkersThatDisagreeHearTheDirectorysReason) {
  Rig rig;
  rig.start();
  rig.say(1, rig.register_keys(1, 300));
  rig.say(2, rig.register_keys(1, 301));
  for (PeerId worker : {1, 2}) {
    const auto released = rig.received<wire::Release>(worker);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(code_of(released[0]), Code::invalid_argument);
    EXPECT_TRUE(contains(released[0].reason, "shape")) << released[0].reason;
  }
  EXPECT_TRUE(rig.received<wire::PlaceKeys>(3).empty());
}

TEST(SchedulerCore, AServersRefusalIsToldWithItsName) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  rig.acknowledge(4, 1, Code::config, "no memory for 600000 bytes");
  for (PeerId worker : {1, 2}) {
    const auto released = rig.received<wire::Release>(worker);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(code_of(released[0]), Code::config);
    EXPECT_EQ(released[0].reason,
              "init of key 0: server 1 on host h4 (pid 1004): no memory for 600000 bytes");
  }
  rig.acknowledge(3, 1);  // too late to matter
  EXPECT_EQ(rig.received<wire::Release>(1).size(), 1u);
}

TEST(SchedulerCore, ALargePickleReachesTheServersWholeAndMovesKeys) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  for (PeerId server : {3, 4}) rig.acknowledge(server, 1);
  rig.say(1, rig.set_optimizer(2, 3 * kMaxMessageBytes));
  rig.say(2, rig.set_optimizer(2, 0));
  for (PeerId server : {3, 4}) {
    const auto set = rig.received<wire::SetOptimizer>(server);
    ASSERT_EQ(set.size(), 1u);
    EXPECT_EQ(set[0].optimizer.pickle, std::vector<std::byte>(3 * kMaxMessageBytes, std::byte{7}));
    ASSERT_EQ(set[0].moved.size(), 1u);
    EXPECT_EQ(set[0].moved[0].shares.size(), 1u);
  }
  EXPECT_TRUE(rig.received<wire::DecideOptimizer>(3).empty());
  for (PeerId server : {3, 4}) rig.acknowledge(server, 2);
  EXPECT_EQ(rig.received<wire::Release>(2).size(), 1u) << "it is not in use yet";
  for (PeerId server : {3, 4}) {
    const auto decided = rig.received<wire::DecideOptimizer>(server);
    ASSERT_EQ(decided.size(), 1u);
    EXPECT_TRUE(decided[0].use);
    EXPECT_EQ(decided[0].sequence, 2u);
    rig.acknowledge(server, 2);
  }
  const auto released = rig.received<wire::Release>(2);
  ASSERT_EQ(released.size(), 2u);
  EXPECT_EQ(released[1].optimizer, wire::OptimizerKind::python);
  EXPECT_EQ(released[1].moved.size(), 1u);
}

TEST(SchedulerCore, AnOptimizerThatOneServerRefusesIsUsedByNone) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  for (PeerId server : {3, 4}) rig.acknowledge(server, 1);
  for (PeerId worker : {1, 2}) rig.say(worker, rig.set_optimizer(2, 10));
  rig.acknowledge(3, 2);
  rig.acknowledge(4, 2, Code::updater, "no module named beside");
  for (PeerId server : {3, 4}) {
    const auto decided = rig.received<wire::DecideOptimizer>(server);
    ASSERT_EQ(decided.size(), 1u);
    EXPECT_FALSE(decided[0].use);
    EXPECT_EQ(decided[0].sequence, 2u);
  }
  EXPECT_EQ(code_of(rig.received<wire::Release>(1).at(1)), Code::updater);
  EXPECT_TRUE(rig.core.status().is_ok()) << "the job goes on";
  // The directory has not moved the key either: it moves now.
  for (PeerId worker : {1, 2}) rig.say(worker, rig.set_optimizer(3, 10));
  EXPECT_EQ(rig.received<wire::SetOptimizer>(3).at(1).moved.size(), 1u);
}

TEST(SchedulerCore, AServerThatCannotUseWhatOthersUseEndsTheJob) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.set_optimizer(1, 10));
  for (PeerId server : {3, 4}) rig.acknowledge(server, 1);
  rig.acknowledge(3, 1);
  for (rig.clock.now = 1000; rig.clock.now <= 8000; rig.clock.now += 1000) {
    for (PeerId peer : {1, 2, 3, 4}) rig.say(peer, wire::Heartbeat{1});
    rig.core.tick_on_loop();
  }
  EXPECT_EQ(rig.core.status().code(), Code::server_lost);
  EXPECT_TRUE(contains(rig.core.status().message(), "server 1 on host h4"));
  EXPECT_TRUE(contains(rig.core.status().message(), "no answer within 8 s"));
  for (PeerId worker : {1, 2}) {
    EXPECT_EQ(rig.received<wire::NodeGone>(worker).size(), 1u);
    EXPECT_EQ(code_of(rig.received<wire::Release>(worker).at(0)), Code::server_lost);
  }
  EXPECT_EQ(rig.fabric.closed, std::set<PeerId>{4});
}

TEST(SchedulerCore, DecisionsAreMadeOneAfterTheOther) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.set_optimizer(1, 10));
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(2));
  for (PeerId server : {3, 4}) rig.acknowledge(server, 1);
  EXPECT_TRUE(rig.received<wire::PlaceKeys>(3).empty());
  for (PeerId server : {3, 4}) rig.acknowledge(server, 1);
  ASSERT_EQ(rig.received<wire::PlaceKeys>(3).size(), 1u);
  EXPECT_TRUE(rig.received<wire::PlaceKeys>(3)[0].keys[0].whole) << "for the optimizer in use";
}

TEST(SchedulerCore, HeartbeatsAreAnswered) {
  Rig rig;
  rig.start();
  rig.say(1, wire::Heartbeat{5});
  EXPECT_EQ(rig.received<wire::Heartbeat>(1).size(), 1u);
  EXPECT_TRUE(rig.received<wire::Heartbeat>(2).empty());
}

TEST(SchedulerCore, AServerThatDoesNotAnswerEndsTheCollective) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  rig.acknowledge(3, 1);
  for (rig.clock.now = 1000; rig.clock.now < 8000; rig.clock.now += 1000) {
    for (PeerId peer : {1, 2, 3, 4}) rig.say(peer, wire::Heartbeat{1});
    rig.core.tick_on_loop();
  }
  EXPECT_TRUE(rig.received<wire::Release>(1).empty());
  rig.core.tick_on_loop();
  const auto released = rig.received<wire::Release>(1);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(code_of(released[0]), Code::barrier_timeout);
  EXPECT_TRUE(contains(released[0].reason, "from server 1 on host h4 (pid 1004)"));
  EXPECT_FALSE(contains(released[0].reason, "server 0"));
}

TEST(SchedulerCore, AServerLostWhileItIsAskedReleasesTheWorkers) {
  Rig rig;
  rig.start();
  for (PeerId worker : {1, 2}) rig.say(worker, rig.register_keys(1));
  rig.lose(4);
  for (PeerId worker : {1, 2}) {
    EXPECT_EQ(rig.received<wire::NodeGone>(worker).size(), 1u);
    const auto released = rig.received<wire::Release>(worker);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(code_of(released[0]), Code::server_lost);
  }
  rig.acknowledge(3, 1);
  EXPECT_EQ(rig.received<wire::Release>(1).size(), 1u);
  EXPECT_EQ(rig.core.status().message(),
            "server 1 on host h4 (pid 1004) was lost: connection closed by peer");
  for (PeerId peer : {1, 2, 3}) rig.say(peer, wire::Leave{});
  rig.all_done();
  EXPECT_TRUE(rig.core.finished());
}

TEST(SchedulerCore, ItEndsWhenItsLastWordsHaveLeft) {
  Rig rig;
  rig.start();
  for (PeerId peer : {1, 2}) rig.say(peer, wire::Leave{});
  EXPECT_EQ(rig.received<wire::Stop>(3).size(), 1u);
  for (PeerId peer : {3, 4}) rig.say(peer, wire::Leave{});
  EXPECT_EQ(rig.received<wire::LeaveAcknowledged>(4).size(), 1u);
  EXPECT_FALSE(rig.core.finished()) << "nothing has been sent yet";
  rig.all_done();
  EXPECT_TRUE(rig.core.finished());
  EXPECT_TRUE(rig.core.status().is_ok());
}

TEST(SchedulerCore, WordsThatNeverLeaveDoNotHoldTheEnd) {
  Rig rig;
  rig.start();
  rig.fabric.full = true;
  for (PeerId peer : {1, 2, 3, 4}) rig.say(peer, wire::Leave{});
  EXPECT_FALSE(rig.core.finished());
  rig.clock.now += kVerdictMs;
  EXPECT_TRUE(rig.core.finished());
}

TEST(SchedulerCore, AFullQueueDelaysAndLosesNothing) {
  Rig rig;
  rig.start();
  rig.fabric.full = true;
  wire::Enter enter;
  enter.sequence = 1;
  for (PeerId worker : {1, 2}) rig.say(worker, enter);
  EXPECT_TRUE(rig.received<wire::Release>(1).empty());
  rig.fabric.full = false;
  rig.done(1);
  EXPECT_EQ(rig.received<wire::Release>(1).size(), 1u);
}

TEST(SchedulerCore, StrangersAreTurnedAway) {
  Rig rig;
  rig.accept(7, Role::worker, 5);  // takes us for a server
  EXPECT_EQ(rig.fabric.closed, std::set<PeerId>{7});
  Event junk;
  junk.kind = Event::Kind::accepted;
  junk.peer = 8;
  junk.payload.resize(5);
  rig.core.on_event_on_loop(junk);
  EXPECT_EQ(rig.fabric.closed.count(8), 1u);
  rig.accept(9, Role::worker);
  rig.clock.now = kHandshakeTimeoutMs - 1;
  rig.core.tick_on_loop();
  EXPECT_EQ(rig.fabric.closed.count(9), 0u);
  rig.clock.now = kHandshakeTimeoutMs;
  rig.core.tick_on_loop();
  EXPECT_EQ(rig.fabric.closed.count(9), 1u) << "connected and never joined";
}

TEST(SchedulerCore, AMalformedMessageCostsItsSenderTheJob) {
  Rig rig;
  rig.start();
  Event event;
  event.kind = Event::Kind::message;
  event.peer = 2;
  event.payload = {std::byte{200}, std::byte{1}};
  rig.core.on_event_on_loop(event);
  EXPECT_EQ(rig.fabric.closed, std::set<PeerId>{2});
  EXPECT_TRUE(contains(rig.core.status().message(), "unknown type 200"));
  EXPECT_EQ(rig.received<wire::NodeGone>(1).size(), 1u);
}

TEST(SchedulerCore, NothingCountsAfterAGoodbye) {
  Rig rig;
  rig.start();
  rig.say(1, wire::Leave{});
  rig.say(1, wire::Leave{});
  rig.say(1, wire::Heartbeat{9});
  rig.say(1, wire::Failed{"late"});
  EXPECT_EQ(rig.received<wire::LeaveAcknowledged>(1).size(), 1u);
  EXPECT_TRUE(rig.core.status().is_ok());
}

TEST(SchedulerCore, ARefusedPeerIsClosedIfItStays) {
  Rig rig;
  rig.start();
  rig.join(5, Role::worker);
  EXPECT_EQ(rig.received<wire::JoinRefused>(5).size(), 1u);
  EXPECT_TRUE(rig.fabric.closed.empty()) << "it shall read why";
  for (; rig.clock.now < kLeaveTimeoutMs; rig.clock.now += 1000) {
    for (PeerId peer : {1, 2, 3, 4}) rig.say(peer, wire::Heartbeat{1});
    rig.core.tick_on_loop();
  }
  rig.core.tick_on_loop();
  EXPECT_EQ(rig.fabric.closed, std::set<PeerId>{5});
}

}  // namespace
}  // namespace mxrdma::node
