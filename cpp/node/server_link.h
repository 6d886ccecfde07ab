// A worker's view of one server: the ring's slots and the queue of slices that wait for one.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "node/operation.h"
#include "node/outbox.h"
#include "wire/control.h"
#include "wire/data.h"

namespace mxrdma::node {

struct LinkCounters {
  uint64_t messages = 0, packed_records = 0, waited_for_credit = 0;
};

class ServerLink {
 public:
  // Slot messages posted and not done at one time: enough to keep the fabric busy, few enough that
  // a slice of higher priority waits for little.
  static constexpr uint32_t kMaxPosted = 4;

  ServerLink(fabric::Fabric* fabric, fabric::PeerId peer, uint32_t server);

  // The server's ring; error: sizes that cannot be.
  Status ring_on_loop(const wire::RingInfo& info, const wire::JobConfig& config);
  bool has_ring() const { return !slots_.empty(); }

  // The slices [first, end) of a started push lie on this server.
  void enqueue_on_loop(Operation* push, uint32_t first, uint32_t end);
  // Sends as many slot messages as slots and the fabric allow.
  Status pump_on_loop();
  Status send_on_loop(const wire::Message& message);

  // `done` of the slot message in `slot`: calls `returned` for each record's push.
  template <typename Function>
  void written_on_loop(uint32_t slot, Function returned) {
    Slot& state = slots_[slot];
    --posted_;
    state.written = true;
    std::vector<Operation*> pushes = std::move(state.pushes);
    state.pushes.clear();
    free_if_idle(slot);
    for (Operation* push : pushes) returned(push);
  }
  // The server is through with these slots. Error: a slot that is not in use.
  Status credits_on_loop(const wire::Credits& credits);

  fabric::PeerId peer() const { return peer_; }
  uint32_t server() const { return server_; }
  Outbox& outbox() { return outbox_; }
  const LinkCounters& counters() const { return counters_; }

 private:
  struct Slot {
    bool in_use = false, written = false, credited = false;
    std::vector<std::byte>
        headers;  // slot header and records; the payload is gathered from the tensors
    std::vector<Operation*> pushes;  // one entry for each record
  };
  struct Item {
    Operation* push = nullptr;
    uint32_t next = 0, end = 0;
  };

  void free_if_idle(uint32_t slot);
  Status post_one();
  void put_record(std::byte* where, const Operation& push, uint32_t slice) const;

  fabric::Fabric* fabric_;
  fabric::PeerId peer_;
  uint32_t server_;
  Outbox outbox_;
  wire::RemoteRegion ring_;
  uint32_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  uint32_t posted_ = 0;
  std::map<std::pair<int64_t, Ticket>, Item> waiting_;  // by descending priority, then age
  LinkCounters counters_;
};

}  // namespace mxrdma::node
