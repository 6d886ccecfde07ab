// A memfd that is mapped here and can be mapped by a peer. It has no name: nothing survives a kill.
#pragma once

#include <memory>

#include "base/status.h"
#include "fabric/fd.h"

namespace mxrdma::fabric {

class Segment {
 public:
  // Zeroed whole pages; sealed against a change of size, so that no end can make the other fault.
  static Result<std::shared_ptr<Segment>> create(size_t bytes);
  // A peer's segment: the seals and the size are checked.
  static Result<std::shared_ptr<Segment>> map(Fd fd, size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  // To be passed to peers; -1 of a peer's segment.
  int fd() const { return fd_.get(); }

 private:
  Segment(Fd fd, std::byte* base, size_t bytes, size_t mapped)
      : fd_(std::move(fd)), base_(base), bytes_(bytes), mapped_(mapped) {}
  static Result<std::shared_ptr<Segment>> adopt(Fd fd, size_t bytes, size_t mapped, bool ours);

  Fd fd_;
  std::byte* base_;
  size_t bytes_;
  size_t mapped_;
};

}  // namespace mxrdma::fabric
