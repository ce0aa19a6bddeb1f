// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <type_traits>

/// Elements whose type is known only when the test runs, and dims of quantized rows.
namespace pagoda::test {

/// Calls f with a null pointer of the C++ type that `type` stands for, which is not an element of quantized caches.
template <class F>
decltype(auto) with_type(DType type, F&& f) {
  switch (type) {
#define PAGODA_TEST_CASE(name, T, ...)                                    \
  case DType::name:                                                       \
    if constexpr (!is_quantized_v<T>) return f(static_cast<T*>(nullptr)); \
    break;
    PAGODA_FOR_EACH_TYPE(PAGODA_TEST_CASE)
#undef PAGODA_TEST_CASE
  }
  std::abort();
}

template <class T>
T to_element(double x) {
  return static_cast<T>(x);  // rounded once
}

/// A number of a type that holds one. Integers: -largest - 1 to largest.
template <class T>
T to_number(double x, int largest) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(std::clamp<double>(std::nearbyint(x), -largest - 1, largest));
  } else {
    return to_element<T>(x);
  }
}

inline double load(const std::byte* at, DType type) {
  return with_type(type, [&]<class T>(T*) { return static_cast<double>(*reinterpret_cast<const T*>(at)); });
}

inline void store(std::byte* at, DType type, double x) {
  with_type(type, [&]<class T>(T*) { *reinterpret_cast<T*>(at) = to_element<T>(x); });
}

/// A row of fp8_ds_mla in bytes: 512 numbers of fp8_e4m3, 4 floats that scale 128 of them each, 64 numbers of bf16.
struct DsMlaRow {
  static constexpr int scaled_dims = 512, scales = 512, rope = 528;

  static float scale(const fp8_ds_mla_t* row, int d) {
    float x;
    std::memcpy(&x, row + scales + d / 128 * 4, sizeof(x));
    return x;
  }
  static void set_scale(fp8_ds_mla_t* row, int block, float x) { std::memcpy(row + scales + 4 * block, &x, sizeof(x)); }
  static void store(fp8_ds_mla_t* row, int d, double x) {
    if (d >= scaled_dims) {
      const bfloat16_t number(x);
      std::memcpy(row + rope + 2 * (d - scaled_dims), &number, sizeof(number));
    } else {
      row[d].bits = fp8_e4m3_t(x / scale(row, d)).bits;
    }
  }
  static double load(const fp8_ds_mla_t* row, int d) {
    if (d >= scaled_dims) {
      bfloat16_t number;
      std::memcpy(&number, row + rope + 2 * (d - scaled_dims), sizeof(number));
      return static_cast<double>(number);
    }
    fp8_e4m3_t number;
    number.bits = row[d].bits;
    return static_cast<double>(number) * scale(row, d);
  }
  /// The same as the hand-tuned kernels round it: in float, then to bf16.
  static double load_rounded(const fp8_ds_mla_t* row, int d) {
    return static_cast<double>(bfloat16_t(static_cast<float>(load(row, d))));
  }
};

/// Stores x as dim d of a row, rounded to nearest and saturated. Scales in a row must be there already.
template <class T>
void store_dim(T* row, int d, double x) {
  if constexpr (has_row_format_v<T>) {
    DsMlaRow::store(row, d, x);
  } else if constexpr (dims_per_element_v<T> == 2) {
    T& two            = row[d / 2];
    using Number      = std::remove_cvref_t<decltype(two[0])>;
    const Number kept = two[1 - d % 2], number = to_number<Number>(x, 7);
    two = d % 2 == 0 ? T(number, kept) : T(kept, number);
  } else {
    row[d] = to_number<T>(x, 127);
  }
}

/// Dim d of a row as it is stored, without a scale besides those in the row.
template <class T>
double load_dim(const T* row, int d) {
  if constexpr (has_row_format_v<T>) {
    return DsMlaRow::load(row, d);
  } else {
    return static_cast<double>(detail::stored_dim(row, d, 1));
  }
}

/// The value of x after storing.
inline double rounded(double x, DType type) {
  return with_type(type, [&]<class T>(T*) { return static_cast<double>(to_element<T>(x)); });
}

}  // namespace pagoda::test
