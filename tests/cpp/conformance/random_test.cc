// Random sequences of everything between three endpoints, against a model of what must arrive.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "world.h"

namespace mxrdma::fabric {
namespace {

// One direction of a connection: what was posted, in order, and the memory as it must become.
struct Direction {
  Endpoint* from = nullptr;
  Endpoint* to = nullptr;
  PeerId at_from = 0, at_to = 0;
  Region region;
  RemoteRegion remote;
  std::vector<std::byte> model;  // of `region`, all posted writes applied
  struct Posted {
    bool is_write = false;
    uint32_t immediate = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Posted> posted;
  std::vector<std::shared_ptr<std::vector<std::byte>>> sources;  // one for each write
};

class Sequence {
 public:
  explicit Sequence(uint64_t seed) : generator_(seed) {}
  uint64_t below(uint64_t bound) { return generator_() % bound; }
  size_t size(size_t limit) {
    // Small ones, large ones, and those around powers of two.
    switch (below(4)) {
      case 0:
        return below(17);
      case 1:
        return std::min<size_t>(limit, (size_t{1} << below(18)) + below(3));
      case 2:
        return std::min<size_t>(limit, (size_t{1} << below(18)));
      default:
        return below(limit + 1);
    }
  }
  std::mt19937_64 generator_;
};

constexpr size_t kRegionBytes = 200'000;

void post_write(Sequence* random, Direction* way, bool registered) {
  const size_t bytes = random->size(kRegionBytes / 2);
  const size_t offset = random->below(kRegionBytes - bytes + 1);
  auto source = std::make_shared<std::vector<std::byte>>(pattern(random->generator_(), bytes + 1));
  RegionId region = kNoRegion;
  if (registered) {
    Result<Region> made = way->from->fabric()->register_memory(source->data(), source->size());
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    region = made.value().id;
  }
  std::vector<LocalSpan> spans;
  for (size_t at = 0; at < bytes;) {
    const size_t part = spans.size() + 1 == kMaxSpans ? bytes - at : 1 + random->below(bytes - at);
    spans.push_back({source->data() + at, part, region});
    at += part;
  }
  const auto immediate = static_cast<uint32_t>(random->generator_());
  Status status =
      way->from->write(way->at_from, spans, offset_by(way->remote, offset, bytes), immediate);
  if (status.code() == Code::busy) return;
  ASSERT_TRUE(status.is_ok()) << status.to_string()
                              << "; lost: " << way->from->peer(way->at_from).why_lost.to_string();
  std::copy(source->begin(), source->begin() + static_cast<std::ptrdiff_t>(bytes),
            way->model.begin() + static_cast<std::ptrdiff_t>(offset));
  way->posted.push_back({true, immediate, std::vector<std::byte>(bytes)});
  way->sources.push_back(std::move(source));
}

void post_send(Sequence* random, Direction* way) {
  const std::vector<std::byte> message =
      pattern(random->generator_(), 1 + random->size(kMaxMessageBytes - 1));
  Status status = way->from->send(way->at_from, message);
  if (status.code() == Code::busy) return;
  ASSERT_TRUE(status.is_ok()) << status.to_string()
                              << "; lost: " << way->from->peer(way->at_from).why_lost.to_string();
  way->posted.push_back({false, 0, message});
}

// What arrived is the first part of what was posted.
void expect_prefix(const Direction& way) {
  const auto& arrived = way.to->peer(way.at_to).deliveries;
  ASSERT_LE(arrived.size(), way.posted.size());
  for (size_t i = 0; i < arrived.size(); ++i) {
    ASSERT_EQ(arrived[i].is_write, way.posted[i].is_write) << i;
    ASSERT_EQ(arrived[i].bytes, way.posted[i].bytes.size()) << i;
    if (arrived[i].is_write)
      ASSERT_EQ(arrived[i].immediate, way.posted[i].immediate) << i;
    else
      ASSERT_TRUE(arrived[i].payload == way.posted[i].bytes) << i;
  }
}

TEST_P(Conformance, RandomSequencesKeepTheContract) {
  const uint64_t seeds = world_->is_real() ? 5 : 20;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence random(seed);
    std::vector<Endpoint*> nodes;
    std::vector<Address> addresses;
    for (int i = 0; i < 3; ++i) {
      nodes.push_back(make_endpoint());
      addresses.push_back(listen(nodes.back()));
    }
    std::vector<Direction> ways;
    for (size_t i = 0; i < 3; ++i) {
      const Link link = connect(nodes[i], nodes[(i + 1) % 3], addresses[(i + 1) % 3]);
      ASSERT_NE(link.client, nullptr);
      Direction forth, back;
      forth.from = back.to = link.client;
      forth.to = back.from = link.server;
      forth.at_from = back.at_to = link.at_client;
      forth.at_to = back.at_from = link.at_server;
      ways.push_back(forth);
      ways.push_back(back);
    }
    for (Direction& way : ways) {
      way.region = allocate(way.to, kRegionBytes);
      way.remote = describe(way.to, way.region, way.at_to);
      way.model.assign(kRegionBytes, std::byte{0});
    }
    for (int step = 0; step < 400 && !HasFatalFailure(); ++step) {
      Direction& way = ways[random.below(ways.size())];
      const uint64_t what = random.below(10);
      if (what < 4) post_write(&random, &way, random.below(2) == 0);
      if (what >= 4 && what < 7) post_send(&random, &way);
      if (what >= 7) nodes[random.below(3)]->poll();
      if (what == 9) static_cast<void>(world_->pass());
    }
    if (HasFatalFailure()) return;
    // One connection is closed amid of it all; the others must not notice.
    const size_t closed = 2 * random.below(3);
    if (random.below(2) == 0) {
      ways[closed].from->close(ways[closed].at_from);
    } else {
      ways[closed + 1].from->close(ways[closed + 1].at_from);
    }
    ASSERT_TRUE(pump_until(
        [&] {
          for (size_t i = 0; i < ways.size(); ++i) {
            const Direction& way = ways[i];
            if (!way.from->peer(way.at_from).outstanding.empty()) return false;
            if (i / 2 != closed / 2 &&
                way.to->peer(way.at_to).deliveries.size() < way.posted.size())
              return false;
          }
          return ways[closed].from->peer(ways[closed].at_from).lost ||
                 ways[closed].to->peer(ways[closed].at_to).lost;
        },
        "all that was posted on the open connections"));
    for (size_t i = 0; i < ways.size(); ++i) {
      expect_prefix(ways[i]);
      if (i / 2 == closed / 2) continue;
      ASSERT_EQ(std::memcmp(ways[i].region.base, ways[i].model.data(), kRegionBytes), 0);
      for (const auto& done : ways[i].from->peer(ways[i].at_from).done)
        ASSERT_TRUE(done.second.is_ok()) << done.second.to_string();
    }
    endpoints_.clear();
  }
}

}  // namespace
}  // namespace mxrdma::fabric
