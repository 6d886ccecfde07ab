#include "fabric/shm/passing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace mxrdma::fabric::shm {

Status send_note(int socket, const Note& note, int fd) {
  Note copy = note;
  iovec vector{&copy, sizeof copy};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  ssize_t count;
  do {
    count = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof copy)) return Status::ok();
  const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS;
  return Status(full ? Code::busy : Code::fabric,
                "passing a shared memory segment: " + errno_text(errno));
}

Result<std::optional<ReceivedNote>> receive_note(int socket) {
  ReceivedNote received;
  iovec vector{&received.note, sizeof received.note};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count;
  do {
    count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<ReceivedNote>();
  if (count == 0 || (count < 0 && errno == ECONNRESET))
    return Status(Code::closed, "the peer closed its Unix socket");
  if (count < 0)
    return Status(Code::fabric, "receiving a shared memory segment: " + errno_text(errno));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    received.fd = Fd(fd);
  }
  if (count != static_cast<ssize_t>(sizeof received.note) ||
      (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || !received.fd.valid())
    return Status(Code::fabric, "malformed note on the Unix socket");
  return std::optional<ReceivedNote>(std::move(received));
}

int peer_pid(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 ? credentials.pid
                                                                                : 0;
}

}  // namespace mxrdma::fabric::shm
