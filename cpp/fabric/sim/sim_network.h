// A network in one process and one thread with virtual time, for tests: whole clusters run from a
// seed and each failure replays.
//
// Endpoints are made by make_fabric() and satisfy fabric.h, with one difference: poll() never
// waits, whatever its timeout; it returns what is due. Time stands still until advance() or
// advance_to() moves it. Memory is copied when a write is delivered, not when it is posted, so that
// a source that its owner overwrites before `done` shows up as wrong data at the receiver.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace mxrdma::fabric {

struct SimLatency {
  int64_t min_us = 5, max_us = 50;  // of each message, drawn anew
  int64_t bytes_per_us = 10'000;    // of each direction of a connection
};

class SimEndpoint;
struct SimConnection;

// Must outlive the fabrics that it made.
class SimNetwork final : public Clock {
 public:
  explicit SimNetwork(uint64_t seed, const SimLatency& latency = {});
  ~SimNetwork() override;
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  std::unique_ptr<Fabric> make_fabric(const std::string& name);
  // What endpoints say of memory from now on, see fabric.h.
  // most_regions: so many of the caller's are described at a time, then the system pins no more.
  void set_memory(bool keeps_registrations, bool may_register_callers_memory,
                  size_t most_regions = SIZE_MAX) {
    most_regions_ = most_regions;
    keeps_registrations_ = keeps_registrations;
    may_register_callers_memory_ = may_register_callers_memory;
  }

  // ---- time ----
  int64_t now_ms() const override { return now_us_ / 1000; }
  int64_t now_us() const { return now_us_; }
  // When something happens next, if nothing is posted until then.
  std::optional<int64_t> next_due_us() const;
  // To the next thing that happens. False: nothing will, time stands.
  bool advance();
  // To this time and through all that happens until then.
  void advance_to(int64_t time_us);

  // How many regions the endpoint has that were not released.
  static size_t regions(const Fabric& endpoint);

  // ---- faults ----
  // As if the process had been killed: its peers see `lost`; it sees and does nothing any more.
  void kill(Fabric* endpoint);
  // Silence between the two from now on, without `lost`, as if a cable were pulled. What was under
  // way is held and goes on after heal().
  void partition(Fabric* one, Fabric* other);
  // Silence between this one and all others.
  void isolate(Fabric* endpoint);
  void heal();

 private:
  friend class SimEndpoint;
  size_t most_regions_ = SIZE_MAX;
  bool keeps_registrations_ = false, may_register_callers_memory_ = true;

  struct Action {
    int64_t time_us = 0;
    uint64_t sequence = 0;
    std::function<void()> run;
  };
  struct Later {
    bool operator()(const Action& a, const Action& b) const {
      return a.time_us != b.time_us ? a.time_us > b.time_us : a.sequence > b.sequence;
    }
  };

  uint64_t random(uint64_t bound) { return bound == 0 ? 0 : generator_() % bound; }
  int64_t latency_us();
  void at(int64_t time_us, std::function<void()> run);
  // Something that crosses the connection: held back while its ends are apart.
  void across(SimConnection* connection, int64_t time_us, std::function<void()> run);
  bool apart(const SimConnection& connection) const;
  void run_due();

  std::mt19937_64 generator_;
  SimLatency latency_;
  int64_t now_us_ = 1'000'000;  // not zero: the origin is arbitrary
  uint64_t next_sequence_ = 0;
  uint16_t next_port_ = 20'000;
  std::vector<Action> actions_;  // a heap by Later
  std::vector<std::unique_ptr<SimConnection>> connections_;
  std::map<std::pair<std::string, uint16_t>, SimEndpoint*> listeners_;
  std::vector<std::pair<const Fabric*, const Fabric*>> cuts_;  // second null: all others
};

}  // namespace mxrdma::fabric
