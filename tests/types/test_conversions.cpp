// SPDX-License-Identifier: Apache-2.0
#include "tests/support/spaces.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

/// The 16-bit types against independent arithmetic in double: `bits` of mantissa, exponents from `lowest` (that of
/// subnormal numbers) to `highest`.
namespace pagoda::test {
namespace {

struct Format {
  int bits, lowest, highest;
};
constexpr Format half_format{10, -14, 15}, bfloat16_format{7, -126, 127};

/// The value of a pattern.
double decode(const Format& f, std::uint16_t pattern) {
  const int exponent_bits = 15 - f.bits;
  const int exponent      = (pattern >> f.bits) & ((1 << exponent_bits) - 1);
  const int mantissa      = pattern & ((1 << f.bits) - 1);
  const double sign       = pattern & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, f.lowest - f.bits);
  return sign * std::ldexp(mantissa + (1 << f.bits), exponent - 1 + f.lowest - f.bits);
}

/// x rounded to the format, to nearest, ties to even: counted in units of the last place.
double nearest(const Format& f, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent    = std::max(std::ilogb(x), f.lowest);
  const double rounded  = std::ldexp(std::nearbyint(std::ldexp(x, f.bits - exponent)), exponent - f.bits);
  const double too_much = std::ldexp(1, f.highest + 1);
  return std::abs(rounded) >= too_much ? std::copysign(HUGE_VAL, x) : rounded;
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

/// Numbers that are hard to round: for each pattern its value, the midpoint to the next, and the neighbouring floats of
/// both; and random floats.
std::vector<float> hard_numbers(const Format& f) {
  std::vector<float> numbers;
  for (int pattern = 0; pattern < 0x8000; ++pattern) {
    const double here = decode(f, static_cast<std::uint16_t>(pattern));
    const double next = decode(f, static_cast<std::uint16_t>(pattern + 1));
    if (!std::isfinite(here)) break;
    // The next number after the largest would be a power of two; from the midpoint to it on the result is infinite.
    const double middle = (here + (std::isfinite(next) ? next : std::ldexp(1, f.highest + 1))) / 2;
    for (const double x : {here, middle}) {
      const float y = static_cast<float>(x);
      for (const float z : {std::nextafter(y, -INFINITY), y, std::nextafter(y, INFINITY)})
        numbers.insert(numbers.end(), {z, -z});
    }
  }
  for (const float x : {INFINITY, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::denorm_min(), 65504.f, 65519.99f, 65520.f, 65536.f})
    numbers.insert(numbers.end(), {x, -x});
  std::mt19937 bits(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits()));
    if (!std::isnan(x)) numbers.push_back(x);
  }
  return numbers;
}

/// Doubles that rounding via float would round wrongly: near each number and each midpoint of the format, closer than
/// half of float's last place and further; and random doubles.
std::vector<double> hard_doubles(const Format& f) {
  std::vector<double> numbers;
  for (int pattern = 0; pattern < 0x8000; ++pattern) {
    const double here = decode(f, static_cast<std::uint16_t>(pattern));
    const double next = decode(f, static_cast<std::uint16_t>(pattern + 1));
    if (!std::isfinite(here)) break;
    const double middle = (here + (std::isfinite(next) ? next : std::ldexp(1, f.highest + 1))) / 2;
    for (const double x : {here, middle})
      for (const double off : {0.0, 0x1p-52, 0x1p-40, 0x1p-25, 0x1p-24, 0x1p-23, 0x1p-14})
        for (const double y : {x * (1 - off), x * (1 + off)}) numbers.insert(numbers.end(), {y, -y});
  }
  for (const double x : {HUGE_VAL, std::numeric_limits<double>::max(), std::numeric_limits<double>::min(),
                         std::numeric_limits<double>::denorm_min(), 0x1p-149, 0x1p-150, 0x1.8p-150, 0x1.fffffffp127})
    numbers.insert(numbers.end(), {x, -x});
  std::mt19937_64 bits(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const double x = std::bit_cast<double>(static_cast<std::uint64_t>(bits()));
    const double y = std::ldexp(static_cast<double>(bits()) * 0x1p-64, static_cast<int>(bits() % 300) - 160);
    if (!std::isnan(x)) numbers.push_back(x);
    numbers.push_back(y);
  }
  return numbers;
}

template <class Number>
std::vector<Number> hard(const Format& f) {
  if constexpr (std::is_same_v<Number, double>) {
    return hard_doubles(f);
  } else {
    return hard_numbers(f);
  }
}

std::vector<float> nans() {
  std::vector<float> numbers;
  for (const std::uint32_t bits :
       {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7f802000u, 0x7f810000u})
    numbers.push_back(std::bit_cast<float>(bits));
  return numbers;
}

/// Converts in a kernel of the space: the numbers to T, and all patterns of T to numbers.
template <class Space, class T, class Number>
struct Converted {
  std::vector<std::uint16_t> to;  ///< of each number
  std::vector<float> from;        ///< of each pattern

  using Memory = typename Space::memory_space;
  struct To {
    Kokkos::View<const Number*, Memory> numbers;
    Kokkos::View<std::uint16_t*, Memory> bits;
    KOKKOS_FUNCTION void operator()(std::size_t i) const { bits(i) = T(numbers(i)).bits; }
  };
  struct From {
    Kokkos::View<float*, Memory> numbers;
    KOKKOS_FUNCTION void operator()(std::size_t i) const {
      T x;
      x.bits     = static_cast<std::uint16_t>(i);
      numbers(i) = x;
    }
  };

  explicit Converted(const std::vector<Number>& numbers) : to(numbers.size()), from(0x10000) {
    const Kokkos::View<Number*, Memory> there("numbers", numbers.size());
    const Kokkos::View<float*, Memory> values("values", from.size());
    const Kokkos::View<std::uint16_t*, Memory> bits("bits", numbers.size());
    Kokkos::deep_copy(there, Kokkos::View<const Number*, Kokkos::HostSpace>(numbers.data(), numbers.size()));
    Kokkos::parallel_for("to 16 bits", Kokkos::RangePolicy<Space>(0, numbers.size()), To{there, bits});
    Kokkos::parallel_for("from 16 bits", Kokkos::RangePolicy<Space>(0, from.size()), From{values});
    Kokkos::deep_copy(Kokkos::View<std::uint16_t*, Kokkos::HostSpace>(to.data(), to.size()), bits);
    Kokkos::deep_copy(Kokkos::View<float*, Kokkos::HostSpace>(from.data(), from.size()), values);
  }
};

template <class Space, class T, class Number>
void expect_conversions(const Format& f) {
  std::vector<Number> numbers = hard<Number>(f);
  const std::size_t finite    = numbers.size();
  for (const float x : nans()) numbers.push_back(x);
  const Converted<Space, T, Number> got(numbers);

  int wrong = 0;
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    const double expected = decode(f, static_cast<std::uint16_t>(pattern));
    if (!same(got.from[pattern], expected) && ++wrong <= 5)
      ADD_FAILURE() << "pattern " << std::hex << pattern << std::dec << " became " << got.from[pattern] << ", not "
                    << expected;
  }
  for (std::size_t i = 0; i < finite; ++i) {
    const double expected = nearest(f, numbers[i]);
    if (!same(decode(f, got.to[i]), expected) && ++wrong <= 10)
      ADD_FAILURE() << std::hexfloat << numbers[i] << " became " << decode(f, got.to[i]) << ", not " << expected;
  }
  for (std::size_t i = finite; i < numbers.size(); ++i)
    EXPECT_TRUE(std::isnan(decode(f, got.to[i]))) << "a NaN became " << std::hex << got.to[i];
  EXPECT_EQ(wrong, 0);
}

template <class Space>
struct Conversions : testing::Test {};
TYPED_TEST_SUITE(Conversions, Spaces, Names);

TYPED_TEST(Conversions, Half) { expect_conversions<TypeParam, half_t, float>(half_format); }
TYPED_TEST(Conversions, Bfloat16) { expect_conversions<TypeParam, bfloat16_t, float>(bfloat16_format); }

// A double is rounded once: 1 + 2^-11 + 2^-40 lies above the tie between 1 and 1 + 2^-10, though the nearest float is
// the tie itself.
TYPED_TEST(Conversions, HalfFromDouble) {
  expect_conversions<TypeParam, half_t, double>(half_format);
  EXPECT_EQ(static_cast<float>(half_t(1 + 0x1p-11 + 0x1p-40)), 1 + 0x1p-10f);
}
TYPED_TEST(Conversions, Bfloat16FromDouble) {
  expect_conversions<TypeParam, bfloat16_t, double>(bfloat16_format);
  EXPECT_EQ(static_cast<float>(bfloat16_t(1 + 0x1p-8 + 0x1p-40)), 1 + 0x1p-7f);
}

// The conversions by bits, for machines without native ones, give the same results, also at compile time.
TEST(ConversionsByBits, AgreeWithTheMachines) {
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    ASSERT_TRUE(same(detail::half_bits_to_float(bits), decode(half_format, bits))) << std::hex << pattern;
  }
  for (const float x : hard_numbers(half_format))
    ASSERT_EQ(detail::float_to_half_bits(x), detail::float_to_half(x)) << std::hexfloat << x;
  for (const float x : nans()) EXPECT_TRUE(std::isnan(decode(half_format, detail::float_to_half_bits(x))));
}

static_assert(detail::half_bits_to_float(0x3c00) == 1.0f && detail::float_to_half_bits(1.0f) == 0x3c00);
static_assert(detail::half_bits_to_float(0x0001) == 0x1p-24f && detail::float_to_half_bits(0x1p-24f) == 0x0001);
static_assert(detail::float_to_half_bits(-0x1p-25f) == 0x8000, "a tie between 0 and the smallest number goes to 0");
static_assert(detail::float_to_half_bits(65519.0f) == 0x7bff && detail::float_to_half_bits(65520.0f) == 0x7c00);

// Storing what was loaded changes nothing.
TEST(Conversions16, ThereAndBack) {
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    half_t h;
    bfloat16_t b;
    h.bits = b.bits = static_cast<std::uint16_t>(pattern);
    if (!std::isnan(static_cast<float>(h))) {
      ASSERT_EQ(half_t(static_cast<float>(h)).bits, pattern);
    }
    if (!std::isnan(static_cast<float>(b))) {
      ASSERT_EQ(bfloat16_t(static_cast<float>(b)).bits, pattern);
    }
  }
}

}  // namespace
}  // namespace pagoda::test
