// The data path's layout: what a worker writes into one slot of a server's ring. One header file is
// the wire.
//
//   SlotHeader | PushRecord | payload (padded to 16) | PushRecord | payload | ...
//
// The immediate of such a write is the slot's index. The immediate of a server's weight write is
// the worker's pull operation. All integers are little-endian (checked below), all structures are
// plain bytes. Everything here comes from a peer: validate with invalid() before use; nothing is
// trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/limits.h"
#include "wire/region.h"

namespace mxrdma::wire {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

constexpr uint32_t kSlotMagic = 0x4d585244;  // "MXRD"
constexpr uint16_t kWireVersion = 1;
constexpr size_t kPayloadAlign = 16;

struct SlotHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t records;  // 1 .. kMaxRecordsPerSlot
  uint32_t bytes;    // all of the message, this header included
  uint32_t reserved;
};
static_assert(sizeof(SlotHeader) == 16);

enum class PushKind : uint8_t {
  gradient = 0,  // counts as this worker's turn in `round`
  initial = 1,   // rank 0's initial value; round is 0
};

enum PushFlags : uint16_t {
  kWantWeights =
      1,  // the worker's array is ready: write the new weights to `target` with immediate `pull_op`
};

struct PushRecord {
  uint32_t key;
  uint32_t slice;  // index of the slice within the key (over all servers)
  uint32_t round;  // the worker's count of pushes to this key; the first is 1
  PushKind kind;
  uint8_t dtype;  // DType
  uint16_t flags;
  uint32_t payload_bytes;  // exactly the slice's size
  uint32_t pull_op;        // immediate of the answer, if kWantWeights
  float lr;                // hyper-parameters of this round; those of the lowest rank count
  float wd;
  float rescale_grad;
  uint32_t update_count;  // how often the worker's optimizer updated this key, this round included
  RemoteRegion target;    // where this slice of the weights goes, if kWantWeights
};
static_assert(sizeof(PushRecord) == 64);
static_assert(offsetof(PushRecord, target) == 40);

inline size_t padded(size_t bytes) {
  return (bytes + kPayloadAlign - 1) / kPayloadAlign * kPayloadAlign;
}

// The most payload that one record can carry in a slot of this size; slices are cut to it.
inline size_t slice_capacity(size_t slot_bytes) {
  return (slot_bytes - sizeof(SlotHeader) - sizeof(PushRecord)) / 64 * 64;
}

// The reason why these bytes are no slot message, or nothing. `bytes` is what arrived.
std::optional<std::string> invalid(const SlotHeader& header, size_t bytes);
// The reason why the record is malformed in itself (not: whether the key exists); `room` is what
// follows the record.
std::optional<std::string> invalid(const PushRecord& record, size_t room);

}  // namespace mxrdma::wire
