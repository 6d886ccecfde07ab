// The scheduler's state machine over a fabric: driven by events and ticks from one thread, so that
// simulated clusters can run it too. Who belongs to the job is decided in cluster/, where keys lie
// in store/; here are the connections, and the servers' answers that a collective waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/scheduler_state.h"
#include "fabric/fabric.h"
#include "node/options.h"
#include "node/outbox.h"
#include "store/directory.h"
#include "wire/control.h"

namespace mxrdma::node {

class SchedulerCore {
 public:
  // generation: random, not 0. config must be valid (cluster::invalid).
  SchedulerCore(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options,
                const wire::JobConfig& config, uint64_t generation);

  void on_event_on_loop(const fabric::Event& event);
  // Heartbeats and time-outs; call at least every heartbeat interval.
  void tick_on_loop();

  // The job is over and the last words have left.
  bool finished() const;
  // ok: all workers left by themselves. Else the first loss, named.
  const Status& status() const { return state_.status(); }
  const cluster::SchedulerState& state() const { return state_; }

 private:
  struct Peer {
    wire::Hello hello;
    wire::Assembler assembler;
    std::unique_ptr<Outbox> outbox;
    uint64_t sends_left = 0;  // not yet done
    bool joined = false;      // it has sent Join, refused or not
    bool leaving = false;     // it has said Leave or Failed: nothing counts after that
    int64_t close_at_ms = 0;  // 0: stays
  };
  // A collective that all workers entered and that servers have to carry out.
  struct Decision {
    uint64_t sequence = 0;
    std::string what;
    std::set<fabric::PeerId> pending;  // servers that have not answered
    wire::Release release;
    std::optional<store::Directory::OptimizerChange> change;  // until all are told to use it
    bool in_use = false;  // some server may update by it: there is no way back
    int64_t since_ms = 0;
    int64_t next_report_ms = 0;  // age
  };

  void accept(const fabric::Event& event);
  void on_message(fabric::PeerId id, Peer* peer, const fabric::Event& event);
  void on_ack(fabric::PeerId id, const wire::ServerAck& ack);
  void close(fabric::PeerId id);
  void watch_peers();
  void watch_decision();

  // Effects may cause more: carried out until there are none.
  void settle();
  void carry_out(cluster::Effect* effect);
  void send(const std::vector<fabric::PeerId>& to, const wire::Message& message);
  // The next of those that wait, if no decision is under way.
  void decide_next();
  void decide(cluster::Effect* complete);
  void begin(Decision decision, const wire::Message& question);
  void ask_servers(const wire::Message& question);
  void all_have_answered();
  void refuse(uint64_t sequence, const Status& why);
  // The decision under way has failed: what was decided is taken back, or, if that cannot be, the
  // job ends with the servers that have not answered.
  void give_up(const Status& why);
  std::string name_of(fabric::PeerId id) const;

  fabric::Fabric* fabric_;
  const Clock* clock_;
  wire::JobConfig config_;
  cluster::SchedulerState state_;
  store::Directory directory_;
  std::map<fabric::PeerId, Peer> peers_;
  // One decision at a time, so that no server places a key while another optimizer is on its way.
  // A worker blocks in each collective, so more than one waits only after an interrupt.
  std::optional<Decision> decision_;
  std::deque<cluster::Effect> complete_;  // at most kMaxOpenCollectives
  cluster::Effects effects_;
  int64_t flush_deadline_ms_ = 0;  // once the job is over
};

}  // namespace mxrdma::node
