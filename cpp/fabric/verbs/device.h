// Asking devices by libibverbs. One device's trouble is its own: it is written into its entry.
#pragma once

#include "fabric/devices.h"
#include "fabric/verbs/library.h"

namespace mxrdma::fabric::verbs {

// Opens a device by name. The error names the device and what to check. Close with close_device.
Result<ibv_context*> open_device(const Library& library, const std::string& name);

int mtu_bytes(ibv_mtu mtu);  // 0 for what is no MTU

// Fills in what only the opened device tells: limits, MTU, whether it can be opened at all.
void ask_device(const Library& library, DeviceInfo* device);

}  // namespace mxrdma::fabric::verbs
