// What all queue pairs of one fabric on one device share: completion queue, shared receive queue
// with its buffers, registrations, and the queue pairs that are on their way out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "fabric/channel.h"
#include "fabric/segment.h"
#include "fabric/verbs/handle.h"
#include "fabric/verbs/library.h"
#include "fabric/verbs/pick.h"

namespace mxrdma::fabric::verbs {

// Whoever owns a queue pair hears of it.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void sent_on_loop(const ibv_wc& completion) = 0;
  // `data` is the receive's buffer, valid during the call.
  virtual void received_on_loop(const ibv_wc& completion, const std::byte* data) = 0;
  virtual void broken_on_loop(const Status& status) = 0;
};

// Registered memory of ours.
struct Block {
  std::shared_ptr<Segment> memory;
  Handle<ibv_mr> region;
};

constexpr uint64_t kReceiveFlag = 1ull << 63;  // in wr_id: a receive, the rest is its buffer

class VerbsContext {
 public:
  static Result<std::unique_ptr<VerbsContext>> open(const Library& library, Picked picked,
                                                    const ChannelContext& shared);
  ~VerbsContext();
  VerbsContext(const VerbsContext&) = delete;
  VerbsContext& operator=(const VerbsContext&) = delete;

  const Library& library() const { return library_; }
  const Picked& picked() const { return picked_; }
  CmPort* cm() const { return picked_.cm.get(); }
  int completion_fd() const { return channel_->fd; }
  int async_fd() const { return picked_.context->async_fd; }
  // Not ok once the device is gone or its queues are broken; nothing works over it any more.
  const Status& failure() const { return failure_; }
  size_t max_gather() const { return max_gather_; }
  // Whether the kernel copies pinned pages at a fork, rather than sharing them until a write.
  bool copies_at_fork() const { return library_.fork_status() == IBV_FORK_UNNEEDED; }
  bool writes_immediate() const { return !picked_.rail.iwarp; }
  const ibv_mr& probe_region() const { return *probe_.region.get(); }

  // ---- memory
  Result<Block> make_block(size_t bytes, int access);
  void free_block(Block block);
  // Registers at the first call.
  Result<const ibv_mr*> registration(RegionId id, const RegionTable::Entry& entry);
  void release(RegionId id);
  // A registration that was refused and did without: said once.
  void tell_refused(const Status& why);
  // Of one read: gone with the handle.
  Result<Handle<ibv_mr>> register_target(void* base, size_t bytes);

  // ---- queue pairs
  // Receives for one more peer, or why there are none left. `granted` of them are the peer's until
  // its queue pair is retired.
  Status admit(uint32_t* granted);
  void dismiss(uint32_t granted);
  Result<Handle<ibv_qp>> make_queue_pair(uint32_t* inline_bytes, Listener* listener);
  // The owner goes, the queue pair stays in the error state until its last events are seen.
  void retire(Handle<ibv_qp> queue_pair, uint32_t granted);

  // ---- progress
  // How many completions there were, a bounded number.
  size_t progress_on_loop();
  bool arm_on_loop();
  void completion_ready_on_loop();
  void async_ready_on_loop();

 private:
  struct Zombie {
    Handle<ibv_qp> queue_pair;
    uint32_t granted = 0;
    int64_t since_ms = 0;
    bool drained = false;  // no more receives go to it
  };

  VerbsContext(const Library& library, Picked picked, const ChannelContext& shared);
  Status prepare();
  Status prepare_queues();
  Status registration_refused(size_t bytes, int error) const;
  Status post_more_receives();
  Status post_receives(const std::vector<uint32_t>& buffers);
  size_t poll_completions();
  void dispatch(const ibv_wc& completion);
  void reap_zombies(bool all);
  void break_all(const Status& status);
  void on_async(const ibv_async_event& event);
  std::byte* buffer(uint32_t index) const;
  std::string name() const { return describe_rail(picked_.rail); }

  const Library& library_;
  Picked picked_;  // the device outlives all that follows
  ChannelContext shared_;
  SteadyClock clock_;
  Handle<ibv_pd> domain_;
  Handle<ibv_comp_channel> channel_;
  Handle<ibv_cq> completions_;
  Handle<ibv_srq> receives_;
  Block probe_;
  std::vector<Block> receive_blocks_;
  std::unordered_map<RegionId, Handle<ibv_mr>> registrations_;
  std::unordered_map<uint32_t, Listener*> listeners_;  // by queue pair number
  std::vector<Zombie> zombies_;

  size_t max_gather_ = 1;
  uint32_t max_receives_ = 0, posted_receives_ = 0, promised_receives_ = 0;
  uint32_t max_completions_ = 0, promised_completions_ = 0;
  std::vector<uint32_t> used_receives_;  // to be posted again
  Status failure_;
  bool told_refused_ = false;
};

Status verbs_error(const std::string& what, int error);
// How many reads at a time we use of what a device allows.
uint8_t reads_of(int limit);

}  // namespace mxrdma::fabric::verbs
