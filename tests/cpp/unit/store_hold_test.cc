// First payloads that stay in their slots until the second comes.
#include <gmock/gmock.h>

#include "store_fixture.h"

namespace mxrdma::store {
namespace {

using Kind = Effect::Kind;
using testing::ElementsAre;
using Floats = std::vector<float>;

class StoreHold : public testing::Test {
 protected:
  void start(StoreBox* box, uint32_t keys = 1) {
    for (uint32_t id = 0; id < keys; ++id) {
      keys_.push_back(make_key(id, 2));
      ASSERT_TRUE(box->store.add_key(keys_[id]).is_ok());
      ASSERT_TRUE(box->push(0, keys_[id], 0, 0, Floats{0, 0}).is_ok());
    }
    box->forget();
  }

  std::vector<wire::KeySpec> keys_;
};

TEST_F(StoreHold, TheSecondOfTwoFinishesFromBothSlotsWithoutAccumulator) {
  StoreBox box(2, 0, 1024, true);
  start(&box);
  ASSERT_TRUE(box.push(0, keys_[0], 0, 1, Floats{1, 2}).is_ok());
  EXPECT_EQ(box.slots.size(), 1u) << "the first stays in its slot";
  EXPECT_EQ(box.store.bytes().accumulators, 0u);
  ASSERT_TRUE(box.push(1, keys_[0], 0, 1, Floats{10, 20}, true).is_ok());
  EXPECT_TRUE(box.slots.empty());
  EXPECT_EQ(box.store.bytes().accumulators_peak, 0u);
  const auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_THAT(StoreBox::values<float>(writes[0]), ElementsAre(11, 22));
}

TEST_F(StoreHold, OfThreeTheSecondFoldsTheFirst) {
  StoreBox box(3, 0, 1024, true);
  start(&box);
  ASSERT_TRUE(box.push(2, keys_[0], 0, 1, Floats{1, 2}).is_ok());
  EXPECT_EQ(box.slots.size(), 1u);
  ASSERT_TRUE(box.push(0, keys_[0], 0, 1, Floats{10, 20}).is_ok());
  EXPECT_TRUE(box.slots.empty());
  ASSERT_TRUE(box.push(1, keys_[0], 0, 1, Floats{100, 200}, true).is_ok());
  EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]), ElementsAre(111, 222));
}

TEST_F(StoreHold, AWorkerThatRanAheadIsNotHeldUntilTheOthersCaughtUp) {
  StoreBox box(2, 0, 1024, true);
  start(&box, 4);
  ASSERT_TRUE(box.push(0, keys_[0], 0, 1, Floats{1, 1}).is_ok());
  ASSERT_TRUE(box.push(1, keys_[1], 0, 1, Floats{2, 2}).is_ok());
  EXPECT_EQ(box.slots.size(), 2u);
  box.fold_held(0);
  EXPECT_EQ(box.slots.size(), 1u) << "worker 0's slot only";
  ASSERT_TRUE(box.push(0, keys_[2], 0, 1, Floats{3, 3}).is_ok());
  EXPECT_EQ(box.slots.size(), 1u) << "summed at once";
  ASSERT_TRUE(box.push(1, keys_[0], 0, 1, Floats{10, 10}).is_ok());
  ASSERT_TRUE(box.push(1, keys_[2], 0, 1, Floats{30, 30}).is_ok());
  // In step again.
  ASSERT_TRUE(box.push(0, keys_[3], 0, 1, Floats{4, 4}).is_ok());
  EXPECT_EQ(box.slots.size(), 2u);
  ASSERT_TRUE(box.push(1, keys_[3], 0, 1, Floats{40, 40}).is_ok());
  ASSERT_TRUE(box.push(0, keys_[1], 0, 1, Floats{20, 20}).is_ok());
  const std::vector<float> sums = {11, 22, 33, 44};
  for (uint32_t id = 0; id < 4; ++id) {
    box.forget();
    ASSERT_TRUE(box.pull(0, keys_[id], 1).is_ok());
    EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]),
                ElementsAre(sums[id], sums[id]));
  }
}

TEST_F(StoreHold, ALostWorkersHeldPushCountsAndItsSlotIsGivenBack) {
  StoreBox box(2, 0, 1024, true);
  start(&box);
  ASSERT_TRUE(box.push(0, keys_[0], 0, 1, Floats{1, 2}).is_ok());
  box.worker_gone(0);
  EXPECT_TRUE(box.slots.empty());
  ASSERT_TRUE(box.push(1, keys_[0], 0, 1, Floats{10, 20}, true).is_ok());
  EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]), ElementsAre(11, 22));
}

TEST_F(StoreHold, AFailedRoundGivesTheHeldSlotBack) {
  StoreBox box(2, 0, 1024, true);
  start(&box);
  ASSERT_TRUE(box.push(0, keys_[0], 0, 1, Floats{1, 2}).is_ok());
  box.store.fail_round(0, 1, Status(Code::round_timeout, "late"), &box.effects);
  box.settle();
  EXPECT_TRUE(box.slots.empty());
  EXPECT_EQ(box.count(Kind::round_failed), 1u);
}

}  // namespace
}  // namespace mxrdma::store
