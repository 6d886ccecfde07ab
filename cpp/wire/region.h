// Remote memory as it is named on the wire.
#pragma once

#include <cstdint>

namespace mxrdma::wire {

// Where a peer may write or read. Travels in messages; opaque but for `offset_by`.
struct RemoteRegion {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t key = 0;
};
static_assert(sizeof(RemoteRegion) == 24, "RemoteRegion is part of the wire format");

// A part of a region: [offset, offset + bytes). The caller has checked the bounds against
// `whole.bytes`.
inline RemoteRegion offset_by(const RemoteRegion& whole, uint64_t offset, uint64_t bytes) {
  return {whole.address + offset, bytes, whole.key};
}

}  // namespace mxrdma::wire
