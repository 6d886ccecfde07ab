// Writes, sends and reads: every byte at its place, in order, and nobody's memory held too long.
#include <algorithm>
#include <cstring>

#include "world.h"

namespace mxrdma::fabric {
namespace {

enum class Memory { allocated, registered, unregistered };

class Buffer {
 public:
  Buffer(Fabric* fabric, Memory kind, size_t bytes) {
    if (kind == Memory::allocated) {
      Result<Region> made = fabric->allocate(std::max<size_t>(bytes, 1));
      EXPECT_TRUE(made.is_ok()) << made.status().to_string();
      if (made.is_ok()) region = made.value();
      data = region.base;
      for (size_t i = 0; i < std::min<size_t>(bytes, 4096) && data; ++i)
        if (data[i] != std::byte{0}) ADD_FAILURE() << "allocated memory is not zeroed";
      return;
    }
    own.resize(bytes + 1);
    data = own.data();
    if (kind == Memory::unregistered) return;
    Result<Region> made = fabric->register_memory(own.data(), own.size());
    EXPECT_TRUE(made.is_ok()) << made.status().to_string();
    if (made.is_ok()) region = made.value();
  }
  std::vector<std::byte> own;
  Region region;
  std::byte* data = nullptr;
};

TEST_P(Conformance, EverySizeFromAndIntoEveryKindOfMemory) {
  constexpr size_t kMargin = 64;
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  uint32_t immediate = 0;
  for (Memory from : {Memory::allocated, Memory::registered, Memory::unregistered})
    for (Memory to : {Memory::allocated, Memory::registered})
      for (size_t bytes :
           {0, 1, 3, 64, 1000, 4095, 4096, 4097, 65536, (1 << 20) - 1, 1 << 20, (1 << 20) + 13}) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes");
        Buffer source(link.client->fabric(), from, bytes);
        Buffer target(link.server->fabric(), to, bytes + 2 * kMargin);
        std::memset(target.data, 0x5a, bytes + 2 * kMargin);
        const std::vector<std::byte> data = pattern(++immediate, bytes);
        if (bytes > 0) std::memcpy(source.data, data.data(), bytes);
        const RemoteRegion remote =
            offset_by(describe(link.server, target.region, link.at_server), kMargin, bytes);
        auto& arrived = link.seen_by_server().deliveries;
        const size_t before = arrived.size();
        uint64_t id = 0;
        ASSERT_TRUE(link.client
                        ->write(link.at_client, {{source.data, bytes, source.region.id}}, remote,
                                immediate, &id)
                        .is_ok());
        ASSERT_TRUE(pump_until(
            [&] { return arrived.size() > before && link.seen_by_client().done.count(id) > 0; },
            "arrived and done"));
        EXPECT_TRUE(link.seen_by_client().done[id].is_ok());
        EXPECT_TRUE(arrived.back().is_write);
        EXPECT_EQ(arrived.back().immediate, immediate);
        EXPECT_EQ(arrived.back().bytes, bytes);
        EXPECT_TRUE(std::equal(data.begin(), data.end(), target.data + kMargin));
        for (size_t i = 0; i < kMargin; ++i)
          ASSERT_TRUE(target.data[i] == std::byte{0x5a} &&
                      target.data[kMargin + bytes + i] == std::byte{0x5a})
              << "written outside of the target";
        if (source.region.id != kNoRegion) link.client->fabric()->release(source.region.id);
        link.server->fabric()->release(target.region.id);
      }
}

TEST_P(Conformance, AWriteGathersAllItsSpans) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  std::vector<std::vector<std::byte>> pieces;
  std::vector<LocalSpan> spans;
  std::vector<std::byte> whole;
  for (uint32_t i = 0; i < kMaxSpans; ++i) {
    pieces.push_back(pattern(i, i % 7 == 0 ? 0 : (i * 37) % 3001));
    whole.insert(whole.end(), pieces[i].begin(), pieces[i].end());
  }
  for (const auto& piece : pieces) spans.push_back(span_of(piece));
  ASSERT_EQ(spans.size(), kMaxSpans);
  const Region target = allocate(link.server, whole.size());
  ASSERT_TRUE(
      link.client->write(link.at_client, spans, describe(link.server, target, link.at_server), 9)
          .is_ok());
  ASSERT_TRUE(pump_until(
      [&] {
        return !link.seen_by_server().deliveries.empty() &&
               link.seen_by_client().outstanding.empty();
      },
      "arrived and done"));
  EXPECT_EQ(link.seen_by_server().deliveries[0].bytes, whole.size());
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), target.base));
}

TEST_P(Conformance, SixtyFourMebibytes) {
  constexpr size_t kBytes = 64u << 20;
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const std::vector<std::byte> source = pattern(64, kBytes);
  const Region target = allocate(link.server, kBytes);
  ASSERT_TRUE(link.client
                  ->write(link.at_client, {span_of(source)},
                          describe(link.server, target, link.at_server), 1)
                  .is_ok());
  ASSERT_TRUE(pump_until([&] { return link.seen_by_server().deliveries.size() == 1; }, "arrived"));
  EXPECT_EQ(link.seen_by_server().deliveries[0].bytes, kBytes);
  EXPECT_EQ(std::memcmp(target.base, source.data(), kBytes), 0);
}

TEST_P(Conformance, ImmediatesAreAllThirtyTwoBits) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region target = allocate(link.server, 4096);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<uint32_t> immediates = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  for (uint32_t immediate : immediates)
    ASSERT_TRUE(link.client->write(link.at_client, {}, remote, immediate).is_ok());
  auto& arrived = link.seen_by_server().deliveries;
  ASSERT_TRUE(pump_until([&] { return arrived.size() == immediates.size(); }, "all arrived"));
  for (size_t i = 0; i < immediates.size(); ++i) EXPECT_EQ(arrived[i].immediate, immediates[i]);
}

TEST_P(Conformance, WritesAndSendsKeepTheirOrder) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region target = allocate(link.server, 400'000);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(3, 400'000);
  for (uint32_t i = 0; i < 300; ++i) {
    // Long writes before short sends: what overtakes would be seen.
    const size_t bytes = i % 10 == 0 ? 400'000 : i;
    Status status = i % 3 == 0
                        ? link.client->send(link.at_client, pattern(i, i + 1))
                        : link.client->write(link.at_client, {{source.data(), bytes}}, remote, i);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }
  auto& arrived = link.seen_by_server().deliveries;
  ASSERT_TRUE(pump_until(
      [&] { return arrived.size() == 300 && link.seen_by_client().outstanding.empty(); }, "all"));
  for (uint32_t i = 0; i < 300; ++i) {
    ASSERT_EQ(arrived[i].is_write, i % 3 != 0) << i;
    if (arrived[i].is_write)
      EXPECT_EQ(arrived[i].immediate, i);
    else
      EXPECT_EQ(arrived[i].payload, pattern(i, i + 1));
  }
}

TEST_P(Conformance, SendsOfAllSizes) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const std::vector<size_t> sizes = {1, 2, 15, 16, 17, 4096, 65535, kMaxMessageBytes};
  for (size_t bytes : sizes)
    ASSERT_TRUE(link.client->send(link.at_client, pattern(bytes, bytes)).is_ok()) << bytes;
  EXPECT_FALSE(link.client->send(link.at_client, pattern(1, kMaxMessageBytes + 1)).is_ok());
  auto& arrived = link.seen_by_server().deliveries;
  ASSERT_TRUE(pump_until([&] { return arrived.size() == sizes.size(); }, "all messages"));
  pump_idle();
  ASSERT_EQ(arrived.size(), sizes.size()) << "a refused message arrived";
  for (size_t i = 0; i < sizes.size(); ++i)
    EXPECT_EQ(arrived[i].payload, pattern(sizes[i], sizes[i]));
  EXPECT_FALSE(link.seen_by_client().lost);
}

TEST_P(Conformance, TheSourceIsTheCallersAgainAtDone) {
  constexpr size_t kBytes = 100'003, kRounds = 40;
  for (bool registered : {false, true}) {
    const Link link = make_link();
    ASSERT_NE(link.client, nullptr);
    const Region target = allocate(link.server, kBytes * kRounds);
    const RemoteRegion remote = describe(link.server, target, link.at_server);
    std::vector<std::byte> source(kBytes);
    const RegionId region = registered ? register_memory(link.client, &source).id : kNoRegion;
    for (size_t round = 0; round < kRounds; ++round) {
      const std::vector<std::byte> data = pattern(round, kBytes);
      std::copy(data.begin(), data.end(), source.begin());  // in place: it may be registered
      uint64_t id = 0;
      ASSERT_TRUE(link.client
                      ->write(link.at_client, {span_of(source, region)},
                              offset_by(remote, round * kBytes, kBytes), 1, &id)
                      .is_ok());
      ASSERT_TRUE(pump_until([&] { return link.seen_by_client().done.count(id) > 0; }, "done"));
      std::fill(source.begin(), source.end(), std::byte{0xdd});
    }
    ASSERT_TRUE(pump_until([&] { return link.seen_by_server().deliveries.size() == kRounds; },
                           "all arrived"));
    for (size_t round = 0; round < kRounds; ++round) {
      const std::vector<std::byte> expected = pattern(round, kBytes);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), target.base + round * kBytes))
          << "round " << round;
    }
    if (region != kNoRegion) link.client->fabric()->release(region);
  }
}

TEST_P(Conformance, BothWaysAtOnceWithoutDeadlock) {
  constexpr size_t kBytes = 65536, kTotal = 1500;
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region at_client = allocate(link.client, kBytes), at_server = allocate(link.server, kBytes);
  const RemoteRegion to_server = describe(link.server, at_server, link.at_server);
  const RemoteRegion to_client = describe(link.client, at_client, link.at_client);
  const std::vector<std::byte> source = pattern(8, kBytes);
  size_t client_posted = 0, server_posted = 0;
  auto flood = [&](Endpoint* endpoint, PeerId peer, const RemoteRegion& target, size_t* posted) {
    while (*posted < kTotal) {
      Status status = *posted % 4 == 0 ? endpoint->send(peer, pattern(1, 1000))
                                       : endpoint->write(peer, {span_of(source)}, target,
                                                         static_cast<uint32_t>(*posted));
      if (status.code() == Code::busy) return;
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      ++*posted;
    }
  };
  ASSERT_TRUE(pump_until(
      [&] {
        flood(link.client, link.at_client, to_server, &client_posted);
        flood(link.server, link.at_server, to_client, &server_posted);
        return link.seen_by_client().done.size() == kTotal &&
               link.seen_by_server().done.size() == kTotal &&
               link.seen_by_client().deliveries.size() == kTotal &&
               link.seen_by_server().deliveries.size() == kTotal;
      },
      "all of both directions"));
  EXPECT_TRUE(std::equal(source.begin(), source.end(), at_client.base));
  EXPECT_TRUE(std::equal(source.begin(), source.end(), at_server.base));
}

TEST_P(Conformance, ReadsWhereTheFabricCan) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  if (!link.client->fabric()->can_read(link.at_client)) GTEST_SKIP() << "this fabric does not read";
  const std::vector<std::byte> data = pattern(12, 100'001);
  const Region source = allocate(link.server, data.size());
  std::memcpy(source.base, data.data(), data.size());
  const RemoteRegion remote = describe(link.server, source, link.at_server);
  std::vector<std::byte> into(data.size());
  uint64_t id = 0;
  ASSERT_TRUE(link.client->read(link.at_client, remote, into.data(), into.size(), &id).is_ok());
  ASSERT_TRUE(pump_until([&] { return link.seen_by_client().done.count(id) > 0; }, "done"));
  ASSERT_TRUE(link.seen_by_client().done[id].is_ok());
  EXPECT_EQ(into, data);
  std::vector<std::byte> part(99);
  ASSERT_TRUE(
      link.client->read(link.at_client, offset_by(remote, 31, 99), part.data(), part.size(), &id)
          .is_ok());
  ASSERT_TRUE(pump_until([&] { return link.seen_by_client().done.count(id) > 0; }, "done"));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), data.begin() + 31));
  EXPECT_TRUE(link.seen_by_server().deliveries.empty()) << "a read is not told to its target";
}

TEST_P(Conformance, CountersAddUp) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Counters before_client = link.client->fabric()->counters();
  const Counters before_server = link.server->fabric()->counters();
  const Region target = allocate(link.server, 10'000);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(3, 10'000);
  uint64_t bytes = 0, send_bytes = 0;
  for (uint32_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(link.client->write(link.at_client, {{source.data(), i * 100}}, remote, i).is_ok());
    ASSERT_TRUE(link.client->send(link.at_client, pattern(i, i + 1)).is_ok());
    bytes += i * 100;
    send_bytes += i + 1;
  }
  ASSERT_TRUE(pump_until(
      [&] {
        return link.seen_by_server().deliveries.size() == 100 &&
               link.seen_by_client().outstanding.empty();
      },
      "all"));
  const Counters client = link.client->fabric()->counters();
  const Counters server = link.server->fabric()->counters();
  EXPECT_EQ(client.writes - before_client.writes, 50u);
  EXPECT_EQ(client.write_bytes - before_client.write_bytes, bytes);
  EXPECT_EQ(client.sends - before_client.sends, 50u);
  EXPECT_EQ(client.send_bytes - before_client.send_bytes, send_bytes);
  EXPECT_EQ(server.arrivals - before_server.arrivals, 50u);
  EXPECT_EQ(server.arrival_bytes - before_server.arrival_bytes, bytes);
  EXPECT_EQ(server.messages - before_server.messages, 50u);
  EXPECT_EQ(client.busy, before_client.busy);
  EXPECT_EQ(server.writes, before_server.writes);
}

}  // namespace
}  // namespace mxrdma::fabric
