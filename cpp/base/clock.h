// Time as a dependency: real in processes, virtual in simulated clusters.
#pragma once

#include <chrono>
#include <cstdint>

namespace mxrdma {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ms() const = 0;  // monotonic, arbitrary origin
};

class SteadyClock final : public Clock {
 public:
  int64_t now_ms() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace mxrdma
