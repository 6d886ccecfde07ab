// The contract of every fabric (shm, tcp, verbs; sim and faulty in tests). All of them pass
// tests/cpp/conformance.
//
// Threads: a Fabric belongs to one thread, its loop. Only wake() may be called from another thread.
// Order: on one connection, writes and sends are delivered in the order in which they were posted,
// and their
//   `done` events come in that order too.
// Completions: nothing is completed inline. Each accepted write, send or read yields exactly one
// `done`, from a
//   later poll(). A lost peer yields exactly one `lost`, then no more `arrived` or `message` from
//   it, and `done` with an error for all that was outstanding (after the `lost`, in posting order).
// Bounds: at most kMaxOutstandingPerPeer operations of a peer are outstanding; beyond it posting
// returns
//   Code::busy and has no effect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "wire/region.h"

namespace mxrdma::fabric {

using PeerId = uint32_t;  // one connection; given by this fabric object, never given twice
using wire::offset_by;
using wire::RemoteRegion;
using RegionId = uint32_t;  // one registered memory region of this fabric object; 0 is none

constexpr RegionId kNoRegion = 0;

struct Address {
  std::string host;  // a name, an IPv4 or IPv6 address (with %scope, without brackets)
  uint16_t port = 0;
};
std::string to_string(const Address& address);  // host:port, [v6]:port

// Memory that a write gathers from. `region` names the registered region it lies in, or kNoRegion.
struct LocalSpan {
  const void* data = nullptr;
  size_t bytes = 0;
  RegionId region = kNoRegion;
};

struct Region {
  RegionId id = kNoRegion;
  std::byte* base = nullptr;
  size_t bytes = 0;
};

struct Event {
  enum class Kind : uint8_t {
    accepted,   // a proven peer connected to us; payload: its hello
    connected,  // our connect() succeeded
    arrived,    // a peer's write is complete in our memory; immediate, bytes
    message,    // a peer's send; payload
    done,       // our write, send or read with this id ended; status
    lost,       // the connection is gone (or could not be made); status says why, with the address
  };
  Kind kind = Kind::done;
  PeerId peer = 0;
  uint32_t immediate = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
  Status status;
  std::vector<std::byte> payload;
};

struct Counters {
  uint64_t writes = 0, write_bytes = 0;      // posted by us
  uint64_t arrivals = 0, arrival_bytes = 0;  // writes of peers
  uint64_t sends = 0, send_bytes = 0;
  uint64_t messages = 0;
  uint64_t reads = 0, read_bytes = 0;
  uint64_t copied_bytes =
      0;  // moved by this process' CPU inside the fabric (kernel copies are not seen here)
  uint64_t busy = 0;    // posts refused because the queue was full
  uint64_t sleeps = 0;  // times poll() went to sleep
  uint64_t wakes = 0;   // doorbells rung at peers
  // verbs alone
  uint64_t rnr = 0;            // receiver not ready until retries were used up; 0 in healthy jobs
  uint64_t staged_bytes = 0;   // of copied_bytes: sent from staging memory, as not registered
  uint64_t registrations = 0;  // of memory with a device, ever
  uint64_t registered_bytes = 0;  // now, staging memory and receives included
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  // ---- memory ----
  // Whole pages that peers can reach with the fewest copies (shm: a memfd segment that peers map).
  // Zeroed. Owned by the fabric until release().
  virtual Result<Region> allocate(size_t bytes) = 0;
  // Makes the caller's memory a target of writes. It stays the caller's and must live until
  // release().
  virtual Result<Region> register_memory(void* base, size_t bytes) = 0;
  // No operation that names the region may be outstanding at our side. A peer's later write into it
  // is the peer's error: its connection is lost.
  virtual void release(RegionId region) = 0;
  // Whether a region of the caller's memory costs a system call or more, so that what repeats
  // should stay registered; then spans that name their region also leave without a copy.
  virtual bool keeps_registrations(PeerId /*peer*/) const { return false; }
  // False: the kernel does not copy at a fork what a device may write to, so that the caller's own
  // memory must not be registered; use allocate().
  virtual bool may_register_callers_memory() const { return true; }
  // What `peer` needs to write into (or read from) the region. Code::busy: the system lets us pin
  // no more memory now; regions that are released make room.
  virtual Result<RemoteRegion> describe(RegionId region, PeerId peer) = 0;

  // ---- connections ----
  // Once. Port 0 picks a free one. Returns the address with the real port.
  virtual Result<Address> listen(const Address& address) = 0;
  // Starts to connect; ends in `connected` or `lost` within kHandshakeTimeoutMs. The other side
  // sees `accepted` with `hello` (at most kMaxHelloBytes).
  virtual Result<PeerId> connect(const Address& address, const std::vector<std::byte>& hello) = 0;
  // Gives up the connection: outstanding operations end with Code::cancelled, then no more events
  // of it, except the `done`s. The other side sees `lost`. Closing an unknown or lost peer does
  // nothing.
  virtual void close(PeerId peer) = 0;

  // A peer whose host acknowledges nothing for so long is lost; at first kUnacknowledgedMs. Counts
  // for connections that are there and for later ones. Where nothing is acknowledged (shm) it means
  // nothing.
  virtual void be_patient_on_loop(int /*silent_ms*/) {}

  // ---- data ----
  // One-sided: gathers `spans` (at most kMaxSpans) into `target` at the peer, which then sees
  // `arrived(immediate, sum of bytes)`. The spans' memory belongs to the fabric until `done(id)`;
  // the array of spans does not. A total of zero bytes is allowed; target.bytes must be >= the
  // total.
  virtual Status write(PeerId peer, const LocalSpan* spans, size_t count,
                       const RemoteRegion& target, uint32_t immediate, uint64_t id) = 0;
  // Two-sided, small: at most kMaxMessageBytes, copied before it returns.
  virtual Status send(PeerId peer, const void* data, size_t bytes, uint64_t id) = 0;
  // One-sided read of `source` into `into` (belongs to the fabric until `done(id)`). Only if
  // can_read(peer).
  virtual Status read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
                      uint64_t id) = 0;
  virtual bool can_read(PeerId peer) const = 0;

  // ---- progress ----
  // Appends events; waits up to timeout_ms (0: not at all) if there are none. Returns early on
  // wake().
  virtual void poll(std::vector<Event>* events, int timeout_ms) = 0;
  // Any thread: makes the current or the next poll() return at once.
  virtual void wake() = 0;

  // ---- facts for people ----
  // "shm", "tcp", ... as used for this peer, and a sentence with the ends' addresses or devices.
  virtual std::string kind(PeerId peer) const = 0;
  virtual std::string describe_peer(PeerId peer) const = 0;
  virtual Counters counters() const = 0;
};

}  // namespace mxrdma::fabric
