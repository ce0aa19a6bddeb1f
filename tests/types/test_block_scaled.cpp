// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/e2m1_bits.hpp"

#include <pagoda/types.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

/// E2M1 and E8M0, all codes, against the OCP microscaling specification.
namespace pagoda::test {
namespace {

constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

TEST(E2M1, TwoToAByteTheEvenOneBelow) {
  for (int odd = 0; odd < 16; ++odd) {
    for (int even = 0; even < 16; ++even) {
      mxfp4x2_t two;
      two.bits         = static_cast<std::uint8_t>(odd << 4 | even);
      const auto check = [&](int code, float got) {
        EXPECT_EQ(std::abs(got), magnitudes[code % 8]) << code;
        EXPECT_EQ(std::signbit(got), code >= 8) << code;
      };
      check(even, two[0]), check(odd, two[1]);
      EXPECT_EQ(mxfp4x2_t(two[0], two[1]).bits, two.bits);
    }
  }
}

TEST(E2M1, RoundsToNearestEvenAndSaturates) {
  for (int p = 1; p < 8; ++p) {
    const auto low = static_cast<float>(magnitudes[p - 1]), high = static_cast<float>(magnitudes[p]);
    const float middle = (low + high) / 2;
    for (const float sign : {1.0f, -1.0f}) {
      EXPECT_EQ(mxfp4x2_t(sign * std::nextafter(middle, 0.0f), 0)[0], sign * low);
      EXPECT_EQ(mxfp4x2_t(sign * std::nextafter(middle, 9.0f), 0)[0], sign * high);
      EXPECT_EQ(mxfp4x2_t(0, sign * middle)[1], sign * (p % 2 == 0 ? high : low)) << "ties to even";
    }
  }
  for (const float x : {6.5f, 1e9f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(mxfp4x2_t(x, -x)[0], 6);
    EXPECT_EQ(mxfp4x2_t(x, -x)[1], -6);
  }
  EXPECT_EQ(mxfp4x2_t(std::numeric_limits<float>::quiet_NaN(), 0)[0], 6) << "there is no NaN";
}

// Conversion for matrix instructions: each code at each of the eight positions of a word, among others.
TEST(E2M1, AsHalvesOfMatrixOperands) {
  const auto as_half = [](std::uint32_t bits) {
    half_t x;
    x.bits = static_cast<std::uint16_t>(bits);
    return std::ldexp(static_cast<double>(static_cast<float>(x)), 14);
  };
  const auto as_bfloat16 = [](std::uint32_t bits) {
    bfloat16_t x;
    x.bits = static_cast<std::uint16_t>(bits);
    return std::ldexp(static_cast<double>(static_cast<float>(x)), 126);
  };
  const auto same = [](double a, double b) { return a == b && std::signbit(a) == std::signbit(b); };
  for (std::uint32_t code = 0; code < 16; ++code) {
    const double number = detail::Float4E2M1::to_float(code);
    for (const std::uint32_t others : {0u, 0xffffffffu, 0x93a57c1eu}) {
      for (int n = 0; n < 8; ++n) {
        const std::uint32_t word = (others & ~(15u << (4 * n))) | code << (4 * n);
        if (n % 2 == 0) {  // a zero may have either sign
          const std::uint32_t pair =
              n % 4 == 0 ? detail::even_e2m1_pair_over_2_14<0>(word) : detail::even_e2m1_pair_over_2_14<2>(word);
          EXPECT_EQ(as_half(pair >> (n / 4 * 16) & 0xffff), number) << code << " in place " << n;
        } else {
          const std::uint32_t bytes = detail::odd_e2m1_bytes(word);
          const std::uint32_t pair =
              n % 4 == 1 ? detail::odd_e2m1_pair_over_2_14<1>(bytes) : detail::odd_e2m1_pair_over_2_14<3>(bytes);
          EXPECT_TRUE(same(as_half(pair >> (n / 4 * 16) & 0xffff), number)) << code << " in place " << n;
        }
        const std::uint32_t pair = detail::e2m1_pair_over_2_126(word, n % 4);
        EXPECT_TRUE(same(as_bfloat16(pair >> (n / 4 * 16) & 0xffff), number)) << code << " in place " << n;
      }
    }
  }
}

TEST(E8M0, AllCodes) {
  for (int code = 0; code < 255; ++code) {
    e8m0_t x;
    x.bits = static_cast<std::uint8_t>(code);
    EXPECT_EQ(static_cast<double>(x), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(e8m0_t(static_cast<float>(x)).bits, code);
    if (code < 254) {
      EXPECT_EQ(e8m0_t(std::nextafter(static_cast<float>(x), 1e38f)).bits, code + 1) << "up to a power of two";
    }
  }
  e8m0_t nan;
  nan.bits = 255;
  EXPECT_TRUE(std::isnan(static_cast<float>(nan)));
  EXPECT_EQ(e8m0_t(std::numeric_limits<float>::quiet_NaN()).bits, 255);
  EXPECT_EQ(e8m0_t(std::numeric_limits<float>::infinity()).bits, 254);
  EXPECT_EQ(e8m0_t(0.0f).bits, 0);
}

}  // namespace
}  // namespace pagoda::test
