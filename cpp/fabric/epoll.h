// What a fabric waits on, and whose each descriptor is.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "base/check.h"
#include "base/status.h"
#include "fabric/fd.h"

namespace mxrdma::fabric {

class Epoll {
 public:
  enum class Source : uint32_t {
    control,
    notes,
    listener,
    doorbell,
    unix_listener,
    unclaimed,
    completions,  // of an RDMA device
    device,       // its asynchronous events
    connections,  // rdma_cm's events
  };
  static constexpr int kMaxEvents = 64;

  struct Ready {
    Source source;
    uint32_t id;
    bool readable, writable;
  };

  Epoll() : fd_(epoll_create1(EPOLL_CLOEXEC)) {}
  bool valid() const { return fd_.valid(); }

  // Watches for reading, and for writing if asked. Also changes what is watched already.
  void watch(int fd, Source source, uint32_t id, bool writable = false) {
    epoll_event event{};
    event.events = EPOLLIN | (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u);
    event.data.u64 = (static_cast<uint64_t>(source) << 32) | id;
    // A closed descriptor has left by itself and its number may have come back, so the kernel is
    // asked whether it is in.
    if (epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return;
    MXRDMA_CHECK(errno == ENOENT && epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0,
                 "an open descriptor can be watched");
  }
  void forget(int fd) {
    const int gone = epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
    MXRDMA_CHECK(gone == 0 || errno == ENOENT || errno == EBADF, "watching can end");
  }
  // How many were ready.
  int wait(Ready ready[kMaxEvents], int timeout_ms) {
    epoll_event events[kMaxEvents];
    const int count = epoll_wait(fd_.get(), events, kMaxEvents, timeout_ms);
    if (count < 0) {
      MXRDMA_CHECK(errno == EINTR, "epoll can be waited on");
      return 0;
    }
    for (int i = 0; i < count; ++i) {
      const uint32_t bits = events[i].events;
      ready[i].source = static_cast<Source>(events[i].data.u64 >> 32);
      ready[i].id = static_cast<uint32_t>(events[i].data.u64);
      ready[i].readable = (bits & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
      ready[i].writable = (bits & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    }
    return count;
  }

 private:
  Fd fd_;
};

}  // namespace mxrdma::fabric
