#include "node/server_link.h"

#include <cstring>

#include "base/check.h"

namespace mxrdma::node {

using fabric::LocalSpan;

ServerLink::ServerLink(fabric::Fabric* fabric, fabric::PeerId peer, uint32_t server)
    : fabric_(fabric), peer_(peer), server_(server), outbox_(fabric, peer) {}

Status ServerLink::ring_on_loop(const wire::RingInfo& info, const wire::JobConfig& config) {
  const std::string who = "ring of server " + std::to_string(server_);
  if (has_ring()) return Status(Code::fabric, who + " announced twice");
  if (info.slot_bytes != config.slot_bytes || info.slots != config.slots_per_worker)
    return Status(Code::config, who + " has " + std::to_string(info.slots) + " slots of " +
                                    std::to_string(info.slot_bytes) +
                                    " bytes, the scheduler says " +
                                    std::to_string(config.slots_per_worker) + " of " +
                                    std::to_string(config.slot_bytes));
  if (info.slots == 0 || info.slots > kMaxSlotsPerPeer || info.slot_bytes < kMinSlotBytes ||
      info.slot_bytes > kMaxSlotBytes || info.ring.bytes < uint64_t{info.slots} * info.slot_bytes)
    return Status(Code::config, who + " cannot hold what it promises");
  ring_ = info.ring;
  slot_bytes_ = info.slot_bytes;
  slots_.resize(info.slots);
  for (uint32_t slot = info.slots; slot-- > 0;) free_.push_back(slot);
  return Status::ok();
}

void ServerLink::enqueue_on_loop(Operation* push, uint32_t first, uint32_t end) {
  waiting_[{-int64_t{push->priority}, push->ticket}] = Item{push, first, end};
}

Status ServerLink::send_on_loop(const wire::Message& message) {
  for (std::vector<std::byte>& part : wire::encode(message)) {
    Status status = outbox_.send(std::move(part), 0);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

void ServerLink::put_record(std::byte* where, const Operation& push, uint32_t slice) const {
  const store::Slice& part = push.key->slices[slice];
  wire::PushRecord record{};
  record.key = push.key->spec.id;
  record.slice = slice;
  record.round = push.round;
  record.kind = push.kind;
  record.dtype = static_cast<uint8_t>(push.key->spec.request.dtype);
  record.payload_bytes = part.bytes;
  record.lr = push.hyper.lr;
  record.wd = push.hyper.wd;
  record.rescale_grad = push.hyper.rescale_grad;
  record.update_count = push.hyper.update_count;
  if (push.fused) {
    record.flags = wire::kWantWeights;
    record.pull_op = push.fused->index;
    record.target = wire::offset_by(push.fused->targets[server_], part.offset_bytes, part.bytes);
  }
  std::memcpy(where, &record, sizeof record);
}

// Fills one slot with the first waiting slice and as many of the next ones as fit, and posts it.
Status ServerLink::post_one() {
  const uint32_t slot = free_.back();
  Slot& state = slots_[slot];
  state.headers.resize(sizeof(wire::SlotHeader) +
                       kMaxRecordsPerSlot * (sizeof(wire::PushRecord) + wire::kPayloadAlign));
  LocalSpan spans[kMaxSpans];
  size_t span_count = 0, total = sizeof(wire::SlotHeader), header_used = sizeof(wire::SlotHeader);
  uint32_t records = 0;
  std::byte* span_start = state.headers.data();
  // Taken from the queue only once the fabric has accepted the message.
  std::vector<std::pair<decltype(waiting_)::iterator, uint32_t>> taken;

  for (auto next = waiting_.begin(); next != waiting_.end() && records < kMaxRecordsPerSlot;) {
    const Item& item = next->second;
    const bool again = !taken.empty() && taken.back().first == next;
    const uint32_t slice = again ? taken.back().second : item.next;
    const store::Slice& part = item.push->key->slices[slice];
    const size_t padding = wire::padded(total) - total;  // behind the payload before
    if (total + padding + sizeof(wire::PushRecord) + part.bytes > slot_bytes_) break;
    std::memset(state.headers.data() + header_used, 0, padding);
    put_record(state.headers.data() + header_used + padding, *item.push, slice);
    header_used += padding + sizeof(wire::PushRecord);
    std::byte* const header_end = state.headers.data() + header_used;
    spans[span_count++] =
        LocalSpan{span_start, static_cast<size_t>(header_end - span_start), fabric::kNoRegion};
    span_start = header_end;
    spans[span_count++] =
        LocalSpan{item.push->data + part.offset_bytes, part.bytes, item.push->region};
    total += padding + sizeof(wire::PushRecord) + part.bytes;
    state.pushes.push_back(item.push);
    ++records;
    if (again)
      ++taken.back().second;
    else
      taken.emplace_back(next, slice + 1);
    if (taken.back().second == item.end) ++next;
  }
  MXRDMA_CHECK(records > 0, "a slice is larger than a slot");

  wire::SlotHeader header{};
  header.magic = wire::kSlotMagic;
  header.version = wire::kWireVersion;
  header.records = static_cast<uint16_t>(records);
  header.bytes = static_cast<uint32_t>(total);
  std::memcpy(state.headers.data(), &header, sizeof header);

  Status status = fabric_->write(peer_, spans, span_count,
                                 wire::offset_by(ring_, uint64_t{slot} * slot_bytes_, slot_bytes_),
                                 slot, slot + 1);
  if (!status.is_ok()) {
    // Busy: requests fill the connection; their `done`s pump again.
    state.pushes.clear();
    return status;
  }
  for (const auto& entry : taken) {
    entry.first->second.next = entry.second;
    if (entry.second == entry.first->second.end) waiting_.erase(entry.first);
  }
  free_.pop_back();
  state.in_use = true;
  ++posted_;
  for (Operation* push : state.pushes) {
    --push->slices_unsent;
    ++push->writes_in_flight;
  }
  ++counters_.messages;
  if (records > 1) counters_.packed_records += records;
  return Status::ok();
}

Status ServerLink::pump_on_loop() {
  Status status = outbox_.flush_on_loop();
  // A request that waits in the outbox must not be overtaken by a later push of the same key.
  while (status.is_ok() && outbox_.empty() && !waiting_.empty() && posted_ < kMaxPosted) {
    if (free_.empty()) {
      ++counters_.waited_for_credit;
      break;
    }
    status = post_one();
    if (status.code() == Code::busy) return Status::ok();
  }
  return status;
}

void ServerLink::free_if_idle(uint32_t slot) {
  Slot& state = slots_[slot];
  if (!state.written || !state.credited) return;
  state.in_use = state.written = state.credited = false;
  free_.push_back(slot);
}

Status ServerLink::credits_on_loop(const wire::Credits& credits) {
  for (uint16_t slot : credits.slots) {
    if (slot >= slots_.size() || !slots_[slot].in_use || slots_[slot].credited)
      return Status(Code::fabric, "server " + std::to_string(server_) + " returned slot " +
                                      std::to_string(slot) + ", which is not in use");
    slots_[slot].credited = true;
    free_if_idle(slot);
  }
  return Status::ok();
}

}  // namespace mxrdma::node
