// Ends of host fabrics and raw sockets, for the tests of the fabric's own parts.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/bootstrap/handshake.h"
#include "fabric/host_fabric.h"
#include "fabric/socket.h"

namespace mxrdma::fabric {

constexpr char kToken[] = "the token of these tests";
constexpr auto kPatience = std::chrono::seconds(60);  // only a failure waits so long

inline std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Bytes that differ by position and seed.
inline std::vector<std::byte> counted(uint32_t seed, size_t bytes) {
  std::vector<std::byte> made(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (std::byte& each : made) {
    state = state * 1664525u + 1013904223u;
    each = static_cast<std::byte>(state >> 24);
  }
  return made;
}

inline HostFabricOptions fabric_options(Policy policy, const std::string& token = kToken) {
  HostFabricOptions options;
  options.policy = policy;
  options.token = token;
  options.spin_us = 0;
  return options;
}

// One fabric and all that it has said.
struct End {
  explicit End(const HostFabricOptions& options) : fabric(make_host_fabric(options)) {}
  explicit End(Policy policy) : End(fabric_options(policy)) {}

  Address listen() {
    Result<Address> address = fabric->listen({"127.0.0.1", 0});
    EXPECT_TRUE(address.is_ok()) << address.status().to_string();
    return address.is_ok() ? address.value() : Address{};
  }
  PeerId connect(const Address& address) {
    Result<PeerId> peer = fabric->connect(address, bytes_of("hello"));
    EXPECT_TRUE(peer.is_ok()) << peer.status().to_string();
    return peer.is_ok() ? peer.value() : 0;
  }
  void poll(int timeout_ms = 0) { fabric->poll(&events, timeout_ms); }
  size_t count(Event::Kind kind) const {
    size_t found = 0;
    for (const Event& event : events) found += event.kind == kind ? 1 : 0;
    return found;
  }
  const Event* first(Event::Kind kind) const {
    for (const Event& event : events)
      if (event.kind == kind) return &event;
    return nullptr;
  }

  std::unique_ptr<Fabric> fabric;
  std::vector<Event> events;
};

inline bool pump(const std::vector<End*>& ends, const std::function<bool()>& reached) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!reached()) {
    for (End* end : ends) end->poll(1);
    if (std::chrono::steady_clock::now() > limit) return false;
  }
  return true;
}

// ---- the other end by hand

inline Fd raw_connect(const Address& address) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  EXPECT_EQ(inet_pton(AF_INET, address.host.c_str(), &to.sin_addr), 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0)
      << errno_text(errno);
  return fd;
}

inline void raw_send(int fd, const std::vector<std::byte>& bytes) {
  if (bytes.empty()) return;
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()))
      << errno_text(errno);
}

// Whether the other side has ended the connection; takes what lies before the end.
inline bool has_ended(int fd) {
  std::byte buffer[4096];
  while (true) {
    const ssize_t count = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno == ECONNRESET)) return true;
    if (count < 0) return false;
  }
}

// A peer that keeps to the handshake as far as the test lets it.
class RawPeer {
 public:
  RawPeer(Fd fd, bool connector, const std::string& token = kToken)
      : fd_(std::move(fd)), handshake_(connector, token) {
    EXPECT_TRUE(handshake_.start().is_ok());
  }
  int fd() const { return fd_.get(); }
  Handshake& handshake() { return handshake_; }
  const Status& status() const { return status_; }

  // Sends and receives what it can; true once a body has come.
  bool step(std::vector<std::byte>* body) {
    raw_send(fd_.get(), handshake_.output());
    handshake_.output().clear();
    std::byte buffer[4096];
    while (status_.is_ok() && handshake_.wanted() > 0) {
      const ssize_t count = recv(fd_.get(), buffer, handshake_.wanted(), MSG_DONTWAIT);
      if (count <= 0) break;
      status_ = handshake_.feed(buffer, static_cast<size_t>(count));
    }
    raw_send(fd_.get(), handshake_.output());
    handshake_.output().clear();
    return handshake_.take_body(body);
  }

 private:
  Fd fd_;
  Handshake handshake_;
  Status status_;
};

}  // namespace mxrdma::fabric
