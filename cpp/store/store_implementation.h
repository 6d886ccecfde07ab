// The rules of rounds. Split over store.cc (keys, records, requests) and rounds.cc (completion and
// failure).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/key_state.h"

namespace mxrdma::store {

struct Store::Implementation {
  Implementation(const StoreConfig& store_config, MemorySource* memory_source);
  ~Implementation();

  // ---- store.cc
  Key* find_key(uint32_t id) const { return id < keys.size() ? keys[id].get() : nullptr; }
  Status check_spec(const wire::KeySpec& spec) const;
  Status fill(Key* key, const wire::KeySpec& spec);
  void empty(Key* key);
  Status prepare_state(const wire::OptimizerSpec& spec, const Key& key,
                       OptimizerState* state) const;
  void fill_master(Key* key, const SliceState& slice);
  Status check_rank(uint32_t rank, const std::string& where) const;
  Status check_record(const Key& key, const SliceState& slice, uint32_t rank,
                      const wire::PushRecord& record) const;
  Status initial(Key* key, SliceState* slice, uint32_t rank, const wire::PushRecord& record,
                 const std::byte* payload, SlotRef slot, Effects* effects);
  Status gradient(Key* key, SliceState* slice, uint32_t rank, const wire::PushRecord& record,
                  const std::byte* payload, SlotRef slot, int64_t now_ms, Effects* effects);
  Status refusal(const Key& key) const;

  // ---- rounds.cc
  bool python() const { return optimizer.kind == wire::OptimizerKind::python; }
  // False: no memory.
  bool reserve_sum(Key* key, SliceState* slice, uint32_t round_number, OpenRound* round);
  // Whether the first payload of a round may stay in its slot.
  bool can_hold(const Key& key) const;
  // Puts a held first payload into the sum and gives its slot back. False: no memory.
  bool fold_first(Key* key, SliceState* slice, uint32_t round_number, OpenRound* round,
                  Effects* effects);
  void drop_first(const Key& key, const SliceState& slice, uint32_t round_number, OpenRound* round,
                  Effects* effects);
  void note_folded(OpenRound* round, uint32_t rank);
  void forget_folded(OpenRound* round);
  void fold_all_of(Key* key, uint32_t rank, Effects* effects);
  void accumulate(Key* key, SliceState* slice, uint32_t round_number, OpenRound* round,
                  const std::byte* payload);
  // Completes what can be completed, oldest first.
  void advance(Key* key, SliceState* slice, Effects* effects);
  void advance_whole(Key* key, Effects* effects);
  void advance_all(Key* key, Effects* effects);
  bool ready(const SliceState& slice) const;
  bool drained(const OpenRound& round) const;
  void pop_drained(Key* key, SliceState* slice);
  void apply(Key* key, SliceState* slice, OpenRound* round);
  void finish(Key* key, SliceState* slice, Effects* effects);
  Status run_updater(Key* key);
  void answer_turn(const Key& key, SliceState* slice, const Turn& turn, uint32_t round,
                   Effects* effects);
  void answer_pulls(Key* key, SliceState* slice, uint32_t round, Effects* effects);
  void write_weights(const Key& key, SliceState* slice, uint32_t rank, uint32_t round,
                     uint32_t pull_op, const wire::RemoteRegion& target, Effects* effects);
  void fail(Key* key, uint32_t round, const Status& why, Effects* effects);
  void tell(const Key& key, FailedRound* failure, uint32_t rank, Effects* effects);
  void fail_pull(const PendingPull& pull, const Status& why, Effects* effects);
  void forget_told(Key* key);
  void leave(Key* key, uint32_t rank, const Status& why, Effects* effects);
  void waiting(const Key& key, std::vector<Waiting>* list) const;

  StoreConfig config;
  MemorySource* memory;
  std::vector<std::unique_ptr<Key>> keys;  // by id
  wire::OptimizerSpec optimizer;
  std::shared_ptr<WholeTensorUpdater> updater;
  std::vector<Status> gone;  // by rank; ok: it is there
  uint32_t gone_count = 0;
  Accumulators sums;
  std::vector<uint32_t> folded;  // by rank: sums that hold its first payload; while there are some
                                 // of them, it is ahead of the others and nothing of it is held
  uint64_t weight_bytes = 0, state_bytes = 0;
};

std::string slice_text(const Key& key, uint32_t slice, uint32_t rank);
void release_slot(uint32_t rank, const wire::PushRecord& record, SlotRef slot, Effects* effects);

}  // namespace mxrdma::store
