// Connections of real host fabrics to each other and to peers that do not keep to the rules.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "fabric/devices.h"
#include "fabric/tcp/frame.h"
#include "fabric_fixture.h"

namespace mxrdma::fabric {
namespace {

HostFabricOptions impatient(Policy policy) {
  HostFabricOptions options = fabric_options(policy);
  options.handshake_timeout_ms = 300;
  return options;
}

Fd raw_accept(int listener, End* end) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < limit) {
    Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    end->poll(1);
  }
  return Fd();
}

TEST(FabricBootstrap, PoliciesMeetAsTheyAllow) {
  struct Case {
    Policy client, server;
    const char* kind;  // nullptr: they do not fit
  };
  const Case cases[] = {{Policy::automatic, Policy::automatic, "shm"},
                        {Policy::automatic, Policy::shm, "shm"},
                        {Policy::automatic, Policy::tcp, "tcp"},
                        {Policy::shm, Policy::automatic, "shm"},
                        {Policy::shm, Policy::shm, "shm"},
                        {Policy::shm, Policy::tcp, nullptr},
                        {Policy::tcp, Policy::automatic, "tcp"},
                        {Policy::tcp, Policy::shm, nullptr},
                        {Policy::tcp, Policy::tcp, "tcp"}};
  for (const Case& each : cases) {
    SCOPED_TRACE(std::to_string(static_cast<int>(each.client)) + " to " +
                 std::to_string(static_cast<int>(each.server)));
    End server(each.server), client(each.client);
    const PeerId peer = client.connect(server.listen());
    if (each.kind == nullptr) {
      ASSERT_TRUE(pump({&server, &client}, [&] { return client.count(Event::Kind::lost) == 1; }));
      const Status& why = client.first(Event::Kind::lost)->status;
      EXPECT_EQ(why.code(), Code::fabric);
      EXPECT_NE(why.message().find("do not fit"), std::string::npos) << why.message();
      EXPECT_TRUE(server.events.empty());
      continue;
    }
    ASSERT_TRUE(pump({&server, &client}, [&] {
      return client.count(Event::Kind::connected) == 1 && server.count(Event::Kind::accepted) == 1;
    }));
    const PeerId accepted = server.first(Event::Kind::accepted)->peer;
    EXPECT_EQ(client.fabric->kind(peer), each.kind);
    EXPECT_EQ(server.fabric->kind(accepted), each.kind);
    EXPECT_EQ(server.first(Event::Kind::accepted)->payload, bytes_of("hello"));
    const std::string text = client.fabric->describe_peer(peer);
    const bool shm = std::string(each.kind) == "shm";
    EXPECT_NE(text.find(shm ? "pid " + std::to_string(getpid()) : "tcp 127.0.0.1:"),
              std::string::npos)
        << text;
    const bool says_why = text.find("no shm: tcp was asked for") != std::string::npos;
    EXPECT_EQ(says_why, !shm) << text;
  }
}

TEST(FabricBootstrap, AnotherTokenIsLostWithAuthAndUnseenByTheServer) {
  for (Policy policy : {Policy::shm, Policy::tcp}) {
    End server(policy), client(fabric_options(policy, "another token"));
    client.connect(server.listen());
    ASSERT_TRUE(pump({&server, &client}, [&] { return client.count(Event::Kind::lost) == 1; }));
    EXPECT_EQ(client.first(Event::Kind::lost)->status.code(), Code::auth);
    EXPECT_NE(client.first(Event::Kind::lost)->status.message().find("MXRDMA_TOKEN"),
              std::string::npos);
    EXPECT_EQ(client.events.size(), 1u);
    EXPECT_TRUE(server.events.empty());
  }
}

TEST(FabricBootstrap, WithoutATokenThereIsNoFabric) {
  End end(fabric_options(Policy::automatic, ""));
  EXPECT_EQ(end.fabric->listen({"127.0.0.1", 0}).status().code(), Code::config);
  EXPECT_EQ(end.fabric->connect({"127.0.0.1", 1}, {}).status().code(), Code::config);
}

TEST(FabricBootstrap, AHostThatDoesNotResolveIsNamed) {
  End end(Policy::tcp);
  Result<PeerId> peer = end.fabric->connect({"no-such-host.invalid", 1}, {});
  ASSERT_FALSE(peer.is_ok());
  EXPECT_EQ(peer.status().code(), Code::config);
  EXPECT_NE(peer.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST(FabricBootstrap, APeerThatStartsLaterIsReached) {
  Address address;
  {
    Result<Fd> reserved = listen_tcp({"127.0.0.1", 0}, &address);
    ASSERT_TRUE(reserved.is_ok());
  }
  End client(Policy::tcp), server(Policy::tcp);
  client.connect(address);
  for (int i = 0; i < 20; ++i) client.poll(10);
  EXPECT_TRUE(client.events.empty());
  ASSERT_TRUE(server.fabric->listen(address).is_ok());
  EXPECT_TRUE(pump({&client, &server}, [&] { return client.count(Event::Kind::connected) == 1; }));
}

TEST(FabricBootstrap, IPv6WithAndWithoutBrackets) {
  for (const char* host : {"::1", "[::1]"}) {
    End server(Policy::tcp), client(Policy::tcp);
    Result<Address> address = server.fabric->listen({host, 0});
    if (!address.is_ok()) GTEST_SKIP() << address.status().to_string();
    client.connect(address.value());
    EXPECT_TRUE(
        pump({&client, &server}, [&] { return client.count(Event::Kind::connected) == 1; }));
  }
}

TEST(FabricBootstrap, GarbageSilenceAndCutsCostNobodyElse) {
  End server(impatient(Policy::automatic));
  const Address address = server.listen();
  std::vector<Fd> strangers;
  for (const char* garbage : {"", "G", "GET / HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n"}) {
    strangers.push_back(raw_connect(address));
    raw_send(strangers.back().get(), bytes_of(garbage));
  }
  // A proven peer that stops amid of the agreement holds nothing either.
  RawPeer half(raw_connect(address), true);
  std::vector<std::byte> body;
  ASSERT_TRUE(pump({&server}, [&] { return half.step(&body) || half.handshake().proven(); }));
  // A slow one: a byte now and then does not extend the limit.
  Fd slow = raw_connect(address);
  ASSERT_TRUE(pump({&server}, [&] {
    static_cast<void>(::send(slow.get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
    for (const Fd& stranger : strangers)
      if (!has_ended(stranger.get())) return false;
    return has_ended(half.fd()) && has_ended(slow.get());
  }));
  EXPECT_TRUE(server.events.empty());
  End client(Policy::automatic);
  client.connect(address);
  EXPECT_TRUE(pump({&client, &server}, [&] { return server.count(Event::Kind::accepted) == 1; }));
}

TEST(FabricBootstrap, TheConnectorsWordsCutAtEachByte) {
  End server(Policy::automatic);
  const Address address = server.listen();
  size_t whole = 0;
  for (size_t cut = 1; whole == 0 || cut < whole; ++cut) {
    RawPeer peer(raw_connect(address), true);
    std::vector<std::byte> body;
    size_t left = cut;
    bool offered = false, done = false;
    // Plays the connector, but lets only `cut` bytes of it out.
    const bool reached = pump({&server}, [&] {
      Handshake& handshake = peer.handshake();
      std::byte buffer[256];
      while (handshake.wanted() > 0) {
        const ssize_t count =
            recv(peer.fd(), buffer, std::min(sizeof buffer, handshake.wanted()), MSG_DONTWAIT);
        if (count <= 0) break;
        EXPECT_TRUE(handshake.feed(buffer, static_cast<size_t>(count)).is_ok());
      }
      if (handshake.proven() && !offered) {
        offered = true;
        handshake.put_body(encode(Offer{Policy::tcp, host_identity(), {}}));
      }
      std::vector<std::byte>& out = handshake.output();
      const size_t part = std::min(left, out.size());
      raw_send(peer.fd(), {out.begin(), out.begin() + static_cast<long>(part)});
      out.erase(out.begin(), out.begin() + static_cast<long>(part));
      left -= part;
      done = handshake.take_body(&body);
      return left == 0 || done;
    });
    ASSERT_TRUE(reached) << cut;
    if (done) whole = cut - left;
  }
  EXPECT_GT(whole, sizeof(Prologue) + sizeof(Digest));
  for (int i = 0; i < 50; ++i) server.poll(1);
  EXPECT_TRUE(server.events.empty());
  End client(Policy::automatic);
  client.connect(address);
  EXPECT_TRUE(pump({&client, &server}, [&] { return server.count(Event::Kind::accepted) == 1; }));
}

TEST(FabricBootstrap, SilentStrangersDoNotKeepAnHonestPeerOut) {
  constexpr size_t kStrangers = 300;  // more than may be unproven at once
  End server(Policy::tcp);
  const Address address = server.listen();
  std::vector<Fd> strangers;
  for (size_t i = 0; i < kStrangers; ++i) {
    strangers.push_back(raw_connect(address));
    server.poll();
  }
  End client(Policy::tcp);
  client.connect(address);
  ASSERT_TRUE(pump({&client, &server}, [&] { return !client.events.empty(); }));
  EXPECT_EQ(client.events[0].kind, Event::Kind::connected) << client.events[0].status.to_string();
}

TEST(FabricBootstrap, TheConnectorNamesWhatItMeets) {
  Address address;
  Result<Fd> listener = listen_tcp({"127.0.0.1", 0}, &address);
  ASSERT_TRUE(listener.is_ok());
  Prologue newer{kHandshakeMagic, kHandshakeVersion + 1, 0, {}};
  std::vector<std::byte> newer_bytes(sizeof newer);
  std::memcpy(newer_bytes.data(), &newer, sizeof newer);
  const std::pair<std::vector<std::byte>, Code> cases[] = {
      {bytes_of("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and more\r\n"), Code::fabric},
      {newer_bytes, Code::config},
      {{}, Code::fabric}};
  for (const auto& each : cases) {
    End client(impatient(Policy::automatic));
    client.connect(address);
    Fd peer = raw_accept(listener.value().get(), &client);
    ASSERT_TRUE(peer.valid());
    raw_send(peer.get(), each.first);
    ASSERT_TRUE(pump({&client}, [&] { return !client.events.empty(); }));
    ASSERT_EQ(client.events.size(), 1u);
    EXPECT_EQ(client.events[0].kind, Event::Kind::lost);
    EXPECT_EQ(client.events[0].status.code(), each.second) << client.events[0].status.to_string();
    EXPECT_NE(client.events[0].status.message().find(to_string(address)), std::string::npos);
  }
}

// Plays the acceptor up to the answer, then tells what the connector chose.
Result<Choice> choice_after(const Answer& answer, Policy policy, End* client) {
  Address address;
  Result<Fd> listener = listen_tcp({"127.0.0.1", 0}, &address);
  EXPECT_TRUE(listener.is_ok());
  client->connect(address);
  RawPeer peer(raw_accept(listener.value().get(), client), false);
  std::vector<std::byte> body;
  EXPECT_TRUE(pump({client}, [&] { return peer.step(&body); }));
  Result<Offer> offer = decode_offer(body);
  EXPECT_TRUE(offer.is_ok() && offer.value().policy == policy);
  peer.handshake().put_body(encode(answer));
  EXPECT_TRUE(pump({client}, [&] { return peer.step(&body) || !client->events.empty(); }));
  if (client->count(Event::Kind::lost) > 0) return client->first(Event::Kind::lost)->status;
  peer.step(&body);
  return decode_choice(body);
}

TEST(FabricBootstrap, ARendezvousThatCannotBeReachedMeansTcpOrALoss) {
  Answer answer;
  answer.shm = true;
  answer.socket_name = "mxrdma-nobody-listens-here";
  answer.cookie[0] = 1;
  End automatic(Policy::automatic), shm(Policy::shm);
  Result<Choice> choice = choice_after(answer, Policy::automatic, &automatic);
  ASSERT_TRUE(choice.is_ok()) << choice.status().to_string();
  EXPECT_FALSE(choice.value().path == Path::shm);
  EXPECT_NE(choice.value().reason.find("network namespace"), std::string::npos);
  EXPECT_EQ(automatic.fabric->kind(automatic.events[0].peer), "tcp");
  Result<Choice> lost = choice_after(answer, Policy::shm, &shm);
  ASSERT_FALSE(lost.is_ok());
  EXPECT_EQ(lost.status().code(), Code::fabric);
  EXPECT_NE(lost.status().message().find("network namespace"), std::string::npos);
}

TEST(FabricBootstrap, ARendezvousThatEndsMeansTcpToo) {
  Result<Fd> rendezvous = listen_abstract("mxrdma-test-" + std::to_string(getpid()));
  ASSERT_TRUE(rendezvous.is_ok());
  Answer answer;
  answer.shm = true;
  answer.socket_name = "mxrdma-test-" + std::to_string(getpid());
  answer.cookie[0] = 1;
  Address address;
  Result<Fd> listener = listen_tcp({"127.0.0.1", 0}, &address);
  ASSERT_TRUE(listener.is_ok());
  End client(Policy::automatic);
  client.connect(address);
  RawPeer peer(raw_accept(listener.value().get(), &client), false);
  std::vector<std::byte> body;
  ASSERT_TRUE(pump({&client}, [&] { return peer.step(&body); }));
  peer.handshake().put_body(encode(answer));
  peer.step(&body);
  { Fd met = raw_accept(rendezvous.value().get(), &client); }  // and gone
  ASSERT_TRUE(pump({&client}, [&] { return !client.events.empty(); }));
  EXPECT_EQ(client.events[0].kind, Event::Kind::connected) << client.events[0].status.to_string();
  EXPECT_EQ(client.fabric->kind(client.events[0].peer), "tcp");
}

// A proven peer on tcp, in the test's hands.
std::unique_ptr<RawPeer> raw_tcp_peer(End* server, const Address& address) {
  auto peer = std::make_unique<RawPeer>(raw_connect(address), true);
  std::vector<std::byte> body;
  EXPECT_TRUE(pump({server}, [&] { return peer->step(&body) || peer->handshake().proven(); }));
  peer->handshake().put_body(encode(Offer{Policy::tcp, host_identity(), {}}));
  EXPECT_TRUE(pump({server}, [&] { return peer->step(&body); }));
  peer->handshake().put_body(encode(Choice{Path::tcp, "as asked", {}}));
  peer->step(&body);
  EXPECT_TRUE(pump({server}, [&] { return server->count(Event::Kind::accepted) == 1; }));
  return peer;
}

TEST(FabricBootstrap, ARegionReleasedWithinAWriteCostsThePeerUnlessItIsClosedAtOnce) {
  for (bool close : {false, true}) {
    End server(Policy::automatic);
    const auto peer = raw_tcp_peer(&server, server.listen());
    const PeerId id = server.events[0].peer;
    std::vector<std::byte> memory(100'000, std::byte{0x11});
    Result<Region> region = server.fabric->register_memory(memory.data(), memory.size());
    ASSERT_TRUE(region.is_ok());
    Result<RemoteRegion> remote = server.fabric->describe(region.value().id, id);
    ASSERT_TRUE(remote.is_ok());
    FrameHeader header;
    header.type = FrameType::write;
    header.bytes = memory.size();
    header.target = remote.value();
    std::vector<std::byte> half(sizeof header + 1000, std::byte{0x22});
    std::memcpy(half.data(), &header, sizeof header);
    raw_send(peer->fd(), half);
    ASSERT_TRUE(pump({&server}, [&] { return memory[999] == std::byte{0x22}; }));
    server.fabric->release(region.value().id);
    if (close) server.fabric->close(id);
    raw_send(peer->fd(), std::vector<std::byte>(1000, std::byte{0x33}));
    for (int i = 0; i < 20; ++i) server.poll(1);
    EXPECT_EQ(server.count(Event::Kind::lost), close ? 0u : 1u);
    EXPECT_EQ(server.count(Event::Kind::arrived), 0u);
    EXPECT_EQ(memory[1000], std::byte{0x11}) << "written after the release";
  }
}

// Without a device of any kind: what is not for tensors is reached all the same.
TEST(FabricBootstrap, WhoInsistsOnVerbsReachesAScheduler) {
  End scheduler(Policy::control), worker(Policy::verbs);
  worker.connect(scheduler.listen());
  ASSERT_TRUE(pump({&scheduler, &worker}, [&] {
    return scheduler.count(Event::Kind::accepted) == 1 && worker.count(Event::Kind::connected) == 1;
  }));
  EXPECT_EQ(worker.fabric->kind(worker.events[0].peer), "tcp");
}

TEST(FabricBootstrap, TwoThatInsistOnVerbsEndWithTheReason) {
  for (const DeviceInfo& device : device_table().devices)
    if (device.usable()) GTEST_SKIP() << "there is a usable RDMA device";
  End server(Policy::verbs), client(Policy::verbs);
  client.connect(server.listen());
  ASSERT_TRUE(pump({&server, &client}, [&] { return client.count(Event::Kind::lost) == 1; }));
  EXPECT_NE(client.events[0].status.message().find("verbs"), std::string::npos)
      << client.events[0].status.message();
  EXPECT_NE(client.events[0].status.message().find("device"), std::string::npos)
      << client.events[0].status.message();
  EXPECT_EQ(server.count(Event::Kind::accepted), 0u);
}

TEST(FabricBootstrap, AnotherHostGetsNoRendezvous) {
  End server(Policy::automatic);
  RawPeer peer(raw_connect(server.listen()), true);
  std::vector<std::byte> body;
  ASSERT_TRUE(pump({&server}, [&] { return peer.step(&body) || peer.handshake().proven(); }));
  Offer offer;
  offer.identity = host_identity();
  offer.identity.boot_id = "00000000-0000-0000-0000-000000000000";
  peer.handshake().put_body(encode(offer));
  ASSERT_TRUE(pump({&server}, [&] { return peer.step(&body); }));
  Result<Answer> answer = decode_answer(body);
  ASSERT_TRUE(answer.is_ok());
  EXPECT_FALSE(answer.value().shm);
  EXPECT_TRUE(answer.value().socket_name.empty());
  EXPECT_NE(answer.value().reason.find("boot id"), std::string::npos);
}

}  // namespace
}  // namespace mxrdma::fabric
