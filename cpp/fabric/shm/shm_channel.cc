#include "fabric/shm/shm_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace mxrdma::fabric {

using shm::Descriptor;
using shm::Kind;

namespace {
// Descriptors handled for one peer in one poll, so that others get their turn.
constexpr int kBudgetDescriptors = 64;
}  // namespace

ShmChannel::ShmChannel(int control, ShmEnds ends, const ChannelContext& context, PeerId peer)
    : control_(control), ends_(std::move(ends)), context_(context), peer_(peer) {}

// ---- regions
// -----------------------------------------------------------------------------------------------------

Status ShmChannel::share_on_loop(RegionId id) {
  const RegionTable::Entry* entry = context_.regions->find(id);
  if (entry == nullptr || !entry->segment || shared_.count(id) != 0) return Status::ok();
  shm::Note note;
  note.kind = shm::NoteKind::region;
  note.cookie[0] = ends_.cookie[0];
  note.cookie[1] = ends_.cookie[1];
  note.key = id | kMappable;
  note.bytes = entry->bytes;
  Status status = shm::send_note(ends_.notes.get(), note, entry->segment->fd());
  if (status.is_ok()) shared_.insert(id);
  return status;
}

// The peer passes a region before it names it, so what is not known yet lies in the socket.
Result<const Segment*> ShmChannel::peer_region(uint64_t key) {
  auto found = peer_regions_.find(key);
  while (found == peer_regions_.end()) {
    Result<std::optional<shm::ReceivedNote>> received = shm::receive_note(ends_.notes.get());
    if (!received.is_ok()) return received.status();
    if (!received.value())
      return Status(Code::fabric, "the peer names a region that it never passed");
    shm::ReceivedNote& note = *received.value();
    if (note.note.kind != shm::NoteKind::region || note.note.cookie[0] != ends_.cookie[0] ||
        note.note.cookie[1] != ends_.cookie[1])
      return Status(Code::fabric, "an unexpected note on the Unix socket");
    if (note.note.bytes > kMaxKeyBytes)
      return Status(Code::fabric, "the peer passed a region beyond all limits");
    Result<std::shared_ptr<Segment>> segment = Segment::map(std::move(note.fd), note.note.bytes);
    if (!segment.is_ok()) return segment.status();
    peer_regions_[note.note.key] = segment.value();
    found = peer_regions_.find(key);
  }
  return found->second.get();
}

// ---- sending
// -----------------------------------------------------------------------------------------------------

bool ShmChannel::has_room() const {
  return produced_ - out()->consumed.load(std::memory_order_acquire) < shm::kRingDescriptors;
}

Descriptor* ShmChannel::next_descriptor() {
  auto* ring = reinterpret_cast<Descriptor*>(ends_.outbound->base() + shm::kRingOffset);
  Descriptor* descriptor = &ring[produced_ % shm::kRingDescriptors];
  std::memset(static_cast<void*>(descriptor), 0, sizeof *descriptor);
  return descriptor;
}

void ShmChannel::publish() {
  out()->produced.store(++produced_, std::memory_order_release);
  // Pairs with arm_on_loop(): either we see that the receiver sleeps, or it sees our descriptor.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (out()->receiver_sleeps.load(std::memory_order_relaxed) != 0 &&
      out()->receiver_sleeps.exchange(0) != 0)
    ring();
}

void ShmChannel::ring() {
  ++context_.counters->wakes;
  const uint64_t one = 1;
  // EAGAIN would mean that the counter is full, so the peer is rung already.
  ssize_t count;
  do {
    count = ::write(ends_.doorbell.get(), &one, sizeof one);
  } while (count < 0 && errno == EINTR);
}

bool ShmChannel::take_bounce_slot(uint32_t* slot) {
  const uint64_t consumed = out()->consumed.load(std::memory_order_acquire);
  while (!bounce_freed_at_.empty() && bounce_freed_at_.front() <= consumed)
    bounce_freed_at_.pop_front();
  if (bounce_freed_at_.size() == shm::kBounceSlots) return false;
  *slot = static_cast<uint32_t>(bounce_taken_++ % shm::kBounceSlots);
  bounce_freed_at_.push_back(produced_ + 1);
  return true;
}

Status ShmChannel::write(const LocalSpan* spans, size_t count, size_t bytes,
                         const RemoteRegion& target, uint32_t immediate, uint64_t id) {
  Operation operation;
  operation.id = id;
  operation.target = target;
  operation.immediate = immediate;
  operation.total = bytes;
  if ((target.key & kMappable) != 0) {
    Result<const Segment*> region = peer_region(target.key);
    if (!region.is_ok()) return region.status();
    if (target.address > region.value()->bytes() ||
        bytes > region.value()->bytes() - target.address)
      return Status(Code::invalid_argument, "a write beyond the peer's region");
    operation.kind = Kind::placed;
    std::byte* to = region.value()->base() + target.address;
    for (size_t i = 0; i < count; ++i) {
      if (spans[i].bytes > 0) std::memcpy(to, spans[i].data, spans[i].bytes);
      to += spans[i].bytes;
    }
    context_.counters->copied_bytes += bytes;
  } else {
    const RegionTable::Entry* ours = count == 1 ? context_.regions->holding(spans[0]) : nullptr;
    if (ours != nullptr && ours->segment) {
      Status status = share_on_loop(spans[0].region);
      if (!status.is_ok()) return status;
      operation.kind = Kind::reference;
      operation.source_key = spans[0].region | kMappable;
      operation.source_offset =
          static_cast<uint64_t>(static_cast<const std::byte*>(spans[0].data) - ours->base);
    } else {
      operation.kind = Kind::bounced;
      operation.spans.assign(spans, spans + count);
    }
  }
  operations_.push_back(std::move(operation));
  return issue_waiting();
}

Status ShmChannel::send(const void* data, size_t bytes, uint64_t id) {
  Operation operation;
  operation.id = id;
  operation.kind = Kind::message;
  const auto* from = static_cast<const std::byte*>(data);
  operation.message.assign(from, from + bytes);
  operation.total = bytes;
  operations_.push_back(std::move(operation));
  return issue_waiting();
}

Status ShmChannel::read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) {
  if ((source.key & kMappable) == 0)
    return Status(Code::unsupported, "shm reads only regions that the peer allocated");
  Result<const Segment*> region = peer_region(source.key);
  if (!region.is_ok()) return region.status();
  if (source.address > region.value()->bytes() || bytes > region.value()->bytes() - source.address)
    return Status(Code::invalid_argument, "a read beyond the peer's region");
  if (bytes > 0) std::memcpy(into, region.value()->base() + source.address, bytes);
  context_.counters->copied_bytes += bytes;
  Operation operation;
  operation.id = id;
  operation.issued = true;
  operations_.push_back(std::move(operation));
  return issue_waiting();
}

Status ShmChannel::issue_waiting() {
  while (next_to_issue_ < operations_.size()) {
    Operation& operation = operations_[next_to_issue_];
    if (!operation.issued && !issue(&operation)) break;
    ++next_to_issue_;
  }
  return Status::ok();
}

// False: no room now; progress_on_loop() tries again.
bool ShmChannel::issue(Operation* operation) {
  if (operation->kind == Kind::bounced) return issue_bounced(operation);
  if (!has_room()) return false;
  uint32_t slot = 0;
  const bool large = operation->kind == Kind::message && operation->total > shm::kInlineBytes;
  if (large && !take_bounce_slot(&slot)) return false;
  Descriptor* descriptor = next_descriptor();
  descriptor->kind = operation->kind;
  descriptor->immediate = operation->immediate;
  descriptor->bytes = descriptor->total_bytes = operation->total;
  descriptor->target = operation->target;
  descriptor->source_key = operation->source_key;
  descriptor->source_offset = operation->source_offset;
  descriptor->slot = slot;
  if (operation->kind == Kind::message && operation->total > 0) {
    std::byte* to =
        large ? ends_.outbound->base() + shm::kBounceOffset + size_t{slot} * shm::kBounceBytes
              : descriptor->data;
    std::memcpy(to, operation->message.data(), operation->total);
  }
  publish();
  operation->issued = true;
  // A referenced source is free only when the peer has copied it; placed data and messages are
  // copied already.
  operation->consumed_at = operation->kind == Kind::reference ? produced_ : 0;
  return true;
}

bool ShmChannel::issue_bounced(Operation* operation) {
  do {
    uint32_t slot = 0;
    if (!has_room()) return false;
    const uint64_t bytes =
        std::min<uint64_t>(operation->total - operation->issued_bytes, shm::kBounceBytes);
    if (!take_bounce_slot(&slot)) return false;
    std::byte* to = ends_.outbound->base() + shm::kBounceOffset + size_t{slot} * shm::kBounceBytes;
    uint64_t skip = operation->issued_bytes, left = bytes;
    for (const LocalSpan& span : operation->spans) {
      if (skip >= span.bytes) {
        skip -= span.bytes;
        continue;
      }
      const uint64_t part = std::min<uint64_t>(span.bytes - skip, left);
      std::memcpy(to, static_cast<const std::byte*>(span.data) + skip, part);
      to += part;
      left -= part;
      skip = 0;
      if (left == 0) break;
    }
    MXRDMA_CHECK(left == 0, "the spans hold what their sum says");
    context_.counters->copied_bytes += bytes;
    Descriptor* descriptor = next_descriptor();
    descriptor->kind = Kind::bounced;
    descriptor->immediate = operation->immediate;
    descriptor->bytes = bytes;
    descriptor->total_bytes = operation->total;
    descriptor->target = wire::offset_by(operation->target, operation->issued_bytes,
                                         operation->target.bytes - operation->issued_bytes);
    descriptor->slot = slot;
    operation->issued_bytes += bytes;
    descriptor->last = operation->issued_bytes == operation->total ? 1 : 0;
    publish();
  } while (operation->issued_bytes < operation->total);
  operation->issued = true;
  return true;
}

void ShmChannel::finish_done() {
  const uint64_t consumed = out()->consumed.load(std::memory_order_acquire);
  while (!operations_.empty() && next_to_issue_ > 0 && operations_.front().issued &&
         operations_.front().consumed_at <= consumed) {
    Event event;
    event.kind = Event::Kind::done;
    event.peer = peer_;
    event.id = operations_.front().id;
    context_.events->push_back(std::move(event));
    operations_.pop_front();
    --next_to_issue_;
  }
}

std::vector<uint64_t> ShmChannel::abandon_on_loop() {
  std::vector<uint64_t> ids;
  for (const Operation& operation : operations_) ids.push_back(operation.id);
  operations_.clear();
  next_to_issue_ = 0;
  return ids;
}

// ---- receiving
// ---------------------------------------------------------------------------------------------------

Status ShmChannel::progress_on_loop() {
  if (armed_) {  // awake: no doorbells needed
    armed_ = false;
    in()->receiver_sleeps.store(0, std::memory_order_relaxed);
    out()->sender_sleeps.store(0, std::memory_order_relaxed);
  }
  Status status = issue_waiting();
  finish_done();
  return status.is_ok() ? consume() : status;
}

Status ShmChannel::consume() {
  const uint64_t produced = in()->produced.load(std::memory_order_acquire);
  if (produced - consumed_ > shm::kRingDescriptors)
    return Status(Code::fabric, "the peer overran its ring");
  const auto* descriptors =
      reinterpret_cast<const Descriptor*>(ends_.inbound->base() + shm::kRingOffset);
  for (int budget = kBudgetDescriptors; consumed_ != produced && budget > 0; --budget) {
    Descriptor descriptor;
    std::memcpy(&descriptor, &descriptors[consumed_ % shm::kRingDescriptors], sizeof descriptor);
    Status status = consume_one(descriptor);
    if (!status.is_ok()) return status;
    in()->consumed.store(++consumed_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (in()->sender_sleeps.load(std::memory_order_relaxed) != 0 &&
        in()->sender_sleeps.exchange(0) != 0)
      ring();
  }
  return Status::ok();
}

Status ShmChannel::copy_in(const Descriptor& descriptor, const std::byte* from) {
  Result<std::byte*> target = context_.regions->target(descriptor.target, descriptor.bytes);
  if (!target.is_ok()) return target.status();
  if (descriptor.bytes > 0 && from != nullptr) {
    std::memcpy(target.value(), from, descriptor.bytes);
    context_.counters->copied_bytes += descriptor.bytes;
  }
  return Status::ok();
}

Status ShmChannel::consume_one(const Descriptor& descriptor) {
  Event event;
  event.peer = peer_;
  event.bytes = descriptor.bytes;
  const bool uses_slot = descriptor.kind == Kind::bounced ||
                         (descriptor.kind == Kind::message && descriptor.bytes > shm::kInlineBytes);
  if (uses_slot && (descriptor.slot >= shm::kBounceSlots || descriptor.bytes > shm::kBounceBytes))
    return Status(Code::fabric, "malformed descriptor: bounce slot " +
                                    std::to_string(descriptor.slot) + ", " +
                                    std::to_string(descriptor.bytes) + " bytes");
  const std::byte* slot = ends_.inbound->base() + shm::kBounceOffset +
                          size_t{uses_slot ? descriptor.slot : 0} * shm::kBounceBytes;
  Status status;
  switch (descriptor.kind) {
    case Kind::message: {
      const std::byte* from = uses_slot ? slot : descriptor.data;
      event.kind = Event::Kind::message;
      event.payload.assign(from, from + descriptor.bytes);
      ++context_.counters->messages;
      context_.events->push_back(std::move(event));
      return Status::ok();
    }
    case Kind::placed:
      status = copy_in(descriptor, nullptr);
      break;
    case Kind::reference: {
      Result<const Segment*> source = peer_region(descriptor.source_key);
      if (!source.is_ok()) return source.status();
      if (descriptor.source_offset > source.value()->bytes() ||
          descriptor.bytes > source.value()->bytes() - descriptor.source_offset)
        return Status(Code::fabric, "malformed descriptor: its source lies outside of the region");
      status = copy_in(descriptor, source.value()->base() + descriptor.source_offset);
      break;
    }
    case Kind::bounced:
      status = copy_in(descriptor, slot);
      partial_bytes_ += descriptor.bytes;
      partial_region_ =
          descriptor.last != 0 ? kNoRegion : static_cast<RegionId>(descriptor.target.key);
      if (!status.is_ok() || descriptor.last == 0) return status;
      event.bytes = partial_bytes_;
      partial_bytes_ = 0;
      break;
    default:
      return Status(Code::fabric, "malformed descriptor: kind " +
                                      std::to_string(static_cast<uint32_t>(descriptor.kind)));
  }
  if (!status.is_ok()) return status;
  event.kind = Event::Kind::arrived;
  event.immediate = descriptor.immediate;
  ++context_.counters->arrivals;
  context_.counters->arrival_bytes += event.bytes;
  context_.events->push_back(std::move(event));
  return Status::ok();
}

bool ShmChannel::receiving_into(RegionId id) const {
  return partial_region_ == id && id != kNoRegion;
}

// Nothing is ever sent on the control connection after the handshake: what comes is its end.
Status ShmChannel::readable_on_loop() {
  char byte;
  const ssize_t count = recv(control_, &byte, 1, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::ok();
  // What the peer wrote before it went is in the ring: deliver that first.
  Status status;
  uint64_t before;
  do {
    before = consumed_;
    status = consume();
    if (!status.is_ok()) return status;
  } while (consumed_ != before);
  if (count > 0) return Status(Code::fabric, "unexpected bytes on the control connection");
  return Status(Code::fabric, count == 0 ? "connection closed by peer"
                                         : "control connection: " + errno_text(errno));
}

bool ShmChannel::arm_on_loop() {
  armed_ = true;
  in()->receiver_sleeps.store(1, std::memory_order_relaxed);
  if (!operations_.empty()) out()->sender_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool received = in()->produced.load(std::memory_order_acquire) != consumed_;
  const uint64_t consumed = out()->consumed.load(std::memory_order_acquire);
  const bool can_finish =
      !operations_.empty() &&
      ((operations_.front().issued && operations_.front().consumed_at <= consumed) ||
       (next_to_issue_ < operations_.size() && consumed != last_seen_consumed_));
  last_seen_consumed_ = consumed;
  return !received && !can_finish;
}

}  // namespace mxrdma::fabric
