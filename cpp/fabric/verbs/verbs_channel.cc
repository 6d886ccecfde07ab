// Life of the queue pair, and receiving; what goes out is in verbs_send.cc.
#include "fabric/verbs/verbs_channel.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "fabric/bootstrap/handshake.h"
#include "fabric/verbs/gid.h"

namespace mxrdma::fabric::verbs {
namespace {

// 4.096 us * 2^19 = 2.1 s before a packet is sent again, seven times: longer than the heartbeat's
// limit, so that it is the scheduler who says which node was lost.
constexpr uint8_t kTimeout = 19;
constexpr uint8_t kRetries = 7;
// A backstop: credits keep it from happening. 7 would be for ever.
constexpr uint8_t kReceiverRetries = 6;
constexpr uint8_t kReceiverTimer = 12;  // 0.64 ms
constexpr uint8_t kHopLimit = 64;

ibv_mtu mtu_of(uint32_t bytes) {
  ibv_mtu mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && (256u << (mtu - IBV_MTU_256)) < bytes)
    mtu = static_cast<ibv_mtu>(mtu + 1);
  return mtu;
}

}  // namespace

// ---- life

Result<std::unique_ptr<Link>> VerbsChannel::make(VerbsContext* context,
                                                 const ChannelContext& shared, PeerId peer,
                                                 int control, bool acceptor) {
  std::unique_ptr<VerbsChannel> made(new VerbsChannel(context, shared, peer, control, acceptor));
  Status status = made->prepare();
  if (!status.is_ok()) return status;
  return std::unique_ptr<Link>(std::move(made));
}

VerbsChannel::VerbsChannel(VerbsContext* context, const ChannelContext& shared, PeerId peer,
                           int control, bool acceptor)
    : context_(context), shared_(shared), peer_(peer), control_(control), acceptor_(acceptor) {}

VerbsChannel::~VerbsChannel() {
  if (context_->cm() != nullptr) context_->cm()->forget(this);
  context_->free_block(std::move(staging_));
  if (queue_pair_)
    context_->retire(std::move(queue_pair_), granted_);
  else if (granted_ > 0)
    context_->dismiss(granted_);
}

Status VerbsChannel::prepare() {
  Status status = context_->admit(&granted_);
  if (!status.is_ok()) return status;
  Result<Handle<ibv_qp>> made = context_->make_queue_pair(&inline_bytes_, this);
  if (!made.is_ok()) return made.status();
  queue_pair_ = std::move(made.value());
  Result<Block> staging = context_->make_block(kVerbsStageBytes, IBV_ACCESS_LOCAL_WRITE);
  if (!staging.is_ok()) return staging.status();
  staging_ = std::move(staging.value());
  ring_ = StageRing(kVerbsStageBytes);

  const ibv_device_attr& limits = context_->picked().attributes;
  VerbsRail rail = context_->picked().rail;
  rail.queue_pair = queue_pair_->qp_num;
  rail.reads = reads_of(limits.max_qp_rd_atom);
  starts_reads_ = reads_of(limits.max_qp_init_rd_atom);
  rail.probe_address = reinterpret_cast<uintptr_t>(context_->probe_region().addr);
  rail.probe_key = context_->probe_region().rkey;
  uint32_t random[2];
  status = fill_random(random, sizeof random);
  if (status.is_ok() && rail.iwarp) status = fill_random(&rail.cm_cookie, sizeof rail.cm_cookie);
  if (!status.is_ok()) return status;
  if (rail.iwarp && acceptor_) context_->cm()->expect(rail.cm_cookie, this);
  rail.first_packet = random[0] & 0xffffff;
  ours_.generation = random[1];
  ours_.window = granted_;
  ours_.max_write_bytes =
      std::min<uint64_t>(context_->picked().max_message_bytes, kMaxVerbsWriteBytes);
  ours_.rails.push_back(rail);

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = rail.port;
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int way = rail.iwarp ? 0 : IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  const int error = context_->library().modify_qp(queue_pair_.get(), &attributes,
                                                  IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | way);
  if (error != 0) return verbs_error("preparing a queue pair on " + describe_rail(rail), error);
  return Status::ok();
}

Status VerbsChannel::to_receive(const VerbsRail& theirs) {
  const VerbsRail& ours = ours_.rails[0];
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu_of(std::min(ours.mtu, theirs.mtu));
  attributes.dest_qp_num = theirs.queue_pair;
  attributes.rq_psn = theirs.first_packet;
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(ours.reads);
  attributes.min_rnr_timer = kReceiverTimer;
  attributes.ah_attr.port_num = ours.port;
  attributes.ah_attr.dlid = static_cast<uint16_t>(theirs.lid);
  // RoCE always has the global header, InfiniBand where the peer is in another subnet.
  if (ours.ethernet || ours.gid[0] != theirs.gid[0]) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(&attributes.ah_attr.grh.dgid, theirs.gid, sizeof theirs.gid);
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(ours.gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
  }
  const int error = context_->library().modify_qp(
      queue_pair_.get(), &attributes,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  return error == 0 ? Status::ok() : verbs_error("no way to the peer", error);
}

Status VerbsChannel::to_send(const VerbsRail& theirs) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kReceiverRetries;
  attributes.sq_psn = ours_.rails[0].first_packet;
  attributes.max_rd_atomic = static_cast<uint8_t>(std::min(theirs.reads, starts_reads_));
  const int error =
      context_->library().modify_qp(queue_pair_.get(), &attributes,
                                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? Status::ok() : verbs_error("the queue pair cannot send", error);
}

Status VerbsChannel::meet_on_loop(const VerbsEnd& theirs) {
  if (theirs.rails.size() != 1 || theirs.window < kMinVerbsWindow || theirs.max_write_bytes == 0)
    return Status(Code::fabric, "malformed handshake: the peer's end of the queue pair");
  const VerbsRail& rail = theirs.rails[0];
  if (rail.iwarp != ours_.rails[0].iwarp)
    return Status(Code::fabric, "one end is an iWARP device, the other is not");
  if (rail.ethernet != ours_.rails[0].ethernet)
    return Status(Code::fabric, "one end is on Ethernet, the other on InfiniBand");
  if (rail.ethernet && !rail.iwarp) {
    // What cannot work is said at once, not after a probe that nobody hears.
    Status match = gids_match(entry_of(ours_.rails[0]), entry_of(rail),
                              "this end's " + ours_.rails[0].device, "the peer's " + rail.device);
    if (!match.is_ok()) return match;
  }
  theirs_ = theirs;
  credits_ = Credits(granted_, theirs.window);
  met_ = true;
  Status status;
  if (rail.iwarp) {
    if (!acceptor_)
      status = context_->cm()->connect(rail.cm_host, rail.cm_port, rail.cm_cookie, this);
  } else {
    status = to_receive(rail);
    if (status.is_ok()) status = to_send(rail);
    established_ = status.is_ok();
  }
  return status.is_ok() ? status : status.with_context(describe());
}

Status VerbsChannel::probe_on_loop() {
  probe_wanted_ = true;
  return progress_on_loop();
}

void VerbsChannel::open_on_loop() {
  open_ = true;
  for (Event& event : held_) shared_.events->push_back(std::move(event));
  held_.clear();
}

std::string VerbsChannel::describe() const {
  const std::string ours = describe_rail(ours_.rails[0]);
  return met_ ? ours + " -> " + describe_rail(theirs_.rails[0]) : ours;
}

std::vector<uint64_t> VerbsChannel::abandon_on_loop() {
  // The queue pair stops before the operations end: their memory is the caller's from then on. What
  // the device still sends of it goes to a peer that has been given up.
  if (context_->cm() != nullptr) context_->cm()->forget(this);
  if (queue_pair_) context_->retire(std::move(queue_pair_), granted_);
  granted_ = 0;
  std::vector<uint64_t> ids;
  for (const Operation& operation : operations_) ids.push_back(operation.id);
  operations_.clear();
  next_to_issue_ = 0;
  return ids;
}

// ---- events

void VerbsChannel::broken_on_loop(const Status& status) {
  if (broken_.is_ok()) broken_ = status.with_context(describe());
}

// What came before the end is in the completion queue.
void VerbsChannel::disconnected_on_loop(const Status& why) {
  context_->progress_on_loop();
  broken_on_loop(why);
}

void VerbsChannel::sent_on_loop(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    if (completion.status == IBV_WC_RNR_RETRY_EXC_ERR) ++shared_.counters->rnr;
    const char* what =
        completion.status == IBV_WC_REM_ACCESS_ERR ? "remote access error: " : "sending: ";
    return broken_on_loop(Status(
        Code::fabric, std::string(what) + context_->library().wc_status_str(completion.status)));
  }
  completed_ = std::max(completed_, completion.wr_id);
  while (!staged_.empty() && staged_.front().request <= completed_) {
    ring_.give(staged_.front().held);
    staged_.pop_front();
  }
}

void VerbsChannel::received_on_loop(const ibv_wc& completion, const std::byte* data) {
  if (completion.status != IBV_WC_SUCCESS)
    return broken_on_loop(
        Status(Code::fabric,
               std::string("receiving: ") + context_->library().wc_status_str(completion.status)));
  if (!broken_.is_ok()) return;
  Status status = credits_.received();
  if (!status.is_ok()) return broken_on_loop(status);
  if (completion.opcode == IBV_WC_RECV) return on_packet(data, completion.byte_len);
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM)
    return broken_on_loop(Status(Code::fabric, "an unknown kind of receive"));
  Event event;
  event.kind = Event::Kind::arrived;
  event.bytes = completion.byte_len;
  event.immediate = ntohl(completion.imm_data);
  deliver(std::move(event));
}

void VerbsChannel::on_packet(const std::byte* data, size_t bytes) {
  PacketHeader header;
  if (bytes < sizeof header)
    return broken_on_loop(Status(Code::fabric, "malformed packet: it is too short"));
  std::memcpy(&header, data, sizeof header);
  const size_t payload = bytes - sizeof header;
  if (header.generation != ours_.generation)
    return broken_on_loop(Status(Code::fabric, "a packet of another connection"));
  if (auto reason = invalid(header, payload))
    return broken_on_loop(Status(Code::fabric, "malformed packet: " + *reason));
  Status status = credits_.returned(header.credits);
  if (!status.is_ok()) return broken_on_loop(status);
  switch (header.type) {
    case PacketType::credits:
      return;
    case PacketType::probe:
      if (heard_) return broken_on_loop(Status(Code::fabric, "malformed packet: a second probe"));
      heard_ = true;
      probe_wanted_ = probe_wanted_ || acceptor_;
      return;
    case PacketType::arrived: {
      Event event;
      event.kind = Event::Kind::arrived;
      event.bytes = header.bytes;
      event.immediate = header.immediate;
      return deliver(std::move(event));
    }
    case PacketType::message:
      return on_part(header, data + sizeof header, payload);
  }
}

void VerbsChannel::on_part(const PacketHeader& header, const std::byte* payload, size_t bytes) {
  if (!in_message_) {
    message_.assign(header.bytes, std::byte{0});
    message_received_ = 0;
    in_message_ = true;
  }
  if (header.bytes != message_.size() || header.offset != message_received_)
    return broken_on_loop(Status(Code::fabric, "malformed packet: a part of another message"));
  if (bytes > 0) std::memcpy(message_.data() + header.offset, payload, bytes);
  message_received_ += bytes;
  if (message_received_ < message_.size()) return;
  in_message_ = false;
  Event event;
  event.kind = Event::Kind::message;
  event.bytes = message_.size();
  event.payload = std::move(message_);
  message_ = {};
  ++shared_.counters->messages;
  deliver(std::move(event));
}

void VerbsChannel::deliver(Event event) {
  event.peer = peer_;
  if (event.kind == Event::Kind::arrived) {
    ++shared_.counters->arrivals;
    shared_.counters->arrival_bytes += event.bytes;
  }
  // The peer may be up and send before we are: at most a window of it.
  (open_ ? *shared_.events : held_).push_back(std::move(event));
}

// Nothing is ever sent on the control connection after the handshake: what comes is its end. What
// the peer wrote before it went is in the completion queue already, or lost with it.
Status VerbsChannel::readable_on_loop() {
  char byte;
  const ssize_t count = recv(control_, &byte, 1, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::ok();
  context_->progress_on_loop();
  if (count > 0) return Status(Code::fabric, "unexpected bytes on the control connection");
  return count == 0 ? Status(Code::fabric, "connection closed by peer")
                    : Status(Code::fabric, "control connection: " + errno_text(errno));
}

}  // namespace mxrdma::fabric::verbs
