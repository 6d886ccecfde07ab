// Compiled with -mavx2 -mf16c on x86-64 (cpp/CMakeLists.txt); empty elsewhere.
#if defined(__x86_64__)
#define MXRDMA_KERNEL_LEVEL avx2
#define MXRDMA_KERNEL_NAME "avx2"
#include "store/kernels_impl.h"

namespace mxrdma::store {
const Kernels& avx2_kernels() { return avx2::kTable; }
}  // namespace mxrdma::store
#endif
