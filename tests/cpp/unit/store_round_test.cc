// Rounds of a store without an optimizer, or with plain SGD: what is answered, and when.
#include <gmock/gmock.h>

#include "store_fixture.h"

namespace mxrdma::store {
namespace {

using Kind = Effect::Kind;
using testing::ElementsAre;
using testing::HasSubstr;
using Floats = std::vector<float>;

TEST(StoreRound, SumOfTwoWorkersIsWrittenToThoseWhoAsked) {
  StoreBox box(2);
  const auto key = make_key(0, 2);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{5, 6}).is_ok());
  EXPECT_EQ(box.count(Kind::round_done), 1u);
  box.forget();
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1, 2}, true).is_ok());
  EXPECT_TRUE(box.slots.empty()) << "the first push waits for nobody";
  EXPECT_EQ(box.count(Kind::write_weights), 0u);
  EXPECT_GT(box.store.bytes().accumulators, 0u);
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{10, 20}).is_ok());
  const auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_EQ(writes[0].rank, 0u);
  EXPECT_EQ(writes[0].pull_op, 1000u);
  EXPECT_EQ(writes[0].target.address, 0x1000u);
  EXPECT_EQ(writes[0].data.region, 7u);
  EXPECT_THAT(StoreBox::values<float>(writes[0]), ElementsAre(11, 22));
  const auto done = box.take(Kind::round_done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].rank, 1u);
  EXPECT_EQ(done[0].round, 1u);
  EXPECT_EQ(box.store.bytes().accumulators, 0u);
}

TEST(StoreRound, SgdUpdatesInTheSamePass) {
  StoreBox box(2);
  const auto key = make_key(0, 2);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  wire::OptimizerSpec sgd;
  sgd.kind = wire::OptimizerKind::sgd;
  ASSERT_TRUE(box.store.set_optimizer(sgd, nullptr).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{1, 1}).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{2, 4}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{3, 6}).is_ok());
  ASSERT_TRUE(box.pull(1, key, 1).is_ok());
  const auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_THAT(StoreBox::values<float>(writes[0]), ElementsAre(1 - 0.1f * 5, 1 - 0.1f * 10));
}

}  // namespace
}  // namespace mxrdma::store
