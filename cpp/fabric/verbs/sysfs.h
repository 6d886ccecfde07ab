// What the kernel shows of RDMA devices, without any library: /sys/class/infiniband, the device
// files behind it, and network interfaces that belong to a port.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabric/devices.h"

namespace mxrdma::fabric::verbs {

// The file's first line without white space at its end; nothing if it cannot be read.
std::optional<std::string> read_line(const std::string& path);
// Names in a folder in natural order, without "." and ".."; empty if it cannot be read.
std::vector<std::string> list_folder(const std::string& path);

// All devices with ports, GIDs and interfaces. Usability is set as far as device files and port
// states tell it.
std::vector<DeviceInfo> read_sysfs(const Places& places);

}  // namespace mxrdma::fabric::verbs
