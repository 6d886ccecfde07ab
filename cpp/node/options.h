// What a process needs to know to take its role. Filled by mxrdma/config.py, the only reader of the
// environment.
#pragma once

#include <algorithm>
#include <string>

#include "base/limits.h"
#include "fabric/host_fabric.h"
#include "wire/control.h"

namespace mxrdma::node {

// For Fabric::be_patient_on_loop.
inline int patience_ms(const wire::JobConfig& config) {
  // At most a week (cluster::invalid), of which two fit.
  return std::max(kUnacknowledgedMs, 2 * static_cast<int>(config.heartbeat_timeout_ms));
}

struct NodeOptions {
  fabric::Address
      scheduler;  // where the scheduler listens (its own process: where it shall listen)
  std::string token;
  fabric::Policy policy = fabric::Policy::automatic;
  std::string devices,
      gid_index = "auto";               // RDMA devices by name, empty: by the address; GID entry
  std::string bind_host = "127.0.0.1";  // the chosen interface's address; servers listen there
  std::string host_name;                // as people know this machine; for messages
  uint32_t preferred_rank = wire::kAnyRank;
  int join_timeout_ms = kJoinTimeoutMs;
  int compute_threads = 0;  // servers: 0 computes on the progress thread
  int spin_us = -1;
};

}  // namespace mxrdma::node
