// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

/// Elements of 4-bit floating point whose rows have a scale for each block of dims, and the scales that are powers of
/// two. detail/type_table.hpp lists the length of a block and the type of its scale; kv_scales.hpp gives a cache its
/// scales.
///
/// Source: Rouhani et al., "OCP Microscaling formats (MX) specification"; NVIDIA, "Pretraining large language models
/// with NVFP4".
namespace pagoda {

namespace detail {

/// OCP E2M1: a sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4 and 6. No infinity, no NaN.
struct Float4E2M1 {
  /// The lower four bits.
  KOKKOS_INLINE_FUNCTION static constexpr float to_float(unsigned code) {
    const std::uint32_t magnitude = code & 7u, sign = (code & 8u) << 28;
    const std::uint32_t normal = (magnitude << 22) + (126u << 23);  // the exponent's new bias
    const std::uint32_t number = magnitude >= 2 ? normal : magnitude * 0x3f000000u;
    return __builtin_bit_cast(float, sign | number);
  }
  /// Rounds to nearest, ties to even. Magnitudes above 6 and NaN become 6, as in CUDA.
  KOKKOS_INLINE_FUNCTION static constexpr unsigned from_float(float value) {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    if (value != value) return 7;
    const float abs = __builtin_bit_cast(float, bits & 0x7fffffffu);
    const unsigned magnitude =
        (abs > 0.25f) + (abs >= 0.75f) + (abs > 1.25f) + (abs >= 1.75f) + (abs > 2.5f) + (abs >= 3.5f) + (abs > 5.0f);
    return magnitude | (bits >> 28 & 8u);
  }
};

/// Two E2M1 numbers in one byte: the even dim in the lower half, the next (odd) dim in the upper half.
struct E2M1x2 {
  std::uint8_t bits;

  E2M1x2() = default;
  KOKKOS_INLINE_FUNCTION constexpr E2M1x2(float even, float odd)
      : bits(static_cast<std::uint8_t>(Float4E2M1::from_float(even) | Float4E2M1::from_float(odd) << 4)) {}
  /// i: 0 (even) or 1 (odd).
  KOKKOS_INLINE_FUNCTION constexpr float operator[](int i) const { return Float4E2M1::to_float(bits >> (4 * i)); }
};

}  // namespace detail

/// An 8-bit scale: 2^(bits - 127), or NaN where all bits are set (OCP E8M0).
struct e8m0_t {
  std::uint8_t bits;  ///< the exponent, biased by 127

  e8m0_t() = default;
  /// Rounds the magnitude up to a power of two from 2^-127 to 2^127, so that a block divided by its scale does not
  /// saturate.
  KOKKOS_INLINE_FUNCTION constexpr explicit e8m0_t(float value) : bits(from_float(value)) {}
  /// Exact.
  KOKKOS_INLINE_FUNCTION constexpr operator float() const {
    if (bits == 0xff) return __builtin_bit_cast(float, 0x7fc00000u);
    return __builtin_bit_cast(float, bits == 0 ? 0x00400000u : static_cast<std::uint32_t>(bits) << 23);
  }

 private:
  KOKKOS_INLINE_FUNCTION static constexpr std::uint8_t from_float(float value) {
    const std::uint32_t abs = __builtin_bit_cast(std::uint32_t, value) & 0x7fffffffu;
    if (abs > 0x7f800000u) return 0xff;
    if (abs <= 0x00400000u) return 0;
    const std::uint32_t up = (abs + 0x007fffffu) >> 23;
    return static_cast<std::uint8_t>(up < 0xfe ? up : 0xfe);
  }
};

/// MXFP4 of the OCP microscaling specification: two E2M1 numbers, the even dim's in the lower half. 32 dims share a
/// scale of e8m0_t.
struct mxfp4x2_t : detail::E2M1x2 {
  mxfp4x2_t() = default;
  using E2M1x2::E2M1x2;
};

/// NVFP4: two E2M1 numbers, the even dim's in the lower half. 16 dims share a scale of fp8_e4m3_t; all keys share a
/// float, and all values another.
struct nvfp4x2_t : detail::E2M1x2 {
  nvfp4x2_t() = default;
  using E2M1x2::E2M1x2;
};

static_assert(sizeof(e8m0_t) == 1 && std::is_trivially_copyable_v<e8m0_t>);

}  // namespace pagoda
