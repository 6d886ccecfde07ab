// Buffers for the sums of open rounds, kept for the next round. They come in powers of two, so that
// keys of all sizes share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace mxrdma::store {

class Accumulators {
 public:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    explicit operator bool() const { return data != nullptr; }
  };

  // Contents are undefined. An empty buffer: the machine has no memory left.
  Buffer take(size_t bytes);
  void give_back(Buffer buffer);

  uint64_t in_use_bytes() const { return in_use_; }
  uint64_t peak_bytes() const { return peak_; }

 private:
  // A buffer above this is given back to the system: it belongs to a whole-tensor key.
  static constexpr size_t kMaxPooledBytes = 32u << 20;

  std::map<size_t, std::vector<std::unique_ptr<std::byte[]>>> free_;
  uint64_t in_use_ = 0, peak_ = 0;
};

}  // namespace mxrdma::store
