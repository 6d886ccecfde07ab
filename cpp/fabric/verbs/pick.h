// Which device, port and GID a fabric uses.
#pragma once

#include <memory>
#include <string>

#include "fabric/bootstrap/handshake.h"
#include "fabric/devices.h"
#include "fabric/verbs/cm.h"
#include "fabric/verbs/handle.h"
#include "fabric/verbs/library.h"

namespace mxrdma::fabric::verbs {

// An opened device with the port and GID that are used.
struct Picked {
  std::unique_ptr<CmPort> cm;  // iWARP: whose device it then is
  Handle<ibv_context> context;
  ibv_device_attr attributes{};
  uint64_t max_message_bytes = 0;
  VerbsRail rail;  // what is known without a queue pair
};

// `devices` as in HostFabricOptions; if empty, the one whose GID is that of `local_host`.
Result<Picked> pick(const Library& library, const std::string& devices,
                    const std::string& gid_index, const std::string& local_host);
std::string describe_rail(const VerbsRail& rail);
// Its entry of the GID table, as far as the other end knows it.
GidEntry entry_of(const VerbsRail& rail);

}  // namespace mxrdma::fabric::verbs
