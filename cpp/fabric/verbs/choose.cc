// The address that the job uses -> device, port and GID entry. Pure.
#include <algorithm>
#include <charconv>

#include "fabric/devices.h"
#include "fabric/verbs/gid.h"

namespace mxrdma::fabric {
namespace {

using verbs::IpAddress;

constexpr size_t kMaxRails = 16;
constexpr char kSeeDoctor[] = "; mxrdma-doctor shows devices, ports and GID tables";

struct Name {
  std::string device;
  int port = 0;  // 0: not given
};

std::optional<uint32_t> parse_number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

Status bad_list(const std::string& list, const std::string& reason) {
  return Status(Code::config, "device list '" + list + "' " + reason +
                                  "; write names with ports, such as mlx5_0:1,mlx5_1:1");
}

Result<std::vector<Name>> parse_names(const std::string& list) {
  std::vector<Name> names;
  for (size_t from = 0; from <= list.size();) {
    const size_t comma = std::min(list.find(',', from), list.size());
    std::string text = list.substr(from, comma - from);
    from = comma + 1;
    text.erase(0, text.find_first_not_of(' '));
    text.erase(text.find_last_not_of(' ') + 1);
    Name name;
    const size_t colon = text.find(':');
    name.device = text.substr(0, colon);
    if (name.device.empty()) return bad_list(list, "has an empty name");
    if (colon != std::string::npos) {
      const std::optional<uint32_t> port = parse_number(std::string_view(text).substr(colon + 1));
      if (!port || *port < 1 || *port > 255)
        return bad_list(list, "has a port in '" + text + "' that is no number from 1 to 255");
      name.port = static_cast<int>(*port);
    }
    for (const Name& other : names)
      if (other.device == name.device && other.port == name.port)
        return bad_list(list, "names '" + text + "' twice");
    names.push_back(name);
    if (names.size() > kMaxRails) return bad_list(list, "has more than 16 entries");
  }
  return names;
}

std::string port_name(const DeviceInfo& device, const PortInfo& port) {
  return device.name + " port " + std::to_string(port.number);
}

Status unusable(const DeviceInfo& device) {
  return Status(Code::fabric, "RDMA device " + device.name + " cannot be used: " + device.problem +
                                  (device.mend.empty() ? "" : "; " + device.mend));
}

Status down(const DeviceInfo& device, const PortInfo& port) {
  return Status(Code::fabric,
                port_name(device, port) + " is " + port.state + " (" + port.physical_state +
                    "): check cable, switch and `ip link`" +
                    (port.link_layer == "InfiniBand" ? ", and that a subnet manager runs" : ""));
}

bool carries(const GidEntry& entry, const IpAddress& address) {
  return entry.raw == address.raw &&
         (address.scope.empty() || entry.interface.empty() || entry.interface == address.scope);
}

// How well an entry serves for an address; 0: not at all.
int fitness(const GidEntry& entry, const std::optional<IpAddress>& address) {
  if (entry.type == GidType::ib || entry.type == GidType::iwarp) return 1;
  if (entry.type != GidType::roce_v2) return 0;
  if (address && carries(entry, *address)) return 4;
  if (verbs::is_link_local(entry.raw)) return 0;
  const bool want_ipv4 = !address || address->ipv4();
  return verbs::is_ipv4_mapped(entry.raw) == want_ipv4 ? 3 : 2;
}

const char* reason_of(int fitness, const GidEntry& entry, bool with_address) {
  if (entry.type == GidType::ib) return "the port's own GID";
  if (entry.type == GidType::iwarp) return "iWARP: connections are made by address";
  if (fitness == 4) return "RoCE v2 entry of the job's address";
  if (!with_address) return "first routable RoCE v2 entry";
  if (fitness == 3) return "first routable RoCE v2 entry of the job's address family";
  return "only routable RoCE v2 entry is of the other address family";
}

Rail make_rail(const DeviceInfo& device, const PortInfo& port, const GidEntry& entry,
               std::string why) {
  Rail rail;
  rail.device = device.name;
  rail.port = port.number;
  rail.gid = entry;
  rail.link_layer = port.link_layer;
  rail.rate = port.rate;
  rail.iwarp = device.iwarp();
  rail.lid = port.lid;
  rail.mtu = port.active_mtu;
  rail.why = std::move(why);
  return rail;
}

Result<Rail> forced_gid(const DeviceInfo& device, const PortInfo& port, const std::string& text) {
  const std::optional<uint32_t> index = parse_number(text);
  if (!index)
    return Status(Code::config, "GID index '" + text + "' is neither 'auto' nor a number");
  for (const GidEntry& entry : port.gids)
    if (entry.index == *index) {
      std::string why = "GID index " + text + " was asked for";
      if (entry.type == GidType::roce_v1) why += "; RoCE v1 does not cross routers";
      if (entry.type == GidType::roce_v2 && verbs::is_link_local(entry.raw))
        why += "; a link-local address reaches only peers that use theirs";
      return make_rail(device, port, entry, why);
    }
  return Status(Code::config, "GID index " + text + " was asked for (MXRDMA_GID_INDEX), and " +
                                  port_name(device, port) + " has no such entry; it has " +
                                  verbs::list_gids(port));
}

// IPoIB's and iWARP's addresses stand beside the GIDs.
bool carries(const PortInfo& port, const IpAddress& address) {
  return std::any_of(port.gids.begin(), port.gids.end(),
                     [&](const GidEntry& entry) { return carries(entry, address); }) ||
         std::any_of(port.addresses.begin(), port.addresses.end(), [&](const std::string& text) {
           const std::optional<IpAddress> own = verbs::parse_address(text);
           return own && own->raw == address.raw &&
                  (address.scope.empty() || own->scope.empty() || own->scope == address.scope);
         });
}

// The port of a named device when none was named: the one of the address, else the first active.
const PortInfo* default_port(const DeviceInfo& device, const std::optional<IpAddress>& address) {
  const PortInfo* found = nullptr;
  for (const PortInfo& port : device.ports) {
    if (!port.active()) continue;
    if (address && carries(port, *address)) return &port;
    if (!found) found = &port;
  }
  return found;
}

Result<Rail> named_rail(const DeviceTable& table, const Name& name, const DeviceWish& wish) {
  const DeviceInfo* device = nullptr;
  std::string known;
  for (const DeviceInfo& candidate : table.devices) {
    known += (known.empty() ? "" : ", ") + candidate.name;
    if (candidate.name == name.device) device = &candidate;
  }
  if (!device)
    return Status(Code::config,
                  "there is no RDMA device '" + name.device + "' on this host; " +
                      (known.empty() ? "there is none at all" : "there are " + known));
  const std::optional<IpAddress> address = verbs::parse_address(wish.address);
  if (name.port) {
    for (const PortInfo& port : device->ports) {
      if (port.number != name.port) continue;
      if (!port.active() && (device->usable() || device->usability == Usability::port_down))
        return down(*device, port);
      if (!device->usable()) return unusable(*device);
      return choose_gid(*device, port, wish.address, wish.gid_index);
    }
    if (!device->usable()) return unusable(*device);
    return Status(Code::config, "RDMA device " + device->name + " has no port " +
                                    std::to_string(name.port) + "; it has " +
                                    std::to_string(device->ports.size()));
  }
  if (!device->usable()) return unusable(*device);
  const PortInfo* port = default_port(*device, address);
  if (!port) return Status(Code::fabric, "RDMA device " + device->name + " has no active port");
  return choose_gid(*device, *port, wish.address, wish.gid_index);
}

std::string carried_addresses(const DeviceTable& table) {
  std::string text;
  for (const DeviceInfo& device : table.devices) {
    for (const PortInfo& port : device.ports) {
      std::string state = device.usable() ? port.active() ? "" : port.state : device.problem;
      text += (text.empty() ? "" : "; ") + port_name(device, port) + " has " +
              verbs::list_gids(port) + (state.empty() ? "" : " [" + state + "]");
    }
  }
  return text;
}

Result<Rail> rail_for_address(const DeviceTable& table, const IpAddress& address,
                              const DeviceWish& wish) {
  Status first_problem;
  for (const DeviceInfo& device : table.devices) {
    for (const PortInfo& port : device.ports) {
      if (!carries(port, address)) continue;
      Status problem = !device.usable() ? unusable(device)
                       : !port.active() ? down(device, port)
                                        : Status::ok();
      if (problem.is_ok()) return choose_gid(device, port, wish.address, wish.gid_index);
      if (first_problem.is_ok()) first_problem = problem;
    }
  }
  if (!first_problem.is_ok()) return first_problem;
  return Status(Code::closed, "");  // nobody carries it
}

Result<Rail> first_usable(const DeviceTable& table, const DeviceWish& wish, bool infiniband_only,
                          const std::string& why) {
  Status first_problem = Status(Code::closed, "");
  for (const DeviceInfo& device : table.devices) {
    for (const PortInfo& port : device.ports) {
      if (!device.usable() || !port.active()) continue;
      if (infiniband_only && port.link_layer != "InfiniBand") continue;
      Result<Rail> rail = choose_gid(device, port, "", wish.gid_index);
      if (rail.is_ok()) {
        rail.value().why += "; " + why;
        return rail;
      }
      if (first_problem.code() == Code::closed) first_problem = rail.status();
    }
  }
  return first_problem;
}

Status no_device(const DeviceTable& table) {
  if (!table.library_problem.empty() && table.devices.empty())
    return Status(Code::fabric, "no RDMA device: " + table.library_problem);
  if (table.devices.empty())
    return Status(
        Code::fabric,
        "this host has no RDMA device: /sys/class/infiniband is empty; load the driver of "
        "the card (mlx5_ib, irdma, bnxt_re, …), or use --fabric tcp");
  std::string reasons;
  for (const DeviceInfo& device : table.devices)
    if (!device.usable())
      reasons += (reasons.empty() ? "" : "; ") + device.name + ": " + device.problem +
                 (device.mend.empty() ? "" : " (" + device.mend + ")");
  return Status(Code::fabric, "no RDMA device of this host is usable: " + reasons);
}

Result<Rail> automatic_rail(const DeviceTable& table, const DeviceWish& wish) {
  const bool any = std::any_of(table.devices.begin(), table.devices.end(),
                               [](const DeviceInfo& device) { return device.usable(); });
  const std::optional<IpAddress> address = verbs::parse_address(wish.address);
  if (!address)
    return Status(Code::config, "'" + wish.address + "' is no numeric address to find a device by");
  if (address->loopback() || address->unspecified()) {
    if (!any) return no_device(table);
    return first_usable(table, wish, false, "the job's address names no interface");
  }
  Result<Rail> rail = rail_for_address(table, *address, wish);
  if (rail.is_ok() || rail.status().code() != Code::closed) return rail;
  if (!any) return no_device(table);
  rail = first_usable(table, wish, true, "InfiniBand needs no address of its own");
  if (rail.is_ok() || rail.status().code() != Code::closed) return rail;
  return Status(Code::fabric, "no RDMA device carries the job's address " + wish.address + ": " +
                                  carried_addresses(table) +
                                  "; choose the interface (MXRDMA_INTERFACE) or the device "
                                  "(MXRDMA_DEVICE)" +
                                  kSeeDoctor);
}

}  // namespace

const char* usability_name(Usability usability) {
  switch (usability) {
    case Usability::usable:
      return "usable";
    case Usability::no_library:
      return "no library";
    case Usability::no_device_file:
      return "no device file";
    case Usability::no_permission:
      return "no permission";
    case Usability::no_provider:
      return "no provider library";
    case Usability::open_failed:
      return "cannot be opened";
    case Usability::no_connections:
      return "no reliable connections";
    case Usability::port_down:
      return "port down";
  }
  return "?";
}

std::string Rail::text() const {
  std::string text = device + " port " + std::to_string(port) + ", GID " +
                     std::to_string(gid.index) + " (" + gid_type_name(gid.type) + ", " +
                     gid.text() + (gid.interface.empty() ? "" : ", " + gid.interface) + ")";
  if (mtu) text += ", MTU " + std::to_string(mtu);
  return text + (rate.empty() ? "" : ", " + rate);
}

Result<Rail> choose_gid(const DeviceInfo& device, const PortInfo& port, const std::string& address,
                        const std::string& gid_index) {
  if (!gid_index.empty() && gid_index != "auto") return forced_gid(device, port, gid_index);
  std::optional<IpAddress> wanted = verbs::parse_address(address);
  if (wanted && (wanted->loopback() || wanted->unspecified())) wanted.reset();
  const GidEntry* best = nullptr;
  int best_fitness = 0;
  for (const GidEntry& entry : port.gids) {
    const int value = fitness(entry, wanted);
    if (value > best_fitness) {
      best = &entry;
      best_fitness = value;
    }
  }
  if (best)
    return make_rail(device, port, *best, reason_of(best_fitness, *best, wanted.has_value()));
  const bool ethernet = port.link_layer != "InfiniBand";
  return Status(Code::fabric, port_name(device, port) + " has no " +
                                  (ethernet ? "routable RoCE v2 entry in its GID table" : "GID") +
                                  ": it has " + verbs::list_gids(port) +
                                  (ethernet ? "; give its network interface an IP address, or set "
                                              "MXRDMA_GID_INDEX"
                                            : ""));
}

Result<std::vector<Rail>> choose_rails(const DeviceTable& table, const DeviceWish& wish) {
  std::vector<Rail> rails;
  if (wish.devices.empty()) {
    Result<Rail> rail = automatic_rail(table, wish);
    if (!rail.is_ok()) return rail.status();
    rails.push_back(std::move(rail.value()));
    return rails;
  }
  Result<std::vector<Name>> names = parse_names(wish.devices);
  if (!names.is_ok()) return names.status();
  for (const Name& name : names.value()) {
    Result<Rail> rail = named_rail(table, name, wish);
    if (!rail.is_ok()) return rail.status();
    rails.push_back(std::move(rail.value()));
  }
  return rails;
}

}  // namespace mxrdma::fabric
