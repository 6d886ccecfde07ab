#include "fabric/verbs/sysfs.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/limits.h"
#include "fabric/fd.h"
#include "fabric/verbs/gid.h"

namespace mxrdma::fabric::verbs {
namespace {

constexpr size_t kMaxLineBytes = 4096;  // sysfs gives at most a page

struct Interface {
  std::string name, mac;               // mac as sysfs writes it
  std::vector<std::string> addresses;  // numeric, with scope where link-local
};

uint32_t number_of(const std::string& text, int base = 10) {
  uint32_t value = 0;
  const size_t skip = base == 16 && text.rfind("0x", 0) == 0 ? 2 : 0;
  std::from_chars(text.data() + skip, text.data() + text.size(), value, base);
  return value;
}

// "4: ACTIVE" -> "ACTIVE"
std::string behind_colon(const std::string& text) {
  const size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

std::string last_part_of_link(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t bytes = readlink(path.c_str(), target, sizeof(target) - 1);
  if (bytes <= 0) return "";
  target[bytes] = '\0';
  const char* slash = std::strrchr(target, '/');
  return slash ? slash + 1 : target;
}

bool parse_gid(const std::string& text, GidBytes* gid) {
  in6_addr raw;
  if (inet_pton(AF_INET6, text.c_str(), &raw) != 1) return false;
  std::memcpy(gid->data(), &raw, gid->size());
  return true;
}

std::vector<GidEntry> read_gids(const std::string& port_path, const std::string& link_layer,
                                bool iwarp) {
  std::vector<GidEntry> gids;
  for (const std::string& name : list_folder(port_path + "/gids")) {
    if (gids.size() == kMaxGids) break;
    GidEntry entry;
    entry.index = number_of(name);
    const std::optional<std::string> text = read_line(port_path + "/gids/" + name);
    if (!text || !parse_gid(*text, &entry.raw) || is_empty(entry.raw)) continue;
    // An entry that just vanished has no attributes any more.
    const std::optional<std::string> type = read_line(port_path + "/gid_attrs/types/" + name);
    if (iwarp) {
      entry.type = GidType::iwarp;
    } else if (link_layer == "InfiniBand") {
      entry.type = GidType::ib;
    } else if (!type) {
      continue;
    } else {
      entry.type = *type == "RoCE v2" ? GidType::roce_v2 : GidType::roce_v1;
    }
    entry.interface = read_line(port_path + "/gid_attrs/ndevs/" + name).value_or("");
    gids.push_back(entry);
  }
  return gids;
}

std::vector<Interface> read_interfaces(const Places& places) {
  std::vector<Interface> interfaces;
  for (const std::string& name : list_folder(places.sys + "/class/net"))
    interfaces.push_back(
        {name, read_line(places.sys + "/class/net/" + name + "/address").value_or(""), {}});
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return interfaces;
  std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(first, &freeifaddrs);
  for (const ifaddrs* one = first; one; one = one->ifa_next) {
    if (!one->ifa_addr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    const int family = one->ifa_addr->sa_family;
    const void* raw = nullptr;
    if (family == AF_INET) raw = &reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (family == AF_INET6) raw = &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    if (!raw || !inet_ntop(family, raw, text, sizeof(text))) continue;
    std::string address = text;
    if (const std::optional<IpAddress> parsed = parse_address(address);
        parsed && is_link_local(parsed->raw))
      address += std::string("%") + one->ifa_name;
    for (Interface& interface : interfaces)
      if (interface.name == one->ifa_name) interface.addresses.push_back(address);
  }
  return interfaces;
}

// iWARP devices name their port by the hardware address of its interface.
std::string mac_of(const GidBytes& gid) {
  char text[18];
  snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", gid[0], gid[1], gid[2], gid[3],
           gid[4], gid[5]);
  return text;
}

bool belongs(const Places& places, const Interface& interface, const DeviceInfo& device,
             const PortInfo& port) {
  for (const GidEntry& entry : port.gids) {
    if (entry.interface == interface.name) return true;
    if (entry.type == GidType::iwarp && mac_of(entry.raw) == interface.mac) return true;
  }
  const std::string path = places.sys + "/class/net/" + interface.name;
  if (access((path + "/device/infiniband/" + device.name).c_str(), F_OK) != 0) return false;
  // Several ports of one function have their interfaces counted from 0 in dev_port.
  if (device.ports.size() == 1) return true;
  return number_of(read_line(path + "/dev_port").value_or("0")) + 1 == port.number;
}

PortInfo read_port(const std::string& path, const std::string& name, bool iwarp) {
  PortInfo port;
  port.number = static_cast<uint8_t>(number_of(name));
  port.state = behind_colon(read_line(path + "/state").value_or("?"));
  port.physical_state = behind_colon(read_line(path + "/phys_state").value_or("?"));
  port.link_layer = read_line(path + "/link_layer").value_or("?");
  port.rate = read_line(path + "/rate").value_or("");
  port.lid = number_of(read_line(path + "/lid").value_or("0"), 16);
  port.gids = read_gids(path, port.link_layer, iwarp);
  return port;
}

std::string device_file_of(const Places& places, const std::string& device) {
  const std::string folder = places.sys + "/class/infiniband_verbs";
  for (const std::string& name : list_folder(folder))
    if (read_line(folder + "/" + name + "/ibdev") == device)
      return places.dev + "/infiniband/" + name;
  return "";
}

void judge(DeviceInfo* device, Usability usability, std::string problem, std::string mend) {
  device->usability = usability;
  device->problem = std::move(problem);
  device->mend = std::move(mend);
}

void judge_file(DeviceInfo* device) {
  const std::string& file = device->device_file;
  if (file.empty())
    return judge(device, Usability::no_device_file, "the kernel offers no verbs for it",
                 "load the module: modprobe ib_uverbs");
  const int opened = open(file.c_str(), O_RDWR | O_CLOEXEC);
  const int error = errno;
  if (opened >= 0) {
    close(opened);
    return;
  }
  if (error == ENOENT)
    return judge(
        device, Usability::no_device_file, file + " is not there",
        "in a container, pass it in: docker run --device " + file +
            " (Kubernetes: an RDMA device plugin); on a host, see udev's rules of rdma-core");
  if (error == EACCES || error == EPERM)
    return judge(device, Usability::no_permission,
                 file + " may not be opened by this user (" + errno_text(error) + ")",
                 "make it readable and writable (chmod 666 " + file +
                     ", udev's default), or in a container allow it in the device cgroup "
                     "(docker run --device)");
  judge(device, Usability::open_failed, file + " cannot be opened: " + errno_text(error),
        "see the kernel's log (dmesg)");
}

void judge_ports(DeviceInfo* device) {
  if (std::any_of(device->ports.begin(), device->ports.end(),
                  [](const PortInfo& port) { return port.active(); }))
    return;
  std::string states;
  for (const PortInfo& port : device->ports)
    states += (states.empty() ? "port " : ", port ") + std::to_string(port.number) + " is " +
              port.state + " (" + port.physical_state + ")";
  judge(
      device, Usability::port_down, states.empty() ? "it has no port" : states,
      "check cable and switch, `ip link set ... up`, and on InfiniBand that a subnet manager runs");
}

}  // namespace

std::optional<std::string> read_line(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  char buffer[kMaxLineBytes];
  const ssize_t bytes = read(file.get(), buffer, sizeof(buffer));
  if (bytes < 0) return std::nullopt;
  std::string line(buffer, static_cast<size_t>(bytes));
  line.resize(std::min(line.find('\n'), line.size()));
  line.erase(line.find_last_not_of(" \t\r") + 1);
  return line;
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = opendir(path.c_str());
  if (!folder) return names;
  while (const dirent* entry = readdir(folder))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(folder);
  std::sort(names.begin(), names.end(), [](const std::string& left, const std::string& right) {
    return strverscmp(left.c_str(), right.c_str()) < 0;
  });
  return names;
}

std::vector<DeviceInfo> read_sysfs(const Places& places) {
  std::vector<DeviceInfo> devices;
  const std::vector<Interface> interfaces = read_interfaces(places);
  for (const std::string& name : list_folder(places.sys + "/class/infiniband")) {
    if (devices.size() == kMaxRdmaDevices) break;
    const std::string path = places.sys + "/class/infiniband/" + name;
    DeviceInfo device;
    device.name = name;
    device.transport = behind_colon(read_line(path + "/node_type").value_or("?"));
    if (device.transport == "CA") device.transport = "InfiniBand";
    if (device.transport == "RNIC") device.transport = "iWARP";
    device.firmware = read_line(path + "/fw_ver").value_or("");
    device.guid = read_line(path + "/node_guid").value_or("");
    device.board = read_line(path + "/board_id").value_or("");
    device.driver = last_part_of_link(path + "/device/driver");
    if (const auto node = read_line(path + "/device/numa_node"))
      device.numa_node = atoi(node->c_str());
    for (const std::string& port : list_folder(path + "/ports"))
      device.ports.push_back(read_port(path + "/ports/" + port, port, device.iwarp()));
    for (PortInfo& port : device.ports)
      for (const Interface& interface : interfaces)
        if (belongs(places, interface, device, port)) {
          port.interfaces.push_back(interface.name);
          port.addresses.insert(port.addresses.end(), interface.addresses.begin(),
                                interface.addresses.end());
        }
    device.device_file = device_file_of(places, name);
    judge_file(&device);
    if (device.usable()) judge_ports(&device);
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace mxrdma::fabric::verbs
