// Credits for the receives that each end keeps posted for the other. Every SEND and every write
// with immediate takes one, so a receiver is never found not ready.
//
// Why this cannot deadlock: data leaves the last kReserve credits alone; returns may take them. An
// end returns as soon as it owes a quarter of the window, and before it posts data. Suppose nobody
// can move and nothing is under way: an end without credits for data is owed at least
// window - kReserve, more than a quarter, so its peer wants to return them and can, unless it has
// spent its own reserve on a return before. That return came behind all of its data, and whoever
// received it owed the window then and returned it first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/limits.h"
#include "base/status.h"

namespace mxrdma::fabric::verbs {

class Credits {
 public:
  static constexpr uint32_t kReserve = 2;
  static_assert(kMinVerbsWindow / 4 <= kMinVerbsWindow - kReserve - 1);

  Credits() = default;
  // `ours`: receives that we keep posted for the peer, `theirs` the other way.
  Credits(uint32_t ours, uint32_t theirs) : ours_(ours), theirs_(theirs), available_(theirs) {}

  bool may_send() const { return available_ > kReserve; }
  bool wants_return() const { return owed_ >= std::max(1u, ours_ / 4); }
  bool may_return() const { return available_ > 0; }

  void spend() { --available_; }
  // A receive of ours was used by the peer, and is posted again.
  Status received() {
    if (owed_ >= ours_)
      return Status(Code::fabric, "the peer sent more than the window of " + std::to_string(ours_));
    ++owed_;
    return Status::ok();
  }
  // To be told with what is sent now.
  uint16_t take_owed() {
    const uint32_t taken = std::min<uint32_t>(owed_, UINT16_MAX);
    owed_ -= taken;
    return static_cast<uint16_t>(taken);
  }
  Status returned(uint32_t count) {
    if (count > theirs_ - available_)
      return Status(Code::fabric, "the peer returns " + std::to_string(count) + " credits of " +
                                      std::to_string(theirs_ - available_));
    available_ += count;
    return Status::ok();
  }

 private:
  uint32_t ours_ = 0, theirs_ = 0;
  uint32_t available_ = 0;  // at the peer
  uint32_t owed_ = 0;       // to the peer
};

}  // namespace mxrdma::fabric::verbs
