#include "fabric/bootstrap/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/log.h"
#include "fabric/bootstrap/handshake.h"
#include "fabric/socket.h"

namespace mxrdma::fabric {

namespace {
// Beyond it the oldest goes, so that strangers on this host cannot use up our descriptors.
constexpr size_t kMaxUnclaimed = 256;
}  // namespace

Status Rendezvous::listen() {
  uint64_t random[2];
  Status status = fill_random(random, sizeof random);
  if (!status.is_ok()) return status;
  char name[64];
  std::snprintf(name, sizeof name, "mxrdma-%016llx%016llx",
                static_cast<unsigned long long>(random[0]),
                static_cast<unsigned long long>(random[1]));
  Result<Fd> fd = listen_abstract(name);
  if (!fd.is_ok()) return fd.status();
  listener_ = std::move(fd.value());
  name_ = name;
  epoll_->watch(listener_.get(), Epoll::Source::unix_listener, 0);
  return status;
}

void Rendezvous::accept_on_loop(int64_t now_ms) {
  // A bounded number for one poll.
  for (size_t i = 0; i < kMaxUnclaimed; ++i) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // The TCP listener meets the same lack and waits for better times. Peers fall back to tcp.
      log_warning("shared memory is not offered any more: accept: " + errno_text(errno));
      listener_.reset();
      name_.clear();
      return;
    }
    if (unclaimed_.size() == kMaxUnclaimed) unclaimed_.pop_front();
    const uint32_t id = next_++;
    epoll_->watch(fd.get(), Epoll::Source::unclaimed, id);
    unclaimed_.push_back({id, std::move(fd), now_ms + timeout_ms_});
  }
}

std::optional<Rendezvous::Claim> Rendezvous::claim_on_loop(uint32_t id) {
  auto found = std::find_if(unclaimed_.begin(), unclaimed_.end(),
                            [id](const Unclaimed& one) { return one.id == id; });
  if (found == unclaimed_.end()) return std::nullopt;
  Result<std::optional<shm::ReceivedNote>> note = shm::receive_note(found->fd.get());
  if (note.is_ok() && !note.value()) return std::nullopt;
  Fd fd = std::move(found->fd);
  unclaimed_.erase(found);
  epoll_->forget(fd.get());
  if (!note.is_ok()) return std::nullopt;
  return Claim{std::move(fd), std::move(*note.value())};
}

void Rendezvous::drop_late_on_loop(int64_t now_ms) {
  unclaimed_.remove_if([now_ms](const Unclaimed& one) { return now_ms >= one.deadline_ms; });
}

}  // namespace mxrdma::fabric
