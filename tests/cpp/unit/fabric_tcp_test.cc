// The tcp channel over a socket whose other end is in the test's hands.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "fabric/tcp/tcp_channel.h"
#include "fabric_fixture.h"

namespace mxrdma::fabric {
namespace {

constexpr size_t kTargetBytes = 300'000;

struct Harness {
  Harness() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    ours = Fd(fds[0]);
    theirs = Fd(fds[1]);
    EXPECT_EQ(fcntl(ours.get(), F_SETFL, O_NONBLOCK), 0);
    target.assign(kTargetBytes, std::byte{0x77});
    region = regions.add(target.data(), target.size(), nullptr);
    channel =
        std::make_unique<TcpChannel>(ours.get(), ChannelContext{&regions, &counters, &events}, 1);
  }
  FrameHeader header(FrameType type, uint64_t bytes) const {
    FrameHeader made;
    made.type = type;
    made.immediate = 5;
    made.bytes = bytes;
    if (type == FrameType::write) made.target = RegionTable::name(*regions.find(region.id));
    return made;
  }

  RegionTable regions;
  Counters counters;
  std::vector<Event> events;
  std::vector<std::byte> target;
  Region region;
  Fd ours, theirs;
  std::unique_ptr<TcpChannel> channel;
};

std::vector<std::byte> frame(const FrameHeader& header, const std::vector<std::byte>& payload) {
  std::vector<std::byte> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
  return bytes;
}

TEST(FabricTcp, AHalfWriteIsKnownAndNotDelivered) {
  Harness h;
  std::vector<std::byte> half = frame(h.header(FrameType::write, 200'000), counted(1, 1000));
  raw_send(h.theirs.get(), half);
  ASSERT_TRUE(h.channel->readable_on_loop().is_ok());
  EXPECT_TRUE(h.channel->receiving_into(h.region.id));
  EXPECT_TRUE(h.events.empty());
  h.theirs.reset();
  EXPECT_EQ(h.channel->readable_on_loop().code(), Code::fabric);
  EXPECT_TRUE(h.events.empty());
}

TEST(FabricTcp, AFullSocketBlocksWithoutLossAndDoneComesWithTheKernelsTake) {
  Harness h;
  const std::vector<std::byte> data = counted(4, 8u << 20);
  const LocalSpan span{data.data(), data.size()};
  ASSERT_TRUE(h.channel->write(&span, 1, data.size(), {0, data.size(), 1}, 6, 42).is_ok());
  ASSERT_TRUE(h.channel->send("end", 3, 43).is_ok());
  std::vector<std::byte> got;
  std::vector<std::byte> buffer(1 << 20);
  bool was_blocked = false;
  while (got.size() < 2 * sizeof(FrameHeader) + data.size() + 3) {
    ASSERT_TRUE(h.channel->progress_on_loop().is_ok());
    if (h.channel->wants_writable()) {
      was_blocked = true;
      EXPECT_TRUE(h.channel->arm_on_loop()) << "epoll tells when it goes on";
      EXPECT_TRUE(h.events.empty()) << "done before the kernel has it all";
    }
    const ssize_t count = recv(h.theirs.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) got.insert(got.end(), buffer.begin(), buffer.begin() + count);
    ASSERT_TRUE(h.channel->writable_on_loop().is_ok());
  }
  EXPECT_TRUE(was_blocked);
  ASSERT_EQ(h.events.size(), 2u);
  EXPECT_EQ(h.events[0].id, 42u);
  EXPECT_EQ(h.events[1].id, 43u);
  FrameHeader header;
  std::memcpy(&header, got.data(), sizeof header);
  EXPECT_EQ(header.bytes, data.size());
  EXPECT_EQ(header.immediate, 6u);
  EXPECT_EQ(std::memcmp(got.data() + sizeof header, data.data(), data.size()), 0);
  EXPECT_EQ(std::memcmp(got.data() + got.size() - 3, "end", 3), 0);
}

TEST(FabricTcp, ThePeersLastWordsAreHeardAlthoughItTakesNoMore) {
  Harness h;
  raw_send(h.theirs.get(), frame(h.header(FrameType::message, 3), bytes_of("bye")));
  h.theirs.reset();
  ASSERT_TRUE(h.channel->send("late", 4, 1).is_ok());
  EXPECT_EQ(h.channel->progress_on_loop().code(), Code::fabric);
  ASSERT_EQ(h.events.size(), 1u);
  EXPECT_EQ(h.events[0].payload, bytes_of("bye"));
  EXPECT_EQ(h.channel->abandon_on_loop(), std::vector<uint64_t>{1});
}

TEST(FabricTcp, OneTurnIsBounded) {
  Harness h;
  std::vector<std::byte> large(8u << 20);
  const Region region = h.regions.add(large.data(), large.size(), nullptr);
  FrameHeader header = h.header(FrameType::write, large.size());
  header.target = RegionTable::name(*h.regions.find(region.id));
  // The sender never stops: a turn must.
  const std::vector<std::byte> stream = frame(header, counted(1, large.size()));
  size_t sent = 0, turns = 0;
  while (h.events.empty()) {
    while (sent < stream.size()) {
      const ssize_t count = ::send(h.theirs.get(), stream.data() + sent, stream.size() - sent,
                                   MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count <= 0) break;
      sent += static_cast<size_t>(count);
    }
    ASSERT_TRUE(h.channel->readable_on_loop().is_ok());
    ++turns;
  }
  EXPECT_GE(turns, 4u);
  EXPECT_EQ(std::memcmp(large.data(), stream.data() + sizeof header, large.size()), 0);
}

}  // namespace
}  // namespace mxrdma::fabric
