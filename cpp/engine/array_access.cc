#include "engine/array_access.h"

#include <exception>
#include <new>

#include "base/log.h"

namespace mxrdma::engine {

ArrayAccess::~ArrayAccess() {
  if (tensor_ && api_->delete_dlpack(tensor_) != 0)
    log_error(api_->error("releasing an array").message());
}

size_t ArrayAccess::bytes() const {
  size_t elements = 1;
  for (int32_t axis = 0; axis < tensor_->dimensions; ++axis)
    elements *= static_cast<size_t>(tensor_->shape[axis]);
  return elements * ((static_cast<size_t>(tensor_->dtype.bits) * tensor_->dtype.lanes + 7) / 8);
}

namespace {

// Fails at once for an array in blocked layout, which is how we know.
Result<ArrayAccess> access_array(const std::shared_ptr<const Api>& api, Handle array) {
  DlTensor* tensor = nullptr;
  if (api->to_dlpack(array, &tensor) != 0)
    return api->error("the array's memory cannot be reached");
  ArrayAccess access(api, tensor);
  if (tensor->device.device_type != kDlCpu && tensor->device.device_type != kDlCpuPinned)
    return Status(Code::internal, "the array is not in CPU memory");
  int64_t expected = 1;
  for (int32_t axis = tensor->dimensions - 1; tensor->strides && axis >= 0; --axis) {
    if (tensor->shape[axis] != 1 && tensor->strides[axis] != expected)
      return Status(Code::internal, "the array is not compact");
    expected *= tensor->shape[axis];
  }
  return Result<ArrayAccess>(std::move(access));
}

Status unknown_layout(const Status& why) {
  return why.with_context(
      "the array is in a layout that only MXNet 1.9.1's own functions can undo, and they were not "
      "found");
}

Status cannot_reorder(const char* why) {
  return Status(Code::internal,
                std::string("MXNet could not bring the array into row order: ") + why);
}

}  // namespace

Result<ArrayAccess> read_access(const std::shared_ptr<const Api>& api, Handle array) {
  Result<ArrayAccess> access = access_array(api, array);
  if (access.is_ok()) return access;
  if (!api->reordered_copy) return unknown_layout(access.status());
  // MXNDArrayFree ends the copy's life with `delete`, so its memory comes from `new`.
  void* copy = ::operator new(kArrayObjectBytes);
  try {
    api->reordered_copy(copy, array);
  } catch (const std::exception& error) {
    ::operator delete(copy);
    return cannot_reorder(error.what());
  }
  access = access_array(api, copy);
  if (api->free_array(copy) != 0) return api->error("releasing a copy");
  if (access.is_ok()) access.value().mark_as_copy();
  return access;
}

Result<ArrayAccess> write_access(const std::shared_ptr<const Api>& api, Handle array) {
  Result<ArrayAccess> access = access_array(api, array);
  if (access.is_ok()) return access;
  if (!api->reorder_in_place) return unknown_layout(access.status());
  try {
    api->reorder_in_place(chunk_of(array));
  } catch (const std::exception& error) {
    return cannot_reorder(error.what());
  }
  return access_array(api, array);
}

}  // namespace mxrdma::engine
