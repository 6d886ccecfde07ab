// A node's view of its scheduler, over a fabric that is a list.
#include "node/membership.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/list_fabric.h"

namespace mxrdma::node {
namespace {

constexpr PeerId kScheduler = 9;

class ConnectingFabric final : public ListFabric {
 public:
  Result<PeerId> connect(const fabric::Address&, const std::vector<std::byte>&) override {
    return kScheduler;
  }
  void be_patient_on_loop(int silent_ms) override { patience_ms = silent_ms; }
  int patience_ms = 0;
};

NodeOptions options() {
  NodeOptions options;
  options.scheduler = {"10.0.0.9", 4000};
  return options;
}

// A worker that has its address book; heartbeats every second, silence of 5 s ends it.
struct Node {
  explicit Node(uint32_t timeout_ms = 5000)
      : membership(&fabric, &clock, options(), wire::Role::worker) {
    clock.now = 100;
    membership.start_on_loop({});
    tick();
    Event connected;
    connected.kind = Event::Kind::connected;
    connected.peer = kScheduler;
    membership.on_event_on_loop(connected, &notices);
    wire::AddressBook book;
    book.generation = 7;
    book.your_role = wire::Role::worker;
    book.config.workers = book.config.servers = 1;
    book.config.slot_bytes = 65536;
    book.config.slots_per_worker = 4;
    book.config.heartbeat_interval_ms = 1000;
    book.config.heartbeat_timeout_ms = timeout_ms;
    book.config.stall_report_ms = 2000;
    book.config.round_timeout_ms = book.config.barrier_timeout_ms = 8000;
    wire::NodeInfo server, worker;
    server.role = wire::Role::server;
    server.listen_host = "10.0.0.8";
    server.listen_port = 1;
    worker.role = wire::Role::worker;
    book.nodes = {server, worker};
    say(book);
    EXPECT_TRUE(membership.has_book());
    notices.clear();
  }
  void say(const wire::Message& message) {
    Event event;
    event.kind = Event::Kind::message;
    event.peer = kScheduler;
    event.payload = wire::encode(message)[0];
    membership.on_event_on_loop(event, &notices);
  }
  void tick() { membership.tick_on_loop(&notices); }
  void pass(int64_t ms) {
    for (int64_t end = clock.now + ms; clock.now < end;) {
      clock.now += 200;
      tick();
    }
  }

  VirtualClock clock;
  ConnectingFabric fabric;
  std::vector<Membership::Notice> notices;
  Membership membership;
};

TEST(Membership, ASilentSchedulerIsLost) {
  Node node;
  node.pass(4800);
  EXPECT_TRUE(node.notices.empty());
  node.pass(200);
  ASSERT_EQ(node.notices.size(), 1u);
  EXPECT_EQ(node.notices[0].kind, Membership::Notice::Kind::failed);
  EXPECT_EQ(node.notices[0].status.code(), Code::scheduler_lost);
  const std::string& text = node.notices[0].status.message();
  EXPECT_NE(text.find("10.0.0.9"), std::string::npos) << text;
  EXPECT_NE(text.find("5 s"), std::string::npos) << text;
}

TEST(Membership, ABeatOfTheSchedulerIsASignOfLife) {
  Node node;
  for (int i = 0; i < 10; ++i) {
    node.pass(4000);
    node.say(wire::Heartbeat{1});
  }
  EXPECT_TRUE(node.notices.empty());
  node.pass(5000);
  EXPECT_EQ(node.notices.size(), 1u);
}

TEST(Membership, AProcessThatStoodStillItselfBlamesNobody) {
  Node node;
  node.pass(1000);
  node.clock.now += 60'000;  // stopped, then continued
  node.tick();
  EXPECT_TRUE(node.notices.empty()) << "the scheduler's words wait to be read";
  node.pass(5200);
  EXPECT_EQ(node.notices.size(), 1u);
}

TEST(Membership, TransportsAreMorePatientThanHeartbeats) {
  EXPECT_EQ(Node(5000).fabric.patience_ms, kUnacknowledgedMs);
  EXPECT_EQ(Node(90'000).fabric.patience_ms, 180'000);
}

}  // namespace
}  // namespace mxrdma::node
