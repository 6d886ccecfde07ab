// Writes and messages through shared memory. A write takes the cheapest of three ways:
//   into memory that the peer allocated: one copy, by us, into the peer's mapped region;
//   from memory that we allocated: one copy, by the peer, out of our mapped region (by reference);
//   otherwise: two copies through bounce slots that stay in the cache.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fabric/channel.h"
#include "fabric/fd.h"
#include "fabric/shm/layout.h"
#include "fabric/shm/passing.h"

namespace mxrdma::fabric {

struct ShmEnds {
  std::shared_ptr<Segment> outbound, inbound;  // layout.h; ours, the peer's
  Fd doorbell;                                 // the peer's eventfd
  Fd notes;                                    // passes regions, both ways
  uint64_t cookie[2] = {0, 0};
};

class ShmChannel final : public Channel {
 public:
  // `control` is the connection whose end shows the peer's death; it stays its owner's.
  ShmChannel(int control, ShmEnds ends, const ChannelContext& context, PeerId peer);

  Status write(const LocalSpan* spans, size_t count, size_t bytes, const RemoteRegion& target,
               uint32_t immediate, uint64_t id) override;
  Status send(const void* data, size_t bytes, uint64_t id) override;
  Status read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) override;
  bool can_read() const override { return true; }
  size_t outstanding() const override { return operations_.size(); }
  Status share_on_loop(RegionId id) override;
  Status progress_on_loop() override;
  Status readable_on_loop() override;
  bool wants_writable() const override { return false; }
  bool arm_on_loop() override;
  bool receiving_into(RegionId id) const override;
  std::vector<uint64_t> abandon_on_loop() override;
  const char* kind() const override { return "shm"; }

 private:
  struct Operation {
    uint64_t id = 0;
    bool issued = false;       // its last descriptor is in the ring (or it needed none)
    uint64_t consumed_at = 0;  // done when the peer's consumed counter has reached this
    // What is left to be issued: by reference, bounced, or a message.
    shm::Kind kind = shm::Kind::bounced;
    std::vector<LocalSpan> spans;
    std::vector<std::byte> message;
    RemoteRegion target;
    uint32_t immediate = 0;
    uint64_t total = 0, issued_bytes = 0;
    uint64_t source_key = 0, source_offset = 0;
  };

  Status issue_waiting();
  bool issue(Operation* operation);
  bool issue_bounced(Operation* operation);
  bool has_room() const;
  bool take_bounce_slot(uint32_t* slot);
  shm::Descriptor* next_descriptor();
  void publish();
  void finish_done();
  Status consume();
  Status consume_one(const shm::Descriptor& descriptor);
  Status copy_in(const shm::Descriptor& descriptor, const std::byte* from);
  Result<const Segment*> peer_region(uint64_t key);
  void ring();

  shm::Control* out() const { return reinterpret_cast<shm::Control*>(ends_.outbound->base()); }
  shm::Control* in() const { return reinterpret_cast<shm::Control*>(ends_.inbound->base()); }

  int control_;
  ShmEnds ends_;
  ChannelContext context_;
  PeerId peer_;

  std::deque<Operation> operations_;  // posting order; the front is the oldest without `done`
  size_t next_to_issue_ = 0;          // index into operations_
  uint64_t produced_ = 0;
  uint64_t bounce_taken_ = 0;  // slots ever taken; slot = count % kBounceSlots
  std::deque<uint64_t>
      bounce_freed_at_;  // consumed counter at which the oldest taken slots are free again
  bool armed_ = false;
  uint64_t last_seen_consumed_ = 0;      // of the outbound ring, at the last arm
  uint64_t consumed_ = 0;                // of the inbound ring
  RegionId partial_region_ = kNoRegion;  // of a bounced write that is not complete
  uint64_t partial_bytes_ = 0;
  std::unordered_set<RegionId> shared_;  // our regions that the peer has
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> peer_regions_;  // by key
};

}  // namespace mxrdma::fabric
