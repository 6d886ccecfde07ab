#include "fabric/verbs/pick.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "fabric/devices.h"

namespace mxrdma::fabric::verbs {

std::string gid_text(const uint64_t gid[2]) {
  char text[INET6_ADDRSTRLEN] = "";
  return inet_ntop(AF_INET6, gid, text, sizeof text) == nullptr ? "?" : text;
}

std::string describe_rail(const VerbsRail& rail) {
  return rail.device + ":" + std::to_string(rail.port) + " GID " + gid_text(rail.gid) + " index " +
         std::to_string(rail.gid_index) +
         (rail.ethernet ? "" : " LID " + std::to_string(rail.lid)) + " MTU " +
         std::to_string(rail.mtu);
}

Result<Picked> pick(const Library& library, const std::string& devices,
                    const std::string& gid_index, const std::string& local_host) {
  Result<std::vector<Rail>> rails = choose_rails(device_table(), {local_host, devices, gid_index});
  if (!rails.is_ok()) return rails.status();
  const Rail& rail = rails.value().front();
  if (rail.iwarp)
    return Status(Code::unsupported,
                  rail.device +
                      " is an iWARP device; these are connected by rdma_cm, which "
                      "is not supported yet");
  int count = 0;
  ibv_device** list = library.get_device_list(&count);
  if (list == nullptr) return Status(Code::fabric, "listing RDMA devices: " + errno_text(errno));
  Picked picked;
  int error = ENODEV;
  for (int i = 0; i < count; ++i) {
    if (rail.device != library.get_device_name(list[i])) continue;
    picked.context =
        Handle<ibv_context>(library.open_device(list[i]), library.close_device, "a device");
    error = picked.context ? 0 : errno;
  }
  library.free_device_list(list);
  ibv_port_attr port{};
  if (error == 0) error = library.query_device(picked.context.get(), &picked.attributes);
  if (error == 0) error = library.query_port(picked.context.get(), rail.port, &port);
  if (error != 0) return Status(Code::fabric, "opening " + rail.device + ": " + errno_text(error));
  picked.rail.device = rail.device;
  picked.rail.port = rail.port;
  picked.rail.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  picked.rail.iwarp = rail.iwarp;
  picked.rail.lid = port.lid;
  picked.rail.gid_index = rail.gid.index;
  static_assert(sizeof picked.rail.gid == sizeof rail.gid.raw);
  std::memcpy(picked.rail.gid, rail.gid.raw.data(), rail.gid.raw.size());
  picked.rail.mtu = 128u << port.active_mtu;
  picked.max_message_bytes = port.max_msg_sz;
  return picked;
}

}  // namespace mxrdma::fabric::verbs
