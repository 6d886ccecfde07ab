// Two hosts checked against each other over the fabric that jobs use: can they connect, how long
// does a message take, how much goes through. For mxrdma-doctor.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/host_fabric.h"

namespace mxrdma::fabric {

constexpr size_t kMaxPairBytes = 4u << 20;  // the largest message; each end keeps twice as much
constexpr uint32_t kPairWindow = 32;        // writes on the way at a time
constexpr int kPairBandwidthMs = 500;       // for each size
constexpr int kPairLatencyMs = 500;         // at most, for each size

struct PairStep {
  uint64_t bytes = 0;
  double latency_us = 0;  // median of half a round trip
  double slowest_us = 0;
  double bytes_per_s = 0;
};

struct PairResult {
  std::string fabric;  // the data path that both ends agreed on
  std::string path;    // with addresses or devices
  double connect_ms = 0;
  std::vector<PairStep> steps;
};

// Answers one pair after the other. run() belongs to one thread, stop() to any.
class PairListener {
 public:
  explicit PairListener(const HostFabricOptions& options);
  ~PairListener();
  Result<Address> listen(const Address& address);
  // Until stop(), or with `once` until a client said that it is through.
  Status run(bool once);
  void stop();
  // What was seen so far, a line for each connection. From any thread.
  std::vector<std::string> log() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Connects and measures each size (at most kMaxPairBytes); echoes are compared byte for byte.
// `last` tells the listener that no more comes. `interrupt` is asked between messages.
Result<PairResult> measure_pair(const HostFabricOptions& options, const Address& address,
                                const std::vector<uint64_t>& sizes, bool last,
                                const std::function<Status()>& interrupt);

}  // namespace mxrdma::fabric
