// One direction of a shm connection as both processes see it: a control block, a ring of
// descriptors, bounce slots. The sender of the direction makes the segment, the receiver maps it.
// Everything in it is the other end's word: a descriptor is copied out before it is checked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "wire/region.h"

namespace mxrdma::fabric::shm {

constexpr uint32_t kRingDescriptors =
    1024;                              // twice kMaxOutstandingPerPeer: a post rarely waits for room
constexpr uint32_t kInlineBytes = 64;  // credits, requests: most messages
constexpr uint32_t kBounceSlots = 8;
// Small enough that both ends find a slot in the cache, large enough that a wake-up for each costs
// little.
constexpr uint32_t kBounceBytes = 64 * 1024;
static_assert(kMaxMessageBytes <= kBounceBytes, "a message fits into one bounce slot");
static_assert(kRingDescriptors >= kMaxOutstandingPerPeer);

enum class Kind : uint32_t {
  placed = 1,     // a write; the sender has put the data into the receiver's mapped region
  reference = 2,  // a write; the receiver copies from the sender's mapped region
  bounced = 3,  // a part of a write; the receiver copies from a bounce slot; `last` ends the write
  message = 4,  // inline or in a bounce slot
};

struct Descriptor {
  Kind kind;
  uint32_t immediate;
  uint64_t bytes;             // of this descriptor's data
  wire::RemoteRegion target;  // writes: where this data goes
  uint64_t source_key;        // reference
  uint64_t source_offset;
  uint64_t total_bytes;  // writes: of the whole write
  uint32_t slot;         // bounced and large messages
  uint32_t last;         // bounced
  std::byte data[kInlineBytes];
  std::byte padding[56];  // to whole cache lines
};
static_assert(sizeof(Descriptor) == 192, "Descriptor is shared between processes");

struct Control {
  alignas(64) std::atomic<uint64_t> produced;  // descriptors the sender has written
  alignas(64) std::atomic<uint64_t> consumed;  // descriptors the receiver is through with
  alignas(64) std::atomic<uint32_t> receiver_sleeps;
  alignas(64) std::atomic<uint32_t> sender_sleeps;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "atomics work between processes only without locks");

constexpr size_t kRingOffset = 4096;
constexpr size_t kBounceOffset =
    (kRingOffset + size_t{kRingDescriptors} * sizeof(Descriptor) + 4095) / 4096 * 4096;
constexpr size_t kSegmentBytes = kBounceOffset + size_t{kBounceSlots} * kBounceBytes;
static_assert(sizeof(Control) <= kRingOffset);

}  // namespace mxrdma::fabric::shm
