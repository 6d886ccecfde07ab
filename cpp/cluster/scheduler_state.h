// The scheduler's decisions: who joins, who is gone, how the job ends. Pure state: no I/O, no
// clock.
//
// joining -> running -> ending (all workers left: the servers are stopped) -> over
//    \----------\-----> failing (the first loss is known: all are told and may go) -> over
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/collectives.h"
#include "cluster/effect.h"
#include "cluster/roster.h"
#include "wire/control.h"

namespace mxrdma::cluster {

struct SchedulerConfig {
  wire::JobConfig job;
  int64_t join_timeout_ms = 0;
  int64_t leave_timeout_ms = 0;  // for nodes to go once the job is ending or failing
  uint64_t generation = 0;       // random, not 0
};

// Why these settings cannot make a job, or nothing.
std::optional<std::string> invalid(const wire::JobConfig& config);

class SchedulerState {
 public:
  enum class Phase : uint8_t { joining, running, ending, failing, over };

  SchedulerState(const SchedulerConfig& config, int64_t now_ms);

  // Any message of the member is a sign of life. Handles Join, Heartbeat, Leave, Failed and Enter;
  // others break the protocol, except that ServerAck is for the node: say heard() and keep it.
  void on_message(Member member, wire::Message message, int64_t now_ms, Effects* effects);
  void heard(Member member, int64_t now_ms);
  // A peer that is not to be trusted any more.
  void protocol_broken(Member member, const std::string& what, int64_t now_ms, Effects* effects);
  void connection_lost(Member member, const std::string& reason, int64_t now_ms, Effects* effects);
  // The answer to `complete`.
  void release(uint64_t sequence, wire::Release release, Effects* effects);
  // The whole job cannot go on, though no node is to blame.
  void give_up(const Status& why, int64_t now_ms, Effects* effects);
  void tick(int64_t now_ms, Effects* effects);

  Phase phase() const { return phase_; }
  bool over() const { return phase_ == Phase::over; }
  // How the job went; ok until the first loss.
  const Status& status() const { return status_; }
  const Roster& roster() const { return roster_; }
  bool is_server(Member member) const;
  size_t waiting() const { return collectives_.waiting(); }
  size_t open_collectives() const { return collectives_.open(); }

 private:
  void on_join(Member member, const wire::Join& join, int64_t now_ms, Effects* effects);
  void start(int64_t now_ms, Effects* effects);
  void on_leave(Node* node, int64_t now_ms, Effects* effects);
  // The node is gone by error; the first one decides how the job ends. `cause`: what it said that
  // all shall raise, 0 if it is just gone.
  void gone(Node* node, wire::GoneHow how, const std::string& reason, int64_t now_ms,
            Effects* effects, uint8_t cause = 0);
  // `why` is how the scheduler itself ends, `told` what workers in a collective are told.
  void begin_failing(const Status& why, const Status& told, int64_t now_ms, Effects* effects);
  void check_end(int64_t now_ms, Effects* effects);
  void check_heartbeats(int64_t now_ms, Effects* effects);

  SchedulerConfig config_;
  Phase phase_ = Phase::joining;
  Status status_;
  Roster roster_;
  Collectives collectives_;
  int64_t deadline_ms_;  // of the phase: joining, ending, failing
  int64_t last_tick_ms_;
};

}  // namespace mxrdma::cluster
