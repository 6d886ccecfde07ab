// What the conformance suite runs in: a way to make endpoints of one fabric and to let time pass.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fabric/fabric.h"

namespace mxrdma::fabric {

class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Fabric> make_endpoint() = 0;
  // Gives up a connect() soon; for tests of just that.
  virtual std::unique_ptr<Fabric> make_impatient_endpoint() { return make_endpoint(); }
  // No endpoint had an event: lets the world move on, a little. False: it stands still for ever.
  virtual bool pass() = 0;
  // poll() of this world waits, and time is the clock's on the wall.
  virtual bool is_real() const = 0;
  virtual Status viable() const { return Status::ok(); }
};

struct WorldFactory {
  std::string name;
  std::function<std::unique_ptr<World>()> make;
};
inline void PrintTo(const WorldFactory& factory, std::ostream* out) { *out << factory.name; }

// One endpoint. Every post and every event passes here, and the contract's rules about events are
// checked on each, whatever the test is about.
class Endpoint {
 public:
  struct Delivery {
    bool is_write = false;
    uint32_t immediate = 0;
    uint64_t bytes = 0;
    std::vector<std::byte> payload;
  };
  struct Peer {
    bool connected = false;
    bool lost = false;
    bool closed = false;
    Status why_lost;
    std::vector<std::byte> hello;
    std::vector<Delivery> deliveries;  // in the order of the events
    std::map<uint64_t, Status> done;   // by id
    std::vector<uint64_t> done_order;  // ids
    std::deque<uint64_t> outstanding;  // ids in posting order
  };

  explicit Endpoint(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  Fabric* fabric() { return fabric_.get(); }
  Peer& peer(PeerId id) { return peers_[id]; }
  const std::vector<PeerId>& accepted() const { return accepted_; }

  Result<PeerId> connect(const Address& address, const std::vector<std::byte>& hello = {});
  Status write(PeerId peer, const std::vector<LocalSpan>& spans, const RemoteRegion& target,
               uint32_t immediate, uint64_t* id = nullptr);
  Status send(PeerId peer, const std::vector<std::byte>& message, uint64_t* id = nullptr);
  Status read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
              uint64_t* id = nullptr);
  void close(PeerId peer);
  // How many events came.
  size_t poll(int timeout_ms = 0);
  void destroy() { fabric_.reset(); }

 private:
  Status posted(PeerId peer, uint64_t id, Status status, uint64_t* id_out);
  void check(const Event& event);

  std::unique_ptr<Fabric> fabric_;
  std::map<PeerId, Peer> peers_;
  std::vector<PeerId> accepted_;
  uint64_t next_id_ = 1;
};

// Two ends of one connection.
struct Link {
  Endpoint* client = nullptr;
  Endpoint* server = nullptr;
  PeerId at_client = 0, at_server = 0;
  Endpoint::Peer& seen_by_client() const { return client->peer(at_client); }
  Endpoint::Peer& seen_by_server() const { return server->peer(at_server); }
};

class Conformance : public testing::TestWithParam<WorldFactory> {
 protected:
  void SetUp() override;

  Endpoint* make_endpoint();
  Endpoint* make_impatient_endpoint();
  Address listen(Endpoint* endpoint);
  // Fails the test and returns an empty link if they do not come together.
  Link connect(Endpoint* client, Endpoint* server, const Address& address,
               const std::vector<std::byte>& hello = {});
  Link make_link();
  // Polls all endpoints until it is true. False (and a failure) at the limit.
  bool pump_until(const std::function<bool()>& reached, const char* what);
  // Until nothing more comes.
  void pump_idle();
  RemoteRegion describe(Endpoint* owner, const Region& region, PeerId peer);
  Region allocate(Endpoint* owner, size_t bytes);
  Region register_memory(Endpoint* owner, std::vector<std::byte>* memory);

  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

// Over worlds in real time alone: virtual time does not wait.
class WaitingConformance : public Conformance {};

// Bytes that depend on the seed and the position, so that data at a wrong place is seen.
std::vector<std::byte> pattern(uint64_t seed, size_t bytes);
LocalSpan span_of(const std::vector<std::byte>& memory, RegionId region = kNoRegion);

}  // namespace mxrdma::fabric
