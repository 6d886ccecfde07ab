// Strangers and broken peers on the wire, with plain sockets against a real fabric.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <random>

#include "fabric/bootstrap/handshake.h"
#include "fabric/fd.h"
#include "fabric/host_fabric.h"
#include "fabric/socket.h"
#include "fabric/tcp/tcp_channel.h"

namespace mxrdma::fabric {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = Event::Kind;
constexpr char kToken[] = "the token of the job";
constexpr auto kLimit = std::chrono::seconds(20);

std::unique_ptr<Fabric> make(Policy policy, int handshake_timeout_ms = 5000) {
  HostFabricOptions options;
  options.policy = policy;
  options.token = kToken;
  options.handshake_timeout_ms = handshake_timeout_ms;
  options.spin_us = 0;
  return make_host_fabric(options);
}

template <typename Reached>
bool pump(const std::vector<Fabric*>& fabrics, std::vector<Event>* events, Reached reached) {
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  while (!reached()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    for (Fabric* fabric : fabrics) fabric->poll(events, 1);
  }
  return true;
}

size_t count(const std::vector<Event>& events, Kind kind) {
  size_t found = 0;
  for (const Event& event : events) found += event.kind == kind;
  return found;
}

// A blocking socket, so that the test is as simple as a stranger.
Fd dial(uint16_t port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

bool closed(const Fd& fd) {
  char bytes[256];
  while (true) {
    const ssize_t got = recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) continue;
    return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

TEST(FabricHostile, StrangersAreDroppedWithoutAnEventWhileGoodPeersConnect) {
  auto server = make(Policy::tcp, 700);
  auto client = make(Policy::tcp);
  Result<Address> address = server->listen({"127.0.0.1", 0});
  ASSERT_TRUE(address.is_ok());
  const uint16_t port = address.value().port;
  std::vector<Fd> strangers;
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    strangers.push_back(dial(port));
    // Nothing at all; the beginning of a prologue, for ever; garbage.
    const uint32_t magic = i % 3 == 1 ? kHandshakeMagic : static_cast<uint32_t>(random());
    if (i % 3 > 0) {
      ASSERT_EQ(send(strangers.back().get(), &magic, sizeof magic, MSG_NOSIGNAL), 4);
    }
  }
  const std::string request = "GET / HTTP/1.1\r\nHost: somebody\r\nUser-Agent: a scanner\r\n\r\n";
  strangers.push_back(dial(port));
  ASSERT_EQ(send(strangers.back().get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::vector<Event> at_server, at_client;
  ASSERT_TRUE(client->connect(address.value(), {}).is_ok());
  ASSERT_TRUE(pump({client.get()}, &at_client, [&] {
    server->poll(&at_server, 1);
    return count(at_server, Kind::accepted) == 1 && count(at_client, Kind::connected) == 1;
  }));
  // Each stranger goes at the deadline at the latest, byte after byte or not.
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  for (size_t left = strangers.size(); left > 0;) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << left << " strangers were kept";
    server->poll(&at_server, 20);
    left = 0;
    for (size_t i = 0; i < strangers.size(); ++i) {
      const char drop = 'x';
      if (i % 3 == 1) send(strangers[i].get(), &drop, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (!closed(strangers[i])) ++left;
    }
  }
  ASSERT_EQ(at_server.size(), 1u) << "a stranger made an event";
}

// A socket pair with a channel on one end and the test on the other.
struct Wire {
  Wire() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    ours = Fd(fds[0]);
    theirs = Fd(fds[1]);
    region = regions.add(memory.data(), memory.size(), nullptr);
    channel =
        std::make_unique<TcpChannel>(theirs.get(), ChannelContext{&regions, &counters, &events}, 1);
  }
  void put(const void* data, size_t bytes) {
    ASSERT_EQ(send(ours.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  FrameHeader header(FrameType type, uint64_t bytes) {
    FrameHeader header;
    header.type = type;
    header.bytes = bytes;
    header.target = {0, memory.size(), region.id};
    return header;
  }
  Bytes memory = Bytes(128 * 1024);
  RegionTable regions;
  Counters counters;
  std::vector<Event> events;
  Region region;
  Fd ours, theirs;
  std::unique_ptr<TcpChannel> channel;
};

TEST(FabricHostile, AMalformedFrameLosesThePeerAndTouchesNothing) {
  struct Case {
    const char* what;
    void (*spoil)(FrameHeader*);
  };
  const Case cases[] = {
      {"no type", [](FrameHeader* h) { h->type = static_cast<FrameType>(0); }},
      {"an unknown type", [](FrameHeader* h) { h->type = static_cast<FrameType>(77); }},
      {"a large message",
       [](FrameHeader* h) {
         h->type = FrameType::message;
         h->bytes = kMaxMessageBytes + 1;
       }},
      {"an endless message",
       [](FrameHeader* h) {
         h->type = FrameType::message;
         h->bytes = UINT64_MAX;
       }},
      {"an unknown region", [](FrameHeader* h) { h->target.key += 1; }},
      {"a region of another life", [](FrameHeader* h) { h->target.key |= uint64_t{1} << 40; }},
      {"no region", [](FrameHeader* h) { h->target.key = 0; }},
      {"one byte beyond", [](FrameHeader* h) { h->target.address = 128 * 1024 - 7; }},
      {"an address that wraps", [](FrameHeader* h) { h->target.address = UINT64_MAX - 3; }},
      {"bytes that wrap",
       [](FrameHeader* h) {
         h->target.address = 8;
         h->bytes = h->target.bytes = UINT64_MAX - 4;
       }},
      {"more than its target", [](FrameHeader* h) { h->target.bytes = 7; }},
  };
  for (const Case& one : cases) {
    Wire wire;
    FrameHeader header = wire.header(FrameType::write, 8);
    one.spoil(&header);
    wire.put(&header, sizeof header);
    wire.put("deadbeef", 8);
    EXPECT_FALSE(wire.channel->readable_on_loop().is_ok()) << one.what;
    EXPECT_TRUE(wire.events.empty()) << one.what;
    EXPECT_EQ(wire.memory, Bytes(128 * 1024)) << one.what;
  }
}

TEST(FabricHostile, FramesArriveWholeInPiecesOfAnySize) {
  for (size_t piece : {1u, 39u, 40u, 41u, 1000u, 30000u}) {
    Wire wire;
    Bytes stream;
    auto add = [&](const void* data, size_t bytes) {
      const auto* from = static_cast<const std::byte*>(data);
      stream.insert(stream.end(), from, from + bytes);
    };
    const Bytes payload(piece == 1 ? 3000 : 100 * 1024, std::byte{9});
    FrameHeader write = wire.header(FrameType::write, payload.size());
    write.immediate = 42;
    add(&write, sizeof write);
    add(payload.data(), payload.size());
    const FrameHeader empty = wire.header(FrameType::message, 0);
    add(&empty, sizeof empty);
    const FrameHeader nothing = wire.header(FrameType::write, 0);
    add(&nothing, sizeof nothing);
    const FrameHeader message = wire.header(FrameType::message, 5);
    add(&message, sizeof message);
    add("hello", 5);
    for (size_t at = 0; at < stream.size(); at += piece) {
      wire.put(stream.data() + at, std::min(piece, stream.size() - at));
      ASSERT_TRUE(wire.channel->readable_on_loop().is_ok());
    }
    ASSERT_EQ(wire.events.size(), 4u) << piece;
    EXPECT_EQ(wire.events[0].kind, Kind::arrived);
    EXPECT_EQ(wire.events[0].immediate, 42u);
    EXPECT_EQ(wire.events[0].bytes, payload.size());
    EXPECT_EQ(wire.events[1].kind, Kind::message);
    EXPECT_TRUE(wire.events[1].payload.empty());
    EXPECT_EQ(wire.events[2].kind, Kind::arrived);
    EXPECT_EQ(wire.events[2].bytes, 0u);
    EXPECT_EQ(wire.events[3].kind, Kind::message);
    ASSERT_EQ(wire.events[3].payload.size(), 5u);
    EXPECT_EQ(std::memcmp(wire.events[3].payload.data(), "hello", 5), 0);
    EXPECT_EQ(Bytes(wire.memory.begin(), wire.memory.begin() + payload.size()), payload);
    EXPECT_EQ(Bytes(wire.memory.begin() + payload.size(), wire.memory.end()),
              Bytes(wire.memory.size() - payload.size()));
  }
}

TEST(FabricHostile, AnEndWithinAFrameIsAnErrorAndNoArrival) {
  for (size_t keep : {0u, 1u, 39u, 40u, 41u, 47u}) {
    Wire wire;
    char frame[48] = {};
    const FrameHeader header = wire.header(FrameType::write, 8);
    std::memcpy(frame, &header, sizeof header);
    if (keep > 0) wire.put(frame, keep);
    wire.ours.reset();
    Status status;
    for (int turn = 0; turn < 3 && status.is_ok(); ++turn)
      status = wire.channel->readable_on_loop();
    EXPECT_FALSE(status.is_ok()) << keep;
    EXPECT_TRUE(wire.events.empty()) << keep;
  }
}

}  // namespace
}  // namespace mxrdma::fabric
