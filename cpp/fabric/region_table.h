// The regions of one fabric object, and the checks of what peers name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "fabric/fabric.h"
#include "fabric/segment.h"

namespace mxrdma::fabric {

// Set in RemoteRegion::key for memory that was allocated by the fabric, so that a peer on the same
// host can map it.
constexpr uint64_t kMappable = 1ull << 63;

class RegionTable {
 public:
  struct Entry {
    std::byte* base = nullptr;
    size_t bytes = 0;
    std::shared_ptr<Segment> segment;  // of allocated regions
  };

  Region add(std::byte* base, size_t bytes, std::shared_ptr<Segment> segment) {
    const RegionId id = next_++;  // never given twice, so a stale name is unknown
    entries_[id] = Entry{base, bytes, std::move(segment)};
    return Region{id, base, bytes};
  }
  void remove(RegionId id) { entries_.erase(id); }
  const Entry* find(RegionId id) const {
    auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : &found->second;
  }
  RemoteRegion name(RegionId id, const Entry& entry) const {
    return RemoteRegion{0, entry.bytes, id | (entry.segment ? kMappable : 0)};
  }
  // Where a peer's write of `bytes` goes, or the reason why it goes nowhere.
  Result<std::byte*> target(const RemoteRegion& remote, uint64_t bytes) const {
    const Entry* entry = find(static_cast<RegionId>(remote.key));
    if (entry == nullptr || (remote.key & ~kMappable) > UINT32_MAX)
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
    const std::byte* data = static_cast<const std::byte*>(span.data);
    const bool inside = data >= entry->base && span.bytes <= entry->bytes &&
                        static_cast<size_t>(data - entry->base) <= entry->bytes - span.bytes;
    return inside ? entry : nullptr;
  }

 private:
  RegionId next_ = 1;
  std::unordered_map<RegionId, Entry> entries_;
};

}  // namespace mxrdma::fabric
