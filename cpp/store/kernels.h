// The arithmetic of a server: sums and optimizer steps over a slice. One table for each instruction
// set; all of them give the same bits (every element is computed alone, without contraction), so
// servers of different age agree.
//
// Float16 is accumulated in float32. Integers wrap. Optimizer steps follow the update operators of
// MXNet 1.9.1 (multi_sgd_update, multi_sgd_mom_update, sgd_update, nag_mom_update, adam_update and
// their mp_ forms) to the order of operations: SGD and NAG clip the rescaled gradient and add
// weight decay after that, Adam clips the two together.
#pragma once

#include <cstddef>
#include <vector>

#include "base/dtype.h"

namespace mxrdma::store {

constexpr size_t kDTypes = 7;

// The element that sums of `type` are kept in.
inline size_t accumulator_element_bytes(DType type) {
  return type == DType::float16 ? sizeof(float) : dtype_bytes(type);
}

enum class Rule : unsigned char { sgd, sgd_momentum, nag_plain, nag, adam };
constexpr size_t kRules = 5;
enum class Precision : unsigned char {
  float32,
  float64,
  float16,        // each operation rounds to float16, as MXNet's does
  float16_mixed,  // float32 master weights and states
};
constexpr size_t kPrecisions = 4;

struct Update {
  void* weights = nullptr;
  // The gradient is accumulator + payload; one of them may be missing.
  const void* accumulator = nullptr;
  const void* payload = nullptr;
  void* state0 = nullptr;  // momentum, or Adam's mean
  void* state1 = nullptr;  // Adam's variance
  void* master = nullptr;  // float32 weights of float16_mixed
  size_t elements = 0;
  float lr = 0, wd = 0, rescale_grad = 1;
  float clip_gradient = -1;  // <= 0: none
  float momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0;
};

struct Kernels {
  const char* name;
  // accumulator = payload
  void (*load[kDTypes])(void* accumulator, const void* payload, size_t elements);
  // accumulator += payload
  void (*add[kDTypes])(void* accumulator, const void* payload, size_t elements);
  // weights = accumulator + payload
  void (*assign_sum[kDTypes])(void* weights, const void* accumulator, const void* payload,
                              size_t elements);
  // weights = accumulator; may work in place
  void (*assign[kDTypes])(void* weights, const void* accumulator, size_t elements);
  void (*update[kRules][kPrecisions])(const Update& update);
};

// The fastest table that this CPU runs.
const Kernels& kernels();
// All tables that this CPU runs, for tests.
std::vector<const Kernels*> runnable_kernels();

const Kernels& baseline_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
#endif

}  // namespace mxrdma::store
