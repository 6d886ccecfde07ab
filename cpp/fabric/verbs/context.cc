#include "fabric/verbs/context.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fabric/fork_guard.h"

namespace mxrdma::fabric::verbs {
namespace {

constexpr uint32_t kReceivesPerBlock = 256;
constexpr int kMaxPolled = 64;             // completions of one call
constexpr size_t kMaxPolledPerTurn = 512;  // so that control connections get their turn
constexpr size_t kProbeBytes = 8192;       // more than one packet of any MTU
constexpr int kRemoteAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                         : std::to_string(limit.rlim_cur / 1024) + " KiB";
}

Status set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return Status(Code::fabric, "fcntl: " + errno_text(errno));
  return Status::ok();
}

}  // namespace

uint8_t reads_of(int limit) {
  return static_cast<uint8_t>(std::clamp(limit, 0, static_cast<int>(kMaxVerbsReads)));
}

Status verbs_error(const std::string& what, int error) {
  return Status(Code::fabric, what + ": " + errno_text(error));
}

// ---- life

Result<std::unique_ptr<VerbsContext>> VerbsContext::open(const Library& library, Picked picked,
                                                         const ChannelContext& shared) {
  std::unique_ptr<VerbsContext> made(new VerbsContext(library, std::move(picked), shared));
  Status status = made->prepare();
  if (!status.is_ok()) return status.with_context(made->name());
  return made;
}

VerbsContext::VerbsContext(const Library& library, Picked picked, const ChannelContext& shared)
    : library_(library), picked_(std::move(picked)), shared_(shared) {}

VerbsContext::~VerbsContext() {
  if (channel_) unguard_from_fork(channel_->fd);
  unguard_from_fork(picked_.context->async_fd);
  unguard_from_fork(picked_.context->cmd_fd);
  reap_zombies(true);
  registrations_.clear();
  receives_.reset();
  completions_.reset();
  channel_.reset();
  receive_blocks_.clear();
  probe_ = Block();
}

Status VerbsContext::prepare() {
  ibv_context* device = picked_.context.get();
  // A forked child must neither use the device nor keep it for a parent that is gone.
  guard_from_fork(device->cmd_fd);
  guard_from_fork(device->async_fd);
  Status status = set_nonblocking(device->async_fd);
  if (!status.is_ok()) return status;
  if (picked_.cm)
    picked_.cm->limit_reads(reads_of(picked_.attributes.max_qp_rd_atom),
                            reads_of(picked_.attributes.max_qp_init_rd_atom));
  domain_ = Handle<ibv_pd>(library_.alloc_pd(device), library_.dealloc_pd, "a protection domain");
  if (!domain_) return verbs_error("allocating a protection domain", errno);
  status = prepare_queues();
  if (!status.is_ok()) return status;
  Result<Block> probe = make_block(kProbeBytes, kRemoteAccess);
  if (!probe.is_ok()) return probe.status();
  probe_ = std::move(probe.value());
  return Status::ok();
}

Status VerbsContext::prepare_queues() {
  const ibv_device_attr& limits = picked_.attributes;
  ibv_context* device = picked_.context.get();
  channel_ = Handle<ibv_comp_channel>(library_.create_comp_channel(device),
                                      library_.destroy_comp_channel, "a completion channel");
  if (!channel_) return verbs_error("creating a completion channel", errno);
  guard_from_fork(channel_->fd);
  Status status = set_nonblocking(channel_->fd);
  if (!status.is_ok()) return status;
  max_completions_ =
      std::min<uint32_t>(static_cast<uint32_t>(std::max(limits.max_cqe, 1)), kMaxVerbsCompletions);
  const uint32_t first = std::min(kMinVerbsCompletions, max_completions_);
  completions_ = Handle<ibv_cq>(
      library_.create_cq(device, static_cast<int>(first), nullptr, channel_.get(), 0),
      library_.destroy_cq, "a completion queue");
  if (!completions_) return verbs_error("creating a completion queue", errno);
  if (limits.max_srq <= 0)
    return Status(Code::unsupported, "the device has no shared receive queues");
  max_receives_ = std::min<uint32_t>(static_cast<uint32_t>(limits.max_srq_wr), kMaxVerbsReceives);
  ibv_srq_init_attr receives{};
  receives.attr.max_wr = max_receives_;
  receives.attr.max_sge = 1;
  receives_ = Handle<ibv_srq>(library_.create_srq(domain_.get(), &receives), library_.destroy_srq,
                              "a shared receive queue");
  if (!receives_) return verbs_error("creating a shared receive queue", errno);
  // iWARP: siw (seen with Linux 6.1) puts wrong bytes on the wire when a gather list of several
  // pieces leaves in parts. A write then is one request for each piece.
  max_gather_ =
      picked_.rail.iwarp
          ? 1
          : std::min<size_t>(static_cast<size_t>(std::max(limits.max_sge, 1)), kMaxVerbsGather);
  return Status::ok();
}

// ---- memory

Status VerbsContext::registration_refused(size_t bytes, int error) const {
  const Status refused =
      verbs_error("registering " + std::to_string(bytes) + " bytes with " + picked_.rail.device +
                      " (limit of locked memory: " + locked_memory_limit() +
                      "; raise it with ulimit -l unlimited)",
                  error);
  return error == ENOMEM || error == EAGAIN ? Status(Code::busy, refused.message()) : refused;
}

Result<Block> VerbsContext::make_block(size_t bytes, int access) {
  Result<std::shared_ptr<Segment>> memory = Segment::create(bytes);
  if (!memory.is_ok()) return memory.status();
  Block block;
  block.memory = memory.value();
  block.region = Handle<ibv_mr>(library_.reg_mr(domain_.get(), block.memory->base(), bytes, access),
                                library_.dereg_mr, "registered memory");
  if (!block.region) return registration_refused(bytes, errno);
  ++shared_.counters->registrations;
  shared_.counters->registered_bytes += bytes;
  return block;
}

void VerbsContext::free_block(Block block) {
  if (block.region) shared_.counters->registered_bytes -= block.region->length;
}

Result<const ibv_mr*> VerbsContext::registration(RegionId id, const RegionTable::Entry& entry) {
  auto found = registrations_.find(id);
  if (found != registrations_.end()) return const_cast<const ibv_mr*>(found->second.get());
  Handle<ibv_mr> made(library_.reg_mr(domain_.get(), entry.base, entry.bytes, kRemoteAccess),
                      library_.dereg_mr, "registered memory");
  if (!made) return registration_refused(entry.bytes, errno);
  ++shared_.counters->registrations;
  shared_.counters->registered_bytes += entry.bytes;
  return const_cast<const ibv_mr*>(registrations_.emplace(id, std::move(made)).first->second.get());
}

Result<Handle<ibv_mr>> VerbsContext::register_target(void* base, size_t bytes) {
  // What iWARP reads comes as a write of the peer.
  const int access = IBV_ACCESS_LOCAL_WRITE | (picked_.rail.iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);
  Handle<ibv_mr> made(library_.reg_mr(domain_.get(), base, bytes, access), library_.dereg_mr,
                      "registered memory");
  if (!made) return registration_refused(bytes, errno);
  ++shared_.counters->registrations;
  return made;
}

void VerbsContext::tell_refused(const Status& why) {
  if (std::exchange(told_refused_, true)) return;
  log_warning(why.message() + "; gradients are copied instead");
}

void VerbsContext::release(RegionId id) {
  auto found = registrations_.find(id);
  if (found == registrations_.end()) return;
  shared_.counters->registered_bytes -= found->second->length;
  registrations_.erase(found);
}

// ---- receives

std::byte* VerbsContext::buffer(uint32_t index) const {
  return receive_blocks_[index / kReceivesPerBlock].memory->base() +
         size_t{index % kReceivesPerBlock} * kVerbsReceiveBytes;
}

Status VerbsContext::post_receives(const std::vector<uint32_t>& buffers) {
  for (size_t at = 0; at < buffers.size();) {
    ibv_recv_wr requests[kMaxPolled];
    ibv_sge places[kMaxPolled];
    const size_t count = std::min<size_t>(buffers.size() - at, kMaxPolled);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t index = buffers[at + i];
      places[i].addr = reinterpret_cast<uintptr_t>(buffer(index));
      places[i].length = kVerbsReceiveBytes;
      places[i].lkey = receive_blocks_[index / kReceivesPerBlock].region->lkey;
      requests[i] = ibv_recv_wr{};
      requests[i].wr_id = kReceiveFlag | index;
      requests[i].sg_list = &places[i];
      requests[i].num_sge = 1;
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_srq_recv(receives_.get(), requests, &refused);
    if (error != 0) return verbs_error("posting receives", error);
    at += count;
  }
  return Status::ok();
}

Status VerbsContext::post_more_receives() {
  while (posted_receives_ < promised_receives_) {
    Result<Block> block =
        make_block(kReceivesPerBlock * kVerbsReceiveBytes, IBV_ACCESS_LOCAL_WRITE);
    if (!block.is_ok()) return block.status();
    const uint32_t first = static_cast<uint32_t>(receive_blocks_.size()) * kReceivesPerBlock;
    receive_blocks_.push_back(std::move(block.value()));
    std::vector<uint32_t> buffers;
    const uint32_t count = std::min(kReceivesPerBlock, max_receives_ - posted_receives_);
    for (uint32_t i = 0; i < count; ++i) buffers.push_back(first + i);
    Status status = post_receives(buffers);
    if (!status.is_ok()) return status;
    posted_receives_ += count;
  }
  return Status::ok();
}

// ---- queue pairs

Status VerbsContext::admit(uint32_t* granted) {
  const uint32_t window = std::min(kVerbsWindow, max_receives_ - promised_receives_);
  if (window < kMinVerbsWindow)
    return Status(Code::fabric, picked_.rail.device + " has no receives left for another peer (" +
                                    std::to_string(promised_receives_) + " are taken)");
  const uint32_t wanted = promised_completions_ + kVerbsSendDepth + window;
  if (wanted > max_completions_)
    return Status(Code::fabric, picked_.rail.device + " has no completions left for another peer");
  if (wanted > static_cast<uint32_t>(completions_->cqe)) {
    const uint32_t more =
        std::min(max_completions_, std::max(wanted, 2 * static_cast<uint32_t>(completions_->cqe)));
    const int error = library_.resize_cq(completions_.get(), static_cast<int>(more));
    if (error != 0) return verbs_error("enlarging the completion queue", error);
  }
  promised_receives_ += window;
  promised_completions_ = wanted;
  Status status = post_more_receives();
  if (!status.is_ok()) {
    dismiss(window);
    return status;
  }
  *granted = window;
  return Status::ok();
}

void VerbsContext::dismiss(uint32_t granted) {
  promised_receives_ -= granted;
  promised_completions_ -= kVerbsSendDepth + granted;
}

Result<Handle<ibv_qp>> VerbsContext::make_queue_pair(uint32_t* inline_bytes, Listener* listener) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_.get();
  wanted.srq = receives_.get();
  wanted.cap.max_send_wr = kVerbsSendDepth;
  wanted.cap.max_send_sge = static_cast<uint32_t>(max_gather_);
  wanted.cap.max_inline_data = kVerbsInlineBytes;
  wanted.qp_type = IBV_QPT_RC;
  ibv_qp* made = library_.create_qp(domain_.get(), &wanted);
  if (made == nullptr && errno == EINVAL) {
    wanted.cap.max_inline_data = 0;
    made = library_.create_qp(domain_.get(), &wanted);
  }
  if (made == nullptr) return verbs_error("creating a queue pair on " + name(), errno);
  *inline_bytes = std::min(wanted.cap.max_inline_data, kVerbsInlineBytes);
  listeners_[made->qp_num] = listener;
  return Handle<ibv_qp>(made, library_.destroy_qp, "a queue pair");
}

void VerbsContext::retire(Handle<ibv_qp> queue_pair, uint32_t granted) {
  listeners_.erase(queue_pair->qp_num);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int error = library_.modify_qp(queue_pair.get(), &attributes, IBV_QP_STATE);
  Zombie zombie;
  // One that cannot be moved must not go on with its peer: it goes at once.
  if (error != 0) {
    log_error("stopping a queue pair of " + name() + ": " + errno_text(error));
    queue_pair.reset();
    dismiss(granted);
    return;
  }
  zombie.queue_pair = std::move(queue_pair);
  zombie.granted = granted;
  zombie.since_ms = clock_.now_ms();
  zombies_.push_back(std::move(zombie));
}

// A queue pair that dies with receives in its completions would take them along: so it stays until
// the device says that no more go to it, or long enough.
void VerbsContext::reap_zombies(bool all) {
  const int64_t now_ms = clock_.now_ms();
  for (size_t i = 0; i < zombies_.size();) {
    Zombie& zombie = zombies_[i];
    if (!all && !zombie.drained && now_ms - zombie.since_ms < kVerbsDrainMs) {
      ++i;
      continue;
    }
    dismiss(zombie.granted);
    zombies_.erase(zombies_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// ---- progress

size_t VerbsContext::progress_on_loop() {
  size_t count = 0, polled;
  do {
    polled = poll_completions();
    count += polled;
  } while (polled > 0 && count < kMaxPolledPerTurn);
  if (polled == 0 && !zombies_.empty()) reap_zombies(false);
  return count;
}

size_t VerbsContext::poll_completions() {
  if (!failure_.is_ok()) return 0;
  ibv_wc completions[kMaxPolled];
  const int count = ibv_poll_cq(completions_.get(), kMaxPolled, completions);
  if (count < 0) {
    break_all(Status(Code::fabric, "the completion queue of " + name() + " cannot be polled"));
    return 0;
  }
  for (int i = 0; i < count; ++i) dispatch(completions[i]);
  if (!used_receives_.empty()) {
    Status status = post_receives(used_receives_);
    used_receives_.clear();
    if (!status.is_ok()) break_all(status);
  }
  return static_cast<size_t>(count);
}

void VerbsContext::dispatch(const ibv_wc& completion) {
  auto found = listeners_.find(completion.qp_num);
  Listener* listener = found == listeners_.end() ? nullptr : found->second;
  if ((completion.wr_id & kReceiveFlag) == 0) {
    if (listener != nullptr) listener->sent_on_loop(completion);
    return;
  }
  const uint32_t index = static_cast<uint32_t>(completion.wr_id);
  if (listener != nullptr) listener->received_on_loop(completion, buffer(index));
  used_receives_.push_back(index);
}

bool VerbsContext::arm_on_loop() {
  if (!failure_.is_ok()) return true;
  const int error = ibv_req_notify_cq(completions_.get(), 0);
  if (error != 0) {
    break_all(verbs_error("asking " + name() + " for a completion event", error));
    return false;
  }
  // What came before the request rings no bell.
  return poll_completions() == 0;
}

void VerbsContext::completion_ready_on_loop() {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  while (library_.get_cq_event(channel_.get(), &queue, &unused) == 0)
    library_.ack_cq_events(queue, 1);
  if (errno != EAGAIN && errno != EINTR)
    break_all(verbs_error("completion events of " + name(), errno));
}

void VerbsContext::async_ready_on_loop() {
  ibv_async_event event{};
  while (library_.get_async_event(picked_.context.get(), &event) == 0) {
    on_async(event);
    library_.ack_async_event(&event);
  }
  if (errno != EAGAIN && errno != EINTR) break_all(verbs_error("events of " + name(), errno));
}

void VerbsContext::on_async(const ibv_async_event& event) {
  const std::string text = name() + ": " + library_.event_type_str(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR: {
      auto found = listeners_.find(event.element.qp->qp_num);
      if (found == listeners_.end()) return;
      const char* what = event.event_type == IBV_EVENT_QP_ACCESS_ERR ? "remote access error: " : "";
      return found->second->broken_on_loop(Status(Code::fabric, what + text));
    }
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      for (Zombie& zombie : zombies_)
        if (zombie.queue_pair.get() == event.element.qp) zombie.drained = true;
      return;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
      return break_all(Status(Code::fabric, text));
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == picked_.rail.port)
        log_warning(text + "; connections end unless the port comes back in time");
      return;
    default:
      log_debug(text);
  }
}

void VerbsContext::break_all(const Status& status) {
  if (failure_.is_ok()) failure_ = status;
  for (auto& each : listeners_) each.second->broken_on_loop(status);
}

}  // namespace mxrdma::fabric::verbs
