// SPDX-License-Identifier: Apache-2.0
#include "tests/support/spaces.hpp"

#include <pagoda/types.hpp>
#if !defined(__NVCC__)
#include "backends/host/simd_vec.hpp"
#endif

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

/// The types of quantized caches against the definition of their formats, computed here in double.
namespace pagoda::test::quantized {
namespace {

/// E4M3 or E5M2 of the OCP specification.
struct Format {
  int exponent_bits, mantissa_bits, bias;
  bool ieee;  ///< the largest exponent is infinity or NaN; otherwise only its last pattern is NaN
};
constexpr Format e4m3{4, 3, 7, false}, e5m2{5, 2, 15, true};

double meaning(const Format& f, int pattern) {
  const int mantissa = pattern & ((1 << f.mantissa_bits) - 1);
  const int exponent = (pattern & 0x7f) >> f.mantissa_bits, top = (1 << f.exponent_bits) - 1;
  const double sign = pattern & 0x80 ? -1 : 1, fraction = std::ldexp(mantissa, -f.mantissa_bits);
  if (f.ieee && exponent == top) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (!f.ieee && (pattern & 0x7f) == 0x7f) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias);
  return sign * std::ldexp(1 + fraction, exponent - f.bias);
}

/// The non-negative finite numbers, in order of their patterns, which is ascending.
std::vector<double> finite_numbers(const Format& f) {
  std::vector<double> numbers;
  while (std::isfinite(meaning(f, static_cast<int>(numbers.size()))))
    numbers.push_back(meaning(f, static_cast<int>(numbers.size())));
  return numbers;
}

/// The pattern of the finite number nearest to x, by comparing all of them; of two equally near ones the even one.
int nearest(const std::vector<double>& numbers, double x) {
  const double abs = std::min(std::abs(x), 2 * numbers.back());  // infinity has no distances
  int best         = 0;
  for (int p = 1; p < static_cast<int>(numbers.size()); ++p) {
    const double old = std::abs(abs - numbers[best]), now = std::abs(abs - numbers[p]);
    if (now < old || (now == old && p % 2 == 0)) best = p;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

/// All numbers of the format, the midpoints, and the neighbouring floats of both; some beyond its range; random floats.
std::vector<float> hard_numbers(const Format& f) {
  std::vector<float> numbers;
  const auto add = [&](double x) {
    const auto y = static_cast<float>(x);
    for (const float z : {std::nextafter(y, -INFINITY), y, std::nextafter(y, INFINITY)})
      numbers.insert(numbers.end(), {z, -z});
  };
  const std::vector<double> all = finite_numbers(f);
  for (std::size_t p = 0; p < all.size(); ++p) {
    add(all[p]);
    if (p > 0) add((all[p - 1] + all[p]) / 2);
  }
  const double largest = all.back(), step = largest - all[all.size() - 2];
  for (const double x : {largest + step / 2, largest + step, 2 * largest, 1e30}) add(x);
  for (const float x : {INFINITY, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::denorm_min()})
    numbers.insert(numbers.end(), {x, -x});
  std::mt19937 bits(1);
  for (int i = 0; i < 20'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits()));
    if (!std::isnan(x)) numbers.push_back(x);
  }
  std::normal_distribution<float> normal;
  for (int i = 0; i < 20'000; ++i) numbers.push_back(normal(bits));
  return numbers;
}

/// Converts in a kernel of the space: the numbers to T, and all patterns of T to numbers.
template <class Space, class T>
struct Converted {
  std::vector<std::uint8_t> to;
  std::vector<float> from;

  using Memory = typename Space::memory_space;
  struct To {
    Kokkos::View<const float*, Memory> numbers;
    Kokkos::View<std::uint8_t*, Memory> bits;
    KOKKOS_FUNCTION void operator()(std::size_t i) const { bits(i) = T(numbers(i)).bits; }
  };
  struct From {
    Kokkos::View<float*, Memory> numbers;
    KOKKOS_FUNCTION void operator()(std::size_t i) const {
      T x;
      x.bits     = static_cast<std::uint8_t>(i);
      numbers(i) = x;
    }
  };

  explicit Converted(const std::vector<float>& numbers) : to(numbers.size()), from(256) {
    const Kokkos::View<float*, Memory> there("numbers", numbers.size()), values("values", from.size());
    const Kokkos::View<std::uint8_t*, Memory> bits("bits", numbers.size());
    Kokkos::deep_copy(there, Kokkos::View<const float*, Kokkos::HostSpace>(numbers.data(), numbers.size()));
    Kokkos::parallel_for("to 8 bits", Kokkos::RangePolicy<Space>(0, numbers.size()), To{there, bits});
    Kokkos::parallel_for("from 8 bits", Kokkos::RangePolicy<Space>(0, from.size()), From{values});
    Kokkos::deep_copy(Kokkos::View<std::uint8_t*, Kokkos::HostSpace>(to.data(), to.size()), bits);
    Kokkos::deep_copy(Kokkos::View<float*, Kokkos::HostSpace>(from.data(), from.size()), values);
  }
};

template <class Space, class T>
void expect_conversions(const Format& f) {
  std::vector<float> numbers = hard_numbers(f);
  const std::size_t n        = numbers.size();
  for (const std::uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu})
    numbers.push_back(std::bit_cast<float>(nan));
  const Converted<Space, T> got(numbers);
  for (int pattern = 0; pattern < 256; ++pattern)
    EXPECT_TRUE(same(got.from[pattern], meaning(f, pattern)))
        << "pattern " << pattern << " became " << got.from[pattern] << ", not " << meaning(f, pattern);
  const std::vector<double> all = finite_numbers(f);
  int wrong                     = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const int right = nearest(all, numbers[i]);
    if (got.to[i] != right && ++wrong <= 10)
      ADD_FAILURE() << std::hexfloat << numbers[i] << " became " << meaning(f, got.to[i]) << ", not "
                    << meaning(f, right);
  }
  EXPECT_EQ(wrong, 0);
  for (std::size_t i = n; i < numbers.size(); ++i) EXPECT_TRUE(std::isnan(meaning(f, got.to[i]))) << "a NaN was lost";
}

template <class Space>
struct Float8Conversions : testing::Test {};
TYPED_TEST_SUITE(Float8Conversions, Spaces, Names);

TYPED_TEST(Float8Conversions, E4M3) { expect_conversions<TypeParam, fp8_e4m3_t>(e4m3); }
TYPED_TEST(Float8Conversions, E5M2) { expect_conversions<TypeParam, fp8_e5m2_t>(e5m2); }

// A double is rounded once, though the nearest float may be a tie of the format.
template <class T>
void expect_rounded_once(const Format& f) {
  const std::vector<double> all = finite_numbers(f);
  for (std::size_t p = 1; p < all.size(); ++p) {
    const double middle = (all[p - 1] + all[p]) / 2;
    for (const double off : {0.0, 0x1p-52, 0x1p-40, 0x1p-20})
      for (const double x : {middle * (1 - off), middle * (1 + off), -middle * (1 - off), -middle * (1 + off)})
        EXPECT_EQ(T(x).bits, nearest(all, x)) << std::hexfloat << x;
  }
}
TEST(Float8FromDouble, E4M3) { expect_rounded_once<fp8_e4m3_t>(e4m3); }
TEST(Float8FromDouble, E5M2) { expect_rounded_once<fp8_e5m2_t>(e5m2); }

// Values from the specification.
static_assert(detail::Float8E4M3::to_float(0x7e) == 448 && detail::Float8E4M3::to_float(0x08) == 0x1p-6f);
static_assert(detail::Float8E4M3::to_float(0x01) == 0x1p-9f && detail::Float8E4M3::to_float(0x38) == 1);
static_assert(detail::Float8E5M2::to_float(0x7b) == 57344 && detail::Float8E5M2::to_float(0x04) == 0x1p-14f);
static_assert(detail::Float8E5M2::to_float(0x01) == 0x1p-16f && detail::Float8E5M2::to_float(0x3c) == 1);
static_assert(detail::Float8E4M3::from_float(1e9f) == 0x7e && detail::Float8E5M2::from_float(-1e9f) == 0xfb);

TEST(Int4, TwoToAByteTheEvenOneBelow) {
  for (int even = -8; even < 8; ++even) {
    for (int odd = -8; odd < 8; ++odd) {
      const int4x2_t both(even, odd);
      EXPECT_EQ(both[0], even);
      EXPECT_EQ(both[1], odd);
      EXPECT_EQ(both.bits, (even + 16) % 16 + (odd + 16) % 16 * 16);
    }
  }
}

TEST(Int4, IntegersOutOfRangeAreHeldToIt) {
  EXPECT_EQ(int4x2_t(8, -9)[0], 7);
  EXPECT_EQ(int4x2_t(8, -9)[1], -8);
  EXPECT_EQ(int4x2_t(-100, 100)[0], -8);
  EXPECT_EQ(int4x2_t(-100, 100)[1], 7);
}

#if !defined(__NVCC__)
/// Every pattern of a byte through vectors of W dims, at addresses that are not aligned.
template <class T, int W>
void expect_vectors() {
  constexpr int dims = 256 * dims_per_element_v<T>;
  std::vector<T> row(256 + 1);
  for (int i = 0; i < 256; ++i) row[i + 1] = std::bit_cast<T>(static_cast<std::uint8_t>(i));
  for (int d = 0; d < dims; d += W) {
    const auto x = detail::plain::SimdVec<float, W>::load(row.data() + 1 + d / dims_per_element_v<T>);
    for (int j = 0; j < W; ++j) {
      const auto one = static_cast<float>(detail::stored_dim(row.data() + 1, d + j, 1));
      EXPECT_TRUE(same(x[j], one)) << "dim " << d + j << " became " << x[j] << ", not " << one;
    }
  }
}

template <class T>
struct VectorLoads : testing::Test {};
TYPED_TEST_SUITE(VectorLoads, lists::AllQuantized);

TYPED_TEST(VectorLoads, AreTheConversionsOfTheirElements) {
  expect_vectors<TypeParam, 4>();
  expect_vectors<TypeParam, 8>();
  expect_vectors<TypeParam, 16>();
  expect_vectors<TypeParam, 32>();
}
#endif

}  // namespace
}  // namespace pagoda::test::quantized
