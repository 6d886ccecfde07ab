#include "fabric/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace mxrdma::fabric {
namespace {

constexpr int kBacklog = 512;
constexpr int kKeepaliveIdleS = 10;
constexpr int kKeepaliveIntervalS = 5;
constexpr int kLastReads = 1024;  // more than a socket's buffer holds

Address address_of(const sockaddr_storage& storage, socklen_t bytes) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&storage), bytes, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {"?", 0};
  return {host, static_cast<uint16_t>(std::stoi(port))};
}

Result<sockaddr_un> abstract_address(const std::string& name, socklen_t* bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path)
    return Status(Code::fabric, "Unix socket name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* list = nullptr;
  const bool bracketed =
      address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
  const std::string host =
      bracketed ? address.host.substr(1, address.host.size() - 2) : address.host;
  const int error = getaddrinfo(host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0)
    return Status(Code::config,
                  "the host name '" + address.host + "' does not resolve: " + gai_strerror(error));
  std::vector<SocketAddress> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress one;
    one.bytes = entry->ai_addrlen;
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    found.push_back(one);
  }
  freeaddrinfo(list);
  if (found.empty())
    return Status(Code::config, "the host name '" + address.host + "' has no address");
  return found;
}

Status prepare_stream(int fd) {
  // By itself TCP takes a quarter of an hour to find that a host was cut off, and never if nothing
  // is sent to it: keepalive probes ask, and the user timeout counts for them too.
  const struct {
    int level, name, value;
    const char* text;
  } options[] = {
      {IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"},
      {IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs, "TCP_USER_TIMEOUT"},
      {IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleS, "TCP_KEEPIDLE"},
      {IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalS, "TCP_KEEPINTVL"},
      {SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"},
  };
  for (const auto& option : options)
    if (setsockopt(fd, option.level, option.name, &option.value, sizeof option.value) != 0)
      return Status(Code::fabric, std::string(option.text) + ": " + errno_text(errno));
  return Status::ok();
}

Status limit_silence(int fd, int silent_ms) {
  if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms) == 0)
    return Status::ok();
  return Status(Code::fabric, "TCP_USER_TIMEOUT: " + errno_text(errno));
}

void end_stream(int fd) {
  if (fd < 0 || shutdown(fd, SHUT_WR) != 0) return;
  char waste[4096];
  for (int i = 0; i < kLastReads && recv(fd, waste, sizeof waste, MSG_DONTWAIT) > 0; ++i) {
  }
}

Result<Fd> listen_tcp(const Address& address, Address* actual) {
  Result<std::vector<SocketAddress>> found = resolve(address, true);
  if (!found.is_ok()) return found.status();
  Status last;
  for (const SocketAddress& one : found.value()) {
    Fd fd(socket(one.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd.get(), reinterpret_cast<const sockaddr*>(&one.storage), one.bytes) != 0 ||
        listen(fd.get(), kBacklog) != 0) {
      last =
          Status(Code::config, "cannot listen on " + to_string(address) + ": " + errno_text(errno) +
                                   "; choose another port, or an address of this host");
      continue;
    }
    sockaddr_storage storage{};
    socklen_t bytes = sizeof storage;
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &bytes) != 0)
      return Status(Code::fabric, "getsockname: " + errno_text(errno));
    *actual = {address.host, address_of(storage, bytes).port};
    return fd;
  }
  return last;
}

Result<Fd> begin_connect(const SocketAddress& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status(Code::fabric, "socket: " + errno_text(errno));
  Status status = prepare_stream(fd.get());
  if (!status.is_ok()) return status;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 &&
      errno != EINPROGRESS)
    return Status(Code::fabric, errno_text(errno));
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 ? errno : error;
}

bool is_connected_to_itself(int fd) {
  sockaddr_storage local{}, peer{};
  socklen_t local_bytes = sizeof local, peer_bytes = sizeof peer;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_bytes) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
         local_bytes == peer_bytes && std::memcmp(&local, &peer, local_bytes) == 0;
}

std::string local_and_peer(int fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return "?";
  const std::string local = to_string(address_of(storage, bytes));
  bytes = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return local;
  return local + " -> " + to_string(address_of(storage, bytes));
}

std::string local_host(int fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return "?";
  return address_of(storage, bytes).host;
}

Result<Fd> listen_abstract(const std::string& name) {
  socklen_t bytes = 0;
  Result<sockaddr_un> address = abstract_address(name, &bytes);
  if (!address.is_ok()) return address.status();
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.value()), bytes) != 0 ||
      listen(fd.get(), kBacklog) != 0)
    return Status(Code::fabric, "abstract Unix socket: " + errno_text(errno));
  return fd;
}

Result<Fd> connect_abstract(const std::string& name) {
  socklen_t bytes = 0;
  Result<sockaddr_un> address = abstract_address(name, &bytes);
  if (!address.is_ok()) return address.status();
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.value()), bytes) != 0)
    return Status(
        Code::fabric,
        "the peer's abstract Unix socket cannot be reached (another network namespace?): " +
            errno_text(errno));
  return fd;
}

}  // namespace mxrdma::fabric
