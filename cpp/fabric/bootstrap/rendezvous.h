// Where processes of the same host meet to pass memory: an abstract Unix socket with a random name,
// which the handshake tells to proven peers only. Who connects shows the cookie of its handshake.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "fabric/epoll.h"
#include "fabric/shm/passing.h"

namespace mxrdma::fabric {

class Rendezvous {
 public:
  struct Claim {
    Fd fd;
    shm::ReceivedNote note;
  };

  Rendezvous(Epoll* epoll, int timeout_ms) : epoll_(epoll), timeout_ms_(timeout_ms) {}

  Status listen();
  const std::string& name() const { return name_; }  // empty: not listening

  void accept_on_loop(int64_t now_ms);
  // The first note of a connection, which says by its cookie whose it is.
  std::optional<Claim> claim_on_loop(uint32_t id);
  void drop_late_on_loop(int64_t now_ms);

 private:
  struct Unclaimed {
    uint32_t id = 0;
    Fd fd;
    int64_t deadline_ms = 0;
  };

  Epoll* epoll_;
  int timeout_ms_;
  Fd listener_;
  std::string name_;
  uint32_t next_ = 1;
  std::list<Unclaimed> unclaimed_;
};

}  // namespace mxrdma::fabric
