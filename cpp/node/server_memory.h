// Weights of a server: carved out of large fabric segments, so that peers map few of them.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "fabric/fabric.h"
#include "store/store.h"

namespace mxrdma::node {

class ServerMemory final : public store::MemorySource {
 public:
  static constexpr size_t kSegmentBytes = 64u << 20;  // untouched pages of a segment cost nothing

  explicit ServerMemory(fabric::Fabric* fabric) : fabric_(fabric) {}

  // The loop's thread: makes sure that allocate() can serve `count` blocks of `bytes` in all.
  Status reserve_on_loop(size_t bytes, size_t count);

  // Any thread.
  Result<store::Memory> allocate(size_t bytes) override;
  void release(const store::Memory& memory) override;
  uint64_t segment_bytes() const;

 private:
  static constexpr size_t kAlign = 64;
  struct Segment {
    fabric::Region region;
    size_t used = 0;
  };
  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  fabric::Fabric* fabric_;
  mutable std::mutex mutex_;
  std::vector<Segment> segments_;
  std::multimap<size_t, store::Memory> free_;  // by size; filled when keys move
};

}  // namespace mxrdma::node
