// The sending half of VerbsChannel: operations become work requests as room and credits allow.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fabric/copy.h"
#include "fabric/verbs/verbs_channel.h"

namespace mxrdma::fabric::verbs {
namespace {
// Of the send queue, for returns of credits: data leaves them alone.
constexpr uint64_t kReservedRequests = 2;
}  // namespace

// ---- posting

Result<RemoteRegion> VerbsChannel::name_on_loop(RegionId id, const RegionTable::Entry& entry) {
  Result<const ibv_mr*> region = context_->registration(id, entry);
  if (!region.is_ok()) return region.status();
  return RemoteRegion{reinterpret_cast<uintptr_t>(entry.base), entry.bytes, region.value()->rkey};
}

Status VerbsChannel::write(const LocalSpan* spans, size_t count, size_t bytes,
                           const RemoteRegion& target, uint32_t immediate, uint64_t id) {
  std::vector<Piece> pieces;
  pieces.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (spans[i].bytes == 0) continue;
    Piece piece{static_cast<const std::byte*>(spans[i].data), spans[i].bytes, 0, true};
    const RegionTable::Entry* entry = shared_.regions->holding(spans[i]);
    // What fits into the request itself needs no registration.
    if (entry != nullptr && bytes > inline_bytes_) {
      Result<const ibv_mr*> region = context_->registration(spans[i].region, *entry);
      // Memory of the caller that the system does not let us pin is copied instead.
      if (!region.is_ok() && entry->segment) return Status(Code::fabric, region.status().message());
      if (region.is_ok()) {
        piece.key = region.value()->lkey;
        piece.staged = false;
      } else {
        context_->tell_refused(region.status());
      }
    }
    pieces.push_back(piece);
  }
  Operation operation;
  operation.id = id;
  operation.kind = Kind::write;
  operation.plan = WritePlan(std::move(pieces));
  operation.target = target;
  operation.immediate = immediate;
  operation.bytes = bytes;
  operations_.push_back(std::move(operation));
  return Status::ok();
}

Status VerbsChannel::send(const void* data, size_t bytes, uint64_t id) {
  Operation operation;
  operation.id = id;
  operation.kind = Kind::message;
  const auto* from = static_cast<const std::byte*>(data);
  operation.message.assign(from, from + bytes);
  operation.bytes = bytes;
  operations_.push_back(std::move(operation));
  return Status::ok();
}

Status VerbsChannel::read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) {
  if (!can_read())
    return Status(Code::unsupported, "one of the two devices serves no reads: " + describe());
  Operation operation;
  operation.id = id;
  operation.kind = Kind::read;
  operation.target = source;
  operation.bytes = bytes;
  if (bytes > 0) {
    Result<Handle<ibv_mr>> made = context_->register_target(into, bytes);
    if (!made.is_ok()) return made.status();
    operation.registered = std::move(made.value());
    operation.plan = WritePlan(
        {Piece{static_cast<const std::byte*>(into), bytes, operation.registered->lkey, false}});
  }
  operations_.push_back(std::move(operation));
  return Status::ok();
}

Status VerbsChannel::progress_on_loop() {
  if (broken_.is_ok() && established_) issue_waiting();
  finish_done();
  return broken_;
}

// ---- issuing

bool VerbsChannel::has_room(const Batch& batch) const {
  return posted_ + batch.count() - completed_ + kReservedRequests < kVerbsSendDepth;
}

ibv_send_wr* VerbsChannel::add_request(Batch* batch, uint64_t number, ibv_wr_opcode opcode) {
  ibv_send_wr* request = batch->add(number, opcode);
  if (context_->writes_immediate()) return request;
  // iWARP. siw lets go of memory at the end of a request that asks for a completion, but sends from
  // it later where none is asked for; and it tells of what follows a read before the read has come.
  request->send_flags |= IBV_SEND_SIGNALED;
  if (opcode == IBV_WR_RDMA_READ)
    read_before_ = true;
  else if (std::exchange(read_before_, false))
    request->send_flags |= IBV_SEND_FENCE;
  return request;
}

void VerbsChannel::post(Batch* batch) {
  if (batch->count() == 0) return;
  // What an earlier post broke takes no more; its batch must not fill up behind it.
  if (!broken_.is_ok()) return batch->clear();
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue_pair_.get(), batch->finish(), &refused);
  if (error != 0) broken_on_loop(verbs_error("posting to the queue pair", error));
  posted_ += batch->count();
  batch->clear();
}

void VerbsChannel::issue_waiting() {
  Batch batch;
  return_credits(&batch);
  if (probe_wanted_ && has_room(batch) && credits_.may_send()) {
    const ibv_mr& probe = context_->probe_region();
    ibv_send_wr* request = add_request(&batch, next_request(batch), IBV_WR_RDMA_WRITE);
    Batch::gather(request, probe.addr, probe.length, probe.lkey);
    request->wr.rdma.remote_addr = theirs_.rails[0].probe_address;
    request->wr.rdma.rkey = theirs_.rails[0].probe_key;
    PacketHeader header;
    header.type = PacketType::probe;
    probe_wanted_ = !issue_packet(header, nullptr, 0, &batch);
  }
  while (next_to_issue_ < operations_.size() && broken_.is_ok()) {
    Operation& operation = operations_[next_to_issue_];
    if (!operation.issued && !issue(&operation, &batch)) break;
    ++next_to_issue_;
  }
  post(&batch);
}

bool VerbsChannel::issue(Operation* operation, Batch* batch) {
  switch (operation->kind) {
    case Kind::write:
      return issue_write(operation, batch);
    case Kind::read:
      return issue_read(operation, batch);
    case Kind::message:
      return issue_message(operation, batch);
  }
  return false;
}

// Copies what is not registered to where the device can read it. False: no room there now.
bool VerbsChannel::stage(Cut* cut, uint64_t request) {
  if (cut->staged == 0) return true;
  size_t offset = 0, held = 0;
  if (!ring_.take(cut->staged, &offset, &held)) return false;
  staged_.push_back({request, held});
  std::byte* to = staging_.memory->base() + offset;
  for (Piece& piece : cut->pieces) {
    if (!piece.staged) continue;
    copy_bytes(to, piece.data, piece.bytes);
    piece.data = to;
    piece.key = staging_.region->lkey;
    to += piece.bytes;
  }
  shared_.counters->copied_bytes += cut->staged;
  shared_.counters->staged_bytes += cut->staged;
  return true;
}

bool VerbsChannel::issue_write(Operation* operation, Batch* batch) {
  WritePlan& plan = operation->plan;
  const PlanLimits limits{context_->max_gather(),
                          std::min(ours_.max_write_bytes, theirs_.max_write_bytes),
                          kVerbsStagePiece};
  if (operation->bytes == 0 && !context_->writes_immediate()) operation->data_posted = true;
  while (!operation->data_posted) {
    if (batch->full()) post(batch);
    if (!has_room(*batch)) return false;
    Cut cut;
    plan.peek(limits, &cut);
    const bool whole = !plan.begun() && cut.last && context_->writes_immediate();
    if (whole && !credits_.may_send()) return false;
    const uint64_t number = next_request(*batch);
    // In the request itself: read when it is posted, so its memory must be there until then.
    const bool fits = cut.bytes <= inline_bytes_ && cut.pieces.size() <= limits.pieces;
    if (!fits && !stage(&cut, number)) return false;
    ibv_send_wr* request =
        add_request(batch, number, whole ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
    const std::byte* end = nullptr;
    for (const Piece& piece : cut.pieces) {
      if (piece.staged && !fits && piece.data == end)
        request->sg_list[request->num_sge - 1].length += static_cast<uint32_t>(piece.bytes);
      else
        Batch::gather(request, piece.data, piece.bytes, piece.key);
      end = piece.staged ? piece.data + piece.bytes : nullptr;
    }
    if (fits && cut.bytes > 0) request->send_flags |= IBV_SEND_INLINE;
    request->wr.rdma.remote_addr = operation->target.address + plan.offset();
    request->wr.rdma.rkey = static_cast<uint32_t>(operation->target.key);
    plan.advance();
    operation->data_posted = cut.last;
    if (!whole) continue;
    credits_.spend();
    request->imm_data = htonl(operation->immediate);
    operation->last_request = number;
    return operation->issued = true;
  }
  PacketHeader header;
  header.type = PacketType::arrived;
  header.immediate = operation->immediate;
  header.bytes = operation->bytes;
  if (!issue_packet(header, nullptr, 0, batch)) return false;
  operation->last_request = posted_ + batch->count();
  return operation->issued = true;
}

bool VerbsChannel::issue_read(Operation* operation, Batch* batch) {
  const PlanLimits limits{1, std::min(ours_.max_write_bytes, theirs_.max_write_bytes), 1};
  while (!operation->plan.finished()) {
    if (batch->full()) post(batch);
    if (!has_room(*batch)) return false;
    Cut cut;
    operation->plan.peek(limits, &cut);
    operation->last_request = next_request(*batch);
    ibv_send_wr* request = add_request(batch, operation->last_request, IBV_WR_RDMA_READ);
    for (const Piece& piece : cut.pieces)
      Batch::gather(request, piece.data, piece.bytes, piece.key);
    request->wr.rdma.remote_addr = operation->target.address + operation->plan.offset();
    request->wr.rdma.rkey = static_cast<uint32_t>(operation->target.key);
    operation->plan.advance();
  }
  return operation->issued = true;
}

bool VerbsChannel::issue_message(Operation* operation, Batch* batch) {
  do {
    const size_t part = std::min(operation->message.size() - operation->sent, kPacketPayload);
    PacketHeader header;
    header.type = PacketType::message;
    header.offset = static_cast<uint32_t>(operation->sent);
    header.bytes = operation->message.size();
    if (!issue_packet(header, operation->message.data() + operation->sent, part, batch))
      return false;
    operation->sent += part;
  } while (operation->sent < operation->message.size());
  operation->last_request = posted_ + batch->count();
  return operation->issued = true;
}

// One SEND. Its memory is staging memory, also where it leaves within the request.
bool VerbsChannel::issue_packet(PacketHeader header, const std::byte* payload, size_t bytes,
                                Batch* batch) {
  const bool data = header.type != PacketType::credits;
  if (batch->full()) post(batch);
  const bool room =
      data ? has_room(*batch) : posted_ + batch->count() - completed_ < kVerbsSendDepth;
  if (!room || !(data ? credits_.may_send() : credits_.may_return())) return false;
  const size_t total = sizeof header + bytes;
  size_t offset = 0, held = 0;
  if (!ring_.take(total, &offset, &held)) return false;
  const uint64_t number = next_request(*batch);
  staged_.push_back({number, held});
  credits_.spend();
  header.generation = theirs_.generation;
  header.credits = credits_.take_owed();
  std::byte* to = staging_.memory->base() + offset;
  std::memcpy(to, &header, sizeof header);
  if (bytes > 0) std::memcpy(to + sizeof header, payload, bytes);
  ibv_send_wr* request = add_request(batch, number, IBV_WR_SEND);
  Batch::gather(request, to, total, staging_.region->lkey);
  if (total <= inline_bytes_) request->send_flags |= IBV_SEND_INLINE;
  return true;
}

void VerbsChannel::return_credits(Batch* batch) {
  // Not before we are up: what comes until then is held, a window of it and no more.
  if (!open_ || !credits_.wants_return()) return;
  issue_packet(PacketHeader{}, nullptr, 0, batch);
}

void VerbsChannel::finish_done() {
  while (!operations_.empty() && next_to_issue_ > 0 && operations_.front().issued &&
         operations_.front().last_request <= completed_) {
    shared_.done(peer_, operations_.front().id);
    operations_.pop_front();
    --next_to_issue_;
  }
}

}  // namespace mxrdma::fabric::verbs
