#include "node/array_cache.h"

#include "base/check.h"
#include "base/log.h"

namespace mxrdma::node {

using fabric::kNoRegion;
using fabric::RegionId;

ArrayCache::~ArrayCache() {
  while (!entries_.empty()) forget(entries_.begin());
}

ArrayCache::Entries::iterator ArrayCache::forget(Entries::iterator entry) {
  fabric_->release(entry->region);
  by_place_.erase(entry->place);
  by_region_.erase(entry->region);
  bytes_ -= entry->place.second;
  return entries_.erase(entry);
}

bool ArrayCache::is_second_use(const Place& place, const void* storage) {
  auto seen = seen_once_.find(place);
  if (seen != seen_once_.end() && seen->second == storage) {
    seen_once_.erase(seen);
    return true;
  }
  // Arrays that never come again must not push out the memory of those that do for ever.
  if (seen == seen_once_.end() && seen_once_.size() >= kMaxCachedArrays) seen_once_.clear();
  seen_once_[place] = storage;
  return false;
}

bool ArrayCache::make_room(size_t bytes) {
  auto entry = entries_.begin();
  while (entry != entries_.end() &&
         (bytes_ + bytes > limit_bytes_ || entries_.size() >= kMaxCachedArrays))
    entry = entry->users == 0 ? forget(entry) : std::next(entry);
  return bytes_ + bytes <= limit_bytes_ && entries_.size() < kMaxCachedArrays;
}

RegionId ArrayCache::take(const void* data, size_t bytes, const Hold& hold) {
  if (!hold || bytes == 0) return kNoRegion;
  const Place place{data, bytes};
  auto found = by_place_.find(place);
  if (found != by_place_.end()) {
    Entries::iterator entry = found->second;
    if (entry->hold->storage() == hold->storage()) {
      ++entry->users;
      entries_.splice(entries_.end(), entries_, entry);
      return entry->region;
    }
    // What we hold has moved away, and this is another array at its old address.
    if (entry->users > 0) return kNoRegion;
    forget(entry);
  }
  if (!is_second_use(place, hold->storage()) || !make_room(bytes)) return kNoRegion;
  Result<fabric::Region> region = fabric_->register_memory(const_cast<void*>(data), bytes);
  if (!region.is_ok()) {
    log_debug("an array of " + std::to_string(bytes) +
              " bytes is not registered: " + region.status().message());
    return kNoRegion;
  }
  entries_.push_back({place, hold, region.value().id, 1});
  by_place_[place] = by_region_[region.value().id] = std::prev(entries_.end());
  bytes_ += bytes;
  return region.value().id;
}

void ArrayCache::give_back(RegionId region) {
  auto found = by_region_.find(region);
  MXRDMA_CHECK(found != by_region_.end() && found->second->users > 0,
               "a region is given back once for each time that it was taken");
  --found->second->users;
}

void ArrayCache::prune_on_loop() {
  for (auto entry = entries_.begin(); entry != entries_.end();)
    entry = entry->users == 0 && entry->hold->is_last() ? forget(entry) : std::next(entry);
}

bool ArrayCache::drop_idle() {
  const size_t before = entries_.size();
  for (auto entry = entries_.begin(); entry != entries_.end();)
    entry = entry->users == 0 ? forget(entry) : std::next(entry);
  return entries_.size() < before;
}

}  // namespace mxrdma::node
