// Sending and the peer's regions; what comes in is in shm_receive.cc.
#include "fabric/shm/shm_channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "fabric/copy.h"

namespace mxrdma::fabric {

using shm::Descriptor;
using shm::Kind;

namespace {
// A sender that waits for room sleeps until so much is free, not until the first free slot.
constexpr uint64_t kRingRoom = shm::kRingDescriptors / 4;
constexpr size_t kSlotRoom = shm::kBounceSlots / 2;
}  // namespace

ShmChannel::ShmChannel(int control, ShmEnds ends, const ChannelContext& context, PeerId peer)
    : control_(control), ends_(std::move(ends)), context_(context), peer_(peer) {
  out()->sender_waits_for.store(shm::kNever, std::memory_order_relaxed);
}

// ---- regions

// False: the peer does not have it (yet). Then it goes by bounce slots.
bool ShmChannel::share(const RegionTable::Entry& entry) {
  if (!entry.segment || notes_ended_) return false;
  if (shared_.count(entry.key) != 0) return true;
  if (shared_.size() + forgets_.size() >= shm::kMaxSharedRegions) return false;
  shm::Note note;
  note.kind = shm::NoteKind::region;
  note.cookie[0] = ends_.cookie[0];
  note.cookie[1] = ends_.cookie[1];
  note.key = entry.key;
  note.bytes = entry.bytes;
  const Status status = shm::send_note(ends_.notes.get(), note, entry.segment->fd());
  if (status.is_ok()) {
    shared_.insert(entry.key);
    return true;
  }
  if (!warned_)
    log_warning(status.message() + "; such data takes one more copy to peer " +
                std::to_string(peer_));
  warned_ = true;
  return false;
}

void ShmChannel::forget_on_loop(const RegionTable::Entry& entry) {
  if (shared_.erase(entry.key) == 0) return;
  forgets_.push_back(entry.key);
  issue_waiting();
}

Status ShmChannel::take_notes() {
  while (!notes_ended_) {
    Result<std::optional<shm::ReceivedNote>> received = shm::receive_note(ends_.notes.get());
    if (!received.is_ok()) {
      // Its end is the peer's, which the control connection tells; nothing more can come here.
      notes_ended_ = true;
      return received.status().code() == Code::closed ? Status::ok() : received.status();
    }
    if (!received.value()) break;
    Status status = take_note(std::move(*received.value()));
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

Status ShmChannel::take_note(shm::ReceivedNote received) {
  const shm::Note& note = received.note;
  if (note.kind != shm::NoteKind::region || note.cookie[0] != ends_.cookie[0] ||
      note.cookie[1] != ends_.cookie[1])
    return Status(Code::fabric, "an unexpected note on the Unix socket");
  // Those that the peer has forgotten may still be in the ring.
  if (note.bytes > kMaxKeyBytes ||
      peer_regions_.size() >= shm::kMaxSharedRegions + shm::kRingDescriptors)
    return Status(Code::fabric, "the peer passed regions beyond all limits");
  Result<std::shared_ptr<Segment>> segment = Segment::map(std::move(received.fd), note.bytes);
  if (!segment.is_ok()) return segment.status();
  peer_regions_[note.key] = segment.value();
  return Status::ok();
}

const Segment* ShmChannel::peer_region(uint64_t key) {
  auto found = peer_regions_.find(key);
  return found == peer_regions_.end() ? nullptr : found->second.get();
}

// ---- the ring

// The counter is the peer's word: it may only grow, and not beyond what we have written.
Status ShmChannel::see_consumed() {
  const uint64_t consumed = out()->consumed.load(std::memory_order_acquire);
  if (consumed < seen_consumed_ || consumed > produced_)
    return Status(Code::fabric, "malformed ring: the peer is at " + std::to_string(consumed) +
                                    " of " + std::to_string(produced_) + " descriptors");
  seen_consumed_ = consumed;
  return Status::ok();
}

Descriptor* ShmChannel::next_descriptor() {
  auto* ring = reinterpret_cast<Descriptor*>(ends_.outbound->base() + shm::kRingOffset);
  Descriptor* descriptor = &ring[produced_ % shm::kRingDescriptors];
  std::memset(static_cast<void*>(descriptor), 0, sizeof *descriptor);
  return descriptor;
}

void ShmChannel::publish() {
  // Sequentially consistent, as its pair in arm_on_loop(): either we see that the receiver sleeps,
  // or it sees our descriptor.
  out()->produced.store(++produced_, std::memory_order_seq_cst);
  if (out()->receiver_sleeps.load(std::memory_order_seq_cst) != 0 &&
      out()->receiver_sleeps.exchange(0) != 0)
    ring();
}

void ShmChannel::ring() {
  ++context_.counters->wakes;
  const uint64_t one = 1;
  // EAGAIN means that the counter is full, so the peer is rung already.
  ssize_t count;
  do {
    count = ::write(ends_.doorbell.get(), &one, sizeof one);
  } while (count < 0 && errno == EINTR);
}

bool ShmChannel::take_bounce_slot(uint32_t* slot) {
  while (!bounce_freed_at_.empty() && bounce_freed_at_.front() <= seen_consumed_)
    bounce_freed_at_.pop_front();
  if (bounce_freed_at_.size() == shm::kBounceSlots) return false;
  *slot = static_cast<uint32_t>(bounce_taken_++ % shm::kBounceSlots);
  bounce_freed_at_.push_back(produced_ + 1);
  return true;
}

// ---- posting

Status ShmChannel::write(const LocalSpan* spans, size_t count, size_t bytes,
                         const RemoteRegion& target, uint32_t immediate, uint64_t id) {
  Operation operation;
  operation.id = id;
  operation.target = target;
  operation.immediate = immediate;
  operation.total = bytes;
  Status status = see_consumed();
  // A malformed counter loses the peer in the next poll(), as every loss.
  const bool may_place =
      status.is_ok() && fallbacks_waiting_ == 0 && fallback_until_ <= seen_consumed_;
  const Segment* region = nullptr;
  if ((target.key & kMappable) != 0) {
    region = peer_region(target.key);
    // The peer passes a region before it names it, so what is not known yet lies in the socket.
    if (region == nullptr && take_notes().is_ok()) region = peer_region(target.key);
    if (region != nullptr &&
        (target.address > region->bytes() || bytes > region->bytes() - target.address))
      return Status(Code::invalid_argument, "a write beyond the peer's region");
  }
  if (region != nullptr && may_place) {
    place(&operation, spans, count, *region);
  } else {
    // If the peer has released the region, it refuses the write as every other fabric would.
    operation.fallback = (target.key & kMappable) != 0;
    choose_way(&operation, spans, count);
    if (operation.fallback) ++fallbacks_waiting_;
  }
  operations_.push_back(std::move(operation));
  issue_waiting();
  return Status::ok();
}

void ShmChannel::place(Operation* operation, const LocalSpan* spans, size_t count,
                       const Segment& region) {
  operation->kind = Kind::placed;
  std::byte* to = region.base() + operation->target.address;
  for (size_t i = 0; i < count; ++i) {
    copy_bytes(to, static_cast<const std::byte*>(spans[i].data), spans[i].bytes);
    to += spans[i].bytes;
  }
  context_.counters->copied_bytes += operation->total;
}

void ShmChannel::choose_way(Operation* operation, const LocalSpan* spans, size_t count) {
  const RegionTable::Entry* ours = count == 1 ? context_.regions->holding(spans[0]) : nullptr;
  if (ours != nullptr && share(*ours)) {
    operation->kind = Kind::reference;
    operation->source_key = ours->key;
    operation->source_offset =
        static_cast<uint64_t>(static_cast<const std::byte*>(spans[0].data) - ours->base);
    return;
  }
  operation->kind = Kind::bounced;
  operation->spans.assign(spans, spans + count);
}

Status ShmChannel::send(const void* data, size_t bytes, uint64_t id) {
  Operation operation;
  operation.id = id;
  operation.kind = Kind::message;
  const auto* from = static_cast<const std::byte*>(data);
  operation.message.assign(from, from + bytes);
  operation.total = bytes;
  operations_.push_back(std::move(operation));
  issue_waiting();
  return Status::ok();
}

Status ShmChannel::read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) {
  if ((source.key & kMappable) == 0)
    return Status(Code::unsupported, "shm reads only regions that the peer allocated");
  const Segment* region = peer_region(source.key);
  if (region == nullptr && take_notes().is_ok()) region = peer_region(source.key);
  if (region == nullptr)
    return Status(Code::fabric, "a read of a region that the peer has not passed or has released");
  if (source.address > region->bytes() || bytes > region->bytes() - source.address)
    return Status(Code::invalid_argument, "a read beyond the peer's region");
  copy_bytes(static_cast<std::byte*>(into), region->base() + source.address, bytes);
  context_.counters->copied_bytes += bytes;
  Operation operation;
  operation.id = id;
  operation.issued = true;
  operations_.push_back(std::move(operation));
  issue_waiting();
  return Status::ok();
}

// ---- issuing

void ShmChannel::issue_waiting() {
  issue_forgets();
  while (next_to_issue_ < operations_.size()) {
    Operation& operation = operations_[next_to_issue_];
    if (!operation.issued && !issue(&operation)) break;
    ++next_to_issue_;
  }
}

// In no order with writes: no write that names the region is outstanding when it is released.
void ShmChannel::issue_forgets() {
  while (!forgets_.empty() && has_room()) {
    Descriptor* descriptor = next_descriptor();
    descriptor->kind = Kind::forget;
    descriptor->source_key = forgets_.back();
    forgets_.pop_back();
    publish();
  }
}

// False: no room now; progress_on_loop() tries again.
bool ShmChannel::issue(Operation* operation) {
  do {
    if (!issue_next(operation)) return false;
  } while (operation->issued_bytes < operation->total);
  operation->issued = true;
  // A referenced source is free only when the peer has copied it; all else is copied already.
  if (operation->kind == Kind::reference) operation->consumed_at = produced_;
  if (operation->fallback) {
    --fallbacks_waiting_;
    fallback_until_ = produced_;
  }
  return true;
}

// One descriptor of the operation.
bool ShmChannel::issue_next(Operation* operation) {
  const uint64_t left = operation->total - operation->issued_bytes;
  const bool bounced = operation->kind == Kind::bounced;
  uint64_t bytes = left;
  if (bounced) bytes = std::min<uint64_t>(left, shm::kBounceBytes);
  if (operation->kind == Kind::reference) bytes = std::min(left, shm::kReferenceBytes);
  const bool large = operation->kind == Kind::message && bytes > shm::kInlineBytes;
  uint32_t slot = 0;
  if (!has_room() || ((bounced || large) && !take_bounce_slot(&slot))) return false;
  Descriptor* descriptor = next_descriptor();
  descriptor->kind = operation->kind;
  descriptor->immediate = operation->immediate;
  descriptor->bytes = bytes;
  descriptor->target = operation->target;
  descriptor->part_offset = operation->issued_bytes;
  descriptor->total_bytes = operation->total;
  descriptor->source_key = operation->source_key;
  descriptor->source_offset = operation->source_offset + operation->issued_bytes;
  descriptor->slot = slot;
  if (bounced) {
    gather(*operation, outbound_slot(slot), bytes);
    context_.counters->copied_bytes += bytes;
  } else if (operation->kind == Kind::message && bytes > 0) {
    std::memcpy(large ? outbound_slot(slot) : descriptor->data, operation->message.data(), bytes);
  }
  operation->issued_bytes += bytes;
  publish();
  return true;
}

void ShmChannel::gather(const Operation& operation, std::byte* to, uint64_t bytes) {
  uint64_t skip = operation.issued_bytes;
  for (const LocalSpan& span : operation.spans) {
    if (bytes == 0) break;
    if (skip >= span.bytes) {
      skip -= span.bytes;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(span.bytes - skip, bytes);
    copy_bytes(to, static_cast<const std::byte*>(span.data) + skip, part);
    to += part;
    bytes -= part;
    skip = 0;
  }
  MXRDMA_CHECK(bytes == 0, "the spans hold what their sum says");
}

void ShmChannel::finish_done() {
  while (!operations_.empty() && next_to_issue_ > 0 && operations_.front().issued &&
         operations_.front().consumed_at <= seen_consumed_) {
    context_.done(peer_, operations_.front().id);
    operations_.pop_front();
    --next_to_issue_;
  }
}

// The consumed counter at which there is something to do for the sender again.
uint64_t ShmChannel::wanted_consumed() const {
  uint64_t wanted = shm::kNever;
  if (!operations_.empty() && operations_.front().issued) wanted = operations_.front().consumed_at;
  const bool waits_for_room = next_to_issue_ < operations_.size() || !forgets_.empty();
  if (!waits_for_room) return wanted;
  if (!has_room()) return std::min(wanted, produced_ - shm::kRingDescriptors + kRingRoom);
  if (bounce_freed_at_.size() == shm::kBounceSlots)
    return std::min(wanted, bounce_freed_at_[kSlotRoom - 1]);
  return 0;  // room has come meanwhile
}

std::vector<uint64_t> ShmChannel::abandon_on_loop() {
  // Before any `done(cancelled)`: from then on the memory is the caller's, and a peer that still
  // reads it must not take it for what was written.
  out()->withdrawn.store(1, std::memory_order_seq_cst);
  std::vector<uint64_t> ids;
  for (const Operation& operation : operations_) ids.push_back(operation.id);
  operations_.clear();
  next_to_issue_ = 0;
  return ids;
}

}  // namespace mxrdma::fabric
