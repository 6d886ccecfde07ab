#include "store/optimizers.h"

#include "base/check.h"

namespace mxrdma::store {

const char* optimizer_kind_name(wire::OptimizerKind kind) {
  switch (kind) {
    case wire::OptimizerKind::none:
      return "none";
    case wire::OptimizerKind::sgd:
      return "sgd";
    case wire::OptimizerKind::nag:
      return "nag";
    case wire::OptimizerKind::adam:
      return "adam";
    case wire::OptimizerKind::python:
      return "python";
  }
  return "unknown";
}

Result<Plan> plan(const wire::OptimizerSpec& spec, DType dtype, const std::string& what) {
  MXRDMA_CHECK(is_element_wise(spec.kind), "only element-wise optimizers run on slices");
  Plan plan;
  switch (dtype) {
    case DType::float32:
      plan.precision = Precision::float32;
      break;
    case DType::float64:
      plan.precision = Precision::float64;
      break;
    case DType::float16:
      plan.precision = spec.multi_precision ? Precision::float16_mixed : Precision::float16;
      break;
    default:
      return Status(Code::invalid_argument,
                    what + " is " + dtype_name(dtype) + ", but the optimizer " +
                        optimizer_kind_name(spec.kind) +
                        " updates floating-point keys only: keep integer keys in a store without "
                        "an optimizer, or cast them");
  }
  plan.master = plan.precision == Precision::float16_mixed;
  plan.state_element_bytes = plan.master ? sizeof(float) : dtype_bytes(dtype);
  const bool nag = spec.kind == wire::OptimizerKind::nag;
  if (spec.kind == wire::OptimizerKind::adam) {
    plan.rule = Rule::adam;
    plan.states = 2;
  } else if (spec.momentum > 0) {
    plan.rule = nag ? Rule::nag : Rule::sgd_momentum;
    plan.states = 1;
  } else {
    plan.rule = nag ? Rule::nag_plain : Rule::sgd;
  }
  return plan;
}

}  // namespace mxrdma::store
