// For every CPU of the platform.
#define MXRDMA_KERNEL_LEVEL baseline
#define MXRDMA_KERNEL_NAME "baseline"
#include "store/kernels_impl.h"

namespace mxrdma::store {
const Kernels& baseline_kernels() { return baseline::kTable; }
}  // namespace mxrdma::store
