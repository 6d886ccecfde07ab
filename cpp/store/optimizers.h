// The one list of optimizers that work element by element and so on slices of a key. All others
// need whole tensors and run as a Python updater.
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "store/kernels.h"
#include "wire/control.h"

namespace mxrdma::store {

inline bool needs_whole_tensors(wire::OptimizerKind kind) {
  return kind == wire::OptimizerKind::python;
}
inline bool is_element_wise(wire::OptimizerKind kind) {
  return kind == wire::OptimizerKind::sgd || kind == wire::OptimizerKind::nag ||
         kind == wire::OptimizerKind::adam;
}
const char* optimizer_kind_name(wire::OptimizerKind kind);

// How an element-wise optimizer works on a key of some dtype.
struct Plan {
  Rule rule = Rule::sgd;
  Precision precision = Precision::float32;
  uint32_t states = 0;             // arrays as large as the key
  size_t state_element_bytes = 0;  // of each of them
  bool master = false;             // float32 weights besides
};
// Error: the dtype is none of the floats. `what` names the key in it.
Result<Plan> plan(const wire::OptimizerSpec& spec, DType dtype, const std::string& what);

}  // namespace mxrdma::store
