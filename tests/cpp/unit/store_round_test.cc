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

wire::OptimizerSpec kind(wire::OptimizerKind kind, const std::string& name = "x") {
  wire::OptimizerSpec spec;
  spec.kind = kind;
  spec.name = name;
  return spec;
}

class Doubler final : public WholeTensorUpdater {
 public:
  Status update(const wire::KeyRequest& key, const void* gradient, void* weights,
                const Hyper& hyper) override {
    ++calls;
    last = hyper;
    if (!error.empty()) return Status(Code::internal, error);
    for (uint64_t i = 0; i < key.elements; ++i)
      static_cast<float*>(weights)[i] += 2 * static_cast<const float*>(gradient)[i];
    return Status::ok();
  }
  int calls = 0;
  Hyper last;
  std::string error;
};

TEST(StoreRound, OneWorkerNeedsNoAccumulator) {
  StoreBox box(1);
  const auto key = make_key(0, 2);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{0, 0}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{3, 4}, true).is_ok());
  EXPECT_EQ(box.store.bytes().accumulators_peak, 0u);
  EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]), ElementsAre(3, 4));
}

TEST(StoreRound, AGradientMayComeBeforeTheInitialValue) {
  StoreBox box(2);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.store.set_optimizer(kind(wire::OptimizerKind::sgd), nullptr).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{10}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{20}).is_ok());
  EXPECT_TRUE(box.slots.empty()) << "no slot waits for another worker";
  ASSERT_TRUE(box.pull(1, key, 0, 5).is_ok());
  EXPECT_EQ(box.effects.size(), 2u) << "nothing but the released slots";
  ASSERT_EQ(box.store.waiting().size(), 1u);
  EXPECT_THAT(box.store.waiting()[0].missing, ElementsAre(0));
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{100}).is_ok());
  const auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 1u) << "the pull of round 0 is answered with the initial value";
  EXPECT_THAT(StoreBox::values<float>(writes[0]), ElementsAre(100));
  EXPECT_EQ(box.count(Kind::round_done), 1u) << "the initial push; the round waits for the write";
  box.write_done(0, 0);
  EXPECT_EQ(box.count(Kind::round_done), 3u);
  EXPECT_THAT(StoreBox::values<float>(writes[0]), ElementsAre(97));
}

TEST(StoreRound, WeightsInFlightAreNotUpdated) {
  StoreBox box(2, 1);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{7}).is_ok());
  ASSERT_TRUE(box.pull(0, key, 0, 1).is_ok());
  ASSERT_TRUE(box.pull(1, key, 0, 2).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1}).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{2}).is_ok());
  EXPECT_EQ(box.slots.size(), 1u) << "the finishing push keeps its slot";
  ASSERT_TRUE(box.push(1, key, 0, 2, Floats{30}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 2, Floats{40}, true).is_ok());
  const auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_TRUE(box.store.waiting().empty()) << "no worker is late";
  box.write_done(0, 0);
  EXPECT_THAT(StoreBox::values<float>(writes[1]), ElementsAre(7));
  box.write_done(0, 0);
  EXPECT_TRUE(box.slots.empty());
  const auto after = box.take(Kind::write_weights);
  ASSERT_EQ(after.size(), 3u) << "both rounds completed, in order";
  EXPECT_THAT(StoreBox::values<float>(after[2]), ElementsAre(70));
}

TEST(StoreRound, TwoRoundsMayBeOpenWithStalenessOne) {
  StoreBox box(2, 1);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{0}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 2, Floats{10}).is_ok());
  const Status third = box.push(0, key, 0, 3, Floats{100});
  EXPECT_EQ(third.code(), Code::invalid_argument);
  EXPECT_THAT(third.message(), HasSubstr("staleness is 1"));
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{2}).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 2, Floats{20}, true).is_ok());
  EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]), ElementsAre(30));
}

TEST(StoreRound, BadRecordsChangeNothingAndAreNamed) {
  StoreBox box(2);
  const auto key = make_key(0, 300);  // slices of 256 and 44 elements
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  EXPECT_FALSE(box.store.add_key(key).is_ok());
  const Floats good(256, 1);
  ASSERT_TRUE(box.push(0, key, 0, 0, good).is_ok());
  auto refused = [&](uint32_t rank, const wire::PushRecord& record, const std::string& word) {
    const Status status = box.push_record(rank, record, std::vector<std::byte>(4096).data());
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_THAT(status.message(), HasSubstr(word));
  };
  const auto fine = StoreBox::record(key, 0, 1, 1024);
  auto bad = fine;
  bad.key = 9;
  refused(0, bad, "key id 9");
  bad = fine;
  bad.slice = 2;
  refused(0, bad, "slice 2");
  bad = fine;
  bad.payload_bytes = 1020;
  refused(0, bad, "1020 bytes, the slice has 1024");
  bad = fine;
  bad.dtype = static_cast<uint8_t>(DType::int32);
  refused(0, bad, "dtype int32, the key has float32");
  bad = fine;
  bad.round = 2;
  refused(1, bad, "round 2 after its round 0");
  refused(2, fine, "worker 2");
  bad = fine;
  bad.flags = wire::kWantWeights;
  bad.target.bytes = 1000;
  refused(0, bad, "target");
  refused(1, StoreBox::record(key, 1, 0, 176), "worker 0 only");
  refused(0, StoreBox::record(key, 0, 0, 1024), "second initial");
  ASSERT_TRUE(box.push(0, key, 0, 1, good).is_ok());
  refused(0, fine, "round 1 after its round 1");
  const wire::PullRequest small{0, 0, 1, {0, 100, 0}};
  EXPECT_FALSE(box.store.pull(0, small, 0, &box.effects).is_ok());
}

TEST(StoreRound, WaitingNamesTheMissingOfAnySlice) {
  StoreBox box(3);
  const auto key = make_key(0, 300);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats(256)).is_ok());
  ASSERT_TRUE(box.push(0, key, 1, 0, Floats(44)).is_ok());
  EXPECT_TRUE(box.store.waiting().empty());
  box.now_ms = 50;
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats(256)).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats(256)).is_ok());
  box.now_ms = 60;
  ASSERT_TRUE(box.push(0, key, 1, 1, Floats(44)).is_ok());
  const auto waiting = box.store.waiting();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].name, "i:0");
  EXPECT_EQ(waiting[0].round, 1u);
  EXPECT_EQ(waiting[0].since_ms, 50);
  EXPECT_THAT(waiting[0].missing, ElementsAre(1, 2));
}

TEST(StoreRound, PullsAreAnsweredSliceBySlice) {
  StoreBox box(1);
  const auto key = make_key(0, 300);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 1, 0, Floats(44, 4)).is_ok());
  ASSERT_TRUE(box.pull(0, key, 0, 8).is_ok());
  auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_EQ(writes[0].slice, 1u);
  EXPECT_EQ(writes[0].target.address, 0x4000u + 1024);
  EXPECT_EQ(writes[0].target.bytes, 176u);
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats(256, 3)).is_ok());
  writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_EQ(writes[1].pull_op, 8u);
  EXPECT_EQ(writes[1].slice, 0u);
}

TEST(StoreRound, APullWaitsForItsOwnRoundAndNotForAnEarlierOne) {
  StoreBox box(2, 1);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{0}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 2, Floats{10}).is_ok());
  ASSERT_TRUE(box.pull(0, key, 2).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{2}).is_ok());
  EXPECT_EQ(box.count(Kind::write_weights), 0u);
  ASSERT_TRUE(box.push(1, key, 0, 2, Floats{20}).is_ok());
  ASSERT_EQ(box.count(Kind::write_weights), 1u);
  EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]), ElementsAre(30));
}

TEST(StoreRound, ATimedOutRoundFailsForThoseInItAndForThoseWhoComeLate) {
  StoreBox box(2);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{9}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1}).is_ok());
  ASSERT_TRUE(box.pull(0, key, 1, 3).is_ok());
  box.forget();
  box.store.fail_round(0, 1, Status(Code::round_timeout, "too late"), &box.effects);
  box.settle();
  auto failed = box.take(Kind::round_failed);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].rank, 0u);
  EXPECT_EQ(failed[0].status.code(), Code::round_timeout);
  EXPECT_THAT(failed[0].status.message(), HasSubstr("round 1 of key '0'"));
  ASSERT_EQ(box.count(Kind::pull_failed), 1u);
  EXPECT_EQ(box.take(Kind::pull_failed)[0].pull_op, 3u);
  EXPECT_EQ(box.store.bytes().accumulators, 0u);
  EXPECT_TRUE(box.store.waiting().empty());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{2}).is_ok());
  failed = box.take(Kind::round_failed);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(failed[1].rank, 1u);
  box.forget();
  // The next round is a round again, on weights that the failed one left alone.
  ASSERT_TRUE(box.pull(1, key, 0).is_ok());
  EXPECT_THAT(StoreBox::values<float>(box.take(Kind::write_weights)[0]), ElementsAre(9));
  box.write_done(0, 0);
  ASSERT_TRUE(box.push(0, key, 0, 2, Floats{5}).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 2, Floats{6}).is_ok());
  EXPECT_EQ(box.count(Kind::round_done), 2u);
}

TEST(StoreRound, ALostWorkerEndsWhatWaitsForItAndNothingElse) {
  StoreBox box(2, 1);
  const auto key = make_key(0, 1), other = make_key(1, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.store.add_key(other).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{0}).is_ok());
  ASSERT_TRUE(box.push(0, other, 0, 0, Floats{0}).is_ok());
  // Of `key`, round 1 is complete but for a write in flight, held by the worker that dies.
  ASSERT_TRUE(box.pull(0, key, 0).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1}, true).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Floats{2}, true).is_ok());
  ASSERT_TRUE(box.push(0, other, 0, 1, Floats{1}).is_ok());
  ASSERT_TRUE(box.pull(1, other, 1).is_ok());
  EXPECT_EQ(box.slots.size(), 1u);
  box.forget();
  box.worker_gone(1);
  EXPECT_TRUE(box.slots.empty());
  auto failed = box.take(Kind::round_failed);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].key, 1u);
  EXPECT_EQ(failed[0].rank, 0u);
  EXPECT_EQ(failed[0].status.code(), Code::worker_lost);
  EXPECT_EQ(box.count(Kind::pull_failed), 0u) << "its own pull is dropped";
  box.write_done(0, 0);
  const auto writes = box.take(Kind::write_weights);
  ASSERT_EQ(writes.size(), 1u) << "the one who is there gets the round that was complete";
  EXPECT_EQ(writes[0].rank, 0u);
  EXPECT_THAT(StoreBox::values<float>(writes[0]), ElementsAre(3));
  box.write_done(0, 0);
  for (uint32_t round = 2; round < 6; ++round)
    ASSERT_TRUE(box.push(0, key, 0, round, Floats{1}).is_ok());
  EXPECT_EQ(box.count(Kind::round_failed), 5u) << "each later round fails at once";
  EXPECT_FALSE(box.push(1, key, 0, 2, Floats{1}).is_ok());
  EXPECT_EQ(box.store.bytes().accumulators, 0u);
}

TEST(StoreRound, WithoutWorkerZeroThereIsNoInitialValue) {
  StoreBox box(2);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.pull(1, key, 0, 4).is_ok());
  box.worker_gone(0);
  ASSERT_EQ(box.count(Kind::pull_failed), 1u);
  ASSERT_TRUE(box.pull(1, key, 0, 5).is_ok());
  EXPECT_EQ(box.count(Kind::pull_failed), 2u);
}

TEST(StoreRound, AWholeTensorUpdaterRunsOnceOverAllSlices) {
  StoreBox box(2);
  const auto key = make_key(0, 300);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  auto doubler = std::make_shared<Doubler>();
  EXPECT_FALSE(box.store.set_optimizer(kind(wire::OptimizerKind::python), nullptr).is_ok());
  ASSERT_TRUE(box.store.set_optimizer(kind(wire::OptimizerKind::python), doubler).is_ok());
  for (uint32_t slice : {0, 1})
    ASSERT_TRUE(box.push(0, key, slice, 0, Floats(slice == 0 ? 256 : 44, 1)).is_ok());
  for (uint32_t rank : {1, 0})
    for (uint32_t slice : {1, 0}) {
      EXPECT_EQ(doubler->calls, 0);
      auto record = StoreBox::record(key, slice, 1, slice == 0 ? 1024 : 176);
      record.lr = static_cast<float>(rank + 1);
      ASSERT_TRUE(box.push_record(rank, record, Floats(256, 10.f + slice).data()).is_ok());
    }
  EXPECT_EQ(doubler->calls, 1);
  EXPECT_EQ(doubler->last.lr, 1) << "worker 0's";
  EXPECT_EQ(box.count(Kind::round_done), 2u + 4u);
  ASSERT_TRUE(box.pull(0, key, 1).is_ok());
  const auto writes = box.take(Kind::write_weights);
  EXPECT_EQ(StoreBox::values<float>(writes[0]), Floats(256, 41));
  EXPECT_EQ(StoreBox::values<float>(writes[1]), Floats(44, 45));
  box.write_done(0, 0);
  box.write_done(0, 1);
  box.forget();
  doubler->error = "no such luck";
  for (uint32_t rank : {0, 1})
    for (uint32_t slice : {0, 1})
      ASSERT_TRUE(box.push(rank, key, slice, 2, Floats(slice == 0 ? 256 : 44)).is_ok());
  const auto failed = box.take(Kind::round_failed);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(failed[0].status.code(), Code::updater);
  EXPECT_THAT(failed[0].status.message(), HasSubstr("no such luck"));
  EXPECT_EQ(box.store.bytes().accumulators, 0u);
}

TEST(StoreRound, IntegerKeysAreSummedButNotOptimized) {
  StoreBox box(2);
  const auto key = make_key(0, 2, DType::int32);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  EXPECT_THAT(box.store.set_optimizer(kind(wire::OptimizerKind::sgd), nullptr).message(),
              HasSubstr("int32"));
  using Ints = std::vector<int32_t>;
  ASSERT_TRUE(box.push(0, key, 0, 0, Ints{0, 0}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Ints{INT32_MAX, 1}).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Ints{1, 1}, true).is_ok());
  EXPECT_THAT(StoreBox::values<int32_t>(box.take(Kind::write_weights)[0]),
              ElementsAre(INT32_MIN, 2));
  StoreBox later(1);
  ASSERT_TRUE(later.store.set_optimizer(kind(wire::OptimizerKind::sgd), nullptr).is_ok());
  ASSERT_TRUE(later.store.add_key(key).is_ok());
  ASSERT_TRUE(later.push(0, key, 0, 0, Ints{0, 0}).is_ok());
  ASSERT_TRUE(later.push(0, key, 0, 1, Ints{1, 1}).is_ok());
  ASSERT_EQ(later.count(Kind::round_failed), 1u);
  EXPECT_THAT(later.take(Kind::round_failed)[0].status.message(), HasSubstr("int32"));
}

TEST(StoreRound, AMovedKeyStartsAnewAndKeepsOldMemoryWhileItIsRead) {
  StoreBox box(1);
  auto key = make_key(0, 2);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{1, 2}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{3, 4}, true).is_ok());
  const auto old = box.take(Kind::write_weights)[0];
  key.whole = true;
  ASSERT_TRUE(box.store.move_key(key).is_ok());
  EXPECT_EQ(box.memory.blocks(), 2u);
  ASSERT_TRUE(box.push(0, key, 0, 0, Floats{5, 6}).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{7, 8}, true).is_ok());
  EXPECT_THAT(StoreBox::values<float>(old), ElementsAre(3, 4));
  box.write_done(0, 0);
  EXPECT_EQ(box.memory.blocks(), 2u) << "which of the two writes ended is not known";
  box.write_done(0, 0);
  EXPECT_EQ(box.memory.blocks(), 1u);
  EXPECT_EQ(box.store.bytes().weights, 8u);
}

TEST(StoreRound, KeysCannotMoveNorOptimizersChangeInAnOpenRound) {
  StoreBox box(2);
  const auto key = make_key(0, 1);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  ASSERT_TRUE(box.push(0, key, 0, 1, Floats{1}).is_ok());
  EXPECT_THAT(box.store.move_key(key).message(), HasSubstr("round 1 is open"));
  EXPECT_THAT(box.store.set_optimizer(kind(wire::OptimizerKind::sgd), nullptr).message(),
              HasSubstr("round 1"));
}

TEST(StoreRound, RefusedMemoryIsAnError) {
  StoreBox box(1);
  box.memory.refuse = true;
  EXPECT_THAT(box.store.add_key(make_key(0, 4)).message(), HasSubstr("refused"));
  box.memory.refuse = false;
  EXPECT_TRUE(box.store.add_key(make_key(0, 4)).is_ok());
}

TEST(StoreRound, Float16SumsInFloat32AndKeepsMasterWeights) {
  StoreBox box(3);
  const auto key = make_key(0, 1, DType::float16);
  ASSERT_TRUE(box.store.add_key(key).is_ok());
  using Halves = std::vector<uint16_t>;
  ASSERT_TRUE(box.push(0, key, 0, 0, Halves{0}).is_ok());
  // 2048 + 1 + 1: each addition in float16 would be lost.
  ASSERT_TRUE(box.push(0, key, 0, 1, Halves{0x6800}).is_ok());
  ASSERT_TRUE(box.push(1, key, 0, 1, Halves{0x3c00}).is_ok());
  ASSERT_TRUE(box.push(2, key, 0, 1, Halves{0x3c00}, true).is_ok());
  EXPECT_THAT(StoreBox::values<uint16_t>(box.take(Kind::write_weights)[0]), ElementsAre(0x6801));
  box.write_done(0, 0);
  auto sgd = kind(wire::OptimizerKind::sgd);
  sgd.multi_precision = true;
  ASSERT_TRUE(box.store.set_optimizer(sgd, nullptr).is_ok());
  EXPECT_EQ(box.store.bytes().optimizer_state, 4u);
  box.forget();
  // Eight steps of 0.3 count in the master weights, though float16 has a unit of 2 here.
  for (uint32_t round = 2; round < 10; ++round)
    for (uint32_t rank = 0; rank < 3; ++rank)
      ASSERT_TRUE(box.push(rank, key, 0, round, Halves{0xbc00}).is_ok());
  ASSERT_TRUE(box.pull(0, key, 9).is_ok());
  EXPECT_THAT(StoreBox::values<uint16_t>(box.take(Kind::write_weights)[0]), ElementsAre(0x6802))
      << "2050 + 2.4 rounds to 2052";
}

}  // namespace
}  // namespace mxrdma::store
