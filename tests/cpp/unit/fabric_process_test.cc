// Two ends that do not wait for each other: threads that sleep at odd times, and processes that are
// killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "fabric/host_fabric.h"

namespace mxrdma::fabric {
namespace {

using Kind = Event::Kind;
using std::chrono::steady_clock;
constexpr auto kLimit = std::chrono::seconds(30);
constexpr int kPollMs = 1000;  // long enough that a missed doorbell is seen as a wait

std::unique_ptr<Fabric> make(Policy policy) {
  HostFabricOptions options;
  options.policy = policy;
  options.token = "the token of the job";
  options.spin_us = 0;
  return make_host_fabric(options);
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class FabricProcess : public testing::TestWithParam<Policy> {
 protected:
  // Polls until an event of the kind; keeps all others in `events`.
  static const Event* wait_for(Fabric* fabric, std::vector<Event>* events, Kind kind) {
    const auto limit = steady_clock::now() + kLimit;
    while (steady_clock::now() < limit) {
      for (const Event& event : *events)
        if (event.kind == kind) return &event;
      fabric->poll(events, kPollMs);
    }
    return nullptr;
  }
};

// One end of the stress: sends numbered messages as fast as the fabric takes them, or one for each
// that came, with sleeps at random; and expects the other's numbers in order.
struct Talker {
  Fabric* fabric;
  PeerId peer;
  uint64_t to_send, to_receive;
  bool only_answers;
  uint32_t seed;

  uint64_t sent = 0, done = 0, received = 0;
  bool in_order = true, lost = false;
  int idle_polls = 0;

  void run() {
    std::mt19937 random(seed);
    const auto limit = steady_clock::now() + kLimit;
    std::vector<Event> events;
    while ((done < to_send || received < to_receive) && !lost && steady_clock::now() < limit) {
      while (sent < to_send && (!only_answers || sent < received)) {
        std::byte message[200] = {};
        std::memcpy(message, &sent, sizeof sent);
        // Inline and through a bounce slot.
        if (!fabric->send(peer, message, sent % 3 == 0 ? 200 : 8, sent).is_ok()) break;
        ++sent;
      }
      if (random() % 64 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      events.clear();
      fabric->poll(&events, kPollMs);
      if (events.empty()) ++idle_polls;
      for (const Event& event : events) take(event);
    }
  }

  void take(const Event& event) {
    if (event.kind == Kind::lost) lost = true;
    if (event.kind == Kind::done) in_order = in_order && event.id == done++ && event.status.is_ok();
    if (event.kind != Kind::message) return;
    uint64_t number = 0;
    if (event.payload.size() >= sizeof number)
      std::memcpy(&number, event.payload.data(), sizeof number);
    in_order = in_order && number == received++;
  }
};

struct Link {
  explicit Link(Policy policy) : server(make(policy)), client(make(policy)) {
    Result<Address> address = server->listen({"127.0.0.1", 0});
    EXPECT_TRUE(address.is_ok());
    Result<PeerId> peer = client->connect(address.value(), {});
    EXPECT_TRUE(peer.is_ok());
    at_client = peer.value();
    const auto limit = steady_clock::now() + kLimit;
    bool connected = false;
    while (!(connected && at_server != 0) && steady_clock::now() < limit) {
      std::vector<Event> events;
      client->poll(&events, 1);
      for (const Event& event : events) connected = connected || event.kind == Kind::connected;
      events.clear();
      server->poll(&events, 1);
      for (const Event& event : events)
        if (event.kind == Kind::accepted) at_server = event.peer;
    }
    EXPECT_TRUE(connected && at_server != 0);
  }
  std::unique_ptr<Fabric> server, client;
  PeerId at_client = 0, at_server = 0;
};

void talk(Policy policy, uint64_t to_server, uint64_t to_client, bool answers) {
  Link link(policy);
  Talker client{link.client.get(), link.at_client, to_server, to_client, false, 1};
  Talker server{link.server.get(), link.at_server, to_client, to_server, answers, 2};
  std::thread other([&] { server.run(); });
  client.run();
  other.join();
  for (const Talker* end : {&client, &server}) {
    EXPECT_EQ(end->received, end->to_receive);
    EXPECT_EQ(end->done, end->to_send);
    EXPECT_TRUE(end->in_order);
    EXPECT_FALSE(end->lost);
    // Both ends had work all the time: a wait of a whole second is a doorbell that did not ring.
    EXPECT_EQ(end->idle_polls, 0) << "a wake-up was missed";
  }
}

TEST_P(FabricProcess, NoWakeUpIsMissedInOneDirection) { talk(GetParam(), 60000, 0, false); }
TEST_P(FabricProcess, NoWakeUpIsMissedInBothDirections) { talk(GetParam(), 30000, 30000, false); }
TEST_P(FabricProcess, NoWakeUpIsMissedInAnswers) { talk(GetParam(), 20000, 20000, true); }

TEST_P(FabricProcess, NoWakeUpIsMissedInPingPong) {
  Link link(GetParam());
  constexpr int kRounds = 5000;
  int answered = 0, waited = 0;
  auto end = [&](Fabric* fabric, PeerId peer, bool begins, int* rounds, int* idle) {
    std::vector<Event> events;
    const auto limit = steady_clock::now() + kLimit;
    uint64_t id = 0, number = 0;
    if (begins) static_cast<void>(fabric->send(peer, &number, sizeof number, id++));
    while (*rounds < kRounds && steady_clock::now() < limit) {
      events.clear();
      fabric->poll(&events, kPollMs);
      if (events.empty()) ++*idle;
      for (const Event& event : events) {
        if (event.kind != Kind::message) continue;
        ++*rounds;
        if (!begins || *rounds < kRounds)
          static_cast<void>(fabric->send(peer, &number, sizeof number, id++));
      }
    }
    // What was sent last still has to go out.
    fabric->poll(&events, 0);
  };
  int there = 0, there_idle = 0;
  std::thread other([&] { end(link.server.get(), link.at_server, false, &there, &there_idle); });
  end(link.client.get(), link.at_client, true, &answered, &waited);
  other.join();
  EXPECT_EQ(answered, kRounds);
  EXPECT_EQ(there, kRounds);
  EXPECT_EQ(waited + there_idle, 0) << "a wake-up was missed";
}

TEST_P(FabricProcess, EachWakeEndsAPoll) {
  auto fabric = make(GetParam());
  constexpr int kWakes = 100000;
  std::atomic<int> asked{0}, seen{0};
  std::thread other([&] {
    for (int i = 1; i <= kWakes; ++i) {
      asked = i;
      fabric->wake();
      // Mostly in a flood, now and then only after the last one was seen.
      while (i % 16 == 0 && seen < i) std::this_thread::yield();
    }
  });
  std::vector<Event> events;
  int idle = 0;
  while (seen < kWakes) {
    const auto before = steady_clock::now();
    fabric->poll(&events, kPollMs);
    if (steady_clock::now() - before >= std::chrono::milliseconds(kPollMs) && asked > seen) ++idle;
    ASSERT_EQ(idle, 0) << "a wake was missed";
    seen = asked.load();
  }
  other.join();
  EXPECT_TRUE(events.empty());
}

// The child writes without end; it is killed in the middle of it.
TEST_P(FabricProcess, AKilledPeerIsLostOnceAfterWhatItWrote) {
  constexpr size_t kBytes = 8u << 20;
  for (int round = 0; round < 5; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(pipe_ends[1]);
      alarm(60);  // whatever becomes of the parent
      auto fabric = make(GetParam());
      Address address{"127.0.0.1", 0};
      if (::read(pipe_ends[0], &address.port, sizeof address.port) != sizeof address.port) _exit(1);
      if (!fabric->connect(address, {}).is_ok()) _exit(2);
      std::vector<std::byte> memory(kBytes, std::byte{5});
      std::vector<Event> events;
      RemoteRegion target;
      PeerId peer = 0;
      for (uint64_t id = 0;;) {
        events.clear();
        fabric->poll(&events, kPollMs);
        for (const Event& event : events) {
          if (event.kind == Kind::lost) _exit(3);
          if (event.kind != Kind::message) continue;
          std::memcpy(&target, event.payload.data(), sizeof target);
          peer = event.peer;
        }
        const LocalSpan span{memory.data(), memory.size(), kNoRegion};
        while (peer != 0 &&
               fabric->write(peer, &span, 1, target, static_cast<uint32_t>(id), id).is_ok() &&
               ++id % 8 != 0) {
        }
      }
    }
    close(pipe_ends[0]);
    auto fabric = make(GetParam());
    Result<Address> address = fabric->listen({"127.0.0.1", 0});
    ASSERT_TRUE(address.is_ok());
    ASSERT_EQ(::write(pipe_ends[1], &address.value().port, sizeof(uint16_t)), 2);
    std::vector<Event> events;
    const Event* accepted = wait_for(fabric.get(), &events, Kind::accepted);
    ASSERT_NE(accepted, nullptr);
    const PeerId peer = accepted->peer;
    std::vector<std::byte> memory(kBytes);
    Result<Region> region = fabric->register_memory(memory.data(), memory.size());
    ASSERT_TRUE(region.is_ok());
    Result<RemoteRegion> remote = fabric->describe(region.value().id, peer);
    ASSERT_TRUE(remote.is_ok());
    ASSERT_TRUE(fabric->send(peer, &remote.value(), sizeof(RemoteRegion), 1).is_ok());
    ASSERT_NE(wait_for(fabric.get(), &events, Kind::arrived), nullptr);
    // Sends that the child may never take.
    uint64_t next = 2;
    std::vector<std::byte> message(kMaxMessageBytes);
    while (fabric->send(peer, message.data(), message.size(), next).is_ok()) ++next;
    std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(pipe_ends[1]);
    ASSERT_NE(wait_for(fabric.get(), &events, Kind::lost), nullptr);
    for (int turn = 0; turn < 5; ++turn) fabric->poll(&events, 10);
    size_t lost = 0;
    uint64_t done = 0, arrivals = 0;
    for (const Event& event : events) {
      if (event.kind == Kind::lost) ++lost;
      if (event.kind == Kind::done) {
        EXPECT_EQ(event.id, ++done);
        EXPECT_EQ(event.status.is_ok(), lost == 0) << event.id;
      }
      if (event.kind != Kind::arrived) continue;
      EXPECT_EQ(lost, 0u) << "data after the loss";
      EXPECT_EQ(event.immediate, arrivals++);
    }
    EXPECT_EQ(lost, 1u);
    EXPECT_EQ(done, next - 1);
    EXPECT_FALSE(fabric->send(peer, message.data(), 1, next).is_ok());
  }
}

TEST_P(FabricProcess, NoDescriptorOutlivesItsConnection) {
  { Link warm_up(GetParam()); }
  const size_t before = open_descriptors();
  {
    auto server = make(GetParam());
    Result<Address> address = server->listen({"127.0.0.1", 0});
    ASSERT_TRUE(address.is_ok());
    auto client = make(GetParam());
    std::vector<Event> at_client, at_server;
    client->poll(&at_client, 0);
    server->poll(&at_server, 0);
    const size_t idle = open_descriptors();
    for (int i = 0; i < 50; ++i) {
      Result<PeerId> peer = client->connect(address.value(), {});
      ASSERT_TRUE(peer.is_ok());
      at_client.clear();
      at_server.clear();
      const auto limit = steady_clock::now() + kLimit;
      bool closed = false, lost = false;
      while (!lost && steady_clock::now() < limit) {
        client->poll(&at_client, 1);
        server->poll(&at_server, 1);
        for (const Event& event : at_server) lost = lost || event.kind == Kind::lost;
        bool met = false, accepted = false;
        for (const Event& event : at_client) met = met || event.kind == Kind::connected;
        for (const Event& event : at_server) accepted = accepted || event.kind == Kind::accepted;
        if (!closed && met && accepted) {
          // Each allocates and names a region, which passes its descriptor.
          Result<Region> region = client->allocate(4096);
          ASSERT_TRUE(region.is_ok());
          ASSERT_TRUE(client->describe(region.value().id, peer.value()).is_ok());
          client->close(peer.value());
          client->release(region.value().id);
          closed = true;
        }
      }
      ASSERT_TRUE(lost);
    }
    client->poll(&at_client, 0);
    server->poll(&at_server, 0);
    EXPECT_EQ(open_descriptors(), idle);
  }
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Host, FabricProcess, testing::Values(Policy::shm, Policy::tcp),
                         [](const testing::TestParamInfo<Policy>& info) {
                           return info.param == Policy::shm ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace mxrdma::fabric
