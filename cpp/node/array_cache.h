// Arrays that come again with each step stay registered with the fabric, so that their memory is a
// source or target of devices without a copy and without a system call.
//
// An array is registered at its second use and held from then on: as long as we refer to it, its
// memory cannot become another array's. It is let go of as soon as nobody else refers to it, when
// others are wanted more, or when its storage has moved.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/array_hold.h"
#include "base/limits.h"
#include "fabric/fabric.h"

namespace mxrdma::node {

class ArrayCache {
 public:
  explicit ArrayCache(fabric::Fabric* fabric, uint64_t limit_bytes = kMaxCachedArrayBytes)
      : fabric_(fabric), limit_bytes_(limit_bytes) {}
  ~ArrayCache();
  ArrayCache(const ArrayCache&) = delete;
  ArrayCache& operator=(const ArrayCache&) = delete;

  // The region of the array, in use until give_back(). kNoRegion: not this time (no hold, the first
  // use, no room).
  fabric::RegionId take(const void* data, size_t bytes, const Hold& hold);
  void give_back(fabric::RegionId region);
  // Lets go of arrays that only this cache still refers to; call now and then.
  void prune_on_loop();
  // Lets go of all that is not in use. False: there was nothing.
  bool drop_idle();

  size_t entries() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  using Place = std::pair<const void*, size_t>;  // address, bytes
  struct Entry {
    Place place;
    Hold hold;
    fabric::RegionId region = fabric::kNoRegion;
    uint32_t users = 0;
  };
  using Entries = std::list<Entry>;  // the least recently used first

  bool is_second_use(const Place& place, const void* storage);
  bool make_room(size_t bytes);
  Entries::iterator forget(Entries::iterator entry);

  fabric::Fabric* fabric_;
  uint64_t limit_bytes_;
  uint64_t bytes_ = 0;
  Entries entries_;
  std::map<Place, Entries::iterator> by_place_;
  std::unordered_map<fabric::RegionId, Entries::iterator> by_region_;
  std::map<Place, const void*> seen_once_;  // the storage of each; at most kMaxCachedArrays
};

}  // namespace mxrdma::node
