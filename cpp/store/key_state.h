// What a server knows of one key: its slices, their open rounds, pulls that wait, rounds that
// failed. Plain data; the rules are in store_implementation.h.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/accumulators.h"
#include "store/optimizers.h"
#include "store/placement.h"
#include "store/store.h"

namespace mxrdma::store {

class RankSet {
 public:
  RankSet() = default;
  explicit RankSet(uint32_t workers) : words_((workers + 63) / 64, 0) {}
  bool has(uint32_t rank) const { return (words_[rank / 64] >> (rank % 64) & 1) != 0; }
  // False: it was there already.
  bool add(uint32_t rank) {
    if (has(rank)) return false;
    words_[rank / 64] |= uint64_t{1} << (rank % 64);
    ++count_;
    return true;
  }
  uint32_t count() const { return count_; }

 private:
  std::vector<uint64_t> words_;
  uint32_t count_ = 0;
};

// A rank's push in an open round: how it is answered.
struct Turn {
  uint32_t rank = 0;
  uint32_t pull_op = 0;
  bool wants_weights = false;
  wire::RemoteRegion target;
};

// A push whose payload stays in its slot: a finishing one that waits for a write to leave the
// weights, or a first one that waits for the second, which saves the copy into an accumulator.
struct Held {
  const std::byte* payload = nullptr;
  SlotRef slot = 0;
  uint32_t rank = 0;
};

struct OpenRound {
  explicit OpenRound(uint32_t workers) : ranks(workers) {}
  bool failed = false;  // nothing is summed any more; ranks are still counted, late ones are told
  RankSet ranks;
  int64_t since_ms = 0;
  Accumulators::Buffer sum;
  bool summed = false;  // `sum`, or the slice's part of the whole tensor's sum, holds something
  std::vector<Turn> turns;
  uint32_t hyper_rank = 0;
  Hyper hyper;
  Held first;              // instead of `sum`
  bool is_folded = false;  // `sum` began with the payload of folded_rank, before others came
  uint32_t folded_rank = 0;
  Held held;  // the last one
};

// Rounds completed + 1, + 2, ... are in `open`, without gaps: a rank's last round is the last of
// them that has it.
struct SliceState {
  Slice slice;
  std::byte* weights = nullptr;
  uint64_t local_offset = 0;  // of the weights within the key's memory here
  uint32_t completed = 0;
  bool initialised = false;
  uint32_t in_flight = 0;  // writes from `weights` that have not left
  std::vector<std::unique_ptr<OpenRound>> open;

  OpenRound* find(uint32_t round) const {
    return round > completed && round - completed <= open.size() ? open[round - completed - 1].get()
                                                                 : nullptr;
  }
  uint32_t last_round(uint32_t rank) const {
    uint32_t round = completed;
    while (round - completed < open.size() && open[round - completed]->ranks.has(rank)) ++round;
    return round;
  }
};

struct PendingPull {
  uint32_t rank = 0;
  wire::PullRequest request;
  uint32_t slices = 0;  // still to be answered
};

struct FailedRound {
  uint32_t round = 0;
  Status status;
  RankSet told;
};

// Zeroed arrays beside the weights; the kernel gives the pages when they are first used.
struct FreeDeleter {
  void operator()(std::byte* data) const { std::free(data); }
};
// clang-tidy 14 looks at the loop that the compiler writes to copy the arrays.
struct OptimizerState {  // NOLINT(readability-identifier-naming)
  bool runs = false;     // an element-wise optimizer updates this key
  Plan plan;
  std::unique_ptr<std::byte, FreeDeleter> arrays[2];
  std::unique_ptr<std::byte, FreeDeleter> master;
  uint64_t bytes = 0;
};

struct Key {
  wire::KeySpec spec;
  std::string what;  // "key 'weight'" for messages
  uint64_t bytes = 0;
  size_t element_bytes = 0;
  bool on_one_server = false;
  Memory memory;
  std::vector<SliceState> slices;  // ours, ascending index
  OptimizerState state;
  std::vector<PendingPull> pulls;
  std::deque<FailedRound> failed;                       // some rank has still to be told
  FailedRound last_failed;                              // the latest of all; round 0: none
  std::map<uint32_t, Accumulators::Buffer> whole_sums;  // by round, for a whole-tensor updater

  // Before a move: memory that writes may still read, and how many of them, by slice.
  std::vector<Memory> retired;
  std::map<uint32_t, uint32_t> retired_in_flight;

  SliceState* find_slice(uint32_t index);
  FailedRound* find_failed(uint32_t round);
};

}  // namespace mxrdma::store
