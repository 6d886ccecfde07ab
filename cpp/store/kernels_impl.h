// Included once by each kernels_<level>.cc, which names its namespace in MXRDMA_KERNEL_LEVEL.
// Everything is in that namespace and nothing inline of the standard library is called: the linker
// merges equal inline functions of all files, and one that was compiled for AVX2 must not end in a
// baseline path.
#include <cstdint>
#include <cstring>

#include "store/kernels.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace mxrdma::store::MXRDMA_KERNEL_LEVEL {
namespace {

using Half = uint16_t;  // bits of a float16

#if defined(__F16C__)
inline float to_float(Half half) { return _cvtsh_ss(half); }
inline Half to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#else
inline float from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
// Same bits as the hardware's conversion, NaN payloads included.
inline float to_float(Half half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t sign = (half & 0x8000u) << 16;
  // 2^112 moves the exponent's bias from 15 to 127, exactly, for subnormals too.
  uint32_t bits = to_bits(from_bits(magnitude << 13) * from_bits(239u << 23));
  bits = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : bits;
  bits = magnitude > 0x7c00u ? bits | 0x00400000u : bits;
  return from_bits(bits | sign);
}
inline Half to_half(float value) {
  const uint32_t bits = to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 lets the float unit round at the subnormals' unit, 2^-24.
  const uint32_t tiny = to_bits(from_bits(magnitude & 0x3fffffffu) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t result = magnitude < 0x38800000u ? tiny : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? nan : result;
  return static_cast<Half>(result | sign);
}
#endif

inline void widen(float* __restrict out, const Half* __restrict in, size_t count) {
  size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < count; ++i) out[i] = to_float(in[i]);
}

inline void narrow(Half* __restrict out, const float* __restrict in, size_t count) {
  size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
#endif
  for (; i < count; ++i) out[i] = to_half(in[i]);
}

// ---- sums
template <typename T>
void load_same(void* accumulator, const void* payload, size_t elements) {
  memcpy(accumulator, payload, elements * sizeof(T));
}

template <typename T>
void add_same(void* accumulator, const void* payload, size_t elements) {
  T* __restrict sum = static_cast<T*>(accumulator);
  const T* __restrict in = static_cast<const T*>(payload);
  for (size_t i = 0; i < elements; ++i) sum[i] = static_cast<T>(sum[i] + in[i]);
}

template <typename T>
void assign_sum_same(void* weights, const void* accumulator, const void* payload, size_t elements) {
  T* __restrict out = static_cast<T*>(weights);
  const T* __restrict sum = static_cast<const T*>(accumulator);
  const T* __restrict in = static_cast<const T*>(payload);
  for (size_t i = 0; i < elements; ++i) out[i] = static_cast<T>(sum[i] + in[i]);
}

template <typename T>
void assign_same(void* weights, const void* accumulator, size_t elements) {
  memmove(weights, accumulator, elements * sizeof(T));
}

constexpr size_t kBlock = 256;  // float16 passes through blocks of float32 that stay in cache

inline size_t block_at(size_t i, size_t elements) {
  return elements - i < kBlock ? elements - i : kBlock;
}

[[maybe_unused]] void load_half(void* accumulator, const void* payload, size_t elements) {
  widen(static_cast<float*>(accumulator), static_cast<const Half*>(payload), elements);
}

// block = accumulator + payload, as far as there are both
inline void gather(float* block, const float* accumulator, const Half* payload, size_t i,
                   size_t count) {
  if (payload == nullptr) {
    memcpy(block, accumulator + i, count * sizeof(float));
    return;
  }
  widen(block, payload + i, count);
  if (accumulator == nullptr) return;
  const float* __restrict sum = accumulator + i;
  for (size_t k = 0; k < count; ++k) block[k] = sum[k] + block[k];
}

[[maybe_unused]] void add_half(void* accumulator, const void* payload, size_t elements) {
  float* __restrict sum = static_cast<float*>(accumulator);
  float block[kBlock];
  for (size_t i = 0; i < elements; i += kBlock) {
    const size_t count = block_at(i, elements);
    gather(block, sum, static_cast<const Half*>(payload), i, count);
    memcpy(sum + i, block, count * sizeof(float));
  }
}

[[maybe_unused]] void assign_sum_half(void* weights, const void* accumulator, const void* payload,
                                      size_t elements) {
  float block[kBlock];
  for (size_t i = 0; i < elements; i += kBlock) {
    const size_t count = block_at(i, elements);
    gather(block, static_cast<const float*>(accumulator), static_cast<const Half*>(payload), i,
           count);
    narrow(static_cast<Half*>(weights) + i, block, count);
  }
}

// Through a block and by bytes, because the result may overwrite the front of its own source.
[[maybe_unused]] void assign_half(void* weights, const void* accumulator, size_t elements) {
  float block[kBlock];
  Half out[kBlock];
  for (size_t i = 0; i < elements; i += kBlock) {
    const size_t count = block_at(i, elements);
    memcpy(block, static_cast<const char*>(accumulator) + i * sizeof(float), count * sizeof(float));
    narrow(out, block, count);
    memcpy(static_cast<char*>(weights) + i * sizeof(Half), out, count * sizeof(Half));
  }
}

// ---- optimizer steps
// A float16 number as MXNet computes with it: every operation rounds.
struct Rounded {
  Rounded() = default;
  explicit Rounded(float value) : value_(to_float(to_half(value))) {}
  float value_;
};
inline Rounded operator+(Rounded a, Rounded b) { return Rounded(a.value_ + b.value_); }
inline Rounded operator-(Rounded a, Rounded b) { return Rounded(a.value_ - b.value_); }
inline Rounded operator-(Rounded a) { return Rounded(-a.value_); }
inline Rounded operator*(Rounded a, Rounded b) { return Rounded(a.value_ * b.value_); }
inline Rounded operator/(Rounded a, Rounded b) { return Rounded(a.value_ / b.value_); }
inline bool operator<(Rounded a, Rounded b) { return a.value_ < b.value_; }

inline float root(float value) { return __builtin_sqrtf(value); }
inline double root(double value) { return __builtin_sqrt(value); }
inline Rounded root(Rounded value) { return Rounded(__builtin_sqrtf(value.value_)); }

template <typename T>
struct Coefficients {
  explicit Coefficients(const Update& u)
      : lr(T(u.lr)),
        wd(T(u.wd)),
        rescale(T(u.rescale_grad)),
        clip(T(u.clip_gradient)),
        momentum(T(u.momentum)),
        beta1(T(u.beta1)),
        beta2(T(u.beta2)),
        epsilon(T(u.epsilon)) {}
  T lr, wd, rescale, clip, momentum, beta1, beta2, epsilon;
};

template <typename T>
inline T clipped(T value, T bound) {
  value = bound < value ? bound : value;
  return value < -bound ? -bound : value;
}

// The rescaled gradient, clipped or not, times the learning rate. Products associate as in MXNet.
template <bool kClip, typename T>
inline T scaled(T gradient, const Coefficients<T>& c) {
  if constexpr (kClip) return c.lr * clipped(c.rescale * gradient, c.clip);
  return (c.lr * c.rescale) * gradient;
}

// multi_sgd_update, which MXNet's SGD calls
struct Sgd {
  template <bool kClip, typename T>
  static inline void step(T& weight, T gradient, T&, T&, const Coefficients<T>& c) {
    const T change = -((c.lr * c.wd) * weight) - scaled<kClip>(gradient, c);
    weight = weight + change;
  }
};
// multi_sgd_mom_update and sgd_mom_update
struct SgdMomentum {
  template <bool kClip, typename T>
  static inline void step(T& weight, T gradient, T& momentum, T&, const Coefficients<T>& c) {
    momentum = c.momentum * momentum - (c.lr * c.wd) * weight - scaled<kClip>(gradient, c);
    weight = weight + momentum;
  }
};
// sgd_update, which MXNet's NAG calls without momentum
struct PlainNag {
  template <bool kClip, typename T>
  static inline void step(T& weight, T gradient, T&, T&, const Coefficients<T>& c) {
    weight = (T(1.0f) - c.lr * c.wd) * weight - scaled<kClip>(gradient, c);
  }
};
// nag_mom_update. MXNet updates the weights in place before the momentum, so the momentum sees the
// new weights' decay; what users train with today is kept.
struct Nag {
  template <bool kClip, typename T>
  static inline void step(T& weight, T gradient, T& momentum, T&, const Coefficients<T>& c) {
    T g = c.rescale * gradient;
    if constexpr (kClip) g = clipped(g, c.clip);
    const T decayed = c.momentum * momentum;
    weight = weight - decayed + (c.momentum + T(1.0f)) * (decayed - c.lr * (g + c.wd * weight));
    momentum = decayed - c.lr * (g + c.wd * weight);
  }
};
// adam_update: here weight decay is clipped with the gradient
struct Adam {
  template <bool kClip, typename T>
  static inline void step(T& weight, T gradient, T& mean, T& variance, const Coefficients<T>& c) {
    T g = gradient * c.rescale + weight * c.wd;
    if constexpr (kClip) g = clipped(g, c.clip);
    mean = c.beta1 * mean + (T(1.0f) - c.beta1) * g;
    variance = c.beta2 * variance + (T(1.0f) - c.beta2) * g * g;
    weight = weight - c.lr * mean / (root(variance) + c.epsilon);
  }
};

template <typename R>
struct States {
  static constexpr int kCount = 1;
};
template <>
struct States<Sgd> {
  static constexpr int kCount = 0;
};
template <>
struct States<PlainNag> {
  static constexpr int kCount = 0;
};
template <>
struct States<Adam> {
  static constexpr int kCount = 2;
};

template <typename R, bool kClip, bool kSum, bool kPayload, typename T>
void run(T* __restrict weights, const T* __restrict sum, const T* __restrict payload,
         T* __restrict state0, T* __restrict state1, size_t elements,
         const Coefficients<T>& given) {
  constexpr int kStates = States<R>::kCount;
  const Coefficients<T> c = given;
  for (size_t i = 0; i < elements; ++i) {
    T gradient;
    if constexpr (kSum && kPayload) {
      gradient = sum[i] + payload[i];
    } else if constexpr (kPayload) {
      gradient = payload[i];
    } else {
      gradient = sum[i];
    }
    T weight = weights[i], first{}, second{};
    if constexpr (kStates > 0) first = state0[i];
    if constexpr (kStates > 1) second = state1[i];
    R::template step<kClip>(weight, gradient, first, second, c);
    if constexpr (kStates > 0) state0[i] = first;
    if constexpr (kStates > 1) state1[i] = second;
    weights[i] = weight;
  }
}

template <typename R, bool kClip, typename T>
void run_same(const Update& u) {
  const Coefficients<T> c(u);
  T* weights = static_cast<T*>(u.weights);
  const T* sum = static_cast<const T*>(u.accumulator);
  const T* payload = static_cast<const T*>(u.payload);
  T* state0 = static_cast<T*>(u.state0);
  T* state1 = static_cast<T*>(u.state1);
  if (sum != nullptr && payload != nullptr) {
    run<R, kClip, true, true>(weights, sum, payload, state0, state1, u.elements, c);
  } else if (payload != nullptr) {
    run<R, kClip, false, true>(weights, sum, payload, state0, state1, u.elements, c);
  } else {
    run<R, kClip, true, false>(weights, sum, payload, state0, state1, u.elements, c);
  }
}

template <typename R, bool kClip>
void run_mixed(const Update& u) {
  const Coefficients<float> c(u);
  float gradient[kBlock];
  for (size_t i = 0; i < u.elements; i += kBlock) {
    const size_t count = block_at(i, u.elements);
    gather(gradient, static_cast<const float*>(u.accumulator), static_cast<const Half*>(u.payload),
           i, count);
    float* master = static_cast<float*>(u.master) + i;
    float* state0 = u.state0 != nullptr ? static_cast<float*>(u.state0) + i : nullptr;
    float* state1 = u.state1 != nullptr ? static_cast<float*>(u.state1) + i : nullptr;
    run<R, kClip, false, true>(master, static_cast<const float*>(nullptr), gradient, state0, state1,
                               count, c);
    narrow(static_cast<Half*>(u.weights) + i, master, count);
  }
}

template <typename R, bool kClip>
void run_half(const Update& u) {
  const Coefficients<Rounded> c(u);
  Half* weights = static_cast<Half*>(u.weights);
  Half* state0 = static_cast<Half*>(u.state0);
  Half* state1 = static_cast<Half*>(u.state1);
  float gradient[kBlock];
  for (size_t i = 0; i < u.elements; i += kBlock) {
    const size_t count = block_at(i, u.elements);
    gather(gradient, static_cast<const float*>(u.accumulator), static_cast<const Half*>(u.payload),
           i, count);
    for (size_t k = 0; k < count; ++k) {
      Rounded weight, first{}, second{};
      weight.value_ = to_float(weights[i + k]);
      if constexpr (States<R>::kCount > 0) first.value_ = to_float(state0[i + k]);
      if constexpr (States<R>::kCount > 1) second.value_ = to_float(state1[i + k]);
      R::template step<kClip>(weight, Rounded(gradient[k]), first, second, c);
      if constexpr (States<R>::kCount > 0) state0[i + k] = to_half(first.value_);
      if constexpr (States<R>::kCount > 1) state1[i + k] = to_half(second.value_);
      weights[i + k] = to_half(weight.value_);
    }
  }
}

template <typename R, typename T>
void update_same(const Update& u) {
  u.clip_gradient > 0 ? run_same<R, true, T>(u) : run_same<R, false, T>(u);
}
template <typename R>
void update_mixed(const Update& u) {
  u.clip_gradient > 0 ? run_mixed<R, true>(u) : run_mixed<R, false>(u);
}
template <typename R>
void update_half(const Update& u) {
  u.clip_gradient > 0 ? run_half<R, true>(u) : run_half<R, false>(u);
}

constexpr Kernels make_table(const char* name) {
  // In the order of DType: float32, float64, float16, uint8, int32, int8, int64. Signed integers
  // are summed as unsigned ones, which wrap.
  return Kernels{
      name,
      {load_same<float>, load_same<double>, load_half, load_same<uint8_t>, load_same<uint32_t>,
       load_same<uint8_t>, load_same<uint64_t>},
      {add_same<float>, add_same<double>, add_half, add_same<uint8_t>, add_same<uint32_t>,
       add_same<uint8_t>, add_same<uint64_t>},
      {assign_sum_same<float>, assign_sum_same<double>, assign_sum_half, assign_sum_same<uint8_t>,
       assign_sum_same<uint32_t>, assign_sum_same<uint8_t>, assign_sum_same<uint64_t>},
      {assign_same<float>, assign_same<double>, assign_half, assign_same<uint8_t>,
       assign_same<uint32_t>, assign_same<uint8_t>, assign_same<uint64_t>},
      {{update_same<Sgd, float>, update_same<Sgd, double>, update_half<Sgd>, update_mixed<Sgd>},
       {update_same<SgdMomentum, float>, update_same<SgdMomentum, double>, update_half<SgdMomentum>,
        update_mixed<SgdMomentum>},
       {update_same<PlainNag, float>, update_same<PlainNag, double>, update_half<PlainNag>,
        update_mixed<PlainNag>},
       {update_same<Nag, float>, update_same<Nag, double>, update_half<Nag>, update_mixed<Nag>},
       {update_same<Adam, float>, update_same<Adam, double>, update_half<Adam>,
        update_mixed<Adam>}}};
}

constexpr Kernels kTable = make_table(MXRDMA_KERNEL_NAME);

}  // namespace
}  // namespace mxrdma::store::MXRDMA_KERNEL_LEVEL
