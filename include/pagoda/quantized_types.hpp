// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/round_to_odd.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

#if defined(KOKKOS_ENABLE_CUDA)
#include <cuda_fp8.h>
#endif

/// @file
/// Element types of quantized caches: a byte holds one number of 8 bits or two numbers of 4 bits. The value is the
/// stored number times a scale (KVScales). std::int8_t is an element type of quantized caches too.
///
/// Source: Micikevicius et al., "FP8 formats for deep learning", and the OCP 8-bit floating point specification (OFP8).
namespace pagoda {

namespace detail {

/// An 8-bit floating format of the OCP specification: a sign, 7 - MantissaBits bits of exponent, the mantissa, and
/// subnormal numbers as in IEEE 754. E5M2 has its infinities too; E4M3 uses all patterns but the last for numbers.
template <int MantissaBits>
struct Float8 {
  static constexpr int bias             = (1 << (6 - MantissaBits)) - 1;
  static constexpr bool has_infinity    = MantissaBits == 2;
  static constexpr std::uint8_t nan     = 0x7f;
  static constexpr std::uint8_t largest = has_infinity ? 0x7b : 0x7e;  ///< 57344, 448

  KOKKOS_INLINE_FUNCTION static constexpr float to_float(std::uint8_t bits) {
    const std::uint32_t magnitude = bits & 0x7fu, sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    if (magnitude > largest)
      return __builtin_bit_cast(float, sign | (has_infinity && magnitude == largest + 1u ? 0x7f800000u : 0x7fc00000u));
    const float subnormal = static_cast<float>(magnitude) * power_of_two(1 - bias - MantissaBits);
    const std::uint32_t normal =
        (magnitude << (23 - MantissaBits)) + (static_cast<std::uint32_t>(127 - bias) << 23);  // the exponent's new bias
    const std::uint32_t number =
        magnitude < (1u << MantissaBits) ? __builtin_bit_cast(std::uint32_t, subnormal) : normal;
    return __builtin_bit_cast(float, sign | number);
  }

  /// Rounds to nearest, ties to even. Larger magnitudes and infinities become the largest number (CUDA: satfinite). NaN
  /// stays NaN.
  KOKKOS_INLINE_FUNCTION static constexpr std::uint8_t from_float(float value) {
    const auto bits         = __builtin_bit_cast(std::uint32_t, value);
    const auto sign         = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
    const std::uint32_t abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u) return sign | nan;
    if (abs >= __builtin_bit_cast(std::uint32_t, to_float(largest))) return sign | largest;
    if (abs < static_cast<std::uint32_t>(128 - bias) << 23) {
      // Subnormal or zero: the sum's last place is the subnormal's last place.
      const float ones    = power_of_two(24 - bias - MantissaBits);
      const float shifted = __builtin_bit_cast(float, abs) + ones;
      return static_cast<std::uint8_t>(
          sign | (__builtin_bit_cast(std::uint32_t, shifted) - __builtin_bit_cast(std::uint32_t, ones)));
    }
    constexpr int dropped       = 23 - MantissaBits;
    const std::uint32_t rounded = abs + ((1u << (dropped - 1)) - 1) + ((abs >> dropped) & 1u);
    return static_cast<std::uint8_t>(sign |
                                     ((rounded >> dropped) - (static_cast<std::uint32_t>(127 - bias) << MantissaBits)));
  }

 private:
  KOKKOS_INLINE_FUNCTION static constexpr float power_of_two(int exponent) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + exponent) << 23);
  }
};
using Float8E4M3 = Float8<3>;
using Float8E5M2 = Float8<2>;

// From sm_89 on the GPU converts.
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
#define PAGODA_NATIVE_FP8
#endif
#endif

#if defined(PAGODA_NATIVE_FP8)
template <class Format>
inline constexpr __nv_fp8_interpretation_t native_format = Format::has_infinity ? __NV_E5M2 : __NV_E4M3;
#endif

template <class Format>
KOKKOS_INLINE_FUNCTION float float8_to_float(std::uint8_t bits) {
#if defined(PAGODA_NATIVE_FP8)
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, native_format<Format>)));
#else
  return Format::to_float(bits);
#endif
}
template <class Format>
KOKKOS_INLINE_FUNCTION std::uint8_t float_to_float8(float value) {
#if defined(PAGODA_NATIVE_FP8)
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, native_format<Format>);
#else
  return Format::from_float(value);
#endif
}
#undef PAGODA_NATIVE_FP8

}  // namespace detail

/// OCP E4M3 ("E4M3FN"): 4 bits of exponent, 3 of mantissa, up to 448, no infinities; the bits of `__nv_fp8_e4m3`.
/// Conversion rounds to nearest even and saturates: beyond 448, infinities too, it gives 448.
struct fp8_e4m3_t {
  std::uint8_t bits;  ///< as stored

  fp8_e4m3_t() = default;
  /// Rounds to nearest even and saturates.
  KOKKOS_INLINE_FUNCTION explicit fp8_e4m3_t(float value) : bits(detail::float_to_float8<detail::Float8E4M3>(value)) {}
  /// From a double, rounded once. A template, so that integers still convert by way of float.
  template <class Double>
    requires std::is_same_v<Double, double>
  KOKKOS_INLINE_FUNCTION explicit fp8_e4m3_t(Double value) : fp8_e4m3_t(detail::round_to_odd(value)) {}
  /// Exact.
  KOKKOS_INLINE_FUNCTION operator float() const { return detail::float8_to_float<detail::Float8E4M3>(bits); }
};

/// OCP E5M2: 5 bits of exponent, 2 of mantissa, up to 57344, infinities and NaN as in IEEE 754; the bits of
/// `__nv_fp8_e5m2`. Conversion rounds to nearest even and saturates: beyond 57344, infinities too, it gives 57344.
struct fp8_e5m2_t {
  std::uint8_t bits;  ///< as stored

  fp8_e5m2_t() = default;
  /// Rounds to nearest even and saturates.
  KOKKOS_INLINE_FUNCTION explicit fp8_e5m2_t(float value) : bits(detail::float_to_float8<detail::Float8E5M2>(value)) {}
  /// From a double, rounded once. A template, so that integers still convert by way of float.
  template <class Double>
    requires std::is_same_v<Double, double>
  KOKKOS_INLINE_FUNCTION explicit fp8_e5m2_t(Double value) : fp8_e5m2_t(detail::round_to_odd(value)) {}
  /// Exact.
  KOKKOS_INLINE_FUNCTION operator float() const { return detail::float8_to_float<detail::Float8E5M2>(bits); }
};

/// Two integers from -8 to 7 in one byte, in two's complement: the even dim in the lower half, the next (odd) dim in
/// the upper half.
struct int4x2_t {
  std::uint8_t bits;  ///< as stored

  int4x2_t() = default;
  /// Saturates to -8 and 7.
  KOKKOS_INLINE_FUNCTION constexpr int4x2_t(int even, int odd)
      : bits(static_cast<std::uint8_t>((clamped(even) & 15) | (clamped(odd) & 15) << 4)) {}
  /// i: 0 (even) or 1 (odd).
  KOKKOS_INLINE_FUNCTION constexpr int operator[](int i) const {
    return static_cast<std::int8_t>(static_cast<std::uint8_t>(i == 0 ? bits << 4 : bits & 0xf0)) / 16;
  }

 private:
  KOKKOS_INLINE_FUNCTION static constexpr int clamped(int x) { return x < -8 ? -8 : x > 7 ? 7 : x; }
};

/// One byte of a row of fp8_ds_mla. A number is not a function of one byte: row_formats.hpp has the format of a row.
struct fp8_ds_mla_t {
  std::uint8_t bits;  ///< as stored
};

static_assert(sizeof(fp8_e4m3_t) == 1 && std::is_trivially_copyable_v<fp8_e4m3_t>);
static_assert(sizeof(fp8_e5m2_t) == 1 && std::is_trivially_copyable_v<fp8_e5m2_t>);
static_assert(sizeof(fp8_ds_mla_t) == 1 && std::is_trivially_copyable_v<fp8_ds_mla_t>);
static_assert(sizeof(int4x2_t) == 1 && std::is_trivially_copyable_v<int4x2_t>);

}  // namespace pagoda
