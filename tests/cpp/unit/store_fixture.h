// A store in a box: memory that counts, slots that are checked, effects that are kept.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/store.h"

namespace mxrdma::store {

class HeapMemory final : public MemorySource {
 public:
  ~HeapMemory() override { EXPECT_TRUE(blocks_.empty()) << "the store kept memory"; }
  Result<Memory> allocate(size_t bytes) override {
    if (refuse) return Status(Code::fabric, "refused");
    auto block = std::make_unique<std::byte[]>(bytes + 64);
    auto address = (reinterpret_cast<uintptr_t>(block.get()) + 63) / 64 * 64;
    auto* base = reinterpret_cast<std::byte*>(address);
    std::memset(base, 0, bytes);
    blocks_[base] = std::move(block);
    return Memory{base, bytes, 7};
  }
  void release(const Memory& memory) override { EXPECT_EQ(blocks_.erase(memory.base), 1u); }
  size_t blocks() const { return blocks_.size(); }
  bool refuse = false;

 private:
  std::map<std::byte*, std::unique_ptr<std::byte[]>> blocks_;
};

inline wire::KeySpec make_key(uint32_t id, uint64_t elements, DType dtype = DType::float32) {
  wire::KeySpec spec;
  spec.id = id;
  spec.request.name = "i:" + std::to_string(id);
  spec.request.updater_index = id;
  spec.request.dtype = dtype;
  spec.request.elements = elements;
  spec.request.shape = {static_cast<int64_t>(elements)};
  spec.shares = {{0, 0, elements * dtype_bytes(dtype)}};
  return spec;
}

// One server's store with payloads whose slots are poisoned as soon as they are released.
class StoreBox {
 public:
  explicit StoreBox(uint32_t workers, uint32_t staleness = 0, size_t capacity = 1024,
                    bool hold_first = false)
      : config{0, workers, capacity, staleness, hold_first}, store(config, &memory) {}
  ~StoreBox() { EXPECT_TRUE(slots.empty()) << slots.size() << " slots were never released"; }

  static wire::PushRecord record(const wire::KeySpec& key, uint32_t slice, uint32_t round,
                                 size_t bytes) {
    wire::PushRecord record{};
    record.key = key.id;
    record.slice = slice;
    record.round = round;
    record.kind = round == 0 ? wire::PushKind::initial : wire::PushKind::gradient;
    record.dtype = static_cast<uint8_t>(key.request.dtype);
    record.payload_bytes = static_cast<uint32_t>(bytes);
    record.lr = 0.1f;
    record.rescale_grad = 1;
    return record;
  }

  Status push_record(uint32_t rank, const wire::PushRecord& record, const void* data) {
    const SlotRef slot = next_slot++;
    auto& payload = slots[slot];
    payload.assign(static_cast<const std::byte*>(data),
                   static_cast<const std::byte*>(data) + record.payload_bytes);
    const size_t before = effects.size();
    Status status = store.push(rank, record, payload.data(), slot, now_ms, &effects);
    if (!status.is_ok()) {
      EXPECT_EQ(effects.size(), before) << "a refused push has no effect";
      slots.erase(slot);
    }
    settle();
    return status;
  }
  template <typename T>
  Status push(uint32_t rank, const wire::KeySpec& key, uint32_t slice, uint32_t round,
              const std::vector<T>& values, bool want = false) {
    wire::PushRecord r = record(key, slice, round, values.size() * sizeof(T));
    if (want) {
      r.flags = wire::kWantWeights;
      r.pull_op = 1000 + rank;
      r.target = {0x1000, r.payload_bytes, 9};
    }
    return push_record(rank, r, values.data());
  }
  Status pull(uint32_t rank, const wire::KeySpec& key, uint32_t round, uint32_t pull_op = 1) {
    const wire::PullRequest request{
        key.id, round, pull_op, {0x4000, key.request.elements * dtype_bytes(key.request.dtype), 9}};
    Status status = store.pull(rank, request, now_ms, &effects);
    settle();
    return status;
  }
  void write_done(uint32_t key, uint32_t slice) {
    store.write_done(key, slice, &effects);
    settle();
  }
  void fold_held(uint32_t rank) {
    store.fold_held(rank, &effects);
    settle();
  }
  void worker_gone(uint32_t rank) {
    store.worker_gone(rank, Status(Code::worker_lost, "worker " + std::to_string(rank) + " died"),
                      &effects);
    settle();
  }
  // Releases slots, checking that each goes once, and poisons their payload.
  void settle() {
    for (; seen < effects.size(); ++seen) {
      if (effects[seen].kind != Effect::Kind::release_slot) continue;
      auto found = slots.find(effects[seen].slot);
      ASSERT_NE(found, slots.end()) << "a slot was released twice";
      slots.erase(found);
    }
  }
  size_t count(Effect::Kind kind) const {
    size_t n = 0;
    for (const Effect& effect : effects) n += effect.kind == kind;
    return n;
  }
  std::vector<Effect> take(Effect::Kind kind) {
    std::vector<Effect> taken;
    for (const Effect& effect : effects)
      if (effect.kind == kind) taken.push_back(effect);
    return taken;
  }
  void forget() {
    effects.clear();
    seen = 0;
  }
  template <typename T>
  static std::vector<T> values(const Effect& effect) {
    std::vector<T> out(effect.data.bytes / sizeof(T));
    std::memcpy(out.data(), effect.data.data, effect.data.bytes);
    return out;
  }

  HeapMemory memory;
  StoreConfig config;
  Store store;
  Effects effects;
  size_t seen = 0;
  SlotRef next_slot = 1;
  std::map<SlotRef, std::vector<std::byte>> slots;
  int64_t now_ms = 0;
};

}  // namespace mxrdma::store
