// Which arrays stay registered, and until when.
#include "node/array_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "unit/list_fabric.h"

namespace mxrdma::node {
namespace {

using fabric::kNoRegion;
using fabric::Region;
using fabric::RegionId;

class RegisteringFabric final : public ListFabric {
 public:
  Result<Region> register_memory(void* base, size_t bytes) override {
    if (refuses) return Status(Code::fabric, "no memory may be locked");
    registered.insert(next);
    return Region{next++, static_cast<std::byte*>(base), bytes};
  }
  void release(RegionId region) override { EXPECT_EQ(registered.erase(region), 1u) << "twice"; }

  std::set<RegionId> registered;
  RegionId next = 1;
  bool refuses = false;
};

struct Array {
  explicit Array(size_t bytes) : memory(std::make_shared<std::vector<std::byte>>(bytes)) {}
  const void* data() const { return memory->data(); }
  size_t bytes() const { return memory->size(); }
  Hold hold() const;
  std::shared_ptr<std::vector<std::byte>> memory;
};

class TestHold final : public ArrayHold {
 public:
  explicit TestHold(std::shared_ptr<std::vector<std::byte>> memory) : memory_(std::move(memory)) {}
  const void* storage() const override { return memory_.get(); }
  bool is_last() const override { return memory_.use_count() == 1; }

 private:
  std::shared_ptr<std::vector<std::byte>> memory_;
};

Hold Array::hold() const { return std::make_shared<TestHold>(memory); }

struct Rig {
  RegionId use(const Array& array) {
    const RegionId region = cache.take(array.data(), array.bytes(), array.hold());
    if (region != kNoRegion) cache.give_back(region);
    return region;
  }
  RegisteringFabric fabric;
  ArrayCache cache{&fabric, 1000};
};

TEST(ArrayCache, AnArrayIsRegisteredAtItsSecondUseAndOnce) {
  Rig rig;
  const Array array(100);
  EXPECT_EQ(rig.use(array), kNoRegion);
  const RegionId region = rig.use(array);
  ASSERT_NE(region, kNoRegion);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(rig.use(array), region);
  EXPECT_EQ(rig.fabric.registered.size(), 1u);
  EXPECT_EQ(rig.cache.bytes(), 100u);
}

TEST(ArrayCache, WithoutAHoldNothingIsKept) {
  Rig rig;
  const Array array(100);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(rig.cache.take(array.data(), array.bytes(), nullptr), kNoRegion);
  EXPECT_EQ(array.memory.use_count(), 1);
}

TEST(ArrayCache, WhatNobodyElseHasIsLetGo) {
  Rig rig;
  auto array = std::make_unique<Array>(100);
  std::weak_ptr<std::vector<std::byte>> memory = array->memory;
  rig.use(*array);
  const RegionId region = rig.cache.take(array->data(), array->bytes(), array->hold());
  array.reset();
  rig.cache.prune_on_loop();
  EXPECT_FALSE(memory.expired()) << "it is in use";
  rig.cache.give_back(region);
  rig.cache.prune_on_loop();
  EXPECT_TRUE(memory.expired());
  EXPECT_TRUE(rig.fabric.registered.empty());
  EXPECT_EQ(rig.cache.bytes(), 0u);
}

// MXNet may give an array other storage; its old memory then is another array's.
TEST(ArrayCache, AnotherStorageAtTheSameAddressIsRegisteredAnew) {
  Rig rig;
  const Array array(100);
  rig.use(array);
  const RegionId old = rig.use(array);
  const Array other(100);
  const Hold hold = other.hold();
  EXPECT_EQ(rig.cache.take(array.data(), array.bytes(), hold), kNoRegion);
  EXPECT_EQ(rig.fabric.registered.count(old), 0u) << "a stale registration";
  const RegionId fresh = rig.cache.take(array.data(), array.bytes(), hold);
  EXPECT_NE(fresh, kNoRegion);
  EXPECT_NE(fresh, old);
  rig.cache.give_back(fresh);
}

TEST(ArrayCache, TheLeastRecentlyUsedGivesWay) {
  Rig rig;
  std::vector<Array> arrays(3, Array(0));
  for (Array& array : arrays) array = Array(400);
  for (const Array& array : arrays) rig.use(array);
  const RegionId first = rig.use(arrays[0]), second = rig.use(arrays[1]);
  rig.use(arrays[0]);
  EXPECT_NE(rig.use(arrays[2]), kNoRegion);
  EXPECT_EQ(rig.fabric.registered.count(second), 0u);
  EXPECT_EQ(rig.fabric.registered.count(first), 1u);
  EXPECT_LE(rig.cache.bytes(), 1000u);
}

TEST(ArrayCache, WhatIsInUseStays) {
  Rig rig;
  const Array one(600), two(600);
  rig.use(one);
  rig.use(two);
  const RegionId region = rig.cache.take(one.data(), one.bytes(), one.hold());
  EXPECT_EQ(rig.use(two), kNoRegion) << "no room";
  EXPECT_FALSE(rig.cache.drop_idle());
  EXPECT_EQ(rig.fabric.registered.count(region), 1u);
  rig.cache.give_back(region);
  EXPECT_TRUE(rig.cache.drop_idle());
  EXPECT_TRUE(rig.fabric.registered.empty());
}

TEST(ArrayCache, ARefusalIsNoFailure) {
  Rig rig;
  const Array array(100);
  rig.fabric.refuses = true;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rig.use(array), kNoRegion);
  rig.fabric.refuses = false;
  rig.use(array);
  EXPECT_NE(rig.use(array), kNoRegion);
}

}  // namespace
}  // namespace mxrdma::node
