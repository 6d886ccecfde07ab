#include "fabric/sim/sim_endpoint.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace mxrdma::fabric {

using Kind = SimOperation::Kind;
using State = SimEnd::State;

SimEndpoint::SimEndpoint(SimNetwork* network, std::string name)
    : network_(network), name_(std::move(name)) {}

SimEndpoint::~SimEndpoint() {
  die(false);
  for (const auto& entry : regions_)
    if (entry.second.ours)
      MXRDMA_CHECK(munmap(entry.second.region.base, entry.second.region.bytes) == 0,
                   "munmap of our own mapping");
}

// ---- memory

Result<Region> SimEndpoint::add_region(void* base, size_t bytes, bool ours) {
  Registered entry;
  entry.region = {next_region_++, static_cast<std::byte*>(base), bytes};
  entry.ours = ours;
  entry.key = network_->generator_() | 1;  // 0 stays invalid, and nobody guesses a neighbour's
  regions_[entry.region.id] = entry;
  return entry.region;
}

Result<Region> SimEndpoint::allocate(size_t bytes) {
  if (bytes == 0) return Status(Code::invalid_argument, "allocation of 0 bytes");
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return Status(Code::fabric,
                  "allocation of " + std::to_string(bytes) + " bytes: " + errno_text(errno));
  return add_region(base, bytes, true);
}

Result<Region> SimEndpoint::register_memory(void* base, size_t bytes) {
  if (!base || bytes == 0) return Status(Code::invalid_argument, "registration of no memory");
  MXRDMA_CHECK(network_->may_register_callers_memory_, "the caller's memory is left alone");
  return add_region(base, bytes, false);
}

void SimEndpoint::release(RegionId region) {
  auto found = regions_.find(region);
  if (found == regions_.end()) return;
  for (const auto& peer : peers_)
    for (const auto& operation : peer.second.end().outstanding)
      for (const LocalSpan& span : operation->spans)
        MXRDMA_CHECK(span.region != region, "a region is released while a write reads from it");
  if (found->second.ours)
    MXRDMA_CHECK(munmap(found->second.region.base, found->second.region.bytes) == 0,
                 "munmap of our own mapping");
  regions_.erase(found);
}

Result<RemoteRegion> SimEndpoint::describe(RegionId region, PeerId peer) {
  auto found = regions_.find(region);
  if (found == regions_.end())
    return Status(Code::invalid_argument, "region " + std::to_string(region) + " does not exist");
  auto place = peers_.find(peer);
  if (place == peers_.end() || place->second.end().state != State::open)
    return Status(Code::fabric, describe_peer(peer) + " is not connected");
  if (!found->second.ours && !found->second.pinned) {
    const auto pinned = std::count_if(regions_.begin(), regions_.end(),
                                      [](const auto& entry) { return entry.second.pinned; });
    if (static_cast<size_t>(pinned) >= network_->most_regions_)
      return Status(Code::busy, "no more memory is pinned");
    found->second.pinned = true;
  }
  const Region& known = found->second.region;
  return RemoteRegion{reinterpret_cast<uint64_t>(known.base), known.bytes, found->second.key};
}

std::byte* SimEndpoint::resolve(const RemoteRegion& remote, uint64_t bytes) const {
  for (const auto& entry : regions_) {
    if (entry.second.key != remote.key) continue;
    const Region& region = entry.second.region;
    const auto base = reinterpret_cast<uint64_t>(region.base);
    if (remote.address < base || remote.address - base > region.bytes) return nullptr;
    const uint64_t offset = remote.address - base;
    return bytes <= region.bytes - offset ? region.base + offset : nullptr;
  }
  return nullptr;
}

// ---- connections

Result<Address> SimEndpoint::listen(const Address& address) {
  if (dead_) return Status(Code::closed, name_ + " is dead");
  Address real = address;
  while (real.port == 0 ||
         (address.port == 0 && network_->listeners_.count({real.host, real.port})))
    real.port = network_->next_port_++;
  if (!network_->listeners_.emplace(std::make_pair(real.host, real.port), this).second)
    return Status(Code::fabric, to_string(real) + ": " + errno_text(EADDRINUSE));
  listening_.push_back(real);
  return real;
}

Result<PeerId> SimEndpoint::connect(const Address& address, const std::vector<std::byte>& hello) {
  if (dead_) return Status(Code::closed, name_ + " is dead");
  if (hello.size() > kMaxHelloBytes)
    return Status(Code::invalid_argument, "a hello of " + std::to_string(hello.size()) + " bytes");
  network_->connections_.push_back(std::make_unique<SimConnection>());
  SimConnection* connection = network_->connections_.back().get();
  connection->address = address;
  connection->hello = hello;
  connection->names[0] = this;
  const auto listener = network_->listeners_.find({address.host, address.port});
  if (listener != network_->listeners_.end()) connection->names[1] = listener->second;
  SimEnd& end = connection->ends[0];
  end.endpoint = this;
  end.id = next_peer_++;
  const Place place{connection, 0};
  peers_[end.id] = place;
  network_->across(connection, network_->now_us_ + network_->latency_us(), [connection] {
    SimEndpoint* connecting = connection->ends[0].endpoint;
    if (connecting) connecting->reach_listener(connection);
  });
  network_->at(network_->now_us_ + int64_t{kHandshakeTimeoutMs} * 1000, [connection, place] {
    SimEnd& mine = connection->ends[0];
    if (mine.endpoint && mine.state == State::connecting) {
      mine.endpoint->tell_lost(place, "its connect timed out");
      mine.endpoint->lose(place, "no answer within " + std::to_string(kHandshakeTimeoutMs) + " ms");
    }
  });
  return end.id;
}

void SimEndpoint::reach_listener(SimConnection* connection) {
  if (connection->ends[0].state != State::connecting) return;
  SimNetwork* network = network_;
  const auto listener =
      network->listeners_.find({connection->address.host, connection->address.port});
  const int64_t answer_us = network->now_us_ + network->latency_us();
  if (listener == network->listeners_.end()) {
    network->across(connection, answer_us, [connection] {
      SimEnd& end = connection->ends[0];
      if (end.endpoint && end.state == State::connecting)
        end.endpoint->lose({connection, 0}, errno_text(ECONNREFUSED));
    });
    return;
  }
  SimEndpoint* accepting = listener->second;
  SimEnd& to = connection->ends[1];
  to.endpoint = accepting;
  to.id = accepting->next_peer_++;
  to.state = State::open;
  to.last_delivery_us = answer_us;
  connection->names[1] = accepting;
  accepting->peers_[to.id] = {connection, 1};
  Event event;
  event.kind = Event::Kind::accepted;
  event.peer = to.id;
  event.payload = connection->hello;
  accepting->ready_.push_back(std::move(event));
  network->across(connection, answer_us, [connection] {
    SimEnd& end = connection->ends[0];
    if (!end.endpoint || end.state != State::connecting) return;
    end.state = State::open;
    Event connected;
    connected.kind = Event::Kind::connected;
    connected.peer = end.id;
    end.endpoint->ready_.push_back(std::move(connected));
  });
}

void SimEndpoint::lose(const Place& place, const std::string& why) {
  SimEnd& end = place.end();
  if (end.state == State::gone) return;
  const Status status(Code::fabric, describe_peer(end.id) + ": " + why);
  end.state = State::gone;
  Event event;
  event.kind = Event::Kind::lost;
  event.peer = end.id;
  event.status = status;
  ready_.push_back(std::move(event));
  fail_outstanding(place, status);
}

void SimEndpoint::fail_outstanding(const Place& place, const Status& status) {
  SimEnd& end = place.end();
  for (const auto& operation : end.outstanding) {
    if (!operation->snapshot) operation->dropped = true;
    Event event;
    event.kind = Event::Kind::done;
    event.peer = end.id;
    event.id = operation->id;
    event.status = status;
    ready_.push_back(std::move(event));
    ++end.unread_dones;
  }
  end.outstanding.clear();
}

void SimEndpoint::tell_lost(const Place& place, const std::string& why) {
  SimEnd& end = place.end();
  end.last_delivery_us = std::max(end.last_delivery_us, network_->now_us_ + network_->latency_us());
  SimConnection* connection = place.connection;
  const Place there{connection, 1 - place.side};
  network_->across(connection, end.last_delivery_us, [there, why] {
    if (there.end().endpoint) there.end().endpoint->lose(there, why);
  });
}

void SimEndpoint::abandon_outstanding(const Place& place, bool keep_wire) {
  auto& outstanding = place.end().outstanding;
  size_t on_wire = keep_wire ? network_->random(outstanding.size() + 1) : 0;
  for (const auto& operation : outstanding) {
    if (on_wire == 0 || operation->kind == Kind::read) {
      operation->dropped = true;
      on_wire = 0;
      continue;
    }
    --on_wire;
    operation->snapshot = true;
    for (const LocalSpan& span : operation->spans) {
      const auto* first = static_cast<const std::byte*>(span.data);
      operation->payload.insert(operation->payload.end(), first, first + span.bytes);
    }
    operation->spans.clear();
  }
}

void SimEndpoint::close(PeerId peer) {
  auto found = peers_.find(peer);
  if (dead_ || found == peers_.end()) return;
  const Place place = found->second;
  SimEnd& end = place.end();
  ready_.erase(std::remove_if(ready_.begin(), ready_.end(),
                              [peer](const Event& event) {
                                return event.peer == peer && event.kind != Event::Kind::done;
                              }),
               ready_.end());
  if (end.state == State::gone) return;
  end.state = State::gone;
  abandon_outstanding(place, true);
  tell_lost(place, "closed by the peer");
  fail_outstanding(place, Status(Code::cancelled, describe_peer(peer) + " was closed by us"));
}

void SimEndpoint::die(bool keep_wire) {
  if (dead_) return;
  dead_ = true;
  for (const Address& address : listening_)
    network_->listeners_.erase({address.host, address.port});
  for (const auto& entry : peers_) {
    const Place place = entry.second;
    if (place.end().state != State::gone) {
      abandon_outstanding(place, keep_wire);
      tell_lost(place, "connection reset by the peer");
    }
    place.end().outstanding.clear();
    place.end().state = State::gone;
    place.end().endpoint = nullptr;
  }
  peers_.clear();
  ready_.clear();
}

// ---- data

Status SimEndpoint::check_post(PeerId peer, Place* place) {
  if (dead_) return Status(Code::closed, name_ + " is dead");
  auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.end().state != State::open)
    return Status(Code::fabric, describe_peer(peer) + " is not connected");
  *place = found->second;
  if (place->end().outstanding.size() + place->end().unread_dones >= kMaxOutstandingPerPeer) {
    ++counters_.busy;
    return Status(Code::busy, std::to_string(kMaxOutstandingPerPeer) + " operations outstanding");
  }
  return Status::ok();
}

Status SimEndpoint::write(PeerId peer, const LocalSpan* spans, size_t count,
                          const RemoteRegion& target, uint32_t immediate, uint64_t id) {
  Place place;
  Status status = check_post(peer, &place);
  if (!status.is_ok()) return status;
  if (count > kMaxSpans)
    return Status(Code::invalid_argument, std::to_string(count) + " spans in one write");
  auto operation = std::make_shared<SimOperation>();
  for (size_t i = 0; i < count; ++i) {
    if (spans[i].region != kNoRegion) {
      auto found = regions_.find(spans[i].region);
      MXRDMA_CHECK(found != regions_.end(), "a span names a region that does not exist");
      const Region& region = found->second.region;
      const auto* data = static_cast<const std::byte*>(spans[i].data);
      MXRDMA_CHECK(data >= region.base && data + spans[i].bytes <= region.base + region.bytes,
                   "a span lies outside its region");
    }
    operation->bytes += spans[i].bytes;
  }
  if (target.bytes < operation->bytes)
    return Status(Code::invalid_argument,
                  std::to_string(operation->bytes) + " bytes into " + std::to_string(target.bytes));
  operation->spans.assign(spans, spans + count);
  operation->remote = target;
  operation->immediate = immediate;
  operation->id = id;
  ++counters_.writes;
  counters_.write_bytes += operation->bytes;
  post(place, std::move(operation));
  return Status::ok();
}

Status SimEndpoint::send(PeerId peer, const void* data, size_t bytes, uint64_t id) {
  if (bytes == 0 || bytes > kMaxMessageBytes)
    return Status(Code::invalid_argument, "a message of " + std::to_string(bytes) + " bytes");
  Place place;
  Status status = check_post(peer, &place);
  if (!status.is_ok()) return status;
  auto operation = std::make_shared<SimOperation>();
  operation->kind = Kind::send;
  operation->id = id;
  operation->bytes = bytes;
  const auto* first = static_cast<const std::byte*>(data);
  operation->payload.assign(first, first + bytes);
  ++counters_.sends;
  counters_.send_bytes += bytes;
  post(place, std::move(operation));
  return Status::ok();
}

Status SimEndpoint::read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
                         uint64_t id) {
  Place place;
  Status status = check_post(peer, &place);
  if (!status.is_ok()) return status;
  if (source.bytes < bytes)
    return Status(Code::invalid_argument,
                  std::to_string(bytes) + " bytes from " + std::to_string(source.bytes));
  auto operation = std::make_shared<SimOperation>();
  operation->kind = Kind::read;
  operation->id = id;
  operation->remote = source;
  operation->into = into;
  operation->bytes = bytes;
  ++counters_.reads;
  counters_.read_bytes += bytes;
  post(place, std::move(operation));
  return Status::ok();
}

bool SimEndpoint::can_read(PeerId peer) const {
  auto found = peers_.find(peer);
  return found != peers_.end() && found->second.end().state == State::open;
}

void SimEndpoint::post(const Place& place, std::shared_ptr<SimOperation> operation) {
  SimEnd& end = place.end();
  end.outstanding.push_back(operation);
  const int64_t transfer_us =
      static_cast<int64_t>(operation->bytes) / network_->latency_.bytes_per_us;
  const int64_t start_us = std::max(end.last_delivery_us, network_->now_us_);
  end.last_delivery_us = std::max(start_us, network_->now_us_ + network_->latency_us());
  end.last_delivery_us += transfer_us;
  const Place there{place.connection, 1 - place.side};
  network_->across(place.connection, end.last_delivery_us, [place, there, operation] {
    if (!operation->dropped && there.end().endpoint)
      there.end().endpoint->deliver(place, operation);
  });
}

void SimEndpoint::deliver(const Place& from, const std::shared_ptr<SimOperation>& operation) {
  const Place here{from.connection, 1 - from.side};
  SimEnd& end = here.end();
  if (end.state != State::open) return;
  Event event;
  event.peer = end.id;
  if (operation->kind == Kind::send) {
    event.kind = Event::Kind::message;
    event.payload = operation->payload;
    ++counters_.messages;
    ready_.push_back(std::move(event));
  } else {
    std::byte* memory = resolve(operation->remote, operation->bytes);
    if (!memory) {
      const char* what = operation->kind == Kind::write ? "write" : "read";
      const std::string why = std::string("a ") + what + " of " + std::to_string(operation->bytes) +
                              " bytes outside of any region that may be reached";
      tell_lost(here, why);
      return lose(here, why);
    }
    if (operation->kind == Kind::read) {
      std::memcpy(operation->into, memory, operation->bytes);
    } else {
      size_t at = 0;
      for (const LocalSpan& span : operation->spans) {
        if (span.bytes > 0) std::memcpy(memory + at, span.data, span.bytes);
        at += span.bytes;
      }
      if (operation->snapshot && !operation->payload.empty())
        std::memcpy(memory, operation->payload.data(), operation->payload.size());
      event.kind = Event::Kind::arrived;
      event.immediate = operation->immediate;
      event.bytes = operation->bytes;
      ++counters_.arrivals;
      counters_.arrival_bytes += operation->bytes;
      counters_.copied_bytes += operation->bytes;
      ready_.push_back(std::move(event));
    }
  }
  SimEnd& sender = from.end();
  sender.last_done_us = std::max(sender.last_done_us, network_->now_us_ + network_->latency_us());
  network_->across(from.connection, sender.last_done_us, [from, operation] {
    if (from.end().endpoint) from.end().endpoint->complete(from, operation);
  });
}

void SimEndpoint::complete(const Place& place, const std::shared_ptr<SimOperation>& operation) {
  SimEnd& end = place.end();
  if (end.state != State::open) return;
  MXRDMA_CHECK(!end.outstanding.empty() && end.outstanding.front() == operation,
               "completions are in order of posting");
  end.outstanding.pop_front();
  Event event;
  event.kind = Event::Kind::done;
  event.peer = end.id;
  event.id = operation->id;
  ready_.push_back(std::move(event));
  ++end.unread_dones;
}

// ---- progress

void SimEndpoint::poll(std::vector<Event>* events, int) {
  for (const Event& event : ready_) {
    if (event.kind != Event::Kind::done) continue;
    auto found = peers_.find(event.peer);
    if (found != peers_.end()) --found->second.end().unread_dones;
  }
  std::move(ready_.begin(), ready_.end(), std::back_inserter(*events));
  ready_.clear();
}

std::string SimEndpoint::describe_peer(PeerId peer) const {
  auto found = peers_.find(peer);
  if (found == peers_.end()) return name_ + ": no peer " + std::to_string(peer);
  const Place& place = found->second;
  return name_ + (place.side == 0 ? " to " : " at ") + to_string(place.connection->address) +
         " (simulated)";
}

}  // namespace mxrdma::fabric
