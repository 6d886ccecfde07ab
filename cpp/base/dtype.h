// Element types as MXNet numbers them (mshadow type flags, mxnet/base.h), so that no table is
// needed at the edge.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mxrdma {

enum class DType : uint8_t {
  float32 = 0,
  float64 = 1,
  float16 = 2,
  uint8 = 3,
  int32 = 4,
  int8 = 5,
  int64 = 6,
};

inline bool dtype_valid(uint8_t value) { return value <= 6; }

inline size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
      return 2;
    case DType::uint8:
    case DType::int8:
      return 1;
  }
  return 0;
}

inline const char* dtype_name(DType type) {
  switch (type) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::uint8:
      return "uint8";
    case DType::int32:
      return "int32";
    case DType::int8:
      return "int8";
    case DType::int64:
      return "int64";
  }
  return "unknown";
}

}  // namespace mxrdma
