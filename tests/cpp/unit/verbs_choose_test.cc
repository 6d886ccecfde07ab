// The address that the job uses -> device, port, GID. Tables of hosts as data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabric/devices.h"
#include "fabric/verbs/gid.h"

namespace mxrdma::fabric {
namespace {

using testing::HasSubstr;

GidEntry entry(uint32_t index, const std::string& address, GidType type,
               const std::string& interface) {
  GidEntry made;
  made.index = index;
  made.raw = verbs::parse_address(address).value().raw;
  made.type = type;
  made.interface = interface;
  return made;
}

PortInfo ethernet_port(uint8_t number, std::vector<GidEntry> gids) {
  PortInfo port;
  port.number = number;
  port.state = "ACTIVE";
  port.physical_state = "LinkUp";
  port.link_layer = "Ethernet";
  port.rate = "100 Gb/sec (4X EDR)";
  port.active_mtu = 4096;
  port.gids = std::move(gids);
  return port;
}

DeviceInfo device(const std::string& name, std::vector<PortInfo> ports) {
  DeviceInfo made;
  made.name = name;
  made.transport = "InfiniBand";
  made.ports = std::move(ports);
  return made;
}

// A usual card: each address as RoCE v1 and v2, link-local first.
std::vector<GidEntry> usual_gids(const std::string& ipv4, const std::string& interface) {
  return {entry(0, "fe80::1", GidType::roce_v1, interface),
          entry(1, "fe80::1", GidType::roce_v2, interface),
          entry(2, ipv4, GidType::roce_v1, interface), entry(3, ipv4, GidType::roce_v2, interface)};
}

DeviceTable two_cards() {
  DeviceTable table;
  table.devices = {device("mlx5_0", {ethernet_port(1, usual_gids("10.0.0.1", "eth0"))}),
                   device("mlx5_1", {ethernet_port(1, usual_gids("10.0.1.1", "eth1"))})};
  return table;
}

DeviceTable infiniband() {
  PortInfo port = ethernet_port(1, {entry(0, "fe80::11:22", GidType::ib, "")});
  port.link_layer = "InfiniBand";
  port.lid = 7;
  DeviceTable table;
  table.devices = {device("mlx5_0", {port})};
  return table;
}

std::vector<std::string> picked(const Result<std::vector<Rail>>& rails) {
  std::vector<std::string> names;
  if (!rails.is_ok()) return {rails.status().message()};
  for (const Rail& rail : rails.value())
    names.push_back(rail.device + ":" + std::to_string(rail.port) + "/" +
                    std::to_string(rail.gid.index));
  return names;
}

struct Pick {
  const char* address;
  const char* devices;
  const char* gid_index;
  std::vector<std::string> expected;
};

TEST(VerbsChoose, PicksByAddressNameAndIndex) {
  const Pick picks[] = {
      {"10.0.0.1", "", "auto", {"mlx5_0:1/3"}},
      {"10.0.1.1", "", "auto", {"mlx5_1:1/3"}},
      {"[::ffff:10.0.1.1]", "", "auto", {"mlx5_1:1/3"}},
      {"127.0.0.1", "", "auto", {"mlx5_0:1/3"}},
      {"0.0.0.0", "", "", {"mlx5_0:1/3"}},
      {"::1", "", "auto", {"mlx5_0:1/3"}},
      {"fe80::1%eth1", "", "auto", {"mlx5_1:1/1"}},
      {"10.0.0.1", "mlx5_1", "auto", {"mlx5_1:1/3"}},
      {"10.0.0.1", "mlx5_0:1,mlx5_1:1", "auto", {"mlx5_0:1/3", "mlx5_1:1/3"}},
      {"10.0.0.1", "mlx5_1, mlx5_0", "auto", {"mlx5_1:1/3", "mlx5_0:1/3"}},
      {"10.0.0.1", "", "1", {"mlx5_0:1/1"}},
      {"10.0.0.1", "", "2", {"mlx5_0:1/2"}},
  };
  for (const Pick& pick : picks) {
    SCOPED_TRACE(std::string(pick.address) + " " + pick.devices + " " + pick.gid_index);
    EXPECT_EQ(picked(choose_rails(two_cards(), {pick.address, pick.devices, pick.gid_index})),
              pick.expected);
  }
}

struct Refusal {
  const char* address;
  const char* devices;
  const char* gid_index;
  std::vector<const char*> words;
};

TEST(VerbsChoose, RefusesWithNamesAndMends) {
  const Refusal refusals[] = {
      {"10.9.9.9", "", "auto", {"10.9.9.9", "mlx5_0 port 1", "10.0.1.1, eth1", "MXRDMA_DEVICE"}},
      {"10.0.0.1", "", "99", {"99", "mlx5_0 port 1", "3 (RoCE v2, 10.0.0.1, eth0)"}},
      {"10.0.0.1", "", "first", {"'first'", "auto"}},
      {"10.0.0.1", "mlx5_7", "auto", {"'mlx5_7'", "mlx5_0, mlx5_1"}},
      {"10.0.0.1", "mlx5_0:2", "auto", {"mlx5_0", "no port 2"}},
      {"10.0.0.1", "mlx5_0:one", "auto", {"mlx5_0:one", "1 to 255"}},
      {"10.0.0.1", "mlx5_0:", "auto", {"mlx5_0:", "1 to 255"}},
      {"10.0.0.1", "mlx5_0,,mlx5_1", "auto", {"empty name"}},
      {"10.0.0.1", "mlx5_0,mlx5_0", "auto", {"twice"}},
      {"head.example", "", "auto", {"'head.example'", "numeric"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(std::string(refusal.address) + " " + refusal.devices + " " + refusal.gid_index);
    const auto rails =
        choose_rails(two_cards(), {refusal.address, refusal.devices, refusal.gid_index});
    ASSERT_FALSE(rails.is_ok());
    for (const char* word : refusal.words) EXPECT_THAT(rails.status().message(), HasSubstr(word));
  }
}

TEST(VerbsChoose, NeverTakesLinkLocalOrRoceV1ByItself) {
  DeviceTable table;
  table.devices = {
      device("rxe0", {ethernet_port(1, {entry(0, "fe80::1", GidType::roce_v2, "d0"),
                                        entry(1, "10.0.0.1", GidType::roce_v1, "d0")})})};
  for (const char* devices : {"", "rxe0"}) {
    const auto rails = choose_rails(table, {"10.0.0.1", devices, "auto"});
    ASSERT_FALSE(rails.is_ok());
    EXPECT_THAT(rails.status().message(), HasSubstr("rxe0 port 1 has no routable RoCE v2 entry"));
    EXPECT_THAT(rails.status().message(), HasSubstr("0 (RoCE v2, fe80::1, d0)"));
  }
}

TEST(VerbsChoose, IPv6OnlyCard) {
  DeviceTable table;
  table.devices = {
      device("rxe0", {ethernet_port(1, {entry(0, "fe80::1", GidType::roce_v2, "d0"),
                                        entry(1, "fd00::1", GidType::roce_v2, "d0")})})};
  EXPECT_THAT(picked(choose_rails(table, {"fd00::1", "", "auto"})),
              testing::ElementsAre("rxe0:1/1"));
  EXPECT_THAT(picked(choose_rails(table, {"[fd00::1]", "", "auto"})),
              testing::ElementsAre("rxe0:1/1"));
  EXPECT_THAT(picked(choose_rails(table, {"fe80::1%d0", "", "auto"})),
              testing::ElementsAre("rxe0:1/0"));
  EXPECT_FALSE(choose_rails(table, {"fe80::1%d1", "", "auto"}).is_ok());
  const auto other_family = choose_rails(table, {"10.0.0.1", "rxe0", "auto"});
  ASSERT_TRUE(other_family.is_ok());
  EXPECT_EQ(other_family.value()[0].gid.index, 1u);
  EXPECT_THAT(other_family.value()[0].why, HasSubstr("other address family"));
}

TEST(VerbsChoose, PrefersTheAddressFamilyOfTheJobOnFurtherRails) {
  DeviceTable table = two_cards();
  table.devices[1].ports[0].gids.insert(table.devices[1].ports[0].gids.begin(),
                                        entry(9, "fd00::1", GidType::roce_v2, "eth1"));
  EXPECT_THAT(picked(choose_rails(table, {"10.0.0.1", "mlx5_0,mlx5_1", "auto"})),
              testing::ElementsAre("mlx5_0:1/3", "mlx5_1:1/3"));
}

TEST(VerbsChoose, PortOfTheAddressOnATwoPortCard) {
  DeviceTable table;
  table.devices = {device("mlx4_0", {ethernet_port(1, usual_gids("10.0.0.1", "eth0")),
                                     ethernet_port(2, usual_gids("10.0.1.1", "eth1"))})};
  EXPECT_THAT(picked(choose_rails(table, {"10.0.1.1", "", "auto"})),
              testing::ElementsAre("mlx4_0:2/3"));
  EXPECT_THAT(picked(choose_rails(table, {"10.0.1.1", "mlx4_0", "auto"})),
              testing::ElementsAre("mlx4_0:2/3"));
  table.devices[0].ports[1].state = "DOWN";
  table.devices[0].ports[1].physical_state = "Polling";
  for (const char* devices : {"", "mlx4_0:2"}) {
    const auto rails = choose_rails(table, {"10.0.1.1", devices, "auto"});
    ASSERT_FALSE(rails.is_ok());
    EXPECT_THAT(rails.status().message(), HasSubstr("mlx4_0 port 2 is DOWN (Polling)"));
  }
}

TEST(VerbsChoose, OneBadDeviceNeverSpoilsTheOthers) {
  DeviceTable table = two_cards();
  table.devices[1].usability = Usability::no_permission;
  table.devices[1].problem = "/dev/infiniband/uverbs1 may not be opened";
  table.devices[1].mend = "chmod 666";
  EXPECT_THAT(picked(choose_rails(table, {"10.0.0.1", "", "auto"})),
              testing::ElementsAre("mlx5_0:1/3"));
  EXPECT_THAT(picked(choose_rails(table, {"127.0.0.1", "", "auto"})),
              testing::ElementsAre("mlx5_0:1/3"));
  for (const DeviceWish& wish :
       {DeviceWish{"10.0.0.1", "mlx5_1", "auto"}, DeviceWish{"10.0.0.1", "mlx5_1:1", "auto"},
        DeviceWish{"10.0.1.1", "", "auto"}}) {
    const auto rails = choose_rails(table, wish);
    ASSERT_FALSE(rails.is_ok());
    EXPECT_THAT(
        rails.status().message(),
        HasSubstr("mlx5_1 cannot be used: /dev/infiniband/uverbs1 may not be opened; chmod"));
  }
  table.devices[0].usability = Usability::no_provider;
  table.devices[0].problem = "no driver";
  const auto none = choose_rails(table, {"127.0.0.1", "", "auto"});
  ASSERT_FALSE(none.is_ok());
  EXPECT_THAT(none.status().message(), HasSubstr("mlx5_0: no driver"));
  EXPECT_THAT(none.status().message(), HasSubstr("mlx5_1: /dev/infiniband/uverbs1"));
}

TEST(VerbsChoose, NoDeviceAtAll) {
  const auto rails = choose_rails(DeviceTable(), {"10.0.0.1", "", "auto"});
  ASSERT_FALSE(rails.is_ok());
  EXPECT_THAT(rails.status().message(), HasSubstr("/sys/class/infiniband is empty"));
  const auto named = choose_rails(DeviceTable(), {"10.0.0.1", "mlx5_0", "auto"});
  ASSERT_FALSE(named.is_ok());
  EXPECT_THAT(named.status().message(), HasSubstr("there is none at all"));
}

TEST(VerbsChoose, InfiniBandNeedsNoAddress) {
  DeviceTable table = infiniband();
  auto rails = choose_rails(table, {"192.168.1.5", "", "auto"});
  ASSERT_TRUE(rails.is_ok()) << rails.status().message();
  EXPECT_EQ(rails.value()[0].lid, 7u);
  EXPECT_THAT(rails.value()[0].why, HasSubstr("InfiniBand needs no address"));
  table.devices[0].ports[0].addresses = {"192.168.1.5"};  // IPoIB
  rails = choose_rails(table, {"192.168.1.5", "", "auto"});
  ASSERT_TRUE(rails.is_ok());
  EXPECT_EQ(rails.value()[0].why, "the port's own GID");
}

TEST(VerbsChoose, IwarpIsFoundByTheAddressOfItsInterface) {
  DeviceTable table;
  PortInfo port = ethernet_port(1, {entry(0, "5e00:11:2200::", GidType::iwarp, "")});
  port.addresses = {"10.77.0.1", "fe80::1%h1"};
  table.devices = {device("siw1", {port})};
  table.devices[0].transport = "iWARP";
  const auto rails = choose_rails(table, {"10.77.0.1", "", "auto"});
  ASSERT_TRUE(rails.is_ok()) << rails.status().message();
  EXPECT_TRUE(rails.value()[0].iwarp);
  EXPECT_FALSE(choose_rails(table, {"10.77.0.2", "", "auto"}).is_ok());
}

// 0.0.0.0 and 127.0.0.1 are of no family that a card could have.
TEST(VerbsChoose, AddressWithoutInterfaceWantsNoFamily) {
  DeviceTable table;
  table.devices = {
      device("rxe0", {ethernet_port(1, {entry(4, "fd00::1", GidType::roce_v2, "d0")})})};
  for (const char* address : {"0.0.0.0", "127.0.0.1", "::"}) {
    const auto rails = choose_rails(table, {address, "", "auto"});
    ASSERT_TRUE(rails.is_ok()) << rails.status().message();
    EXPECT_THAT(rails.value()[0].why, testing::StartsWith("first routable RoCE v2 entry; "));
  }
}

TEST(VerbsChoose, RailSaysWhatItIs) {
  const auto rails = choose_rails(two_cards(), {"10.0.0.1", "", "auto"});
  ASSERT_TRUE(rails.is_ok());
  EXPECT_EQ(rails.value()[0].text(),
            "mlx5_0 port 1, GID 3 (RoCE v2, 10.0.0.1, eth0), MTU 4096, 100 Gb/sec (4X EDR)");
  EXPECT_EQ(rails.value()[0].why, "RoCE v2 entry of the job's address");
}

TEST(VerbsGid, EndsThatCannotTalkAreNamed) {
  const GidEntry ipv4 = entry(3, "10.0.0.1", GidType::roce_v2, "eth0");
  const GidEntry other = entry(1, "10.0.0.2", GidType::roce_v2, "eth0");
  EXPECT_TRUE(verbs::gids_match(ipv4, other, "worker 0", "server 0").is_ok());
  const GidEntry bad[] = {
      entry(0, "fe80::2", GidType::roce_v2, "eth0"), entry(5, "fd00::2", GidType::roce_v2, "eth0"),
      entry(2, "10.0.0.2", GidType::roce_v1, "eth0"), entry(0, "fe80::2", GidType::ib, "")};
  for (const GidEntry& theirs : bad) {
    const Status status = verbs::gids_match(ipv4, theirs, "worker 0", "server 0");
    ASSERT_FALSE(status.is_ok()) << theirs.text();
    EXPECT_THAT(status.message(), HasSubstr("worker 0 uses GID index 3 (RoCE v2, 10.0.0.1, eth0)"));
    EXPECT_THAT(status.message(), HasSubstr("server 0 GID index " + std::to_string(theirs.index)));
  }
  EXPECT_FALSE(verbs::gids_match(entry(1, "fd00::1", GidType::roce_v2, ""),
                                 entry(0, "fe80::2", GidType::roce_v2, ""), "a", "b")
                   .is_ok());
}

TEST(VerbsGid, ReadsAddresses) {
  EXPECT_EQ(verbs::gid_text(verbs::parse_address("10.1.2.3").value().raw), "10.1.2.3");
  EXPECT_EQ(verbs::parse_address("[fe80::1%eth0]").value().scope, "eth0");
  EXPECT_TRUE(verbs::parse_address("127.1.2.3").value().loopback());
  EXPECT_TRUE(verbs::parse_address("::1").value().loopback());
  EXPECT_TRUE(verbs::parse_address("::").value().unspecified());
  EXPECT_FALSE(verbs::parse_address("fd00::1").value().loopback());
  EXPECT_TRUE(verbs::is_link_local(verbs::parse_address("febf::1").value().raw));
  EXPECT_FALSE(verbs::is_link_local(verbs::parse_address("fec0::1").value().raw));
  for (const char* text : {"", "host", "10.0.0", "fd00::1::2", "[]"})
    EXPECT_FALSE(verbs::parse_address(text).has_value()) << text;
}

}  // namespace
}  // namespace mxrdma::fabric
