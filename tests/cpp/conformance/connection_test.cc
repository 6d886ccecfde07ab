// Coming together and parting.
#include "world.h"

namespace mxrdma::fabric {
namespace {

TEST_P(Conformance, PortZeroPicksDifferentFreePorts) {
  const Address one = listen(make_endpoint()), other = listen(make_endpoint());
  EXPECT_NE(one.port, 0);
  EXPECT_NE(other.port, 0);
  EXPECT_NE(one.port, other.port);
}

TEST_P(Conformance, AnAddressInUseIsAnError) {
  Endpoint* endpoint = make_endpoint();
  const Address taken = listen(endpoint);
  Result<Address> again = make_endpoint()->fabric()->listen(taken);
  ASSERT_FALSE(again.is_ok());
  EXPECT_FALSE(again.status().message().empty());
}

TEST_P(Conformance, HelloArrivesWhole) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{77}, kMaxHelloBytes}) {
    Endpoint* server = make_endpoint();
    const std::vector<std::byte> hello = pattern(bytes, bytes);
    const Link link = connect(make_endpoint(), server, listen(server), hello);
    ASSERT_NE(link.client, nullptr);
    EXPECT_EQ(link.seen_by_server().hello, hello);
    EXPECT_FALSE(link.client->fabric()->kind(link.at_client).empty());
    EXPECT_FALSE(link.server->fabric()->describe_peer(link.at_server).empty());
  }
}

TEST_P(Conformance, TooLongHelloIsRefused) {
  Endpoint* server = make_endpoint();
  Endpoint* client = make_endpoint();
  Result<PeerId> peer = client->connect(listen(server), pattern(1, kMaxHelloBytes + 1));
  EXPECT_FALSE(peer.is_ok());
  pump_idle();
  EXPECT_TRUE(server->accepted().empty());
}

TEST_P(Conformance, NobodyListensEndsInLost) {
  Endpoint* server = make_endpoint();
  const Address address = listen(server);
  server->destroy();
  Endpoint* client = make_impatient_endpoint();
  Result<PeerId> peer = client->connect(address);
  ASSERT_TRUE(peer.is_ok()) << peer.status().to_string();
  ASSERT_TRUE(pump_until([&] { return client->peer(peer.value()).lost; }, "lost"));
  EXPECT_FALSE(client->peer(peer.value()).connected);
  EXPECT_EQ(client->peer(peer.value()).why_lost.code(), Code::fabric);
}

TEST_P(Conformance, PostingToNobodyIsAnError) {
  Endpoint* endpoint = make_endpoint();
  const std::vector<std::byte> message = pattern(1, 8);
  EXPECT_FALSE(endpoint->fabric()->send(4711, message.data(), message.size(), 1).is_ok());
  const LocalSpan span = span_of(message);
  EXPECT_FALSE(endpoint->fabric()->write(4711, &span, 1, RemoteRegion{0, 8, 0}, 0, 2).is_ok());
  EXPECT_FALSE(endpoint->fabric()->describe(4711, 4711).is_ok());
  EXPECT_FALSE(endpoint->fabric()->can_read(4711));
  endpoint->fabric()->close(4711);
  endpoint->fabric()->release(4711);
  pump_idle();
}

TEST_P(Conformance, CloseIsSeenByTheOtherSideOnce) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  link.client->close(link.at_client);
  link.client->close(link.at_client);
  ASSERT_TRUE(pump_until([&] { return link.seen_by_server().lost; }, "lost at the other side"));
  link.server->close(link.at_server);  // of a lost peer: nothing
  pump_idle();
  EXPECT_FALSE(link.seen_by_client().lost);
  EXPECT_FALSE(link.client->send(link.at_client, pattern(1, 4)).is_ok());
  EXPECT_FALSE(link.server->send(link.at_server, pattern(1, 4)).is_ok());
}

TEST_P(Conformance, CloseWhileConnectingLeavesNothingBehind) {
  Endpoint* server = make_endpoint();
  Endpoint* client = make_endpoint();
  Result<PeerId> peer = client->connect(listen(server));
  ASSERT_TRUE(peer.is_ok());
  client->close(peer.value());
  pump_idle();
  EXPECT_FALSE(client->peer(peer.value()).connected);
  for (PeerId id : server->accepted()) EXPECT_TRUE(server->peer(id).lost);
}

TEST_P(Conformance, CloseCancelsWhatIsOutstandingInOrder) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region target = allocate(link.server, 1 << 20);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(5, 1 << 20);
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(link.client->write(link.at_client, {span_of(source)}, remote, 1).is_ok());
  link.client->close(link.at_client);
  EXPECT_TRUE(link.seen_by_client().done.empty()) << "completed inline";
  ASSERT_TRUE(pump_until([&] { return link.seen_by_client().done.size() == 20; }, "all done"));
  bool cancelled = false;
  for (uint64_t id : link.seen_by_client().done_order) {
    const Status& status = link.seen_by_client().done[id];
    // Those that ended before the close may have succeeded, none after the first cancelled one.
    EXPECT_TRUE(status.is_ok() || status.code() == Code::cancelled) << status.to_string();
    EXPECT_FALSE(cancelled && status.is_ok());
    cancelled = cancelled || !status.is_ok();
  }
  EXPECT_TRUE(cancelled);
  ASSERT_TRUE(pump_until([&] { return link.seen_by_server().lost; }, "lost at the other side"));
}

TEST_P(Conformance, ADeadPeerIsLostAndItsOperationsFailBehindIt) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  const Region target = allocate(link.server, 1 << 20);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(5, 1 << 20);
  for (int i = 0; i < 64; ++i)
    ASSERT_TRUE(link.client->write(link.at_client, {span_of(source)}, remote, 1).is_ok());
  link.server->destroy();
  // Endpoint::check holds that nothing succeeds after `lost`.
  ASSERT_TRUE(pump_until(
      [&] { return link.seen_by_client().lost && link.seen_by_client().outstanding.empty(); },
      "lost and all done"));
  EXPECT_FALSE(link.client->send(link.at_client, pattern(1, 4)).is_ok());
}

TEST_P(Conformance, TwoConnectionsOfTheSameEndsAreTwo) {
  Endpoint* server = make_endpoint();
  Endpoint* client = make_endpoint();
  const Address address = listen(server);
  const Link one = connect(client, server, address), other = connect(client, server, address);
  ASSERT_NE(one.client, nullptr);
  ASSERT_NE(other.client, nullptr);
  ASSERT_NE(one.at_client, other.at_client);
  ASSERT_NE(one.at_server, other.at_server);
  ASSERT_TRUE(client->send(one.at_client, pattern(1, 10)).is_ok());
  ASSERT_TRUE(client->send(other.at_client, pattern(2, 20)).is_ok());
  ASSERT_TRUE(pump_until(
      [&] {
        return one.seen_by_server().deliveries.size() == 1 &&
               other.seen_by_server().deliveries.size() == 1;
      },
      "both messages"));
  EXPECT_EQ(one.seen_by_server().deliveries[0].payload, pattern(1, 10));
  EXPECT_EQ(other.seen_by_server().deliveries[0].payload, pattern(2, 20));
  server->close(one.at_server);
  ASSERT_TRUE(pump_until([&] { return one.seen_by_client().lost; }, "lost"));
  ASSERT_TRUE(server->send(other.at_server, pattern(3, 30)).is_ok());
  ASSERT_TRUE(
      pump_until([&] { return other.seen_by_client().deliveries.size() == 1; }, "third message"));
  EXPECT_FALSE(other.seen_by_client().lost);
}

TEST_P(Conformance, EightPeersOfOneServer) {
  constexpr size_t kPeers = 8, kBytes = 5000;
  Endpoint* server = make_endpoint();
  const Address address = listen(server);
  std::vector<Link> links;
  std::vector<Region> regions;
  std::vector<std::vector<std::byte>> sources;
  for (size_t i = 0; i < kPeers; ++i) {
    links.push_back(connect(make_endpoint(), server, address, pattern(i, 16)));
    ASSERT_NE(links[i].client, nullptr);
    EXPECT_EQ(links[i].seen_by_server().hello, pattern(i, 16));
    regions.push_back(allocate(server, kBytes));
    sources.push_back(pattern(100 + i, kBytes));
  }
  for (size_t i = 0; i < kPeers; ++i)
    ASSERT_TRUE(links[i]
                    .client
                    ->write(links[i].at_client, {span_of(sources[i])},
                            describe(server, regions[i], links[i].at_server),
                            static_cast<uint32_t>(i))
                    .is_ok());
  ASSERT_TRUE(pump_until(
      [&] {
        for (const Link& link : links)
          if (link.seen_by_server().deliveries.empty()) return false;
        return true;
      },
      "one write of each"));
  for (size_t i = 0; i < kPeers; ++i) {
    EXPECT_EQ(links[i].seen_by_server().deliveries[0].immediate, i);
    EXPECT_EQ(std::vector<std::byte>(regions[i].base, regions[i].base + kBytes), sources[i]);
  }
}

}  // namespace
}  // namespace mxrdma::fabric
