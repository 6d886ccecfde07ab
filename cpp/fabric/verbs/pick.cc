#include "fabric/verbs/pick.h"

#include <cerrno>
#include <cstring>

namespace mxrdma::fabric::verbs {
namespace {
constexpr size_t kMaxRateBytes = 64;  // fits into the handshake's texts
}  // namespace

GidEntry entry_of(const VerbsRail& rail) {
  GidEntry entry;
  entry.index = rail.gid_index;
  static_assert(sizeof rail.gid == sizeof entry.raw);
  std::memcpy(entry.raw.data(), rail.gid, sizeof rail.gid);
  entry.type = static_cast<GidType>(rail.gid_type);
  return entry;
}

std::string describe_rail(const VerbsRail& rail) {
  const std::string rate = rail.rate.empty() ? "" : ", " + rail.rate;
  if (rail.iwarp)
    return rail.device + ":" + std::to_string(rail.port) + " (iWARP) " + rail.cm_host + " MTU " +
           std::to_string(rail.mtu) + rate;
  return rail.device + ":" + std::to_string(rail.port) + " GID " + entry_of(rail).text() +
         " index " + std::to_string(rail.gid_index) +
         (rail.ethernet ? "" : " LID " + std::to_string(rail.lid)) + " MTU " +
         std::to_string(rail.mtu) + rate;
}

namespace {

Status open_by_name(const Library& library, const Rail& rail, Picked* picked) {
  int count = 0;
  ibv_device** list = library.get_device_list(&count);
  if (list == nullptr) return Status(Code::fabric, "listing RDMA devices: " + errno_text(errno));
  int error = ENODEV;
  for (int i = 0; i < count; ++i) {
    if (rail.device != library.get_device_name(list[i])) continue;
    picked->context =
        Handle<ibv_context>(library.open_device(list[i]), library.close_device, "a device");
    error = picked->context ? 0 : errno;
  }
  library.free_device_list(list);
  return error == 0 ? Status::ok()
                    : Status(Code::fabric, "opening " + rail.device + ": " + errno_text(error));
}

// The job's own address if the port carries it, else the port's first.
std::string address_of(const DeviceTable& table, const Rail& rail, const std::string& local_host) {
  for (const DeviceInfo& device : table.devices)
    for (const PortInfo& port : device.ports) {
      if (device.name != rail.device || port.number != rail.port) continue;
      for (const std::string& address : port.addresses)
        if (address == local_host) return address;
      return port.addresses.empty() ? "" : port.addresses.front();
    }
  return "";
}

Status open_by_address(const Library& library, const DeviceTable& table, const Rail& rail,
                       const std::string& local_host, Picked* picked) {
  const std::string address = address_of(table, rail, local_host);
  if (address.empty())
    return Status(Code::fabric, rail.device +
                                    " is an iWARP device, which is connected by address, "
                                    "and its network interface has none");
  Result<std::unique_ptr<CmPort>> cm = CmPort::open(library, address);
  if (!cm.is_ok()) return cm.status();
  picked->cm = std::move(cm.value());
  ibv_context* context = picked->cm->context();
  const char* name = library.get_device_name(context->device);
  if (rail.device != name)
    return Status(Code::fabric, "rdma_cm takes " + std::string(name) + " for " + address +
                                    " rather than " + rail.device);
  picked->context = Handle<ibv_context>(
      context, [](ibv_context*) { return 0; }, "a device");
  picked->rail.cm_host = address;
  picked->rail.cm_port = picked->cm->port();
  return Status::ok();
}

}  // namespace

Result<Picked> pick(const Library& library, const std::string& devices,
                    const std::string& gid_index, const std::string& local_host) {
  const DeviceTable table = device_table();
  Result<std::vector<Rail>> rails = choose_rails(table, {local_host, devices, gid_index});
  if (!rails.is_ok()) return rails.status();
  const Rail& rail = rails.value().front();
  Picked picked;
  Status opened = rail.iwarp ? open_by_address(library, table, rail, local_host, &picked)
                             : open_by_name(library, rail, &picked);
  if (!opened.is_ok()) return opened;
  ibv_port_attr port{};
  int error = library.query_device(picked.context.get(), &picked.attributes);
  if (error == 0) error = library.query_port(picked.context.get(), rail.port, &port);
  if (error != 0) return Status(Code::fabric, "opening " + rail.device + ": " + errno_text(error));
  picked.rail.device = rail.device;
  picked.rail.port = rail.port;
  picked.rail.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  picked.rail.iwarp = rail.iwarp;
  picked.rail.rate = rail.rate.substr(0, kMaxRateBytes);
  picked.rail.lid = port.lid;
  picked.rail.gid_index = rail.gid.index;
  picked.rail.gid_type = static_cast<uint8_t>(rail.gid.type);
  static_assert(sizeof picked.rail.gid == sizeof rail.gid.raw);
  std::memcpy(picked.rail.gid, rail.gid.raw.data(), rail.gid.raw.size());
  picked.rail.mtu = 128u << port.active_mtu;
  picked.max_message_bytes = port.max_msg_sz;
  return picked;
}

}  // namespace mxrdma::fabric::verbs
