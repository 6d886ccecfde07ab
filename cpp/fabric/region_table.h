// The regions of one fabric object, and the checks of what peers name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "fabric/fabric.h"
#include "fabric/segment.h"

namespace mxrdma::fabric {

// RemoteRegion::key is (mappable, generation, id). Mappable: allocated by the fabric, so that a
// peer on the same host can map it.
constexpr uint64_t kMappable = 1ull << 63;

class RegionTable {
 public:
  struct Entry {
    std::byte* base = nullptr;
    size_t bytes = 0;
    std::shared_ptr<Segment> segment;  // of allocated regions
    uint64_t key = 0;                  // as peers name it
  };

  explicit RegionTable(RegionId first = 1) : next_(first) {}

  Region add(std::byte* base, size_t bytes, std::shared_ptr<Segment> segment) {
    // Regions come and go with each operation, so that the 32 bits of an id do run out in a long
    // job; the generation tells a stale name from the new bearer of its id.
    while (next_ == kNoRegion || entries_.count(next_) != 0) advance();
    const RegionId id = next_;
    advance();
    const uint64_t key = (segment ? kMappable : 0) | (generation_ << 32) | id;
    entries_[id] = Entry{base, bytes, std::move(segment), key};
    return Region{id, base, bytes};
  }
  void remove(RegionId id) { entries_.erase(id); }
  const Entry* find(RegionId id) const {
    auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : &found->second;
  }
  static RemoteRegion name(const Entry& entry) { return {0, entry.bytes, entry.key}; }
  const Entry* find_key(uint64_t key) const {
    const Entry* entry = find(static_cast<RegionId>(key));
    return entry != nullptr && entry->key == key ? entry : nullptr;
  }
  // Where a peer's write of `bytes` goes, or the reason why it goes nowhere.
  Result<std::byte*> target(const RemoteRegion& remote, uint64_t bytes) const {
    const Entry* entry = find_key(remote.key);
    if (entry == nullptr)
      return Status(Code::fabric, "remote access error: memory region " +
                                      std::to_string(remote.key & ~kMappable) +
                                      " is not registered here");
    if (remote.address > entry->bytes || bytes > entry->bytes - remote.address ||
        bytes > remote.bytes)
      return Status(Code::fabric, "remote access error: " + std::to_string(bytes) + " bytes at " +
                                      std::to_string(remote.address) + " of a region of " +
                                      std::to_string(entry->bytes));
    return entry->base + remote.address;
  }
  // The region that memory lies in, for a span that names it; nullptr if the span is not inside.
  const Entry* holding(const LocalSpan& span) const {
    const Entry* entry = span.region == kNoRegion ? nullptr : find(span.region);
    if (entry == nullptr) return nullptr;
    const auto data = reinterpret_cast<uintptr_t>(span.data);
    const auto base = reinterpret_cast<uintptr_t>(entry->base);
    const bool inside =
        data >= base && span.bytes <= entry->bytes && data - base <= entry->bytes - span.bytes;
    return inside ? entry : nullptr;
  }

 private:
  void advance() {
    if (++next_ == kNoRegion) generation_ = (generation_ + 1) & 0x7fffffff;
  }

  RegionId next_;
  uint64_t generation_ = 0;
  std::unordered_map<RegionId, Entry> entries_;
};

}  // namespace mxrdma::fabric
