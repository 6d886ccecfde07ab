// The fabric of real processes: one listener, one epoll, a TCP control connection to each peer, and
// for each peer the data path that both ends can use: shm on the same host, verbs where both ends
// have a usable device, tcp otherwise.
#pragma once

#include <memory>
#include <string>

#include "fabric/fabric.h"

namespace mxrdma::fabric {

// What an end insists on. `control` is a scheduler: it moves no tensors, so verbs is never needed
// to reach it, whatever the other end insists on for its data.
enum class Policy : uint8_t { automatic, shm, tcp, verbs, control };

struct HostFabricOptions {
  Policy policy = Policy::automatic;
  std::string token;  // the job's secret; a peer that cannot prove it is refused
  int handshake_timeout_ms = kHandshakeTimeoutMs;
  std::string devices;  // RDMA devices by name, "mlx5_0:1,mlx5_1:1"; empty: chosen by address
  std::string gid_index = "auto";  // or a number, for all devices
  int spin_us = -1;                // busy polling before sleep; -1: decided by the number of cores
};

// Whether this host can run the policy, and if not why. Never throws.
Status viable(Policy policy);

std::unique_ptr<Fabric> make_host_fabric(const HostFabricOptions& options);

}  // namespace mxrdma::fabric
