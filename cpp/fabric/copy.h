// Copies between memory of users, slots and regions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mxrdma::fabric {

// Like memcpy. For sizes of slots memcpy takes the CPU's string move, which on Zen is eight times
// slower if the target lies a little behind the source modulo 4 KiB. That is common: slots and
// regions begin with a page, large arrays of malloc 16 bytes behind one. There it goes in pieces
// for which memcpy takes vector registers.
inline void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kPage = 4096, kClose = 64, kPiece = 2048;
  const size_t behind =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  const size_t piece = behind > 0 && behind < kClose ? kPiece : bytes;
  while (bytes > 0) {
    const size_t part = std::min(piece, bytes);
    std::memcpy(to, from, part);
    to += part;
    from += part;
    bytes -= part;
  }
}

}  // namespace mxrdma::fabric
