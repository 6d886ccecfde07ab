// The data path to one peer, behind the handshake. tcp/, shm/ and verbs/ implement it.
#pragma once

#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/region_table.h"

namespace mxrdma::fabric {

// What a channel shares with its fabric.
struct ChannelContext {
  RegionTable* regions = nullptr;
  Counters* counters = nullptr;
  std::vector<Event>* events = nullptr;  // appended to; delivered by the next poll()

  // An operation of the peer has ended well.
  void done(PeerId peer, uint64_t id) const {
    Event event;
    event.kind = Event::Kind::done;
    event.peer = peer;
    event.id = id;
    events->push_back(std::move(event));
  }
};

class Channel {
 public:
  virtual ~Channel() = default;

  // As in fabric.h, sizes checked by the fabric.
  virtual Status write(const LocalSpan* spans, size_t count, size_t bytes,
                       const RemoteRegion& target, uint32_t immediate, uint64_t id) = 0;
  virtual Status send(const void* data, size_t bytes, uint64_t id) = 0;
  virtual Status read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) = 0;
  virtual bool can_read() const = 0;
  virtual size_t outstanding() const = 0;

  // What the peer needs to reach the region; it can once it hears the name.
  virtual Result<RemoteRegion> name_on_loop(RegionId, const RegionTable::Entry& entry) {
    return RegionTable::name(entry);
  }
  virtual bool keeps_registrations() const { return false; }
  // The region is released: the peer lets go of it.
  virtual void forget_on_loop(const RegionTable::Entry&) {}

  // The peer is known to the fabric's user: what came before may be delivered.
  virtual void open_on_loop() {}
  // Moves what can be moved without waiting, a bounded amount. An error loses the peer.
  virtual Status progress_on_loop() = 0;
  // The control connection can be read (or has ended). An error loses the peer.
  virtual Status readable_on_loop() = 0;
  // The control connection can be written to.
  virtual Status writable_on_loop() { return Status::ok(); }
  // Whether the control connection's writability matters now.
  virtual bool wants_writable() const { return false; }
  // A second descriptor to be watched for reading, or -1.
  virtual int side_fd() const { return -1; }
  virtual Status side_readable_on_loop() { return Status::ok(); }
  // Before sleep: asks the peer for a doorbell. False: there is work, do not sleep.
  virtual bool arm_on_loop() = 0;

  // Whether a write of the peer into this region is half done, so that the region cannot go without
  // the peer.
  virtual bool receiving_into(RegionId id) const = 0;

  // The peer is lost: ids of all outstanding operations, in posting order. The channel is dead
  // afterwards.
  virtual std::vector<uint64_t> abandon_on_loop() = 0;

  virtual const char* kind() const = 0;
};

}  // namespace mxrdma::fabric
