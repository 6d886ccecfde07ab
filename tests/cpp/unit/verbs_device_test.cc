// Reading /sys/class/infiniband: trees made for the test, and the real one where devices are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fabric/devices.h"
#include "fabric/verbs/gid.h"
#include "fabric/verbs/sysfs.h"

namespace mxrdma::fabric {
namespace {

using testing::HasSubstr;

class Tree {
 public:
  Tree() {
    std::string name = testing::TempDir() + "mxrdma-sysfs-" + std::string(6, 'X');
    root_ = mkdtemp(name.data());
  }
  ~Tree() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }

  void add_device(const std::string& name, const std::string& uverbs) {
    const std::string base = "sys/class/infiniband/" + name;
    write(base + "/node_type", "1: CA");
    write(base + "/fw_ver", "20.31.1014");
    write(base + "/node_guid", "0c42:a103:0065:8b0e");
    write(base + "/device/numa_node", "1");
    write(base + "/ports/1/state", "4: ACTIVE");
    write(base + "/ports/1/phys_state", "5: LinkUp");
    write(base + "/ports/1/link_layer", "Ethernet");
    write(base + "/ports/1/rate", "100 Gb/sec (4X EDR)");
    write(base + "/ports/1/lid", "0x1f");
    add_gid(name, 0, "fe80:0000:0000:0000:0e42:a1ff:fe65:8b0e", "IB/RoCE v1");
    add_gid(name, 1, "fe80:0000:0000:0000:0e42:a1ff:fe65:8b0e", "RoCE v2");
    add_gid(name, 3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2");
    write(base + "/ports/1/gids/4", "0000:0000:0000:0000:0000:0000:0000:0000");
    if (uverbs.empty()) return;
    write("sys/class/infiniband_verbs/" + uverbs + "/ibdev", name);
    write("dev/infiniband/" + uverbs, "");
  }

  void add_gid(const std::string& device, int index, const std::string& gid,
               const std::string& type) {
    const std::string port = "sys/class/infiniband/" + device + "/ports/1/";
    write(port + "gids/" + std::to_string(index), gid);
    write(port + "gid_attrs/types/" + std::to_string(index), type);
    write(port + "gid_attrs/ndevs/" + std::to_string(index), "eth7");
  }

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  Places places() const { return {root_ + "/sys", root_ + "/dev"}; }

 private:
  std::string root_;
};

TEST(VerbsDevice, ReadsWhatTheKernelShows) {
  Tree tree;
  tree.add_device("mlx5_10", "uverbs1");
  tree.add_device("mlx5_2", "uverbs0");
  const auto devices = verbs::read_sysfs(tree.places());
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].name, "mlx5_2");
  EXPECT_EQ(devices[1].name, "mlx5_10");
  const DeviceInfo& device = devices[0];
  EXPECT_TRUE(device.usable()) << device.problem;
  EXPECT_EQ(device.firmware, "20.31.1014");
  EXPECT_EQ(device.transport, "InfiniBand");
  EXPECT_EQ(device.numa_node, 1);
  EXPECT_EQ(device.device_file, tree.path("dev/infiniband/uverbs0"));
  ASSERT_EQ(device.ports.size(), 1u);
  const PortInfo& port = device.ports[0];
  EXPECT_TRUE(port.active());
  EXPECT_EQ(port.physical_state, "LinkUp");
  EXPECT_EQ(port.lid, 31u);
  ASSERT_EQ(port.gids.size(), 3u);  // the empty one is left out
  EXPECT_EQ(port.gids[0].type, GidType::roce_v1);
  EXPECT_EQ(port.gids[2].index, 3u);
  EXPECT_EQ(port.gids[2].text(), "10.0.0.1");
  EXPECT_EQ(port.gids[2].interface, "eth7");
}

TEST(VerbsDevice, EachTroubleStaysWithItsDevice) {
  Tree tree;
  tree.add_device("a", "uverbs0");
  tree.add_device("b", "uverbs1");
  tree.add_device("c", "");
  tree.add_device("d", "uverbs3");
  tree.write("sys/class/infiniband/d/ports/1/state", "1: DOWN");
  tree.write("sys/class/infiniband/d/ports/1/phys_state", "3: Disabled");
  std::filesystem::remove(tree.path("dev/infiniband/uverbs1"));
  const auto devices = verbs::read_sysfs(tree.places());
  ASSERT_EQ(devices.size(), 4u);
  EXPECT_TRUE(devices[0].usable());
  EXPECT_EQ(devices[1].usability, Usability::no_device_file);
  EXPECT_THAT(devices[1].problem, HasSubstr("uverbs1 is not there"));
  EXPECT_THAT(devices[1].mend, HasSubstr("--device"));
  EXPECT_EQ(devices[2].usability, Usability::no_device_file);
  EXPECT_THAT(devices[2].mend, HasSubstr("modprobe ib_uverbs"));
  EXPECT_EQ(devices[3].usability, Usability::port_down);
  EXPECT_THAT(devices[3].problem, HasSubstr("port 1 is DOWN (Disabled)"));
}

TEST(VerbsDevice, FileWithoutPermission) {
  Tree tree;
  tree.add_device("a", "uverbs0");
  ASSERT_EQ(chmod(tree.path("dev/infiniband/uverbs0").c_str(), 0), 0);
  if (access(tree.path("dev/infiniband/uverbs0").c_str(), R_OK) == 0)
    GTEST_SKIP() << "root may open every file; the guest tests run as nobody";
  const auto devices = verbs::read_sysfs(tree.places());
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].usability, Usability::no_permission);
}

TEST(VerbsDevice, BrokenTreesAreReadAsFarAsTheyGo) {
  Tree tree;
  tree.write("sys/class/infiniband/x/ports/1/gids/0", "not a gid");
  tree.write("sys/class/infiniband/x/ports/1/lid", "what");
  tree.write("sys/class/infiniband/y/node_type", "4: RNIC");
  const auto devices = verbs::read_sysfs(tree.places());
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_FALSE(devices[0].usable());
  ASSERT_EQ(devices[0].ports.size(), 1u);
  EXPECT_TRUE(devices[0].ports[0].gids.empty());
  EXPECT_TRUE(devices[1].iwarp());
}

TEST(VerbsDevice, NothingThere) {
  Tree tree;
  const DeviceTable table = device_table(tree.places());
  EXPECT_TRUE(table.devices.empty());
}

// A device of sysfs that libibverbs does not list is named as such, not dropped.
TEST(VerbsDevice, DeviceUnknownToTheLibrary) {
  Tree tree;
  tree.add_device("ghost0", "uverbs0");
  const DeviceTable table = device_table(tree.places());
  ASSERT_EQ(table.devices.size(), 1u);
  EXPECT_FALSE(table.devices[0].usable());
  if (!table.library_problem.empty()) {
    EXPECT_EQ(table.devices[0].usability, Usability::no_library);
    EXPECT_EQ(table.devices[0].problem, table.library_problem);
  }
}

// ---- where devices are (the Soft-RoCE guest, or hardware)

TEST(VerbsDevice, RealTableEqualsSysfs) {
  const DeviceTable table = device_table();
  if (table.devices.empty()) GTEST_SKIP() << "no RDMA device here";
  size_t usable = 0;
  for (const DeviceInfo& device : table.devices) {
    if (!device.usable()) continue;
    ++usable;
    EXPECT_GT(device.max_queue_pairs, 0) << device.name;
    EXPECT_GT(device.max_gather, 0) << device.name;
    for (const PortInfo& port : device.ports) {
      if (!port.active()) continue;
      EXPECT_GE(port.active_mtu, 256) << device.name;
      EXPECT_LE(port.active_mtu, port.max_mtu) << device.name;
      const Result<Rail> rail = choose_gid(device, port, "", "auto");
      ASSERT_TRUE(rail.is_ok()) << rail.status().message();
    }
  }
  EXPECT_GT(usable, 0u);
  EXPECT_FALSE(table.fork_support.empty());
}

TEST(VerbsDevice, RealAddressesLeadToTheirDevice) {
  const DeviceTable table = device_table();
  if (table.devices.empty()) GTEST_SKIP() << "no RDMA device here";
  size_t checked = 0;
  for (const DeviceInfo& device : table.devices) {
    for (const PortInfo& port : device.ports) {
      if (!device.usable() || !port.active()) continue;
      for (const std::string& address : port.addresses) {
        const auto rails = choose_rails(table, {address, "", "auto"});
        ASSERT_TRUE(rails.is_ok()) << rails.status().message();
        ASSERT_EQ(rails.value().size(), 1u);
        EXPECT_EQ(rails.value()[0].device, device.name) << address;
        if (!device.iwarp() && port.link_layer == "Ethernet") {
          EXPECT_EQ(rails.value()[0].gid.raw, verbs::parse_address(address).value().raw) << address;
        }
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 0u);
}

}  // namespace
}  // namespace mxrdma::fabric
