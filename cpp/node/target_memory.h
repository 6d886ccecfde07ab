// Memory of ours for weights on their way to the user's array, where that must not be registered:
// see Fabric::may_register_callers_memory().
#pragma once

#include <cstdint>
#include <map>

#include "base/limits.h"
#include "fabric/fabric.h"

namespace mxrdma::node {

class TargetMemory {
 public:
  explicit TargetMemory(fabric::Fabric* fabric) : fabric_(fabric) {}
  ~TargetMemory() { clear(); }
  TargetMemory(const TargetMemory&) = delete;
  TargetMemory& operator=(const TargetMemory&) = delete;

  // Keys have few sizes, so what was given back is mostly of the right one.
  Result<fabric::Region> take(size_t bytes) {
    auto found = spare_.find(bytes);
    if (found == spare_.end()) {
      Result<fabric::Region> made = fabric_->allocate(bytes);
      if (made.is_ok()) made.value().bytes = bytes;  // it may be rounded up to pages
      return made;
    }
    const fabric::Region region = found->second;
    spare_.erase(found);
    spare_bytes_ -= bytes;
    return region;
  }
  void give_back(const fabric::Region& region) {
    if (spare_bytes_ + region.bytes > kMaxSpareTargetBytes) return fabric_->release(region.id);
    spare_.emplace(region.bytes, region);
    spare_bytes_ += region.bytes;
  }
  void clear() {
    for (const auto& entry : spare_) fabric_->release(entry.second.id);
    spare_.clear();
    spare_bytes_ = 0;
  }

 private:
  fabric::Fabric* fabric_;
  std::multimap<size_t, fabric::Region> spare_;  // by bytes
  uint64_t spare_bytes_ = 0;
};

}  // namespace mxrdma::node
