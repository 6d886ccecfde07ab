// What a fabric has of verbs, seen from outside: no header of rdma-core is needed here. Without
// those headers at build time absent.cc stands in, and verbs is never usable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fabric/bootstrap/handshake.h"
#include "fabric/channel.h"
#include "fabric/epoll.h"

namespace mxrdma::fabric::verbs {

// A channel over queue pairs, from before the peer's end is known.
class Link : public Channel {
 public:
  // Our end, for the peer.
  virtual VerbsEnd end() const = 0;
  // The peer's end has come: the queue pairs can receive and send from now on. An acceptor answers
  // the peer's probe by itself.
  virtual Status meet_on_loop(const VerbsEnd& theirs) = 0;
  virtual Status probe_on_loop() = 0;
  // The peer's probe has come.
  virtual bool heard() const = 0;
  // Both ends: device, port, GID, index, MTU.
  virtual std::string describe() const = 0;
};

class Hub {
 public:
  Hub(const HostFabricOptions& options, const ChannelContext& context, Epoll* epoll);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // Whether a peer on a connection with this local address could be reached by verbs. Opens the
  // device at the first call.
  Status usable_on_loop(const std::string& local_host);
  // After usable_on_loop(). `control` stays its owner's.
  Result<std::unique_ptr<Link>> make_link_on_loop(PeerId peer, int control, bool acceptor);

  void progress_on_loop();
  // Before sleep. False: something came meanwhile.
  bool arm_on_loop();
  void completion_ready_on_loop(uint32_t device);
  void async_ready_on_loop(uint32_t device);
  void connections_ready_on_loop(uint32_t device);
  void release_on_loop(RegionId region);
  // As in fabric.h; true as long as no device is open.
  bool may_register_callers_memory() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mxrdma::fabric::verbs
