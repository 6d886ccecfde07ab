// Wraps any fabric and breaks it as a plan says, repeatably from a seed. With an empty plan it is
// transparent. Beyond the plan it keeps the contract of fabric.h: order, one `done` for each
// operation, `lost` before the failed ones.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fabric/fabric.h"

namespace mxrdma::fabric {

struct FaultPlan {
  uint64_t seed = 0;
  // One event in so many is held for 1 .. max_delay_polls polls, and what follows it of the same
  // peer with it. 0: none.
  uint32_t delay_one_in = 0;
  // The same for `done` events alone, which then also hold back what follows.
  uint32_t delay_done_one_in = 0;
  uint32_t max_delay_polls = 8;
  // One post in so many is refused with Code::busy. Only while something of the peer is
  // outstanding, as a fabric's full queue would be: there is a `done` to wait for.
  uint32_t busy_one_in = 0;
  // The connection on which the n-th operation (or the n-th byte) of all is posted breaks before
  // that.
  std::optional<uint64_t> break_after_operations;
  std::optional<uint64_t> break_after_bytes;
  // From the n-th operation on nothing goes out, comes in or completes, without `lost`. close()
  // still ends the inner connection, as the memory of what is under way has to come back.
  std::optional<uint64_t> silence_after_operations;

  bool empty() const {
    return delay_one_in == 0 && delay_done_one_in == 0 && busy_one_in == 0 &&
           !break_after_operations && !break_after_bytes && !silence_after_operations;
  }
  // For messages of tests: all that is needed to see a failure again.
  std::string to_string() const;
};

class FaultyFabric final : public Fabric {
 public:
  FaultyFabric(std::unique_ptr<Fabric> inner, const FaultPlan& plan);

  Result<Region> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  Result<Region> register_memory(void* base, size_t bytes) override {
    return inner_->register_memory(base, bytes);
  }
  void release(RegionId region) override { inner_->release(region); }
  bool keeps_registrations(PeerId peer) const override { return inner_->keeps_registrations(peer); }
  bool may_register_callers_memory() const override {
    return inner_->may_register_callers_memory();
  }
  Result<RemoteRegion> describe(RegionId region, PeerId peer) override {
    return inner_->describe(region, peer);
  }
  Result<Address> listen(const Address& address) override { return inner_->listen(address); }
  Result<PeerId> connect(const Address& address, const std::vector<std::byte>& hello) override {
    return inner_->connect(address, hello);
  }
  void close(PeerId peer) override;
  void be_patient_on_loop(int silent_ms) override { inner_->be_patient_on_loop(silent_ms); }
  Status write(PeerId peer, const LocalSpan* spans, size_t count, const RemoteRegion& target,
               uint32_t immediate, uint64_t id) override;
  Status send(PeerId peer, const void* data, size_t bytes, uint64_t id) override;
  Status read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
              uint64_t id) override;
  bool can_read(PeerId peer) const override { return inner_->can_read(peer); }
  void poll(std::vector<Event>* events, int timeout_ms) override;
  void wake() override { inner_->wake(); }
  std::string kind(PeerId peer) const override { return inner_->kind(peer); }
  std::string describe_peer(PeerId peer) const override { return inner_->describe_peer(peer); }
  Counters counters() const override;

  Fabric* inner() { return inner_.get(); }
  // Events are held and come out after some polls.
  bool holding() const;
  bool broke() const { return broke_; }
  bool silent() const { return silent_; }

 private:
  struct Peer {
    std::deque<uint64_t> outstanding;  // ids, `done` not yet returned
    std::deque<Event> held;            // in order
    uint32_t polls_left = 0;           // until the first of them goes
    bool broken = false;               // by us: the inner fabric's cancelled dones become errors
    bool closed = false;
  };

  bool one_in(uint32_t n) { return n != 0 && generator_() % n == 0; }
  // What a post meets before it reaches the inner fabric. Nothing: go on.
  std::optional<Status> meet(PeerId peer, uint64_t bytes, uint64_t id);
  void break_connection(PeerId id, Peer* peer);
  void take(Event event);
  void hand_out(Peer* peer, std::vector<Event>* events);

  std::unique_ptr<Fabric> inner_;
  FaultPlan plan_;
  std::mt19937_64 generator_;
  std::map<PeerId, Peer> peers_;
  uint64_t operations_ = 0, bytes_ = 0, refused_ = 0;
  bool broke_ = false, silent_ = false;
  std::vector<Event> incoming_;
};

}  // namespace mxrdma::fabric
