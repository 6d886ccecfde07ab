// Random sequences from seeds: pushes in any order that workers may send, late ranks, writes that
// stay in flight, against sums and steps in float64.
#include <algorithm>
#include <cmath>
#include <deque>
#include <random>

#include "store_fixture.h"

namespace mxrdma::store {
namespace {

using Kind = Effect::Kind;

struct Model {
  std::vector<double> weights, momentum;
  std::map<uint32_t, std::vector<double>> sums;  // by round
};

class RandomRun {
 public:
  explicit RandomRun(uint32_t seed)
      : random_(seed),
        workers_(1 + seed % 4),
        staleness_(seed % 3),
        optimize_(seed % 2 == 1),
        box_(workers_, staleness_, 256, seed / 4 % 2 == 1) {
    for (uint32_t id = 0; id < 3; ++id) {
      keys_.push_back(make_key(id, 1 + random_() % 200));
      EXPECT_TRUE(box_.store.add_key(keys_[id]).is_ok());
      slices_.push_back(cut(keys_[id], 256));
    }
    if (!optimize_) return;
    wire::OptimizerSpec sgd;
    sgd.kind = wire::OptimizerKind::sgd;
    sgd.momentum = 0.5f;
    EXPECT_TRUE(box_.store.set_optimizer(sgd, nullptr).is_ok());
  }

  void run() {
    // What is to be sent: by rank, key and slice, the next round. Round 0 is rank 0's initial
    // value, which may come at any time.
    std::map<std::vector<uint32_t>, uint32_t> next;
    for (uint32_t rank = 0; rank < workers_; ++rank)
      for (uint32_t id = 0; id < keys_.size(); ++id)
        for (const Slice& slice : slices_[id]) next[{rank, id, slice.index, 0}] = 1;
    for (uint32_t id = 0; id < keys_.size(); ++id)
      for (const Slice& slice : slices_[id]) next[{0, id, slice.index, 1}] = 0;
    while (!next.empty() || !in_flight_.empty()) {
      if (!in_flight_.empty() && (next.empty() || random_() % 3 == 0)) {
        finish_a_write();
        continue;
      }
      if (random_() % 16 == 0) {
        box_.fold_held(random_() % workers_);
        take_effects();
      }
      auto chosen = std::next(next.begin(), random_() % next.size());
      const auto& at = chosen->first;
      if (chosen->second > 0 && chosen->second > completed_[{at[1], at[2]}] + staleness_ + 1) {
        if (!in_flight_.empty()) finish_a_write();
        continue;  // the worker holds it back
      }
      push(at[0], at[1], at[2], chosen->second);
      if (at[3] == 1 || ++chosen->second > kRounds) next.erase(chosen);
    }
    EXPECT_TRUE(box_.store.waiting().empty());
    EXPECT_EQ(box_.store.bytes().accumulators, 0u);
    for (uint32_t id = 0; id < keys_.size(); ++id)
      for (const Slice& slice : slices_[id]) EXPECT_EQ((completed_[{id, slice.index}]), kRounds);
    EXPECT_EQ(answers_, workers_ * kRounds * completed_.size());
  }

 private:
  static constexpr uint32_t kRounds = 5;

  float value() { return std::uniform_real_distribution<float>(-1, 1)(random_); }

  void push(uint32_t rank, uint32_t id, uint32_t index, uint32_t round) {
    const Slice& slice = slices_[id][index];
    std::vector<float> values(slice.bytes / sizeof(float));
    for (float& one : values) one = value();
    Model& model = models_[{id, index}];
    if (round == 0) {
      model.weights.assign(values.begin(), values.end());
      model.momentum.assign(values.size(), 0);
    } else {
      auto& sum = model.sums[round];
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
    }
    auto record = StoreBox::record(keys_[id], index, round, slice.bytes);
    record.wd = 0.01f;
    record.lr = rank == 0 ? 0.1f : 77.f;  // only worker 0's counts
    if (round > 0 && random_() % 2 == 0) {
      record.flags = wire::kWantWeights;
      record.target = {0, slice.bytes, 0};
    }
    const Status status = box_.push_record(rank, record, values.data());
    ASSERT_TRUE(status.is_ok()) << status.message();
    take_effects();
  }

  void finish_a_write() {
    std::swap(in_flight_[random_() % in_flight_.size()], in_flight_.back());
    const Effect effect = in_flight_.back();
    in_flight_.pop_back();
    // Nothing has touched the weights since the write began.
    check(effect);
    box_.write_done(effect.key, effect.slice);
    take_effects();
  }

  void take_effects() {
    const Effects effects = box_.effects;
    box_.forget();
    for (const Effect& effect : effects) {
      ASSERT_NE(effect.kind, Kind::round_failed);
      ASSERT_NE(effect.kind, Kind::pull_failed);
      if (effect.kind == Kind::release_slot || effect.round == 0) continue;
      ++answers_;
      uint32_t& completed = completed_[{effect.key, effect.slice}];
      ASSERT_TRUE(effect.round == completed || effect.round == completed + 1);
      if (effect.round == completed + 1) step(&models_[{effect.key, effect.slice}], effect.round);
      completed = effect.round;
      if (effect.kind == Kind::write_weights) in_flight_.push_back(effect);
    }
    for (const Effect& effect : in_flight_) check(effect);
  }

  void step(Model* model, uint32_t round) {
    const auto& sum = model->sums[round];
    for (size_t i = 0; i < sum.size(); ++i) {
      if (!optimize_) {
        model->weights[i] = sum[i];
        continue;
      }
      model->momentum[i] = 0.5 * model->momentum[i] - 0.1 * (sum[i] + 0.01 * model->weights[i]);
      model->weights[i] += model->momentum[i];
    }
  }

  void check(const Effect& effect) {
    ASSERT_EQ(effect.round, (completed_[{effect.key, effect.slice}])) << "updated under a write";
    const auto actual = StoreBox::values<float>(effect);
    const auto& expected = models_[{effect.key, effect.slice}].weights;
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_NEAR(static_cast<double>(actual[i]), expected[i], 3e-6);
  }

  std::mt19937 random_;
  uint32_t workers_, staleness_;
  bool optimize_;
  StoreBox box_;
  std::vector<wire::KeySpec> keys_;
  std::vector<std::vector<Slice>> slices_;
  std::map<std::pair<uint32_t, uint32_t>, Model> models_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> completed_;
  std::vector<Effect> in_flight_;
  size_t answers_ = 0;
};

TEST(StoreRandom, EveryOrderGivesTheSums) {
  for (uint32_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed).run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Workers die and rounds time out in the middle: slots come back, nothing is kept, nobody who is
// there waits without an answer.
TEST(StoreRandom, FailuresLeaveNothingBehind) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t workers = 2 + random() % 3;
    StoreBox box(workers, random() % 2, 256, seed % 2 == 1);
    const auto key = make_key(0, 100);
    const auto slices = cut(key, 256);
    ASSERT_TRUE(box.store.add_key(key).is_ok());
    for (const Slice& slice : slices)
      ASSERT_TRUE(box.push(0, key, slice.index, 0, std::vector<float>(slice.bytes / 4)).is_ok());
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> next;
    std::vector<bool> gone(workers);
    std::vector<std::pair<uint32_t, uint32_t>> in_flight;
    size_t seen = box.effects.size();
    auto writes = [&] {
      for (; seen < box.effects.size(); ++seen)
        if (box.effects[seen].kind == Kind::write_weights)
          in_flight.push_back({box.effects[seen].key, box.effects[seen].slice});
    };
    auto finish = [&] {
      const auto [id, slice] = in_flight.back();
      in_flight.pop_back();
      box.write_done(id, slice);
      writes();
    };
    for (int i = 0; i < 300; ++i) {
      const uint32_t rank = random() % workers;
      const Slice& slice = slices[random() % slices.size()];
      const uint32_t dice = random() % 40;
      if (dice == 0 && i > 100) {
        if (!gone[rank]) box.worker_gone(rank);
        gone[rank] = true;
      } else if (dice == 1) {
        const auto waiting = box.store.waiting();
        if (!waiting.empty())
          box.store.fail_round(0, waiting[0].round, Status(Code::round_timeout, "late"),
                               &box.effects);
        box.settle();
      } else if (dice == 2) {
        box.fold_held(rank);
      } else if (dice < 8 && !in_flight.empty()) {
        finish();
      } else if (!gone[rank]) {
        uint32_t& round = next[{rank, slice.index}];
        const Status status = box.push(rank, key, slice.index, round + 1,
                                       std::vector<float>(slice.bytes / 4), random() % 2 == 0);
        if (status.is_ok()) ++round;
        if (!status.is_ok()) {
          ASSERT_NE(status.message().find("staleness"), std::string::npos) << status.message();
        }
      }
      writes();
    }
    while (!in_flight.empty()) finish();
    for (uint32_t rank = 0; rank < workers; ++rank)
      if (!gone[rank]) box.worker_gone(rank);
    EXPECT_TRUE(box.slots.empty());
    EXPECT_TRUE(box.store.waiting().empty());
    EXPECT_EQ(box.store.bytes().accumulators, 0u);
    // Each push that was taken was answered once, or its round failed for that rank.
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int> answers;
    std::map<std::pair<uint32_t, uint32_t>, int> failures;
    for (const Effect& e : box.effects) {
      if (e.kind == Kind::round_done || e.kind == Kind::write_weights)
        ++answers[{e.rank, e.slice, e.round}];
      if (e.kind == Kind::round_failed) ++failures[{e.rank, e.round}];
    }
    for (const auto& [what, times] : answers) EXPECT_EQ(times, 1);
    for (const auto& [what, times] : failures) EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace mxrdma::store
