// Bounds, and peers that do not keep to them.
#include <algorithm>
#include <functional>

#include "world.h"

namespace mxrdma::fabric {
namespace {

TEST_P(Conformance, BusyAtTheBoundAndFreeAfterwards) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region target = allocate(link.server, 4096);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(1, 4096);
  for (int round = 0; round < 3; ++round) {
    const size_t done_before = link.seen_by_client().done.size();
    const size_t arrived_before = link.seen_by_server().deliveries.size();
    for (uint32_t i = 0; i < kMaxOutstandingPerPeer; ++i) {
      Status status = i % 2 == 0 ? link.client->send(link.at_client, pattern(i, 50))
                                 : link.client->write(link.at_client, {span_of(source)}, remote, i);
      ASSERT_TRUE(status.is_ok()) << i << ": " << status.to_string();
    }
    EXPECT_EQ(link.client->send(link.at_client, pattern(1, 50)).code(), Code::busy);
    EXPECT_EQ(link.client->write(link.at_client, {span_of(source)}, remote, 7).code(), Code::busy);
    ASSERT_TRUE(pump_until(
        [&] {
          return link.seen_by_client().done.size() - done_before == kMaxOutstandingPerPeer &&
                 link.seen_by_server().deliveries.size() - arrived_before == kMaxOutstandingPerPeer;
        },
        "all done and there"));
  }
  pump_idle();
  EXPECT_EQ(link.seen_by_server().deliveries.size(), 3 * kMaxOutstandingPerPeer)
      << "what was refused had an effect";
  EXPECT_GE(link.client->fabric()->counters().busy, 6u);
}

TEST_P(Conformance, ATargetSmallerThanTheDataIsRefusedWithoutEffect) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region target = allocate(link.server, 4096);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(1, 100);
  EXPECT_FALSE(
      link.client->write(link.at_client, {span_of(source)}, offset_by(remote, 0, 99), 1).is_ok());
  pump_idle();
  EXPECT_TRUE(link.seen_by_server().deliveries.empty());
  ASSERT_TRUE(link.client->write(link.at_client, {span_of(source)}, remote, 2).is_ok());
  ASSERT_TRUE(pump_until([&] { return link.seen_by_server().deliveries.size() == 1; }, "arrived"));
  EXPECT_EQ(link.seen_by_server().deliveries[0].immediate, 2u);
}

// Each makes something of a good target that the owner never described.
struct BadTarget {
  const char* name;
  std::function<RemoteRegion(const RemoteRegion& good)> make;
};

TEST_P(Conformance, WritesOutsideOfRegionsCostTheConnectionAndNothingElse) {
  constexpr uint64_t kBytes = 8192;
  const std::vector<BadTarget> bad = {
      {"wrong key", [](RemoteRegion r) { return r.key ^= 0x5555, r; }},
      {"key zero", [](RemoteRegion r) { return r.key = 0, r; }},
      {"begins beyond the end", [](RemoteRegion r) { return r.address += 2 * kBytes, r; }},
      {"ends beyond the end", [](RemoteRegion r) { return r.address += kBytes - 99, r; }},
      {"begins before the start", [](RemoteRegion r) { return r.address -= 50, r; }},
      {"address and bytes overflow",
       [](RemoteRegion r) { return r.address = ~uint64_t{0} - 49, r; }},
      {"address zero with room", [](RemoteRegion r) {
         const uint64_t base = r.address;
         r.address = 0;
         // Where addresses are offsets of the region, zero is a good one: go far beyond instead.
         if (base == 0) r.address = uint64_t{1} << 62;
         return r;
       }}};
  for (const BadTarget& target : bad) {
    SCOPED_TRACE(target.name);
    Endpoint* server = make_endpoint();
    const Address address = listen(server);
    const Link link = connect(make_endpoint(), server, address);
    const Link bystander = connect(make_endpoint(), server, address);
    ASSERT_NE(link.client, nullptr);
    ASSERT_NE(bystander.client, nullptr);
    // The first one, so that a search that ignores the key finds it.
    const Region region = allocate(server, kBytes), before = allocate(server, kBytes),
                 after = allocate(server, kBytes);
    for (const Region* each : {&before, &region, &after})
      std::fill(each->base, each->base + kBytes, std::byte{0x77});
    const std::vector<std::byte> source = pattern(1, 100);
    uint64_t bad_id = 0, next_id = 0;
    RemoteRegion remote = target.make(describe(server, region, link.at_server));
    remote.bytes = 100;
    Status status = link.client->write(link.at_client, {span_of(source)}, remote, 1, &bad_id);
    // A fabric that sees it at once may refuse it at once; then there is nothing to be lost.
    if (status.is_ok()) {
      ASSERT_TRUE(link.client->send(link.at_client, pattern(2, 8), &next_id).is_ok());
      ASSERT_TRUE(pump_until(
          [&] {
            return link.seen_by_server().lost && link.seen_by_client().lost &&
                   link.seen_by_client().outstanding.empty();
          },
          "both sides lost, all done"));
    }
    EXPECT_TRUE(link.seen_by_server().deliveries.empty());
    for (const Region* each : {&before, &region, &after})
      EXPECT_EQ(std::count(each->base, each->base + kBytes, std::byte{0x77}),
                static_cast<std::ptrdiff_t>(kBytes));
    ASSERT_TRUE(bystander.client->send(bystander.at_client, pattern(3, 8)).is_ok());
    ASSERT_TRUE(pump_until([&] { return bystander.seen_by_server().deliveries.size() == 1; },
                           "the bystander's message"));
  }
}

TEST_P(Conformance, AReleasedRegionIsNoTargetAnyMore) {
  for (bool allocated : {true, false}) {
    const Link link = make_link();
    ASSERT_NE(link.client, nullptr);
    std::vector<std::byte> memory(4096, std::byte{0x11});
    const Region region =
        allocated ? allocate(link.server, 4096) : register_memory(link.server, &memory);
    const RemoteRegion remote = describe(link.server, region, link.at_server);
    const std::vector<std::byte> source = pattern(1, 100);
    ASSERT_TRUE(link.client->write(link.at_client, {span_of(source)}, remote, 1).is_ok());
    ASSERT_TRUE(
        pump_until([&] { return link.seen_by_server().deliveries.size() == 1; }, "arrived"));
    link.server->fabric()->release(region.id);
    std::fill(memory.begin(), memory.end(), std::byte{0x22});
    EXPECT_FALSE(link.server->fabric()->describe(region.id, link.at_server).is_ok());
    ASSERT_TRUE(link.client->write(link.at_client, {span_of(source)}, remote, 2).is_ok());
    ASSERT_TRUE(pump_until([&] { return link.seen_by_server().lost && link.seen_by_client().lost; },
                           "lost"));
    EXPECT_EQ(link.seen_by_server().deliveries.size(), 1u);
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x22}), 4096);
  }
}

TEST_P(Conformance, RegionsComeAndGo) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const std::vector<std::byte> source = pattern(4, 3000);
  std::vector<std::byte> memory(3000);
  for (uint32_t i = 0; i < 300; ++i) {
    const bool allocated = i % 2 == 0;
    const Region region =
        allocated ? allocate(link.server, 3000) : register_memory(link.server, &memory);
    ASSERT_TRUE(link.client
                    ->write(link.at_client, {span_of(source)},
                            describe(link.server, region, link.at_server), i)
                    .is_ok());
    ASSERT_TRUE(
        pump_until([&] { return link.seen_by_server().deliveries.size() == i + 1; }, "arrived"));
    ASSERT_TRUE(std::equal(source.begin(), source.end(), region.base)) << i;
    link.server->fabric()->release(region.id);
  }
}

}  // namespace
}  // namespace mxrdma::fabric
