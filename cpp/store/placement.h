// Which server holds what: pure functions, computed by the scheduler and told to all nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "wire/control.h"

namespace mxrdma::store {

// A unit of the wire: at most one slot's payload. Slices of a key are numbered over all its shares,
// in order.
struct Slice {
  uint32_t index = 0;
  uint32_t server = 0;
  uint64_t offset_bytes = 0;  // within the key
  uint32_t bytes = 0;
};

// Cuts the shares of a key into slices of at most `capacity` bytes. The same on every node.
std::vector<Slice> cut(const wire::KeySpec& key, size_t capacity);

// Spreads keys over servers so that they carry equal loads in bytes.
class Placer {
 public:
  explicit Placer(uint32_t servers);
  // Shares for a key of this many bytes. Small keys and `whole` ones lie on the least loaded
  // server, large ones on all; the cut keeps elements of `element_bytes` whole and 64-byte
  // alignment.
  std::vector<wire::Share> place(uint64_t bytes, size_t element_bytes, bool whole);
  void remove(const std::vector<wire::Share>& shares);
  const std::vector<uint64_t>& loads() const { return loads_; }

 private:
  std::vector<uint64_t> loads_;
};

}  // namespace mxrdma::store
