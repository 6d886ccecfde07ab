#include "node/server_memory.h"

#include <algorithm>
#include <cstring>

namespace mxrdma::node {

Status ServerMemory::reserve_on_loop(size_t bytes, size_t count) {
  const size_t wanted = bytes + count * kAlign;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!segments_.empty() && segments_.back().region.bytes - segments_.back().used >= wanted)
      return Status::ok();
  }
  Result<fabric::Region> region = fabric_->allocate(std::max(wanted, kSegmentBytes));
  if (!region.is_ok())
    return region.status().with_context("weights of " + std::to_string(bytes) + " bytes");
  std::lock_guard<std::mutex> lock(mutex_);
  segments_.push_back({region.value(), 0});
  return Status::ok();
}

Result<store::Memory> ServerMemory::allocate(size_t bytes) {
  const size_t size = rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = free_.find(size);
  if (found != free_.end()) {
    store::Memory memory = found->second;
    free_.erase(found);
    std::memset(memory.base, 0, memory.bytes);
    memory.bytes = bytes;
    return memory;
  }
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    if (segment->region.bytes - segment->used < size) continue;
    store::Memory memory{segment->region.base + segment->used, bytes, segment->region.id};
    segment->used += size;
    return memory;
  }
  return Status(Code::internal,
                "no reserved memory for " + std::to_string(bytes) + " bytes of weights");
}

void ServerMemory::release(const store::Memory& memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  store::Memory whole = memory;
  whole.bytes = rounded(memory.bytes);
  free_.emplace(whole.bytes, whole);
}

uint64_t ServerMemory::segment_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.used;
  return sum;
}

}  // namespace mxrdma::node
