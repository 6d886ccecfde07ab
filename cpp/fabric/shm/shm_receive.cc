// The receiving half of ShmChannel: everything that is read here is the peer's word.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "fabric/copy.h"
#include "fabric/shm/shm_channel.h"

namespace mxrdma::fabric {

using shm::Descriptor;
using shm::Kind;

namespace {
// One peer's share of one poll, so that others get their turn.
constexpr int kBudgetDescriptors = 64;
constexpr uint64_t kBudgetBytes = 1u << 20;
// So many turns see every descriptor that was in the ring when the peer went.
constexpr int kLastTurns = shm::kRingDescriptors + 1;

Status malformed(const std::string& what) {
  return Status(Code::fabric, "malformed descriptor: " + what);
}
}  // namespace

Status ShmChannel::progress_on_loop() {
  if (armed_) {  // awake: no doorbells needed
    armed_ = false;
    in()->receiver_sleeps.store(0, std::memory_order_relaxed);
    out()->sender_waits_for.store(shm::kNever, std::memory_order_relaxed);
  }
  Status status = see_consumed();
  if (!status.is_ok()) return status;
  issue_waiting();
  finish_done();
  return consume();
}

Status ShmChannel::consume() {
  const uint64_t produced = in()->produced.load(std::memory_order_acquire);
  if (produced - consumed_ > shm::kRingDescriptors)
    return Status(Code::fabric, "malformed ring: the peer overran it");
  const auto* descriptors =
      reinterpret_cast<const Descriptor*>(ends_.inbound->base() + shm::kRingOffset);
  uint64_t bytes = 0;
  for (int count = 0; consumed_ != produced && count < kBudgetDescriptors && bytes < kBudgetBytes;
       ++count) {
    Descriptor descriptor;
    std::memcpy(&descriptor, &descriptors[consumed_ % shm::kRingDescriptors], sizeof descriptor);
    Status status = consume_one(descriptor);
    if (!status.is_ok()) return status;
    if (descriptor.kind != Kind::placed) bytes += descriptor.bytes;
    // Sequentially consistent, as in publish().
    in()->consumed.store(++consumed_, std::memory_order_seq_cst);
    if (in()->sender_waits_for.load(std::memory_order_seq_cst) <= consumed_ &&
        in()->sender_waits_for.exchange(shm::kNever) != shm::kNever)
      ring();
  }
  return Status::ok();
}

Status ShmChannel::consume_one(const Descriptor& descriptor) {
  if (auto reason = invalid(descriptor)) return malformed(*reason);
  if (descriptor.kind == Kind::forget) {
    Status status = take_notes();  // the region itself may still lie in the socket
    peer_regions_.erase(descriptor.source_key);
    return status;
  }
  if (descriptor.kind != Kind::message) return consume_write(descriptor);
  if (partial_.active) return malformed("a message within a write");
  deliver_message(descriptor);
  return Status::ok();
}

void ShmChannel::deliver_message(const Descriptor& descriptor) {
  const std::byte* from =
      descriptor.bytes > shm::kInlineBytes ? inbound_slot(descriptor.slot) : descriptor.data;
  Event event;
  event.kind = Event::Kind::message;
  event.peer = peer_;
  event.bytes = descriptor.bytes;
  event.payload.assign(from, from + descriptor.bytes);
  ++context_.counters->messages;
  context_.events->push_back(std::move(event));
}

Status ShmChannel::consume_write(const Descriptor& descriptor) {
  if (!partial_.active) {
    partial_.first = descriptor;
    partial_.received = 0;
  }
  const Descriptor& first = partial_.first;
  if (descriptor.part_offset != partial_.received || descriptor.kind != first.kind ||
      descriptor.immediate != first.immediate || descriptor.total_bytes != first.total_bytes ||
      descriptor.target.key != first.target.key ||
      descriptor.target.address != first.target.address)
    return malformed("a part of another write");
  // The whole write is checked with each part, so that nothing of a bad one is written.
  Result<std::byte*> target = context_.regions->target(first.target, first.total_bytes);
  if (!target.is_ok()) return target.status();
  Status status = move_in(descriptor, target.value() + descriptor.part_offset);
  if (!status.is_ok()) return status;
  partial_.received += descriptor.bytes;
  partial_.active = partial_.received < first.total_bytes;
  if (partial_.active) return descriptor.bytes > 0 ? Status::ok() : malformed("an empty part");
  Event event;
  event.kind = Event::Kind::arrived;
  event.peer = peer_;
  event.bytes = first.total_bytes;
  event.immediate = first.immediate;
  ++context_.counters->arrivals;
  context_.counters->arrival_bytes += event.bytes;
  context_.events->push_back(std::move(event));
  return Status::ok();
}

Status ShmChannel::move_in(const Descriptor& descriptor, std::byte* to) {
  if (descriptor.kind == Kind::placed)
    return (descriptor.target.key & kMappable) != 0 ? Status::ok()
                                                    : malformed("placed into private memory");
  if (descriptor.kind == Kind::bounced) {
    copy_bytes(to, inbound_slot(descriptor.slot), descriptor.bytes);
    context_.counters->copied_bytes += descriptor.bytes;
    return Status::ok();
  }
  Status status = peer_region(descriptor.source_key) ? Status::ok() : take_notes();
  if (!status.is_ok()) return status;
  const Segment* source = peer_region(descriptor.source_key);
  if (source == nullptr) return malformed("its source is a region that the peer never passed");
  if (descriptor.source_offset > source->bytes() ||
      descriptor.bytes > source->bytes() - descriptor.source_offset)
    return malformed("its source lies outside of the region");
  copy_bytes(to, source->base() + descriptor.source_offset, descriptor.bytes);
  context_.counters->copied_bytes += descriptor.bytes;
  // A read-modify-write: it is not done before the copy is.
  if (in()->withdrawn.fetch_or(0, std::memory_order_acq_rel) != 0)
    return Status(Code::fabric, "connection closed by peer");
  return Status::ok();
}

bool ShmChannel::receiving_into(RegionId id) const {
  return partial_.active && static_cast<RegionId>(partial_.first.target.key) == id;
}

// Nothing is ever sent on the control connection after the handshake: what comes is its end.
Status ShmChannel::readable_on_loop() {
  char byte;
  const ssize_t count = recv(control_, &byte, 1, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::ok();
  const Status reason =
      count > 0    ? Status(Code::fabric, "unexpected bytes on the control connection")
      : count == 0 ? Status(Code::fabric, "connection closed by peer")
                   : Status(Code::fabric, "control connection: " + errno_text(errno));
  // What the peer wrote before it went is in the ring: deliver that first. It may still write.
  for (int turn = 0; turn < kLastTurns; ++turn) {
    const uint64_t before = consumed_;
    Status status = consume();
    if (!status.is_ok()) return status;
    if (consumed_ == before) break;
  }
  return reason;
}

bool ShmChannel::arm_on_loop() {
  armed_ = true;
  const uint64_t wanted = wanted_consumed();
  in()->receiver_sleeps.store(1, std::memory_order_seq_cst);
  out()->sender_waits_for.store(wanted, std::memory_order_seq_cst);
  return in()->produced.load(std::memory_order_seq_cst) == consumed_ &&
         out()->consumed.load(std::memory_order_seq_cst) < wanted;
}

}  // namespace mxrdma::fabric
