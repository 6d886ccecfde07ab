// The server's state machine: driven by events and ticks from one thread, so that simulated
// clusters can run it too.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "node/membership.h"
#include "node/outbox.h"
#include "node/server.h"
#include "node/server_memory.h"
#include "node/stall_watch.h"
#include "node/store_runner.h"

namespace mxrdma::node {

class ServerCore {
 public:
  ServerCore(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options,
             UpdaterFactory factory);
  ~ServerCore();

  // Listens and starts to join.
  Status start_on_loop();
  void on_event_on_loop(const fabric::Event& event);
  // After each batch of events: carries out what the store decided, and flushes what was gathered
  // for each worker.
  void settle_on_loop();
  void tick_on_loop();

  // How long the loop may wait before the next settle.
  int wait_limit_ms() const;

  bool finished() const { return finished_; }
  const Status& status() const { return status_; }
  const Membership& membership() const { return membership_; }
  void leave_on_loop() { membership_.leave_on_loop(); }
  ServerReport report_on_loop() const;
  std::string summary() const;

 private:
  struct WorkerLink {
    uint32_t rank = 0;
    fabric::PeerId peer = 0;
    fabric::Region ring;
    std::vector<uint32_t> records_pending;  // by slot
    uint32_t busy_slots = 0;
    int64_t full_since_ms = -1;      // all slots are busy
    int64_t leave_deadline_ms = -1;  // it has left the job; its connection ends until then
    std::unique_ptr<Outbox> outbox;
    wire::Assembler assembler;
    wire::Credits credits;  // gathered until settle
    wire::RoundDone rounds_done;
  };

  void end(const Status& status);
  // This server itself cannot go on: everybody hears why.
  void fail(const Status& why);
  void on_notices(const std::vector<Membership::Notice>& notices);
  void on_gone(const wire::NodeGone& gone);
  void on_left(uint32_t rank);
  void on_book();
  void on_drop_keys(const wire::DropKeys& drop);
  void on_place_keys(const wire::PlaceKeys& place);
  // Step one: everything that can fail. Nothing changes yet.
  void on_set_optimizer(const wire::SetOptimizer& set);
  void make_updater();
  // Step two.
  void on_decide_optimizer(const wire::DecideOptimizer& decide);
  void use_optimizer();
  void acknowledge(uint64_t sequence, const Status& status);

  void accept(const fabric::Event& event);
  void on_arrived(WorkerLink* link, const fabric::Event& event);
  Status read_slot(WorkerLink* link, uint32_t slot, size_t bytes);
  void on_message(WorkerLink* link, const fabric::Event& event);
  void on_done(WorkerLink* link, const fabric::Event& event);
  void on_lost(WorkerLink* link, const Status& why);
  void drop(WorkerLink* link, const Status& why);

  void carry_out(store::Effect* effect);
  void carry_out_all();
  void relieve(WorkerLink* link);
  void flush(WorkerLink* link);
  void send(WorkerLink* link, const wire::Message& message);
  WorkerLink* link_of_peer(fabric::PeerId peer);
  WorkerLink* link_of_rank(uint32_t rank);

  // Any thread: runs `action` on the loop at the next settle.
  void defer(std::function<void()> action);
  Status reserve(const std::vector<wire::KeySpec>& keys);
  void watch_rounds();

  fabric::Fabric* fabric_;
  const Clock* clock_;
  NodeOptions options_;
  UpdaterFactory factory_;
  Membership membership_;
  ServerMemory memory_;
  std::unique_ptr<StoreRunner> runner_;  // from the address book on
  StallWatch stalls_;
  std::map<fabric::PeerId, std::unique_ptr<WorkerLink>> links_;
  std::vector<fabric::Event>
      early_;  // accepted before the address book came; at most one for each worker
  std::mutex deferred_mutex_;
  std::vector<std::function<void()>> deferred_;
  std::thread updater_maker_;
  bool making_updater_ = false;
  struct Prepared {
    wire::SetOptimizer set;
    std::shared_ptr<store::WholeTensorUpdater> updater;
    bool ready = false;
  };
  std::optional<Prepared> prepared_;  // between the two steps
  int64_t next_watch_ms_ = 0;
  bool finished_ = false;
  Status status_;
};

}  // namespace mxrdma::node
