// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/block_scaled_types.hpp>
#include <pagoda/detail/round_to_odd.hpp>
#include <pagoda/detail/type_table.hpp>
#include <pagoda/quantized_types.hpp>

#include <Kokkos_Core.hpp>

#include <bit>
#include <cstdint>
#include <type_traits>

#if defined(KOKKOS_ENABLE_CUDA)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
#if defined(__F16C__) && !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__)
#include <immintrin.h>
#endif

/// Element types of caches, queries and outputs.
///
/// Kokkos has no 16-bit floating type on the host, so the two storage types here are plain bits with native conversions
/// where the machine has them. Element types of quantized caches: quantized_types.hpp, block_scaled_types.hpp
/// and row_formats.hpp.
namespace pagoda {

namespace detail {

/// IEEE binary16 to binary32 by bits, for machines and compilers without a native conversion.
constexpr float half_bits_to_float(std::uint16_t h) {
  const std::uint32_t sign     = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu;
  const std::uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

/// binary32 to binary16, round to nearest even, by bits.
constexpr std::uint16_t float_to_half_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign          = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t abs  = bits & 0x7fffffffu;
  if (abs > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // NaN stays NaN
  if (abs >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (abs < 0x38800000u) {                                                    // subnormal or zero in binary16
    // Adding 0.5 puts the last place of a binary16 subnormal at the last place of the sum.
    const float shifted = std::bit_cast<float>(abs) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = abs + 0xfffu + ((abs >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

KOKKOS_INLINE_FUNCTION float half_to_float(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#elif defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
#elif defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  return half_bits_to_float(bits);
#endif
}

KOKKOS_INLINE_FUNCTION std::uint16_t float_to_half(float value) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(value));
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(value));
#elif defined(__F16C__)
  return static_cast<std::uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  return float_to_half_bits(value);
#endif
}

KOKKOS_INLINE_FUNCTION float bfloat16_to_float(std::uint16_t bits) {
#if defined(__HIP_DEVICE_COMPILE__)
  // Clang 21 makes byte operations of several shifts, and on gfx942 one of them leaves a bit of the neighbor.
  return static_cast<float>(__builtin_bit_cast(__bf16, bits));
#else
  return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
#endif
}

KOKKOS_INLINE_FUNCTION std::uint16_t float_to_bfloat16(float value) {
#if defined(__CUDA_ARCH__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const auto bits = Kokkos::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

}  // namespace detail

/// IEEE binary16 storage: 2 bytes, the bits of `__half` and `_Float16`. Arithmetic happens in float. Conversion rounds
/// to nearest even.
struct half_t {
  std::uint16_t bits;  ///< as stored

  half_t() = default;
  /// Rounds to nearest even.
  KOKKOS_INLINE_FUNCTION explicit half_t(float value) : bits(detail::float_to_half(value)) {}
  /// From a double, rounded once. A template, so that integers still convert by way of float.
  template <class Double>
    requires std::is_same_v<Double, double>
  KOKKOS_INLINE_FUNCTION explicit half_t(Double value) : half_t(detail::round_to_odd(value)) {}
  /// Exact.
  KOKKOS_INLINE_FUNCTION operator float() const { return detail::half_to_float(bits); }
};

/// bfloat16 storage: 2 bytes, the upper half of a binary32. Arithmetic happens in float. Conversion rounds to nearest
/// even.
struct bfloat16_t {
  std::uint16_t bits;  ///< as stored

  bfloat16_t() = default;
  /// Rounds to nearest even.
  KOKKOS_INLINE_FUNCTION explicit bfloat16_t(float value) : bits(detail::float_to_bfloat16(value)) {}
  /// From a double, rounded once. A template, so that integers still convert by way of float.
  template <class Double>
    requires std::is_same_v<Double, double>
  KOKKOS_INLINE_FUNCTION explicit bfloat16_t(Double value) : bfloat16_t(detail::round_to_odd(value)) {}
  /// Exact.
  KOKKOS_INLINE_FUNCTION operator float() const { return detail::bfloat16_to_float(bits); }
};

static_assert(sizeof(half_t) == 2 && std::is_trivially_copyable_v<half_t>);
static_assert(sizeof(bfloat16_t) == 2 && std::is_trivially_copyable_v<bfloat16_t>);

/// Code of an element type at the type-erased boundary: the row of the type in detail/type_table.hpp.
enum class DType : std::int32_t {
#define PAGODA_CODE(name, ...) name,
  PAGODA_FOR_EACH_TYPE(PAGODA_CODE)
#undef PAGODA_CODE
};

/// Whether a cache's numbers are multiplied by scales that are floats (kv_scales.hpp).
enum class ScaleUse {
  none,      ///< a plain type
  optional,  ///< scales default to 1
  required,  ///< numbers have no meaning without them
  in_rows    ///< rows have a format of their own, with their scales in it (row_formats.hpp)
};

/// A type's row of the table.
struct TypeFacts {
  const char* name;      ///< the field's short name: "fp16"
  int bits;              ///< bits of a number
  int dims_per_element;  ///< an int4 cache of head_dim dims has rows of head_dim / 2 elements
  double unit_roundoff;  ///< half the distance from 1 to the next number
  bool has_nan;          ///< some code is not a number
  ScaleUse scales;       ///< scales that are floats
  int block_dims;        ///< dims of a row that share a block scale; 0: there are none
  float deviation;       ///< standard deviation of the numbers that tests and benchmarks store
};

/// The type's row of the table (detail/type_table.hpp).
KOKKOS_INLINE_FUNCTION constexpr TypeFacts facts_of(DType type) {
  switch (type) {
#define PAGODA_FACTS(name, T, bits, dims, roundoff, nan, scales, block, S, deviation, holds) \
  case DType::name:                                                                          \
    return {#name, bits, dims, roundoff, nan, ScaleUse::scales, block, deviation};
    PAGODA_FOR_EACH_TYPE(PAGODA_FACTS)
#undef PAGODA_FACTS
  }
  return {"unknown", 8, 1, 1.0, false, ScaleUse::none, 0, 1.0f};
}

/// Bytes of one element.
KOKKOS_INLINE_FUNCTION constexpr int size_of(DType type) {
  return facts_of(type).bits * facts_of(type).dims_per_element / 8;
}
/// Dims that one element holds: an int4 cache of head_dim dims has rows of head_dim / 2 elements.
KOKKOS_INLINE_FUNCTION constexpr int dims_per_element(DType type) { return facts_of(type).dims_per_element; }
/// Types of quantized caches, whose numbers are multiplied by a scale (kv_scales.hpp). The others are plain; queries
/// and outputs have plain types.
KOKKOS_INLINE_FUNCTION constexpr bool is_quantized(DType type) {
  return facts_of(type).scales != ScaleUse::none || facts_of(type).block_dims > 0;
}
/// Types whose elements are the bytes of rows with a format of their own (row_formats.hpp): the last extent of a cache
/// is the bytes of a row.
KOKKOS_INLINE_FUNCTION constexpr bool has_row_format(DType type) { return facts_of(type).scales == ScaleUse::in_rows; }
/// The field's short name: "fp16".
constexpr const char* name_of(DType type) { return facts_of(type).name; }
/// Unit roundoff: half the distance from 1 to the next number.
constexpr double unit_roundoff(DType type) { return facts_of(type).unit_roundoff; }

namespace detail {

/// The C++ types of a code: of an element, and of a block scale (void where there are none).
template <DType>
struct TypesOf;
#define PAGODA_TYPES_OF(name, T, bits, dims, roundoff, nan, scales, block, S, deviation, holds)                      \
  template <>                                                                                                        \
  struct TypesOf<DType::name> {                                                                                      \
    using element     = T;                                                                                           \
    using block_scale = S;                                                                                           \
  };                                                                                                                 \
  static_assert(sizeof(T) == size_of(DType::name) && std::is_trivially_copyable_v<T>, #T " is not as its row says"); \
  static_assert((block == 0) == std::is_void_v<S>, #name " has a block without a type of scales, or the reverse");
PAGODA_FOR_EACH_TYPE(PAGODA_TYPES_OF)
#undef PAGODA_TYPES_OF

/// Defines type_fp16 and so on.
#define PAGODA_ALIAS(name, ...) using type_##name = TypesOf<DType::name>::element;
PAGODA_FOR_EACH_TYPE(PAGODA_ALIAS)
#undef PAGODA_ALIAS

}  // namespace detail

/// Maps a C++ element type to its code. Specialise it for a type of your own with the same bits.
template <class T>
struct dtype_of;
#define PAGODA_DTYPE_OF(name, ...) \
  template <>                      \
  struct dtype_of<detail::type_##name> : std::integral_constant<DType, DType::name> {};
PAGODA_FOR_EACH_TYPE(PAGODA_DTYPE_OF)
#undef PAGODA_DTYPE_OF
#if defined(KOKKOS_ENABLE_CUDA)
template <>
struct dtype_of<__half> : std::integral_constant<DType, DType::fp16> {};
template <>
struct dtype_of<__nv_bfloat16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct dtype_of<__nv_fp8_e4m3> : std::integral_constant<DType, DType::fp8_e4m3> {};
template <>
struct dtype_of<__nv_fp8_e5m2> : std::integral_constant<DType, DType::fp8_e5m2> {};
#endif
// Kokkos' 16-bit types, where they are 16 bits wide. On the host they are aliases of float.
#if defined(KOKKOS_HALF_T_IS_FLOAT) && !KOKKOS_HALF_T_IS_FLOAT
template <>
struct dtype_of<Kokkos::Experimental::half_t> : std::integral_constant<DType, DType::fp16> {};
#endif
#if defined(KOKKOS_BHALF_T_IS_FLOAT) && !KOKKOS_BHALF_T_IS_FLOAT
template <>
struct dtype_of<Kokkos::Experimental::bhalf_t> : std::integral_constant<DType, DType::bf16> {};
#endif

/// The code of a C++ element type.
template <class T>
inline constexpr DType dtype_v = dtype_of<std::remove_cv_t<T>>::value;

/// True where Pagoda knows T as an element type.
template <class T>
concept Element = requires { dtype_of<std::remove_cv_t<T>>::value; };

/// T is an element of quantized caches.
template <class T>
inline constexpr bool is_quantized_v = is_quantized(dtype_v<T>);
/// T is a byte of rows with a format of their own.
template <class T>
inline constexpr bool has_row_format_v = has_row_format(dtype_v<T>);
/// Dims that one element of type T holds.
template <class T>
inline constexpr int dims_per_element_v = dims_per_element(dtype_v<T>);
/// Dims of a row of T that share a block scale; 0: there are none.
template <class T>
inline constexpr int block_dims_v = facts_of(dtype_v<T>).block_dims;
/// Type of the block scales of T; void: there are none.
template <class T>
using block_scale_t = typename detail::TypesOf<dtype_v<T>>::block_scale;
/// Number of block scales of a row of `dims` dims. The last block may be shorter.
KOKKOS_INLINE_FUNCTION constexpr int blocks_of(DType type, int dims) {
  const int block = facts_of(type).block_dims;
  return block > 0 ? (dims + block - 1) / block : 0;
}

namespace detail {

/// Dim d of a row whose elements lie `stride` apart, as it is stored.
template <class T>
KOKKOS_INLINE_FUNCTION auto stored_dim(const T* row, std::int64_t d, std::int64_t stride) {
  if constexpr (dims_per_element_v<T> == 2) {
    return row[d / 2 * stride][static_cast<int>(d % 2)];
  } else {
    return row[d * stride];
  }
}

}  // namespace detail

/// Softmax and accumulation run in this type: double for fp64 storage, float otherwise.
template <class T>
using accumulator_t = std::conditional_t<dtype_v<T> == DType::fp64, double, float>;

}  // namespace pagoda
