#include "engine/array_access.h"

#include <exception>

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

Result<ArrayAccess> access_array_exclusively(const std::shared_ptr<const Api>& api, Handle array) {
  Result<ArrayAccess> access = access_array(api, array);
  if (access.is_ok() || !api->reorder_to_default) return access;
  try {
    api->reorder_to_default(chunk_of(array));
  } catch (const std::exception& error) {
    return Status(Code::internal,
                  std::string("MXNet could not bring the array into row order: ") + error.what());
  }
  return access_array(api, array);
}

}  // namespace mxrdma::engine
