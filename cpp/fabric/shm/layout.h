// One direction of a shm connection as both processes see it: a control block, a ring of
// descriptors, bounce slots. The sender of the direction makes the segment, the receiver maps it.
// Everything in it is the other end's word: a descriptor is copied out before it is checked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/limits.h"
#include "wire/region.h"

namespace mxrdma::fabric::shm {

// Twice kMaxOutstandingPerPeer: a post rarely waits for room.
constexpr uint32_t kRingDescriptors = 1024;
constexpr uint32_t kInlineBytes = 64;  // credits, requests: most messages
constexpr uint32_t kBounceSlots = 8;
// Small enough that both ends find a slot in the cache, large enough that a wake-up for each costs
// little.
constexpr uint32_t kBounceBytes = 64 * 1024;
// One part of a write by reference, so that a large one does not hold up other peers.
constexpr uint64_t kReferenceBytes = 1u << 20;
// Of one end, known to the other. Further ones are reached through bounce slots.
constexpr size_t kMaxSharedRegions = 4096;
static_assert(kMaxMessageBytes <= kBounceBytes, "a message fits into one bounce slot");
static_assert(kRingDescriptors >= kMaxOutstandingPerPeer);

enum class Kind : uint32_t {
  placed = 1,     // a whole write; the sender has put the data into the receiver's mapped region
  reference = 2,  // a part of a write; the receiver copies from the sender's mapped region
  bounced = 3,    // a part of a write; the receiver copies from a bounce slot
  message = 4,    // inline or in a bounce slot
  forget = 5,     // the sender has released the region `source_key`
};

struct Descriptor {
  Kind kind;
  uint32_t immediate;
  uint64_t bytes;             // of this descriptor's data
  wire::RemoteRegion target;  // writes: where the whole write goes
  uint64_t part_offset;       // writes: where this part lies in it
  uint64_t total_bytes;       // writes: of the whole write
  uint64_t source_key;        // reference, forget
  uint64_t source_offset;
  uint32_t slot;  // bounced and large messages
  uint32_t reserved;
  std::byte data[kInlineBytes];
  std::byte padding[48];  // to whole cache lines
};
static_assert(sizeof(Descriptor) == 192, "Descriptor is shared between processes");

// What is wrong with it by itself.
inline std::optional<std::string> invalid(const Descriptor& descriptor) {
  switch (descriptor.kind) {
    case Kind::forget:
      return std::nullopt;
    case Kind::message:
      if (descriptor.bytes > kMaxMessageBytes)
        return "a message of " + std::to_string(descriptor.bytes) + " bytes";
      break;
    case Kind::placed:
      if (descriptor.part_offset != 0 || descriptor.bytes != descriptor.total_bytes)
        return "a placed write in parts";
      break;
    case Kind::bounced:
      if (descriptor.bytes > kBounceBytes)
        return std::to_string(descriptor.bytes) + " bytes in a bounce slot";
      break;
    case Kind::reference:
      break;
    default:
      return "kind " + std::to_string(static_cast<uint32_t>(descriptor.kind));
  }
  const bool uses_slot = descriptor.kind == Kind::bounced ||
                         (descriptor.kind == Kind::message && descriptor.bytes > kInlineBytes);
  if (uses_slot && descriptor.slot >= kBounceSlots)
    return "bounce slot " + std::to_string(descriptor.slot);
  if (descriptor.kind != Kind::message &&
      (descriptor.part_offset > descriptor.total_bytes ||
       descriptor.bytes > descriptor.total_bytes - descriptor.part_offset))
    return "a part beyond its write";
  return std::nullopt;
}

constexpr uint64_t kNever = ~uint64_t{0};

struct Control {
  alignas(64) std::atomic<uint64_t> produced;  // descriptors the sender has written
  alignas(64) std::atomic<uint64_t> consumed;  // descriptors the receiver is through with
  // Set by an end before it sleeps; cleared by who rings its doorbell.
  alignas(64) std::atomic<uint32_t> receiver_sleeps;
  // The sender sleeps until `consumed` reaches this; kNever: it is awake or waits for nothing.
  alignas(64) std::atomic<uint64_t> sender_waits_for;
  // The sender has given up the connection: memory that descriptors refer to may be in use again.
  alignas(64) std::atomic<uint32_t> withdrawn;
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
