// How a write is cut into work requests: registered spans leave from where they lie, others through
// staging memory, neighbours of which are one piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mxrdma::fabric::verbs {

struct Piece {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t key = 0;  // of registered memory
  bool staged = false;
};

struct PlanLimits {
  size_t pieces = 1;  // gathered by one work request
  size_t bytes = 1;   // of one work request
  size_t staged = 1;  // bytes staged by one work request
};

struct Cut {
  std::vector<Piece> pieces;
  size_t bytes = 0, staged = 0;
  size_t gathered = 0;  // entries of the gather list, with neighbours in staging memory joined
  bool last = false;
};

class WritePlan {
 public:
  WritePlan() = default;
  // Empty spans are left out.
  explicit WritePlan(std::vector<Piece> spans) : spans_(std::move(spans)) {}

  bool finished() const { return span_ == spans_.size(); }
  uint64_t offset() const { return offset_; }  // of the next cut in the target
  bool begun() const { return offset_ > 0; }

  // The next work request. It stays the next one until advance().
  void peek(const PlanLimits& limits, Cut* cut) {
    cut->pieces.clear();
    cut->bytes = cut->staged = cut->gathered = 0;
    next_span_ = span_;
    next_within_ = within_;
    while (next_span_ < spans_.size()) {
      const Piece& span = spans_[next_span_];
      const bool joined = span.staged && !cut->pieces.empty() && cut->pieces.back().staged;
      size_t room = limits.bytes - cut->bytes;
      if (span.staged) room = std::min(room, limits.staged - cut->staged);
      if ((!joined && cut->gathered == limits.pieces) || room == 0) break;
      const size_t part = std::min(room, span.bytes - next_within_);
      cut->pieces.push_back({span.data + next_within_, part, span.key, span.staged});
      cut->bytes += part;
      if (span.staged) cut->staged += part;
      if (!joined) ++cut->gathered;
      next_within_ += part;
      if (next_within_ < span.bytes) break;
      ++next_span_;
      next_within_ = 0;
    }
    next_offset_ = offset_ + cut->bytes;
    cut->last = next_span_ == spans_.size();
  }
  void advance() {
    span_ = next_span_;
    within_ = next_within_;
    offset_ = next_offset_;
  }

 private:
  std::vector<Piece> spans_;
  size_t span_ = 0, within_ = 0;
  uint64_t offset_ = 0;
  size_t next_span_ = 0, next_within_ = 0;
  uint64_t next_offset_ = 0;
};

// Memory that is taken and given back in the same order.
class StageRing {
 public:
  explicit StageRing(size_t bytes = 0) : bytes_(bytes) {}
  // The offset of `bytes` in one piece; `held` is to be given back. False: there is no room now.
  bool take(size_t bytes, size_t* offset, size_t* held) {
    if (taken_ == given_) taken_ = given_ = 0;
    const size_t at = taken_ % bytes_;
    const size_t skipped = at + bytes > bytes_ ? bytes_ - at : 0;
    if (bytes > bytes_ || taken_ - given_ + skipped + bytes > bytes_) return false;
    *offset = skipped > 0 ? 0 : at;
    *held = skipped + bytes;
    taken_ += *held;
    return true;
  }
  void give(size_t held) { given_ += held; }

 private:
  size_t bytes_;
  uint64_t taken_ = 0, given_ = 0;
};

}  // namespace mxrdma::fabric::verbs
