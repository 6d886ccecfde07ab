// A fabric that is a list, and a clock that stands until it is moved.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace mxrdma::node {

using fabric::Event;
using fabric::PeerId;

class VirtualClock final : public Clock {
 public:
  int64_t now_ms() const override { return now; }
  int64_t now = 0;
};

// Keeps what is sent and closed; `full` makes posts busy, as a fabric's full queue does.
class ListFabric : public fabric::Fabric {
 public:
  Result<fabric::Region> allocate(size_t) override { return unsupported(); }
  Result<fabric::Region> register_memory(void*, size_t) override { return unsupported(); }
  void release(fabric::RegionId) override {}
  Result<wire::RemoteRegion> describe(fabric::RegionId, PeerId) override { return unsupported(); }
  Result<fabric::Address> listen(const fabric::Address& address) override { return address; }
  Result<PeerId> connect(const fabric::Address&, const std::vector<std::byte>&) override {
    return unsupported();
  }
  void close(PeerId peer) override { closed.insert(peer); }
  Status write(PeerId, const fabric::LocalSpan*, size_t, const wire::RemoteRegion&, uint32_t,
               uint64_t) override {
    return unsupported();
  }
  Status send(PeerId peer, const void* data, size_t bytes, uint64_t) override {
    EXPECT_LE(bytes, kMaxMessageBytes);
    if (full) return Status(Code::busy, "full");
    const auto* first = static_cast<const std::byte*>(data);
    sent[peer].emplace_back(first, first + bytes);
    return Status::ok();
  }
  Status read(PeerId, const wire::RemoteRegion&, void*, size_t, uint64_t) override {
    return unsupported();
  }
  bool can_read(PeerId) const override { return false; }
  void poll(std::vector<Event>*, int) override {}
  void wake() override {}
  std::string kind(PeerId) const override { return "list"; }
  std::string describe_peer(PeerId peer) const override { return "peer " + std::to_string(peer); }
  fabric::Counters counters() const override { return {}; }

  std::map<PeerId, std::vector<std::vector<std::byte>>> sent;
  std::set<PeerId> closed;
  bool full = false;

 private:
  static Status unsupported() { return Status(Code::unsupported, "only sends"); }
};

}  // namespace mxrdma::node
