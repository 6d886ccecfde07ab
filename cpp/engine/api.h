// The functions of libmxnet that we use, as its C headers (1.9.1) declare them, looked up at run
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/status.h"

// What MXNet throws and takes as the error of an operation: its own class is an empty subclass too,
// so the layouts agree and libmxnet copies ours as its own.
namespace dmlc {
struct Error : std::runtime_error {
  explicit Error(const std::string& text) : std::runtime_error(text) {}
};
}  // namespace dmlc

namespace mxrdma::engine {

using Handle = void*;

// mxnet::engine::CallbackOnComplete. Lives only while the operation's function runs: copy it.
struct OnComplete {
  void (*callback)(void* engine, void* parameter, const dmlc::Error* error) = nullptr;
  void* engine = nullptr;
  void* parameter = nullptr;
};

struct Context {
  int device_type = 1;  // CPU
  int device_id = 0;
};

// mxnet::FnProperty. The only one that keeps the order of priorities, on threads of its own.
constexpr int kCpuPrioritized = 3;

// DLPack v0.2, as libmxnet was built with.
struct DlTensor {
  void* data;
  struct {
    int32_t device_type;
    int32_t device_id;
  } device;
  int32_t dimensions;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;  // null: compact, row by row
  uint64_t byte_offset;
};
constexpr int32_t kDlCpu = 1;
constexpr int32_t kDlCpuPinned = 3;

struct Api {
  int (*push_async)(void (*function)(void*, void*, void*), void* parameter, void (*deleter)(void*),
                    void* context, Handle* const_arrays, int const_count, Handle* mutable_arrays,
                    int mutable_count, const void* property, int priority, const char* name,
                    bool wait);
  const char* (*last_error)();
  int (*version)(int* version);
  int (*shallow_copy)(Handle array, Handle* out);
  int (*free_array)(Handle array);
  int (*to_dlpack)(Handle array, DlTensor** out);
  int (*delete_dlpack)(DlTensor* tensor);
  int (*get_storage_type)(Handle array, int* type);
  int (*get_dtype)(Handle array, int* dtype);
  int (*get_context)(Handle array, int* device_type, int* device_id);
  int (*get_shape)(Handle array, int* dimensions, const int64_t** shape);
  int (*create_array)(const int64_t* shape, int dimensions, int device_type, int device_id,
                      int delay_allocation, int dtype, Handle* out);
  // C++ functions, for arrays in oneDNN's blocked layout; only of the version whose layout we know,
  // else null. mxnet::NDArray::Chunk::Reorder2Default(): in place.
  void (*reorder_in_place)(void* chunk) = nullptr;
  // mxnet::NDArray::Reorder2Default() const: a copy in row order, which by the C++ ABI is built at
  // `result`.
  void (*reordered_copy)(void* result, const void* array) = nullptr;
  bool known_layout = false;

  static Result<std::shared_ptr<const Api>> load(const std::string& libmxnet_path);
  // MXNet's last error on this thread as a Status.
  Status error(const std::string& doing) const;
};

// More than an NDArray of 1.9.1 takes (about 200 bytes).
constexpr size_t kArrayObjectBytes = 1024;

// The reference-counted storage behind an array: MXNet 1.9.1's NDArray begins with a
// std::shared_ptr to it.
inline void* chunk_of(Handle array) { return *static_cast<void**>(array); }
// How many arrays refer to it.
inline long owners_of(Handle array) {
  return static_cast<std::shared_ptr<void>*>(array)->use_count();
}

}  // namespace mxrdma::engine
