// Collectives of all workers: the n-th Enter of each worker belongs to collective n. Each Enter is
// answered by exactly one Release.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/effect.h"
#include "cluster/roster.h"
#include "wire/control.h"

namespace mxrdma::cluster {

// A worker blocks in each collective; only one that was interrupted may be in several.
constexpr uint64_t kMaxOpenCollectives = 16;

class Collectives {
 public:
  Collectives(const Roster* roster, int64_t stall_report_ms, int64_t timeout_ms)
      : roster_(roster), stall_report_ms_(stall_report_ms), timeout_ms_(timeout_ms) {}

  // Error: the worker broke the protocol (a sequence out of order, too many open ones).
  Status enter(const Node& worker, wire::Enter enter, int64_t now_ms, Effects* effects);
  // The word of the one who got `complete`. Unknown sequences (ended meanwhile) are passed over.
  void release(uint64_t sequence, wire::Release release, Effects* effects);
  // The worker will enter no more: whoever waits for it is released with `why`.
  void worker_gone(const Node& worker, const Status& why, Effects* effects);
  // Ends all open collectives, and every later one, with `why`.
  void fail(const Status& why, Effects* effects);
  void tick(int64_t now_ms, Effects* effects);

  size_t waiting() const;  // Enters that have no Release yet
  size_t open() const { return open_.size(); }

 private:
  struct Collective {
    wire::CollectiveKind kind = wire::CollectiveKind::barrier;
    std::string label;
    int64_t since_ms = 0;
    int64_t next_report_ms = 0;              // age
    std::map<uint32_t, wire::Enter> enters;  // by rank; those that wait
    std::set<uint32_t> entered;              // ranks, answered ones too
    bool deciding = false;                   // complete, the node decides
    Status ended;                            // not ok: later ones get the same answer
  };

  void end(uint64_t sequence, Collective* collective, const Status& why, Effects* effects);
  void forget_if_over(uint64_t sequence);
  void answer(uint32_t rank, uint64_t sequence, const Status& why, Effects* effects) const;
  std::string missing_text(const Collective& collective) const;

  const Roster* roster_;
  int64_t stall_report_ms_;
  int64_t timeout_ms_;
  std::map<uint64_t, Collective> open_;
  std::map<uint32_t, uint64_t> last_sequence_;  // by rank
  std::map<uint32_t, Status> gone_;             // by rank
  Status failure_;
};

}  // namespace mxrdma::cluster
