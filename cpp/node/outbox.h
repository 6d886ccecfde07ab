// Sends and writes to one peer that the fabric could not take yet (Code::busy), in order. Retried
// on each `done`.
#pragma once

#include <deque>
#include <vector>

#include "fabric/fabric.h"

namespace mxrdma::node {

class Outbox {
 public:
  // Each queued entry answers a request of the peer or covers one of its slots, so the protocol
  // bounds them: a server owes a worker at most one answer for each slice. The limit catches our
  // own bugs and peers that break the rules.
  static constexpr size_t kMaxEntries = 4u << 20;

  Outbox(fabric::Fabric* fabric, fabric::PeerId peer) : fabric_(fabric), peer_(peer) {}

  // ok: posted or queued. An error is the fabric's (not busy) or the limit.
  Status send(std::vector<std::byte> message, uint64_t id);
  Status write(const fabric::LocalSpan& span, const wire::RemoteRegion& target, uint32_t immediate,
               uint64_t id);
  // Posts what is queued as far as the fabric takes it.
  Status flush_on_loop();
  bool empty() const { return entries_.empty(); }
  // Ids of queued writes, for giving them up after the peer is lost; clears the queue.
  std::vector<uint64_t> abandon_writes();

 private:
  struct Entry {
    bool is_write = false;
    std::vector<std::byte> message;
    fabric::LocalSpan span;
    wire::RemoteRegion target;
    uint32_t immediate = 0;
    uint64_t id = 0;
  };
  Status post(const Entry& entry);
  Status post_or_queue(Entry entry);

  fabric::Fabric* fabric_;
  fabric::PeerId peer_;
  std::deque<Entry> entries_;
};

}  // namespace mxrdma::node
