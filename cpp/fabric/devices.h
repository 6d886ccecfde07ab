// The RDMA devices of this host and the choice among them, in plain types: builds without the
// headers of rdma-core have the same, with the reason why nothing is usable.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace mxrdma::fabric {

using GidBytes = std::array<uint8_t, 16>;

enum class GidType : uint8_t { ib, roce_v1, roce_v2, iwarp };
const char* gid_type_name(GidType type);

struct GidEntry {
  uint32_t index = 0;
  GidBytes raw{};
  GidType type = GidType::ib;
  std::string interface;  // the network interface that it belongs to; empty: none or not visible

  std::string text() const;  // "10.77.0.1" for an IPv4-mapped GID, else in IPv6 notation
};

struct PortInfo {
  uint8_t number = 0;
  std::string state;           // "ACTIVE", "DOWN", …
  std::string physical_state;  // "LinkUp", "Polling", …
  std::string link_layer;      // "Ethernet" or "InfiniBand"
  std::string rate;            // "100 Gb/sec (4X EDR)"
  uint32_t lid = 0;
  int active_mtu = 0, max_mtu = 0;  // bytes; 0: not known
  std::vector<GidEntry> gids;       // empty entries left out
  // Network interfaces of the port and their addresses; IPoIB's and iWARP's are not in the GIDs.
  std::vector<std::string> interfaces, addresses;

  bool active() const { return state == "ACTIVE"; }
};

enum class Usability : uint8_t {
  usable,
  no_library,      // libibverbs is not there, or this build has no verbs
  no_device_file,  // /dev/infiniband/uverbsN is missing, or the kernel module behind it
  no_permission,   // the file is there and may not be opened
  no_provider,     // libibverbs does not know the driver
  open_failed,
  no_connections,  // a device without reliable connected queue pairs
  port_down,       // no port is active
};
const char* usability_name(Usability usability);

struct DeviceInfo {
  std::string name, firmware, guid, board, driver, transport;  // "InfiniBand", "iWARP", …
  std::string device_file;                                     // /dev/infiniband/uverbsN
  int numa_node = -1;                                          // -1: not known or of no matter
  Usability usability = Usability::usable;
  std::string problem, mend;  // both empty if usable
  std::vector<PortInfo> ports;
  // Of the opened device; 0 where it could not be opened.
  int64_t max_queue_pairs = 0, max_work_requests = 0, max_gather = 0, max_completions = 0,
          max_shared_receives = 0, max_regions = 0;
  uint64_t max_region_bytes = 0;

  bool usable() const { return usability == Usability::usable; }
  bool iwarp() const { return transport == "iWARP"; }
};

struct DeviceTable {
  std::vector<DeviceInfo> devices;  // in natural order of names: mlx5_2 before mlx5_10
  std::string library_problem;      // why libibverbs cannot be used; empty: it can
  std::string cm_problem;           // the same for librdmacm
  std::string fork_support;  // "unneeded" (kernel copies pinned pages), "enabled", "disabled", ""
};

// Where the kernel shows devices; tests bring their own trees.
struct Places {
  std::string sys = "/sys";
  std::string dev = "/dev";
};

// Lists what the kernel has, then asks each device by libibverbs. One bad device leaves the others
// as they are. Never fails: what is wrong stands in the table.
DeviceTable device_table(const Places& places = {});

struct DeviceWish {
  std::string address;             // the address that the job uses, numeric; may have a %scope
  std::string devices;             // "mlx5_0:1,mlx5_1"; empty: chosen by the address
  std::string gid_index = "auto";  // or a number
};

// One device and port to use, with the GID that names this end.
struct Rail {
  std::string device;
  uint8_t port = 1;
  GidEntry gid;
  std::string link_layer, rate;
  bool iwarp = false;
  uint32_t lid = 0;
  int mtu = 0;  // active, bytes; 0: not known
  std::string why;

  std::string text() const;  // "mlx5_0 port 1, GID 3 (RoCE v2, 10.0.0.1, eth0), 100 Gb/sec"
};

// Pure: the rails in order, the first for the address. The error names device, port, GID and index.
Result<std::vector<Rail>> choose_rails(const DeviceTable& table, const DeviceWish& wish);

// The entry of one port for an address, and why. `address` empty: the first routable one.
Result<Rail> choose_gid(const DeviceInfo& device, const PortInfo& port, const std::string& address,
                        const std::string& gid_index);

}  // namespace mxrdma::fabric
