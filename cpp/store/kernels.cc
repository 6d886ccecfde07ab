#include "store/kernels.h"

namespace mxrdma::store {

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> tables{&baseline_kernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    tables.push_back(&avx2_kernels());
  }
#endif
  return tables;
}

const Kernels& kernels() {
  static const Kernels& best = *runnable_kernels().back();
  return best;
}

}  // namespace mxrdma::store
