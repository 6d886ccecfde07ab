#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "store/placement.h"

namespace mxrdma::store {
namespace {

void check_shares(const std::vector<wire::Share>& shares, uint64_t bytes) {
  uint64_t covered = 0;
  for (const wire::Share& share : shares) {
    EXPECT_EQ(share.offset_bytes, covered);
    EXPECT_EQ(share.offset_bytes % 64, 0u);
    EXPECT_GT(share.bytes, 0u);
    covered += share.bytes;
  }
  EXPECT_EQ(covered, bytes);
}

TEST(StorePlacement, LoadsAreLevelAndSharesCover) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const uint32_t servers = 1 + random() % 7;
    Placer placer(servers), twin(servers);
    for (int i = 0; i < 60; ++i) {
      const uint64_t bytes = 4 * (1 + random() % (random() % 3 == 0 ? 4'000'000 : 5000));
      const auto shares = placer.place(bytes, 4, false);
      check_shares(shares, bytes);
      const auto again = twin.place(bytes, 4, false);
      ASSERT_EQ(again.size(), shares.size());
      for (size_t k = 0; k < shares.size(); ++k) EXPECT_EQ(again[k].server, shares[k].server);
    }
    const auto& loads = placer.loads();
    const auto [low, high] = std::minmax_element(loads.begin(), loads.end());
    EXPECT_LE(*high - *low, 128u * 1024) << "seed " << seed;
  }
}

TEST(StorePlacement, WholeAndSmallKeysLieOnTheLeastLoadedServer) {
  Placer placer(3);
  EXPECT_EQ(placer.place(30'000'000, 4, true).size(), 1u);
  const auto small = placer.place(400, 4, false);
  ASSERT_EQ(small.size(), 1u);
  EXPECT_EQ(small[0].server, 1u);
  const auto large = placer.place(20'000'000, 4, false);
  for (const auto& share : large) EXPECT_NE(share.server, 0u) << "server 0 has more than its part";
  placer.remove(large);
  placer.remove(small);
  EXPECT_EQ(placer.loads(), (std::vector<uint64_t>{30'000'000, 0, 0}));
}

TEST(StorePlacement, SlicesNumberAllSharesInOrder) {
  wire::KeySpec key;
  key.shares = {{2, 0, 640}, {0, 640, 100}};
  const auto slices = cut(key, 256);
  ASSERT_EQ(slices.size(), 4u);
  const std::vector<std::vector<uint64_t>> expected{
      {2, 0, 256}, {2, 256, 256}, {2, 512, 128}, {0, 640, 100}};
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(slices[i].index, i);
    EXPECT_EQ(slices[i].server, expected[i][0]);
    EXPECT_EQ(slices[i].offset_bytes, expected[i][1]);
    EXPECT_EQ(slices[i].bytes, expected[i][2]);
  }
}

}  // namespace
}  // namespace mxrdma::store
