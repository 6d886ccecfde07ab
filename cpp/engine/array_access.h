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
      : api_(std::move(other.api_)), tensor_(std::exchange(other.tensor_, nullptr)) {}
  ArrayAccess& operator=(ArrayAccess&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(tensor_, other.tensor_);
    return *this;
  }

  void* data() const { return static_cast<char*>(tensor_->data) + tensor_->byte_offset; }
  size_t bytes() const;

 private:
  std::shared_ptr<const Api> api_;
  DlTensor* tensor_ = nullptr;
};

// Fails at once, without waiting, for an array in oneDNN's blocked layout. (MXNDArrayGetData would
// wait for ever in an operation.)
Result<ArrayAccess> access_array(const std::shared_ptr<const Api>& api, Handle array);
// For an operation with exclusive access: brings a blocked array back to row order first.
Result<ArrayAccess> access_array_exclusively(const std::shared_ptr<const Api>& api, Handle array);

}  // namespace mxrdma::engine
