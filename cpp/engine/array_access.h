// The memory of an NDArray inside an engine operation.
#pragma once

#include <cstddef>
#include <utility>

#include "engine/api.h"

namespace mxrdma::engine {

// A DLPack view of an array; keeps its memory from being freed or reused while it lives.
class ArrayAccess {
 public:
  ArrayAccess() = default;
  ArrayAccess(std::shared_ptr<const Api> api, DlTensor* tensor)
      : api_(std::move(api)), tensor_(tensor) {}
  ~ArrayAccess();
  ArrayAccess(ArrayAccess&& other) noexcept
      : api_(std::move(other.api_)),
        tensor_(std::exchange(other.tensor_, nullptr)),
        is_copy_(other.is_copy_) {}
  ArrayAccess& operator=(ArrayAccess&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(tensor_, other.tensor_);
    std::swap(is_copy_, other.is_copy_);
    return *this;
  }

  void* data() const { return static_cast<char*>(tensor_->data) + tensor_->byte_offset; }
  size_t bytes() const;
  // Whether `data` is a copy in row order rather than the array's own memory.
  bool is_copy() const { return is_copy_; }
  void mark_as_copy() { is_copy_ = true; }

 private:
  std::shared_ptr<const Api> api_;
  DlTensor* tensor_ = nullptr;
  bool is_copy_ = false;
};

// In an operation that reads: an array in oneDNN's blocked layout is copied into row order, because
// others may read it at the same time. Never waits. (MXNDArrayGetData would wait for ever in an
// operation, and so would a copy by MXNet's own operator if a write of the array is queued behind
// us.)
Result<ArrayAccess> read_access(const std::shared_ptr<const Api>& api, Handle array);
// In an operation that writes, which holds the array alone: a blocked one is brought into row order
// in place.
Result<ArrayAccess> write_access(const std::shared_ptr<const Api>& api, Handle array);

}  // namespace mxrdma::engine
