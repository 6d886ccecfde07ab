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
  Result<RemoteRegion> name_on_loop(RegionId, const RegionTable::Entry& entry) override {
    share(entry);
    return RegionTable::name(entry);
  }
  void forget_on_loop(const RegionTable::Entry& entry) override;
  Status progress_on_loop() override;
  Status readable_on_loop() override;
  int side_fd() const override { return notes_ended_ ? -1 : ends_.notes.get(); }
  Status side_readable_on_loop() override { return take_notes(); }
  bool arm_on_loop() override;
  bool receiving_into(RegionId id) const override;
  std::vector<uint64_t> abandon_on_loop() override;
  const char* kind() const override { return "shm"; }

 private:
  struct Operation {
    uint64_t id = 0;
    bool issued = false;       // its last descriptor is in the ring (or it needed none)
    uint64_t consumed_at = 0;  // done when the peer's consumed counter has reached this
    shm::Kind kind = shm::Kind::bounced;
    bool fallback = false;  // bounced into memory that could be mapped if we had it
    std::vector<LocalSpan> spans;
    std::vector<std::byte> message;
    RemoteRegion target;
    uint32_t immediate = 0;
    uint64_t total = 0, issued_bytes = 0;
    uint64_t source_key = 0, source_offset = 0;
  };
  // Of the peer: a write that is not complete.
  struct Partial {
    bool active = false;
    shm::Descriptor first{};
    uint64_t received = 0;
  };

  // ---- sending
  void place(Operation* operation, const LocalSpan* spans, size_t count, const Segment& region);
  void choose_way(Operation* operation, const LocalSpan* spans, size_t count);
  Status see_consumed();
  void issue_waiting();
  void issue_forgets();
  bool issue(Operation* operation);
  bool issue_next(Operation* operation);
  void gather(const Operation& operation, std::byte* to, uint64_t bytes);
  bool has_room() const { return produced_ - seen_consumed_ < shm::kRingDescriptors; }
  bool take_bounce_slot(uint32_t* slot);
  shm::Descriptor* next_descriptor();
  void publish();
  void ring();
  void finish_done();
  uint64_t wanted_consumed() const;

  // ---- receiving
  Status consume();
  Status consume_one(const shm::Descriptor& descriptor);
  Status consume_write(const shm::Descriptor& descriptor);
  Status move_in(const shm::Descriptor& descriptor, std::byte* to);
  void deliver_message(const shm::Descriptor& descriptor);

  // ---- regions
  bool share(const RegionTable::Entry& entry);
  Status take_notes();
  Status take_note(shm::ReceivedNote note);
  const Segment* peer_region(uint64_t key);

  shm::Control* out() const { return reinterpret_cast<shm::Control*>(ends_.outbound->base()); }
  shm::Control* in() const { return reinterpret_cast<shm::Control*>(ends_.inbound->base()); }
  const std::byte* inbound_slot(uint32_t slot) const {
    return ends_.inbound->base() + shm::kBounceOffset + size_t{slot} * shm::kBounceBytes;
  }
  std::byte* outbound_slot(uint32_t slot) const {
    return ends_.outbound->base() + shm::kBounceOffset + size_t{slot} * shm::kBounceBytes;
  }

  int control_;
  ShmEnds ends_;
  ChannelContext context_;
  PeerId peer_;
  bool armed_ = false;

  std::deque<Operation> operations_;  // posting order; the front is the oldest without `done`
  size_t next_to_issue_ = 0;          // index into operations_
  uint64_t produced_ = 0;
  uint64_t seen_consumed_ = 0;  // checked copy of out()->consumed
  uint64_t bounce_taken_ = 0;   // slots ever taken; slot = count % kBounceSlots
  // The consumed counter at which each taken slot is free again, oldest first.
  std::deque<uint64_t> bounce_freed_at_;
  std::vector<uint64_t> forgets_;  // keys, to be issued
  // Nothing may be placed before the peer has taken what was bounced into the same kind of memory:
  // it would be overwritten by older data.
  size_t fallbacks_waiting_ = 0;
  uint64_t fallback_until_ = 0;

  uint64_t consumed_ = 0;  // of the inbound ring
  Partial partial_;

  std::unordered_set<uint64_t> shared_;  // keys of our regions that the peer has
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> peer_regions_;  // by key
  bool notes_ended_ = false, warned_ = false;
};

}  // namespace mxrdma::fabric
