// Kernels: every instruction set gives the same bits; sums and optimizer steps agree with a scalar
// float64 model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "store/kernels.h"

namespace mxrdma::store {
namespace {

constexpr size_t kF16 = static_cast<size_t>(DType::float16);

// float16 by arithmetic on its definition, without bit tricks.
double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

TEST(StoreKernels, EveryFloat16IsWidenedExactlyAndNarrowedBack) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  for (const Kernels* table : runnable_kernels()) {
    table->load[kF16](wide.data(), all.data(), all.size());
    table->assign[kF16](back.data(), wide.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = half_value(all[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << table->name << " " << i;
        ASSERT_EQ(back[i], all[i] | 0x200) << "a NaN stays one, quiet";
        continue;
      }
      ASSERT_EQ(static_cast<double>(wide[i]), expected) << table->name << " " << i;
      ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected));
      ASSERT_EQ(back[i], all[i]);
    }
  }
}

TEST(StoreKernels, NarrowingRoundsToNearestEven) {
  std::vector<float> values{65519.996f,    65520.f,       1e9f,           -65520.f,
                            5.9604645e-8f, 2.9802322e-8f, 2.98023259e-8f, 8.9406967e-8f,
                            1e-30f,        INFINITY,      -INFINITY};
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {  // all magnitudes that matter
    const float mantissa = std::uniform_real_distribution<float>(-2, 2)(random);
    values.push_back(std::ldexp(mantissa, static_cast<int>(random() % 45) - 27));
  }
  for (uint16_t h = 0; h < 0x7bff; ++h)  // exactly between two float16 numbers
    values.push_back(static_cast<float>((half_value(h) + half_value(h + 1)) / 2));
  std::vector<uint16_t> narrow(values.size());
  for (const Kernels* table : runnable_kernels()) {
    table->assign[kF16](narrow.data(), values.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = std::fabs(values[i]);
      if (value >= 65520) {
        ASSERT_EQ(narrow[i] & 0x7fff, 0x7c00) << values[i];
        continue;
      }
      // The unit of the last place, then the even neighbour by the C library's rounding.
      int exponent = 0;
      std::frexp(value, &exponent);
      const int unit = std::max(exponent - 11, -24);
      const double expected = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
      ASSERT_EQ(std::fabs(half_value(narrow[i])), expected) << table->name << " " << values[i];
    }
  }
}

template <typename T>
void check_wrapping_sum(DType dtype) {
  const T high = std::numeric_limits<T>::max();
  std::vector<T> a(77, high), b(77, 2), out(77);
  for (const Kernels* table : runnable_kernels()) {
    std::vector<T> sum = a;
    table->assign_sum[static_cast<size_t>(dtype)](out.data(), a.data(), b.data(), a.size());
    table->add[static_cast<size_t>(dtype)](sum.data(), b.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(out[i], static_cast<T>(std::numeric_limits<T>::min() + 1));
      EXPECT_EQ(sum[i], out[i]);
    }
  }
}

TEST(StoreKernels, IntegersWrap) {
  check_wrapping_sum<uint8_t>(DType::uint8);
  check_wrapping_sum<int8_t>(DType::int8);
  check_wrapping_sum<int32_t>(DType::int32);
  check_wrapping_sum<int64_t>(DType::int64);
}

using Bytes = std::vector<unsigned char>;

Bytes random_values(std::mt19937* random, Precision precision, size_t elements, bool positive,
                    bool as_float) {
  std::normal_distribution<float> normal;
  Bytes bytes;
  auto put = [&](auto value) {
    const auto* at = reinterpret_cast<const unsigned char*>(&value);
    bytes.insert(bytes.end(), at, at + sizeof value);
  };
  for (size_t i = 0; i < elements; ++i) {
    const float value = positive ? std::fabs(normal(*random)) : normal(*random);
    if (precision == Precision::float64) {
      put(static_cast<double>(value));
    } else if (precision == Precision::float32 || as_float) {
      put(value);
    } else {
      uint16_t half = 0;
      baseline_kernels().assign[kF16](&half, &value, 1);
      put(half);
    }
  }
  return bytes;
}

// The buffers of one update, kept as bytes so that each table works on its own copy.
struct Case {
  Precision precision;
  size_t elements;
  bool sum, payload;
  Bytes weights, accumulator, gradient, state0, state1, master;
  Update coefficients;

  Case(Precision p, size_t n, bool with_sum, bool with_payload, float clip, std::mt19937* random)
      : precision(p), elements(n), sum(with_sum), payload(with_payload) {
    const bool mixed = p == Precision::float16_mixed;
    weights = random_values(random, p, n, false, false);
    accumulator = random_values(random, p, n, false, true);
    gradient = random_values(random, p, n, false, false);
    state0 = random_values(random, p, n, false, mixed);
    state1 = random_values(random, p, n, true, mixed);
    master.resize(n * sizeof(float));
    if (mixed) baseline_kernels().load[kF16](master.data(), weights.data(), n);
    coefficients.lr = 0.07f;
    coefficients.wd = 0.01f;
    coefficients.rescale_grad = 0.5f;
    coefficients.clip_gradient = clip;
    coefficients.momentum = 0.9f;
    coefficients.beta1 = 0.9f;
    coefficients.beta2 = 0.99f;
    coefficients.epsilon = 1e-3f;
  }
  void run(const Kernels& table, Rule rule) {
    Update update = coefficients;
    update.weights = weights.data();
    update.accumulator = sum ? accumulator.data() : nullptr;
    update.payload = payload ? gradient.data() : nullptr;
    update.state0 = state0.data();
    update.state1 = state1.data();
    update.master = master.data();
    update.elements = elements;
    table.update[static_cast<size_t>(rule)][static_cast<size_t>(precision)](update);
  }
  double value(const Bytes& bytes, size_t i, bool wide) const {
    if (precision == Precision::float64) {
      double v;
      std::memcpy(&v, bytes.data() + i * 8, 8);
      return v;
    }
    if (precision == Precision::float32 || wide) {
      float v;
      std::memcpy(&v, bytes.data() + i * 4, 4);
      return static_cast<double>(v);
    }
    uint16_t v;
    std::memcpy(&v, bytes.data() + i * 2, 2);
    return half_value(v);
  }
};

template <typename Function>
void for_all_cases(size_t elements, Function function) {
  std::mt19937 random(7);
  for (const Precision p :
       {Precision::float32, Precision::float64, Precision::float16, Precision::float16_mixed})
    for (const Rule rule : {Rule::sgd, Rule::sgd_momentum, Rule::nag_plain, Rule::nag, Rule::adam})
      for (const float clip : {-1.0f, 0.0f, 0.3f})
        for (const int source : {1, 2, 3})
          function(Case(p, elements, (source & 1) != 0, (source & 2) != 0, clip, &random), rule);
}

TEST(StoreKernels, AllInstructionSetsGiveTheSameBits) {
  for (const size_t elements : {1, 7, 8, 33, 1000}) {
    for_all_cases(elements, [](const Case& given, Rule rule) {
      Case expected = given;
      expected.run(baseline_kernels(), rule);
      for (const Kernels* table : runnable_kernels()) {
        Case actual = given;
        actual.run(*table, rule);
        EXPECT_EQ(actual.weights, expected.weights) << table->name;
        EXPECT_EQ(actual.state0, expected.state0) << table->name;
        EXPECT_EQ(actual.state1, expected.state1) << table->name;
        EXPECT_EQ(actual.master, expected.master) << table->name;
      }
    });
  }
}

TEST(StoreKernels, StepsAgreeWithTheFormulasInFloat64) {
  for_all_cases(300, [](const Case& given, Rule rule) {
    Case after = given;
    after.run(kernels(), rule);
    const Update& c = given.coefficients;
    const bool mixed = given.precision == Precision::float16_mixed;
    const double tolerance = given.precision == Precision::float64   ? 1e-14
                             : given.precision == Precision::float16 ? 2e-2
                             : mixed                                 ? 2e-3
                                                                     : 3e-6;
    for (size_t i = 0; i < given.elements; ++i) {
      double g = 0;
      if (given.sum) g += given.value(given.accumulator, i, true);
      if (given.payload) g += given.value(given.gradient, i, false);
      double w = given.value(given.weights, i, false), m = given.value(given.state0, i, mixed),
             v = given.value(given.state1, i, mixed);
      const double lr = c.lr, wd = c.wd, clip = c.clip_gradient;
      auto clipped = [&](double x) { return clip > 0 ? std::clamp(x, -clip, clip) : x; };
      g *= c.rescale_grad;
      switch (rule) {
        case Rule::sgd:
        case Rule::nag_plain:
          w -= lr * (clipped(g) + wd * w);
          break;
        case Rule::sgd_momentum:
          m = c.momentum * m - lr * (clipped(g) + wd * w);
          w += m;
          break;
        case Rule::nag: {
          // Written as a look-ahead; the momentum's decay term uses the new weight.
          const double before = c.momentum * m;
          const double step = before - lr * (clipped(g) + wd * w);
          w += step + c.momentum * step - before;
          m = before - lr * (clipped(g) + wd * w);
          break;
        }
        case Rule::adam:
          g = clipped(g + wd * w);
          m = c.beta1 * m + (1.0f - c.beta1) * g;
          v = c.beta2 * v + (1.0f - c.beta2) * g * g;
          w -= lr * m / (std::sqrt(v) + c.epsilon);
          break;
      }
      auto near = [&](double actual, double expected) {
        ASSERT_NEAR(actual, expected, tolerance * std::max(1.0, std::fabs(expected)))
            << "rule " << static_cast<int>(rule) << " precision "
            << static_cast<int>(given.precision);
      };
      near(after.value(after.weights, i, false), w);
      near(after.value(after.state0, i, mixed), m);
      near(after.value(after.state1, i, mixed), v);
    }
  });
}

}  // namespace
}  // namespace mxrdma::store
