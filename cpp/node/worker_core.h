// The worker's state machine: driven by events and ticks from one thread, so that simulated
// clusters can run it too.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "node/array_cache.h"
#include "node/membership.h"
#include "node/operation.h"
#include "node/server_link.h"
#include "node/target_memory.h"
#include "node/worker.h"
#include "wire/control.h"

namespace mxrdma::node {

class WorkerCore {
 public:
  using Released = std::function<void(const Result<wire::Release>&)>;

  WorkerCore(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options);
  ~WorkerCore();

  void start_on_loop();
  void on_event_on_loop(const fabric::Event& event);
  // Heartbeats and time-outs; call at least every heartbeat interval.
  void tick_on_loop();

  bool joined() const { return joined_; }  // address book known and all rings there
  uint32_t rank() const { return membership_.rank(); }
  const wire::AddressBook& book() const { return membership_.book(); }
  std::string summary() const;
  WorkerCounters counters() const;

  // See worker.h. The ticket is the caller's, larger than any before.
  void open_push_on_loop(Ticket ticket, uint32_t key, wire::PushKind kind,
                         const store::Hyper& hyper, int priority, Completion done);
  void open_pull_on_loop(Ticket ticket, uint32_t key, int priority, Completion done);
  void supply_on_loop(Ticket ticket, const void* data, size_t bytes, const Hold& hold = nullptr);
  void grant_on_loop(Ticket ticket, void* data, size_t bytes, const Hold& hold = nullptr);
  void abandon_on_loop(Ticket ticket, const Status& why);
  // `released` runs exactly once, with the scheduler's word or the failure.
  void enter_on_loop(wire::Enter enter, Released released);

  // Ids and bytes of the keys that lie on more than one server.
  std::vector<std::pair<uint32_t, size_t>> split_keys() const;
  size_t outstanding() const { return operations_.size(); }
  std::string describe_outstanding() const;
  const Status& failure() const { return failure_; }
  void on_failure(std::function<void(const Status&)> callback) {
    failure_callback_ = std::move(callback);
  }
  // Ends everything with `why`, which stays. `tell`: the scheduler has not heard of it yet.
  void fail_on_loop(const Status& why, bool tell);
  void leave_on_loop();
  bool left() const { return membership_.left(); }

 private:
  Operation* find(Ticket ticket, Operation::Type type);
  Operation* open(Ticket ticket, Operation::Type type, uint32_t key, int priority,
                  Completion* done);
  void advance(KeyState* key);
  void start_push(Operation* push, Operation* next_pull);
  void request_pull(Operation* pull);
  bool prepare_target(Operation* pull);
  Result<fabric::RegionId> target_memory(Operation* pull);
  bool wait_for_memory(Operation* pull);
  void retry_short_of_memory();
  void land(Operation* pull);
  void return_memory(Operation* operation);
  void push_progress(Operation* push);
  void finish(Operation* operation, const Status& status);
  void pump_all();

  void on_book();
  void on_message(const fabric::Event& event);
  void on_server_message(ServerLink* link, const wire::Message& message);
  void on_membership(const std::vector<Membership::Notice>& notices);
  void on_release(const wire::Release& release);
  void on_round_done(const wire::RoundDone& done);
  void on_arrived(const fabric::Event& event);
  void on_done(const fabric::Event& event);
  void adopt(const wire::KeySpec& spec);
  void check_joined();
  ServerLink* link_of(fabric::PeerId peer);
  void fail_link(const ServerLink& link, const Status& status);
  void fail_by_server(const ServerLink& link, uint8_t code, const std::string& reason);
  void check_verdict();

  fabric::Fabric* fabric_;
  const Clock* clock_;
  NodeOptions options_;
  Membership membership_;
  bool joined_ = false;
  std::vector<std::unique_ptr<ServerLink>> links_;  // by server rank
  std::set<Ticket> unrequested_pulls_;
  bool memory_was_short_ = false;
  std::set<Ticket> short_of_memory_;  // pulls that wait to be registered
  bool keeps_registrations_ = false;  // with one of them at least
  ArrayCache arrays_;
  TargetMemory targets_;
  std::vector<std::unique_ptr<KeyState>> keys_;  // by id
  std::unordered_map<Ticket, std::unique_ptr<Operation>> operations_;
  std::unordered_map<uint32_t, Operation*> pulls_;  // by immediate
  uint32_t next_pull_index_ = 1;
  std::map<uint64_t, Released> collectives_;  // by sequence
  uint64_t next_sequence_ = 1;
  std::unordered_map<fabric::PeerId, wire::Assembler> assemblers_;
  // A lost server connection may be the echo of another node's loss, which the scheduler names:
  // wait for its word.
  Status suspicion_;
  int64_t verdict_deadline_ms_ = 0;
  Status failure_;
  std::function<void(const Status&)> failure_callback_;
  uint64_t pushes_ = 0, pulled_ = 0;
  uint64_t landed_bytes_ = 0;  // copied from memory of ours into users' arrays
};

}  // namespace mxrdma::node
