#include "store/store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "store/kernels.h"
#include "store/store_implementation.h"

namespace mxrdma::store {
namespace {

std::string text(uint64_t number) { return std::to_string(number); }

}  // namespace

SliceState* Key::find_slice(uint32_t index) {
  auto found = std::lower_bound(
      slices.begin(), slices.end(), index,
      [](const SliceState& slice, uint32_t wanted) { return slice.slice.index < wanted; });
  return found != slices.end() && found->slice.index == index ? &*found : nullptr;
}

FailedRound* Key::find_failed(uint32_t round) {
  for (FailedRound& failure : failed)
    if (failure.round == round) return &failure;
  return nullptr;
}

std::string slice_text(const Key& key, uint32_t slice, uint32_t rank) {
  return key.what + " slice " + text(slice) + " from worker " + text(rank);
}

void release_slot(uint32_t rank, const wire::PushRecord& record, SlotRef slot, Effects* effects) {
  Effect effect;
  effect.kind = Effect::Kind::release_slot;
  effect.rank = rank;
  effect.key = record.key;
  effect.slice = record.slice;
  effect.round = record.round;
  effect.slot = slot;
  effects->push_back(std::move(effect));
}

// ---- keys

Store::Implementation::Implementation(const StoreConfig& store_config, MemorySource* memory_source)
    : config(store_config),
      memory(memory_source),
      gone(store_config.workers),
      folded(store_config.workers) {
  MXRDMA_CHECK(config.workers > 0, "a job has at least one worker");
}

Store::Implementation::~Implementation() {
  for (auto& key : keys) {
    if (!key) continue;
    for (SliceState& slice : key->slices) slice.in_flight = 0;
    key->retired_in_flight.clear();
    empty(key.get());
  }
}

Status Store::Implementation::check_spec(const wire::KeySpec& spec) const {
  const std::string what = "key '" + spec.request.name + "' (id " + text(spec.id) + ")";
  if (spec.id >= kMaxKeys)
    return Status(Code::invalid_argument, what + ": at most " + text(kMaxKeys) + " keys");
  const uint64_t element_bytes = dtype_bytes(spec.request.dtype);
  if (element_bytes == 0 || spec.request.elements > kMaxKeyBytes / element_bytes)
    return Status(Code::invalid_argument, what + ": " + text(spec.request.elements) +
                                              " elements are more than a key may have");
  uint64_t covered = 0;
  for (const wire::Share& share : spec.shares) {
    if (share.offset_bytes != covered || share.bytes == 0 || share.offset_bytes % 64 != 0 ||
        share.bytes > kMaxKeyBytes)
      return Status(Code::invalid_argument, what + ": its shares do not cover it in order");
    covered += share.bytes;
  }
  if (covered != spec.request.elements * element_bytes)
    return Status(Code::invalid_argument, what + ": its shares cover " + text(covered) + " of " +
                                              text(spec.request.elements * element_bytes) +
                                              " bytes");
  return Status::ok();
}

Status Store::Implementation::prepare_state(const wire::OptimizerSpec& spec, const Key& key,
                                            OptimizerState* state) const {
  if (!is_element_wise(spec.kind)) return Status::ok();
  Result<Plan> made = plan(spec, key.spec.request.dtype, key.what);
  if (!made.is_ok()) return made.status();
  state->plan = made.value();
  state->runs = true;
  const uint64_t elements = key.memory.bytes / key.element_bytes;
  if (elements == 0) return Status::ok();
  auto allocate = [&](size_t element_bytes) {
    state->bytes += elements * element_bytes;
    return std::unique_ptr<std::byte, FreeDeleter>(
        static_cast<std::byte*>(std::calloc(elements, element_bytes)));
  };
  bool complete = true;
  for (uint32_t i = 0; i < state->plan.states; ++i) {
    state->arrays[i] = allocate(state->plan.state_element_bytes);
    complete = complete && state->arrays[i];
  }
  if (state->plan.master) {
    state->master = allocate(sizeof(float));
    complete = complete && state->master;
  }
  if (!complete)
    return Status(Code::internal, key.what + ": no memory for " + text(state->bytes) +
                                      " bytes of optimizer state; use more servers");
  return Status::ok();
}

Status Store::Implementation::fill(Key* key, const wire::KeySpec& spec) {
  key->spec = spec;
  key->what = "key '" + wire::shown_name(spec.request.name) + "'";
  key->element_bytes = dtype_bytes(spec.request.dtype);
  key->bytes = spec.request.elements * key->element_bytes;
  key->on_one_server = spec.whole || spec.shares.size() == 1;
  uint64_t local = 0;
  for (const Slice& slice : cut(spec, config.slice_capacity)) {
    if (slice.server != config.server) continue;
    SliceState state;
    state.slice = slice;
    state.local_offset = local;
    local += slice.bytes;
    key->slices.push_back(std::move(state));
  }
  if (local == 0) return Status::ok();
  Result<Memory> allocated = memory->allocate(local);
  if (!allocated.is_ok())
    return allocated.status().with_context(key->what + ": no memory for " + text(local) +
                                           " bytes of weights");
  key->memory = allocated.value();
  key->memory.bytes = local;
  weight_bytes += local;
  for (SliceState& slice : key->slices) slice.weights = key->memory.base + slice.local_offset;
  OptimizerState state;
  // A key that the optimizer cannot update may exist; pushing to it is refused.
  Status status = prepare_state(optimizer, *key, &state);
  if (!status.is_ok() && status.code() != Code::invalid_argument) return status;
  if (status.is_ok()) {
    key->state = std::move(state);
    state_bytes += key->state.bytes;
  }
  return Status::ok();
}

void Store::Implementation::empty(Key* key) {
  for (SliceState& slice : key->slices)
    for (auto& round : slice.open) sums.give_back(std::move(round->sum));
  for (auto& sum : key->whole_sums) sums.give_back(std::move(sum.second));
  key->whole_sums.clear();
  for (const SliceState& slice : key->slices)
    if (slice.in_flight > 0) key->retired_in_flight[slice.slice.index] += slice.in_flight;
  key->slices.clear();
  weight_bytes -= key->memory.bytes;
  if (key->memory.base != nullptr) key->retired.push_back(key->memory);
  key->memory = Memory{};
  state_bytes -= key->state.bytes;
  key->state = OptimizerState{};
  key->failed.clear();
  key->last_failed = FailedRound{};
  if (!key->retired_in_flight.empty()) return;
  for (const Memory& old : key->retired) memory->release(old);
  key->retired.clear();
}

void Store::Implementation::fill_master(Key* key, const SliceState& slice) {
  if (!key->state.master || !slice.initialised) return;
  const size_t element = slice.local_offset / key->element_bytes;
  kernels().load[static_cast<size_t>(DType::float16)](
      key->state.master.get() + element * sizeof(float), slice.weights,
      slice.slice.bytes / key->element_bytes);
}

// ---- records

Status Store::Implementation::check_rank(uint32_t rank, const std::string& where) const {
  if (rank >= config.workers)
    return Status(Code::invalid_argument, where + ": there is no worker " + text(rank) +
                                              " in a job of " + text(config.workers));
  if (!gone[rank].is_ok())
    return Status(Code::invalid_argument, where + ": worker " + text(rank) + " is gone");
  return Status::ok();
}

Status Store::Implementation::check_record(const Key& key, const SliceState& slice, uint32_t rank,
                                           const wire::PushRecord& record) const {
  const std::string where = slice_text(key, record.slice, rank);
  auto wrong = [&](const std::string& why) {
    return Status(Code::invalid_argument, where + ": " + why);
  };
  if (record.dtype != static_cast<uint8_t>(key.spec.request.dtype))
    return wrong(std::string("dtype ") +
                 (dtype_valid(record.dtype) ? dtype_name(static_cast<DType>(record.dtype))
                                            : text(record.dtype).c_str()) +
                 ", the key has " + dtype_name(key.spec.request.dtype));
  if (record.payload_bytes != slice.slice.bytes)
    return wrong(text(record.payload_bytes) + " bytes, the slice has " + text(slice.slice.bytes));
  if ((record.flags & wire::kWantWeights) != 0 && record.target.bytes < slice.slice.bytes)
    return wrong("its target for the weights has " + text(record.target.bytes) +
                 " bytes, the slice has " + text(slice.slice.bytes));
  if (record.kind == wire::PushKind::initial) {
    if (rank != 0) return wrong("the initial value comes from worker 0 only");
    if (record.round != 0) return wrong("an initial value of round " + text(record.round));
    if (slice.initialised) return wrong("a second initial value");
    return Status::ok();
  }
  if (record.kind != wire::PushKind::gradient)
    return wrong("an unknown kind of push, " + text(static_cast<uint8_t>(record.kind)));
  const uint32_t last = slice.last_round(rank);
  if (record.round != last + 1 || record.round == 0)
    return wrong("round " + text(record.round) + " after its round " + text(last));
  if (slice.find(record.round) != nullptr) return Status::ok();
  const auto live = std::count_if(slice.open.begin(), slice.open.end(),
                                  [](const auto& round) { return !round->failed; });
  if (static_cast<uint64_t>(live) > config.staleness)
    return wrong("round " + text(record.round) + " while " + text(live) +
                 " rounds are open; the staleness is " + text(config.staleness));
  return Status::ok();
}

Status Store::Implementation::initial(Key* key, SliceState* slice, uint32_t rank,
                                      const wire::PushRecord& record, const std::byte* payload,
                                      SlotRef slot, Effects* effects) {
  std::memcpy(slice->weights, payload, slice->slice.bytes);
  release_slot(rank, record, slot, effects);
  slice->initialised = true;
  fill_master(key, *slice);
  const Turn turn{rank, record.pull_op, (record.flags & wire::kWantWeights) != 0, record.target};
  answer_turn(*key, slice, turn, 0, effects);
  answer_pulls(key, slice, 0, effects);
  advance(key, slice, effects);
  return Status::ok();
}

// Why no gradient of this key can be applied here, or ok. It fails the round and not the peer: the
// user's script is at fault.
Status Store::Implementation::refusal(const Key& key) const {
  if (is_element_wise(optimizer.kind) && !key.state.runs) {
    Result<Plan> made = plan(optimizer, key.spec.request.dtype, key.what);
    MXRDMA_CHECK(!made.is_ok(), "a key that can be updated has its state");
    return made.status();
  }
  if (python() && !key.on_one_server)
    return Status(Code::internal, key.what +
                                      " is spread over servers, but the updater needs it "
                                      "whole");
  return Status::ok();
}

Status Store::Implementation::gradient(Key* key, SliceState* slice, uint32_t rank,
                                       const wire::PushRecord& record, const std::byte* payload,
                                       SlotRef slot, int64_t now_ms, Effects* effects) {
  OpenRound* round = slice->find(record.round);
  std::unique_ptr<OpenRound> fresh;
  bool newly_failed = false;
  if (round == nullptr) {
    fresh = std::make_unique<OpenRound>(config.workers);
    round = fresh.get();
    round->since_ms = now_ms;
    if (key->find_failed(record.round) == nullptr) {
      Status why = refusal(*key);
      for (uint32_t other = 0; why.is_ok() && gone_count > 0 && other < config.workers; ++other)
        why = gone[other];
      newly_failed = !why.is_ok();
      if (newly_failed) fail(key, record.round, why, effects);
    }
    round->failed = key->find_failed(record.round) != nullptr;
  }
  const bool last = round->ranks.count() + 1 == config.workers;
  const bool first = round->ranks.count() == 0;
  const bool starts = !round->failed && first && !last && slice->initialised && can_hold(*key);
  const bool holds = starts && folded[rank] == 0;
  const bool sums_now = !holds && !round->failed && (python() || !last || !slice->initialised);
  if (sums_now && !reserve_sum(key, slice, record.round, round))
    return Status(Code::internal, slice_text(*key, record.slice, rank) +
                                      ": no memory for the sum of round " + text(record.round) +
                                      "; use more servers");
  if (fresh) slice->open.push_back(std::move(fresh));
  round->ranks.add(rank);
  if (round->failed) {
    release_slot(rank, record, slot, effects);
    tell(*key, key->find_failed(record.round), rank, effects);
    if (newly_failed) {
      advance_all(key, effects);
    } else {
      advance(key, slice, effects);
    }
    return Status::ok();
  }
  round->turns.push_back(
      {rank, record.pull_op, (record.flags & wire::kWantWeights) != 0, record.target});
  if (round->turns.size() == 1 || rank < round->hyper_rank) {
    round->hyper_rank = rank;
    round->hyper = {record.lr, record.wd, record.rescale_grad, record.update_count};
  }
  if (holds) {
    round->first = {payload, slot, rank};
  } else if (sums_now) {
    if (round->first.payload != nullptr) fold_first(key, slice, record.round, round, effects);
    accumulate(key, slice, record.round, round, payload);
    if (starts) note_folded(round, rank);
    release_slot(rank, record, slot, effects);
  } else {
    round->held = {payload, slot, rank};
  }
  if (last) advance(key, slice, effects);
  return Status::ok();
}

// ---- Store

Store::Store(const StoreConfig& config, MemorySource* memory)
    : implementation_(std::make_unique<Implementation>(config, memory)) {}
Store::~Store() = default;

Status Store::add_key(const wire::KeySpec& spec) {
  Implementation& self = *implementation_;
  Status status = self.check_spec(spec);
  if (!status.is_ok()) return status;
  if (const Key* key = self.find_key(spec.id))
    return Status(Code::invalid_argument, "key id " + text(spec.id) + " of '" + spec.request.name +
                                              "' belongs to '" + key->spec.request.name + "'");
  auto key = std::make_unique<Key>();
  status = self.fill(key.get(), spec);
  if (!status.is_ok()) {
    self.empty(key.get());
    return status;
  }
  if (self.keys.size() <= spec.id) self.keys.resize(spec.id + 1);
  self.keys[spec.id] = std::move(key);
  return Status::ok();
}

void Store::drop_key(uint32_t id) {
  Implementation& self = *implementation_;
  Key* key = self.find_key(id);
  if (key == nullptr) return;
  self.empty(key);
  self.keys[id].reset();
}

Status Store::move_key(const wire::KeySpec& spec) {
  Implementation& self = *implementation_;
  Status status = self.check_spec(spec);
  if (!status.is_ok()) return status;
  Key* key = self.find_key(spec.id);
  if (key == nullptr)
    return Status(Code::invalid_argument, "key id " + text(spec.id) + " to be moved is not known");
  if (!key->pulls.empty())
    return Status(Code::invalid_argument, key->what + " cannot move: pulls of it wait");
  for (const SliceState& slice : key->slices)
    if (!slice.open.empty())
      return Status(Code::invalid_argument, key->what + " cannot move: its round " +
                                                text(slice.completed + 1) + " is open");
  self.empty(key);
  return self.fill(key, spec);
}

Status Store::set_optimizer(const wire::OptimizerSpec& spec,
                            std::shared_ptr<WholeTensorUpdater> updater) {
  Implementation& self = *implementation_;
  if (needs_whole_tensors(spec.kind) && updater == nullptr)
    return Status(Code::invalid_argument, "the optimizer " + spec.name + " came without updater");
  std::vector<OptimizerState> states(self.keys.size());
  for (size_t id = 0; id < self.keys.size(); ++id) {
    const Key* key = self.keys[id].get();
    if (key == nullptr) continue;
    for (const SliceState& slice : key->slices)
      if (!slice.open.empty())
        return Status(Code::invalid_argument, "the optimizer cannot change while round " +
                                                  text(slice.completed + 1) + " of " + key->what +
                                                  " is open");
    Status status = self.prepare_state(spec, *key, &states[id]);
    if (!status.is_ok()) return status;
  }
  self.optimizer = spec;
  self.updater = needs_whole_tensors(spec.kind) ? std::move(updater) : nullptr;
  self.state_bytes = 0;
  for (size_t id = 0; id < self.keys.size(); ++id) {
    Key* key = self.keys[id].get();
    if (key == nullptr) continue;
    key->state = std::move(states[id]);
    self.state_bytes += key->state.bytes;
    for (const SliceState& slice : key->slices) self.fill_master(key, slice);
  }
  return Status::ok();
}

Status Store::push(uint32_t rank, const wire::PushRecord& record, const std::byte* payload,
                   SlotRef slot, int64_t now_ms, Effects* effects) {
  Implementation& self = *implementation_;
  Status status = self.check_rank(rank, "push of key id " + text(record.key));
  if (!status.is_ok()) return status;
  Key* key = self.find_key(record.key);
  if (key == nullptr)
    return Status(Code::invalid_argument, "push from worker " + text(rank) + ": key id " +
                                              text(record.key) + " was not initialised");
  SliceState* slice = key->find_slice(record.slice);
  if (slice == nullptr)
    return Status(Code::invalid_argument, slice_text(*key, record.slice, rank) +
                                              ": this slice is not on server " +
                                              text(self.config.server));
  status = self.check_record(*key, *slice, rank, record);
  if (!status.is_ok()) return status;
  return record.kind == wire::PushKind::initial
             ? self.initial(key, slice, rank, record, payload, slot, effects)
             : self.gradient(key, slice, rank, record, payload, slot, now_ms, effects);
}

Status Store::pull(uint32_t rank, const wire::PullRequest& request, int64_t /*now_ms*/,
                   Effects* effects) {
  Implementation& self = *implementation_;
  const std::string where = "pull of key id " + text(request.key) + " by worker " + text(rank);
  Status status = self.check_rank(rank, where);
  if (!status.is_ok()) return status;
  Key* key = self.find_key(request.key);
  if (key == nullptr) return Status(Code::invalid_argument, where + ": it was not initialised");
  if (request.target.bytes < key->bytes)
    return Status(Code::invalid_argument, where + ": its target has " + text(request.target.bytes) +
                                              " bytes, " + key->what + " has " + text(key->bytes));
  const auto pending = std::count_if(key->pulls.begin(), key->pulls.end(),
                                     [&](const PendingPull& pull) { return pull.rank == rank; });
  if (static_cast<size_t>(pending) >= kMaxPullsPerKey)
    return Status(Code::invalid_argument, where + ": " + text(pending) + " of its pulls wait");
  PendingPull pull{rank, request, 0};
  const FailedRound* failure = key->find_failed(request.round);
  if (failure == nullptr && request.round > 0 && key->last_failed.round == request.round)
    failure = &key->last_failed;
  if (failure != nullptr) {
    self.fail_pull(pull, failure->status, effects);
    return Status::ok();
  }
  const bool initialised = std::all_of(key->slices.begin(), key->slices.end(),
                                       [](const SliceState& slice) { return slice.initialised; });
  if (!initialised && !self.gone[0].is_ok()) {
    self.fail_pull(pull, self.gone[0].with_context(key->what + " has no initial value"), effects);
    return Status::ok();
  }
  for (SliceState& slice : key->slices) {
    if (slice.initialised && slice.completed >= request.round) {
      self.write_weights(
          *key, &slice, rank, request.round, request.pull_op,
          wire::offset_by(request.target, slice.slice.offset_bytes, slice.slice.bytes), effects);
    } else {
      ++pull.slices;
    }
  }
  if (pull.slices > 0) key->pulls.push_back(pull);
  return Status::ok();
}

void Store::write_done(uint32_t id, uint32_t index, Effects* effects) {
  Implementation& self = *implementation_;
  Key* key = self.find_key(id);
  MXRDMA_CHECK(key != nullptr, "a write of an unknown key cannot end");
  // Which of two writes of one slice ended is not told, so those from before a move are taken to
  // end first, and the old memory stays until no write of such a slice is left.
  auto old = key->retired_in_flight.find(index);
  SliceState* slice = key->find_slice(index);
  if (old != key->retired_in_flight.end() && old->second > 0) {
    --old->second;
  } else {
    MXRDMA_CHECK(slice != nullptr && slice->in_flight > 0, "more writes ended than were begun");
    --slice->in_flight;
  }
  if (old != key->retired_in_flight.end() && old->second == 0 &&
      (slice == nullptr || slice->in_flight == 0)) {
    key->retired_in_flight.erase(old);
    if (key->retired_in_flight.empty()) {
      for (const Memory& memory : key->retired) self.memory->release(memory);
      key->retired.clear();
    }
  }
  if (slice != nullptr && slice->in_flight == 0) self.advance(key, slice, effects);
}

void Store::fold_held(uint32_t rank, Effects* effects) {
  for (auto& key : implementation_->keys)
    if (key) implementation_->fold_all_of(key.get(), rank, effects);
}

void Store::worker_gone(uint32_t rank, const Status& why, Effects* effects) {
  Implementation& self = *implementation_;
  MXRDMA_CHECK(rank < self.config.workers && !why.is_ok(), "a known worker is gone for a reason");
  if (!self.gone[rank].is_ok()) return;
  self.gone[rank] = why;
  ++self.gone_count;
  for (auto& key : self.keys)
    if (key) self.leave(key.get(), rank, why, effects);
}

void Store::fail_round(uint32_t id, uint32_t round, const Status& why, Effects* effects) {
  Implementation& self = *implementation_;
  MXRDMA_CHECK(!why.is_ok(), "a round fails for a reason");
  Key* key = self.find_key(id);
  if (key == nullptr) return;
  const bool open = std::any_of(key->slices.begin(), key->slices.end(), [&](const auto& slice) {
    const OpenRound* found = slice.find(round);
    return found != nullptr && !found->failed;
  });
  if (!open) return;
  self.fail(key, round, why, effects);
  self.advance_all(key, effects);
}

std::vector<Waiting> Store::waiting() const {
  std::vector<Waiting> list;
  for (const auto& key : implementation_->keys)
    if (key) implementation_->waiting(*key, &list);
  return list;
}

StoreBytes Store::bytes() const {
  const Implementation& self = *implementation_;
  return {self.weight_bytes, self.sums.in_use_bytes(), self.sums.peak_bytes(), self.state_bytes};
}

}  // namespace mxrdma::store
