// How rounds sum, complete and fail.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "store/kernels.h"
#include "store/store_implementation.h"

namespace mxrdma::store {

// ---- sums

bool Store::Implementation::reserve_sum(Key* key, SliceState* slice, uint32_t round_number,
                                        OpenRound* round) {
  const size_t sum_element = accumulator_element_bytes(key->spec.request.dtype);
  Accumulators::Buffer& sum = python() ? key->whole_sums[round_number] : round->sum;
  if (sum) return true;
  const uint64_t bytes = python() ? key->memory.bytes : slice->slice.bytes;
  sum = sums.take(bytes / key->element_bytes * sum_element);
  return static_cast<bool>(sum);
}

void Store::Implementation::accumulate(Key* key, SliceState* slice, uint32_t round_number,
                                       OpenRound* round, const std::byte* payload) {
  const DType dtype = key->spec.request.dtype;
  std::byte* sum =
      python() ? key->whole_sums[round_number].data.get() +
                     slice->local_offset / key->element_bytes * accumulator_element_bytes(dtype)
               : round->sum.data.get();
  const Kernels& table = kernels();
  const auto kernel = round->summed ? table.add : table.load;
  kernel[static_cast<size_t>(dtype)](sum, payload, slice->slice.bytes / key->element_bytes);
  round->summed = true;
}

bool Store::Implementation::can_hold(const Key& key) const {
  // The payload stands for the accumulator, so both must have one layout.
  return config.hold_first && !python() &&
         accumulator_element_bytes(key.spec.request.dtype) == key.element_bytes;
}

void Store::Implementation::drop_first(const Key& key, const SliceState& slice,
                                       uint32_t round_number, OpenRound* round, Effects* effects) {
  if (round->first.payload == nullptr) return;
  wire::PushRecord record{};
  record.key = key.spec.id;
  record.slice = slice.slice.index;
  record.round = round_number;
  release_slot(round->first.rank, record, round->first.slot, effects);
  round->first = Held{};
}

bool Store::Implementation::fold_first(Key* key, SliceState* slice, uint32_t round_number,
                                       OpenRound* round, Effects* effects) {
  if (!reserve_sum(key, slice, round_number, round)) return false;
  accumulate(key, slice, round_number, round, round->first.payload);
  drop_first(*key, *slice, round_number, round, effects);
  return true;
}

void Store::Implementation::note_folded(OpenRound* round, uint32_t rank) {
  round->folded_rank = rank;
  round->is_folded = true;
  ++folded[rank];
}

void Store::Implementation::forget_folded(OpenRound* round) {
  if (round->is_folded) --folded[round->folded_rank];
  round->is_folded = false;
}

void Store::Implementation::fold_all_of(Key* key, uint32_t rank, Effects* effects) {
  for (SliceState& slice : key->slices) {
    for (size_t i = 0; i < slice.open.size(); ++i) {
      OpenRound* open = slice.open[i].get();
      if (open->first.payload == nullptr || open->first.rank != rank) continue;
      const uint32_t round = slice.completed + 1 + static_cast<uint32_t>(i);
      if (fold_first(key, &slice, round, open, effects)) note_folded(open, rank);
    }
  }
}

// ---- completion

bool Store::Implementation::ready(const SliceState& slice) const {
  return !slice.open.empty() && !slice.open.front()->failed &&
         slice.open.front()->ranks.count() == config.workers && slice.initialised &&
         slice.in_flight == 0;
}

// All ranks that are still there have come.
bool Store::Implementation::drained(const OpenRound& round) const {
  uint32_t missing = config.workers - round.ranks.count();
  for (uint32_t rank = 0; missing > 0 && rank < config.workers; ++rank) {
    if (round.ranks.has(rank)) continue;
    if (gone[rank].is_ok()) return false;
    --missing;
  }
  return true;
}

void Store::Implementation::pop_drained(Key* key, SliceState* slice) {
  bool popped = false;
  while (!slice->open.empty() && slice->open.front()->failed && drained(*slice->open.front())) {
    slice->open.erase(slice->open.begin());
    ++slice->completed;
    popped = true;
  }
  if (popped) forget_told(key);
}

void Store::Implementation::advance(Key* key, SliceState* slice, Effects* effects) {
  if (python()) {
    advance_whole(key, effects);
    return;
  }
  while (true) {
    pop_drained(key, slice);
    if (!ready(*slice)) return;
    apply(key, slice, slice->open.front().get());
    finish(key, slice, effects);
  }
}

void Store::Implementation::advance_all(Key* key, Effects* effects) {
  if (python()) {
    advance_whole(key, effects);
    return;
  }
  for (SliceState& slice : key->slices) advance(key, &slice, effects);
}

void Store::Implementation::advance_whole(Key* key, Effects* effects) {
  while (true) {
    for (SliceState& slice : key->slices) pop_drained(key, &slice);
    const bool all_ready = std::all_of(key->slices.begin(), key->slices.end(),
                                       [this](const SliceState& slice) { return ready(slice); });
    if (key->slices.empty() || !all_ready) return;
    const uint32_t round = key->slices.front().completed + 1;
    const Status status = run_updater(key);
    if (!status.is_ok()) {
      fail(key, round, status, effects);
      continue;
    }
    sums.give_back(std::move(key->whole_sums[round]));
    key->whole_sums.erase(round);
    for (SliceState& slice : key->slices) finish(key, &slice, effects);
  }
}

Status Store::Implementation::run_updater(Key* key) {
  const uint32_t round = key->slices.front().completed + 1;
  for (const SliceState& slice : key->slices)
    MXRDMA_CHECK(slice.completed + 1 == round, "the slices of a whole tensor keep step");
  std::byte* sum = key->whole_sums[round].data.get();
  // The updater sees the gradient in the key's own type.
  const DType dtype = key->spec.request.dtype;
  if (accumulator_element_bytes(dtype) != key->element_bytes)
    kernels().assign[static_cast<size_t>(dtype)](sum, sum, key->bytes / key->element_bytes);
  const Status status = updater->update(key->spec.request, sum, key->memory.base,
                                        key->slices.front().open.front()->hyper);
  if (status.is_ok()) return status;
  return Status(Code::updater, status.message())
      .with_context("the updater " + optimizer.name + " failed in round " + std::to_string(round) +
                    " of " + key->what);
}

// weights = what the oldest round makes of them
void Store::Implementation::apply(Key* key, SliceState* slice, OpenRound* round) {
  const DType dtype = key->spec.request.dtype;
  const size_t index = static_cast<size_t>(dtype);
  const size_t elements = slice->slice.bytes / key->element_bytes;
  const std::byte* sum = round->summed ? round->sum.data.get() : round->first.payload;
  const std::byte* payload = round->held.payload;
  const Kernels& table = kernels();
  if (!key->state.runs) {
    if (sum == nullptr) {
      std::memcpy(slice->weights, payload, slice->slice.bytes);
    } else if (payload == nullptr) {
      table.assign[index](slice->weights, sum, elements);
    } else {
      table.assign_sum[index](slice->weights, sum, payload, elements);
    }
    return;
  }
  const OptimizerState& state = key->state;
  const size_t first = slice->local_offset / key->element_bytes;
  auto part = [&](const auto& array, size_t element_bytes) {
    return array ? array.get() + first * element_bytes : nullptr;
  };
  Update update;
  update.weights = slice->weights;
  update.accumulator = sum;
  update.payload = payload;
  update.state0 = part(state.arrays[0], state.plan.state_element_bytes);
  update.state1 = part(state.arrays[1], state.plan.state_element_bytes);
  update.master = part(state.master, sizeof(float));
  update.elements = elements;
  update.lr = round->hyper.lr;
  update.wd = round->hyper.wd;
  update.rescale_grad = round->hyper.rescale_grad;
  update.clip_gradient = optimizer.clip_gradient;
  update.momentum = optimizer.momentum;
  update.beta1 = optimizer.beta1;
  update.beta2 = optimizer.beta2;
  update.epsilon = optimizer.epsilon;
  table.update[static_cast<size_t>(state.plan.rule)][static_cast<size_t>(state.plan.precision)](
      update);
}

// The weights have the oldest round's result: answers everybody who waits for it.
void Store::Implementation::finish(Key* key, SliceState* slice, Effects* effects) {
  std::unique_ptr<OpenRound> round = std::move(slice->open.front());
  slice->open.erase(slice->open.begin());
  const uint32_t number = ++slice->completed;
  sums.give_back(std::move(round->sum));
  forget_folded(round.get());
  drop_first(*key, *slice, number, round.get(), effects);
  if (round->held.payload != nullptr) {
    wire::PushRecord record{};
    record.key = key->spec.id;
    record.slice = slice->slice.index;
    record.round = number;
    release_slot(round->held.rank, record, round->held.slot, effects);
  }
  for (const Turn& turn : round->turns) answer_turn(*key, slice, turn, number, effects);
  answer_pulls(key, slice, number, effects);
  if (!key->failed.empty()) forget_told(key);
}

// ---- answers

void Store::Implementation::answer_turn(const Key& key, SliceState* slice, const Turn& turn,
                                        uint32_t round, Effects* effects) {
  if (!gone[turn.rank].is_ok()) return;
  if (turn.wants_weights) {
    write_weights(key, slice, turn.rank, round, turn.pull_op,
                  wire::offset_by(turn.target, 0, slice->slice.bytes), effects);
    return;
  }
  Effect effect;
  effect.kind = Effect::Kind::round_done;
  effect.rank = turn.rank;
  effect.key = key.spec.id;
  effect.slice = slice->slice.index;
  effect.round = round;
  effects->push_back(std::move(effect));
}

void Store::Implementation::write_weights(const Key& key, SliceState* slice, uint32_t rank,
                                          uint32_t round, uint32_t pull_op,
                                          const wire::RemoteRegion& target, Effects* effects) {
  ++slice->in_flight;
  Effect effect;
  effect.kind = Effect::Kind::write_weights;
  effect.rank = rank;
  effect.key = key.spec.id;
  effect.slice = slice->slice.index;
  effect.round = round;
  effect.pull_op = pull_op;
  effect.data = {slice->weights, slice->slice.bytes, key.memory.region};
  effect.target = target;
  effects->push_back(std::move(effect));
}

// Pulls of earlier rounds had this slice before, those of later ones wait on.
void Store::Implementation::answer_pulls(Key* key, SliceState* slice, uint32_t round,
                                         Effects* effects) {
  if (key->pulls.empty() || !slice->initialised) return;
  for (PendingPull& pull : key->pulls) {
    if (pull.request.round != round) continue;
    write_weights(
        *key, slice, pull.rank, round, pull.request.pull_op,
        wire::offset_by(pull.request.target, slice->slice.offset_bytes, slice->slice.bytes),
        effects);
    --pull.slices;
  }
  key->pulls.erase(std::remove_if(key->pulls.begin(), key->pulls.end(),
                                  [](const PendingPull& pull) { return pull.slices == 0; }),
                   key->pulls.end());
}

// ---- failure

void Store::Implementation::tell(const Key& key, FailedRound* failure, uint32_t rank,
                                 Effects* effects) {
  if (!gone[rank].is_ok() || !failure->told.add(rank)) return;
  Effect effect;
  effect.kind = Effect::Kind::round_failed;
  effect.rank = rank;
  effect.key = key.spec.id;
  effect.round = failure->round;
  effect.status = failure->status;
  effects->push_back(std::move(effect));
}

void Store::Implementation::fail_pull(const PendingPull& pull, const Status& why,
                                      Effects* effects) {
  Effect effect;
  effect.kind = Effect::Kind::pull_failed;
  effect.rank = pull.rank;
  effect.key = pull.request.key;
  effect.round = pull.request.round;
  effect.pull_op = pull.request.pull_op;
  effect.status = why;
  effects->push_back(std::move(effect));
}

// Ends the round on every slice that has not completed it. Slices stay as they are otherwise:
// the caller advances them.
void Store::Implementation::fail(Key* key, uint32_t round, const Status& why, Effects* effects) {
  if (key->find_failed(round) != nullptr) return;
  const Status status = why.with_context("round " + std::to_string(round) + " of " + key->what);
  key->failed.push_back({round, status, RankSet(config.workers)});
  FailedRound* failure = &key->failed.back();
  if (round > key->last_failed.round) key->last_failed = *failure;
  for (SliceState& slice : key->slices) {
    OpenRound* open = slice.find(round);
    if (open == nullptr || open->failed) continue;
    open->failed = true;
    forget_folded(open);
    drop_first(*key, slice, round, open, effects);
    if (open->held.payload != nullptr) {
      wire::PushRecord record{};
      record.key = key->spec.id;
      record.slice = slice.slice.index;
      record.round = round;
      release_slot(open->held.rank, record, open->held.slot, effects);
      open->held = Held{};
    }
    sums.give_back(std::move(open->sum));
    for (const Turn& turn : open->turns) tell(*key, failure, turn.rank, effects);
    open->turns.clear();
  }
  auto whole = key->whole_sums.find(round);
  if (whole != key->whole_sums.end()) {
    sums.give_back(std::move(whole->second));
    key->whole_sums.erase(whole);
  }
  for (const PendingPull& pull : key->pulls)
    if (pull.request.round == round) fail_pull(pull, status, effects);
  key->pulls.erase(
      std::remove_if(key->pulls.begin(), key->pulls.end(),
                     [&](const PendingPull& pull) { return pull.request.round == round; }),
      key->pulls.end());
}

// A failed round is remembered until every slice is past it, for those who come late.
void Store::Implementation::forget_told(Key* key) {
  uint32_t past = UINT32_MAX;
  for (const SliceState& slice : key->slices) past = std::min(past, slice.completed);
  key->failed.erase(std::remove_if(key->failed.begin(), key->failed.end(),
                                   [&](const FailedRound& one) { return one.round <= past; }),
                    key->failed.end());
}

void Store::Implementation::leave(Key* key, uint32_t rank, const Status& why, Effects* effects) {
  key->pulls.erase(std::remove_if(key->pulls.begin(), key->pulls.end(),
                                  [&](const PendingPull& pull) { return pull.rank == rank; }),
                   key->pulls.end());
  std::set<uint32_t> live;  // rounds that some slice has open
  bool initialised = true;
  for (SliceState& slice : key->slices) {
    initialised = initialised && slice.initialised;
    for (size_t i = 0; i < slice.open.size(); ++i) {
      OpenRound* open = slice.open[i].get();
      const uint32_t round = slice.completed + 1 + static_cast<uint32_t>(i);
      if (open->failed) continue;
      live.insert(round);
      if (open->first.payload != nullptr && open->first.rank == rank &&
          !fold_first(key, &slice, round, open, effects)) {
        fail(key, round, Status(Code::internal, "no memory for the sum"), effects);
        continue;
      }
      if (open->held.payload == nullptr || open->held.rank != rank) continue;
      // Its push came in full and counts, but the slot goes with the peer.
      if (!reserve_sum(key, &slice, round, open)) {
        fail(key, round, Status(Code::internal, "no memory for the sum"), effects);
        continue;
      }
      if (open->first.payload != nullptr) fold_first(key, &slice, round, open, effects);
      accumulate(key, &slice, round, open, open->held.payload);
      wire::PushRecord record{};
      record.key = key->spec.id;
      record.slice = slice.slice.index;
      record.round = round;
      release_slot(rank, record, open->held.slot, effects);
      open->held = Held{};
    }
  }
  const bool never_initialised = rank == 0 && !initialised;
  for (const uint32_t round : live) {
    const bool needs = never_initialised ||
                       std::any_of(key->slices.begin(), key->slices.end(), [&](const auto& slice) {
                         if (slice.completed >= round) return false;
                         const OpenRound* open = slice.find(round);
                         return open == nullptr || !open->ranks.has(rank);
                       });
    if (needs) fail(key, round, why, effects);
  }
  if (never_initialised) {
    const Status status = why.with_context(key->what + " has no initial value");
    for (const PendingPull& pull : key->pulls) fail_pull(pull, status, effects);
    key->pulls.clear();
  }
  advance_all(key, effects);
}

// ---- reports

void Store::Implementation::waiting(const Key& key, std::vector<Waiting>* list) const {
  std::set<uint32_t> rounds;
  for (const SliceState& slice : key.slices)
    for (size_t i = 0; i < slice.open.size(); ++i)
      if (!slice.open[i]->failed) rounds.insert(slice.completed + 1 + static_cast<uint32_t>(i));
  for (const uint32_t round : rounds) {
    Waiting entry;
    entry.key = key.spec.id;
    entry.name = key.spec.request.name;
    entry.round = round;
    entry.since_ms = INT64_MAX;
    RankSet missing(config.workers);
    for (const SliceState& slice : key.slices) {
      if (slice.completed >= round) continue;
      if (!slice.initialised) missing.add(0);
      const OpenRound* open = slice.find(round);
      if (open != nullptr) entry.since_ms = std::min(entry.since_ms, open->since_ms);
      for (uint32_t rank = 0; rank < config.workers; ++rank)
        if (open == nullptr || !open->ranks.has(rank)) missing.add(rank);
    }
    for (uint32_t rank = 0; rank < config.workers; ++rank)
      if (missing.has(rank)) entry.missing.push_back(rank);
    // Nobody is missing: the round waits for one of our own writes.
    if (!entry.missing.empty()) list->push_back(std::move(entry));
  }
}

}  // namespace mxrdma::store
