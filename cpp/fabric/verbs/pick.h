// Which device, port and GID a fabric uses.
#pragma once

#include <string>

#include "fabric/bootstrap/handshake.h"
#include "fabric/verbs/handle.h"
#include "fabric/verbs/library.h"

namespace mxrdma::fabric::verbs {

// An opened device with the port and GID that are used.
struct Picked {
  Handle<ibv_context> context;
  ibv_device_attr attributes{};
  uint64_t max_message_bytes = 0;
  VerbsRail rail;  // what is known without a queue pair
};

// `devices` as in HostFabricOptions; if empty, the one whose GID is that of `local_host`.
Result<Picked> pick(const Library& library, const std::string& devices,
                    const std::string& gid_index, const std::string& local_host);
std::string gid_text(const uint64_t gid[2]);
std::string describe_rail(const VerbsRail& rail);

}  // namespace mxrdma::fabric::verbs
