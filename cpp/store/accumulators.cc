#include "store/accumulators.h"

#include <algorithm>
#include <new>
#include <utility>

namespace mxrdma::store {

Accumulators::Buffer Accumulators::take(size_t bytes) {
  size_t size = 256;
  while (size < bytes && size < kMaxPooledBytes) size *= 2;
  size = std::max(size, bytes);
  Buffer buffer;
  auto& free = free_[size];
  if (!free.empty()) {
    buffer.data = std::move(free.back());
    free.pop_back();
  } else {
    buffer.data.reset(new (std::nothrow) std::byte[size]);
    if (buffer.data == nullptr) return {};
  }
  buffer.bytes = size;
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return buffer;
}

void Accumulators::give_back(Buffer buffer) {
  if (!buffer) return;
  in_use_ -= buffer.bytes;
  if (buffer.bytes <= kMaxPooledBytes) free_[buffer.bytes].push_back(std::move(buffer.data));
}

}  // namespace mxrdma::store
