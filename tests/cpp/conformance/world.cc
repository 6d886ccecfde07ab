#include "world.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mxrdma::fabric {

namespace {
constexpr auto kPumpLimit = std::chrono::seconds(60);
constexpr int kStandstillPolls = 100;  // what a faulty fabric holds comes out within so many
constexpr char kHost[] = "127.0.0.1";
}  // namespace

std::vector<std::byte> pattern(uint64_t seed, size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (size_t i = 0; i < bytes; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    data[i] = static_cast<std::byte>(state >> 32);
  }
  return data;
}

LocalSpan span_of(const std::vector<std::byte>& memory, RegionId region) {
  return {memory.data(), memory.size(), region};
}

// ---- endpoint

Result<PeerId> Endpoint::connect(const Address& address, const std::vector<std::byte>& hello) {
  Result<PeerId> peer = fabric_->connect(address, hello);
  if (peer.is_ok()) {
    EXPECT_EQ(peers_.count(peer.value()), 0u) << "a peer id was given twice";
    peers_[peer.value()];
  }
  return peer;
}

Status Endpoint::posted(PeerId peer, uint64_t id, Status status, uint64_t* id_out) {
  if (status.is_ok()) peers_[peer].outstanding.push_back(id);
  if (id_out) *id_out = id;
  return status;
}

Status Endpoint::write(PeerId peer, const std::vector<LocalSpan>& spans, const RemoteRegion& target,
                       uint32_t immediate, uint64_t* id_out) {
  const uint64_t id = next_id_++;
  // A copy that dies at once: the array of spans is the caller's again when write() returns.
  std::vector<LocalSpan> array = spans;
  Status status = fabric_->write(peer, array.data(), array.size(), target, immediate, id);
  std::fill(array.begin(), array.end(), LocalSpan{});
  return posted(peer, id, std::move(status), id_out);
}

Status Endpoint::send(PeerId peer, const std::vector<std::byte>& message, uint64_t* id_out) {
  const uint64_t id = next_id_++;
  std::vector<std::byte> copy = message;
  Status status = fabric_->send(peer, copy.data(), copy.size(), id);
  std::fill(copy.begin(), copy.end(), std::byte{0xee});
  return posted(peer, id, std::move(status), id_out);
}

Status Endpoint::read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
                      uint64_t* id_out) {
  const uint64_t id = next_id_++;
  return posted(peer, id, fabric_->read(peer, source, into, bytes, id), id_out);
}

void Endpoint::close(PeerId peer) {
  fabric_->close(peer);
  if (!peers_[peer].lost) peers_[peer].closed = true;
}

size_t Endpoint::poll(int timeout_ms) {
  if (!fabric_) return 0;
  std::vector<Event> events;
  fabric_->poll(&events, timeout_ms);
  for (const Event& event : events) check(event);
  return events.size();
}

void Endpoint::check(const Event& event) {
  const bool is_new = peers_.count(event.peer) == 0;
  Peer& peer = peers_[event.peer];
  if (event.kind == Event::Kind::accepted) {
    EXPECT_TRUE(is_new) << "accepted under an id that is known already";
    peer.connected = true;
    peer.hello = event.payload;
    accepted_.push_back(event.peer);
    return;
  }
  EXPECT_FALSE(is_new) << "an event of an unknown peer " << event.peer;
  if (event.kind == Event::Kind::done) {
    ASSERT_FALSE(peer.outstanding.empty()) << "done(" << event.id << ") of nothing outstanding";
    EXPECT_EQ(peer.outstanding.front(), event.id) << "done out of order";
    peer.outstanding.pop_front();
    EXPECT_TRUE(peer.done.emplace(event.id, event.status).second) << "done twice: " << event.id;
    peer.done_order.push_back(event.id);
    EXPECT_FALSE(peer.lost && event.status.is_ok()) << "success after lost";
    EXPECT_TRUE(event.status.is_ok() || peer.lost || peer.closed) << "failure before lost";
    return;
  }
  EXPECT_FALSE(peer.closed) << "an event other than done after close()";
  EXPECT_FALSE(peer.lost) << "an event other than done after lost";
  switch (event.kind) {
    case Event::Kind::connected:
      EXPECT_FALSE(peer.connected) << "connected twice";
      peer.connected = true;
      break;
    case Event::Kind::lost:
      EXPECT_FALSE(event.status.is_ok());
      EXPECT_FALSE(event.status.message().empty()) << "lost without a reason";
      peer.lost = true;
      peer.why_lost = event.status;
      break;
    case Event::Kind::arrived:
      EXPECT_TRUE(peer.connected) << "data before the connection";
      peer.deliveries.push_back({true, event.immediate, event.bytes, {}});
      break;
    case Event::Kind::message:
      EXPECT_TRUE(peer.connected) << "data before the connection";
      peer.deliveries.push_back({false, 0, event.payload.size(), event.payload});
      break;
    case Event::Kind::accepted:
    case Event::Kind::done:
      break;
  }
}

// ---- suite

void Conformance::SetUp() {
  world_ = GetParam().make();
  const Status viable = world_->viable();
  if (!viable.is_ok()) GTEST_SKIP() << viable.to_string();
}

Endpoint* Conformance::make_endpoint() {
  endpoints_.push_back(std::make_unique<Endpoint>(world_->make_endpoint()));
  return endpoints_.back().get();
}

Endpoint* Conformance::make_impatient_endpoint() {
  endpoints_.push_back(std::make_unique<Endpoint>(world_->make_impatient_endpoint()));
  return endpoints_.back().get();
}

Address Conformance::listen(Endpoint* endpoint) {
  Result<Address> address = endpoint->fabric()->listen({kHost, 0});
  EXPECT_TRUE(address.is_ok()) << address.status().to_string();
  return address.is_ok() ? address.value() : Address{};
}

bool Conformance::pump_until(const std::function<bool()>& reached, const char* what) {
  const auto limit = std::chrono::steady_clock::now() + kPumpLimit;
  int standstill = 0;
  while (!reached()) {
    size_t events = 0;
    for (const auto& endpoint : endpoints_) events += endpoint->poll();
    if (testing::Test::HasFatalFailure()) return false;
    if (events > 0) {
      standstill = 0;
    } else if (!world_->pass() && ++standstill > kStandstillPolls) {
      ADD_FAILURE() << "the world stands still before: " << what;
      return false;
    }
    if (std::chrono::steady_clock::now() > limit) {
      ADD_FAILURE() << "not within a minute: " << what;
      return false;
    }
  }
  return true;
}

void Conformance::pump_idle() {
  // A real world has no end of events; nothing for so many polls in a row has to do.
  for (int quiet = 0; quiet < kStandstillPolls;) {
    size_t events = 0;
    for (const auto& endpoint : endpoints_) events += endpoint->poll();
    const bool moved = world_->pass();
    quiet = events > 0 || (moved && !world_->is_real()) ? 0 : quiet + 1;
  }
}

Link Conformance::connect(Endpoint* client, Endpoint* server, const Address& address,
                          const std::vector<std::byte>& hello) {
  const size_t before = server->accepted().size();
  Result<PeerId> peer = client->connect(address, hello);
  EXPECT_TRUE(peer.is_ok()) << peer.status().to_string();
  if (!peer.is_ok()) return {};
  const PeerId id = peer.value();
  const bool met = pump_until(
      [&] {
        return client->peer(id).lost ||
               (client->peer(id).connected && server->accepted().size() > before);
      },
      "connected and accepted");
  EXPECT_FALSE(client->peer(id).lost) << client->peer(id).why_lost.to_string();
  if (!met || client->peer(id).lost) return {};
  return {client, server, id, server->accepted().back()};
}

Link Conformance::make_link() {
  Endpoint* server = make_endpoint();
  Endpoint* client = make_endpoint();
  return connect(client, server, listen(server));
}

RemoteRegion Conformance::describe(Endpoint* owner, const Region& region, PeerId peer) {
  Result<RemoteRegion> remote = owner->fabric()->describe(region.id, peer);
  EXPECT_TRUE(remote.is_ok()) << remote.status().to_string();
  return remote.is_ok() ? remote.value() : RemoteRegion{};
}

Region Conformance::allocate(Endpoint* owner, size_t bytes) {
  Result<Region> region = owner->fabric()->allocate(bytes);
  EXPECT_TRUE(region.is_ok()) << region.status().to_string();
  return region.is_ok() ? region.value() : Region{};
}

Region Conformance::register_memory(Endpoint* owner, std::vector<std::byte>* memory) {
  Result<Region> region = owner->fabric()->register_memory(memory->data(), memory->size());
  EXPECT_TRUE(region.is_ok()) << region.status().to_string();
  return region.is_ok() ? region.value() : Region{};
}

}  // namespace mxrdma::fabric
