// One endpoint of a SimNetwork and the connections between them. Private to sim/.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/sim/sim_network.h"

namespace mxrdma::fabric {

struct SimOperation {
  enum class Kind : uint8_t { write, send, read };
  Kind kind = Kind::write;
  uint64_t id = 0;
  std::vector<LocalSpan> spans;    // write; until the memory is given back
  std::vector<std::byte> payload;  // send; write: what was on the wire when the memory went back
  bool snapshot = false;           // the payload stands for the spans
  RemoteRegion remote;
  uint32_t immediate = 0;
  void* into = nullptr;  // read
  uint64_t bytes = 0;
  bool dropped = false;  // will not reach the peer
};

struct SimEnd {
  enum class State : uint8_t { connecting, open, gone };  // gone: lost or closed
  SimEndpoint* endpoint = nullptr;                        // null once the endpoint is dead
  PeerId id = 0;
  State state = State::connecting;
  std::deque<std::shared_ptr<SimOperation>> outstanding;  // posted, `done` not yet made
  size_t unread_dones = 0;                                // made, not yet returned by poll()
  int64_t last_delivery_us = 0;                           // of what this end sends
  int64_t last_done_us = 0;
};

struct SimConnection {
  std::array<SimEnd, 2> ends;            // 0 connected, 1 accepted
  std::array<const Fabric*, 2> names{};  // whose ends they are, for cuts; never dereferenced
  Address address;                       // that 0 connected to
  std::vector<std::byte> hello;
  std::vector<std::function<void()>> held;  // while the ends are apart
};

class SimEndpoint final : public Fabric {
 public:
  SimEndpoint(SimNetwork* network, std::string name);
  ~SimEndpoint() override;

  Result<Region> allocate(size_t bytes) override;
  Result<Region> register_memory(void* base, size_t bytes) override;
  void release(RegionId region) override;
  bool keeps_registrations(PeerId) const override { return network_->keeps_registrations_; }
  bool may_register_callers_memory() const override {
    return network_->may_register_callers_memory_;
  }
  Result<RemoteRegion> describe(RegionId region, PeerId peer) override;

  Result<Address> listen(const Address& address) override;
  Result<PeerId> connect(const Address& address, const std::vector<std::byte>& hello) override;
  void close(PeerId peer) override;

  Status write(PeerId peer, const LocalSpan* spans, size_t count, const RemoteRegion& target,
               uint32_t immediate, uint64_t id) override;
  Status send(PeerId peer, const void* data, size_t bytes, uint64_t id) override;
  Status read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
              uint64_t id) override;
  bool can_read(PeerId peer) const override;

  void poll(std::vector<Event>* events, int timeout_ms) override;
  void wake() override {}

  std::string kind(PeerId) const override { return "sim"; }
  std::string describe_peer(PeerId peer) const override;
  Counters counters() const override { return counters_; }

  size_t region_count() const { return regions_.size(); }
  // keep_wire: some of what was posted still reaches the peers.
  void die(bool keep_wire);

 private:
  struct Place {
    SimConnection* connection = nullptr;
    int side = 0;
    SimEnd& end() const { return connection->ends[static_cast<size_t>(side)]; }
    SimEnd& other() const { return connection->ends[static_cast<size_t>(1 - side)]; }
  };
  struct Registered {
    Region region;
    bool ours = false;
    uint64_t key = 0;
    bool pinned = false;
  };

  Status check_post(PeerId peer, Place* place);
  void post(const Place& place, std::shared_ptr<SimOperation> operation);
  void deliver(const Place& from, const std::shared_ptr<SimOperation>& operation);
  void complete(const Place& place, const std::shared_ptr<SimOperation>& operation);
  void reach_listener(SimConnection* connection);
  // The address range as memory of ours, or null.
  std::byte* resolve(const RemoteRegion& remote, uint64_t bytes) const;
  // This end hears that the connection is gone.
  void lose(const Place& place, const std::string& why);
  // Tells the other end, behind what is on the wire already.
  void tell_lost(const Place& place, const std::string& why);
  // Gives the memory of outstanding writes back; a random part of them is on the wire already.
  void abandon_outstanding(const Place& place, bool keep_wire);
  void fail_outstanding(const Place& place, const Status& status);
  Result<Region> add_region(void* base, size_t bytes, bool ours);

  SimNetwork* network_;
  std::string name_;
  bool dead_ = false;
  std::vector<Address> listening_;
  std::map<PeerId, Place> peers_;
  PeerId next_peer_ = 1;
  std::map<RegionId, Registered> regions_;
  RegionId next_region_ = 1;
  std::deque<Event> ready_;
  Counters counters_;
};

}  // namespace mxrdma::fabric
