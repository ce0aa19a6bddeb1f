// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>

/// Elements whose type is known only when the test runs, and dims of quantized rows.
namespace pagoda::test {

/// Calls f with a null pointer of the C++ type that `type` stands for, which is none of a quantized cache's.
template <class F>
decltype(auto) with_type(DType type, F&& f) {
  switch (type) {
    case DType::fp64:
      return f(static_cast<double*>(nullptr));
    case DType::fp32:
      return f(static_cast<float*>(nullptr));
    case DType::fp16:
      return f(static_cast<half_t*>(nullptr));
    case DType::bf16:
      return f(static_cast<bfloat16_t*>(nullptr));
    default:
      std::abort();
  }
}

template <class T>
T to_element(double x) {
  return static_cast<T>(x);  // rounded once
}

inline double load(const std::byte* at, DType type) {
  return with_type(type, [&]<class T>(T*) { return static_cast<double>(*reinterpret_cast<const T*>(at)); });
}

inline void store(std::byte* at, DType type, double x) {
  with_type(type, [&]<class T>(T*) { *reinterpret_cast<T*>(at) = to_element<T>(x); });
}

/// Stores x as dim d of a row: to nearest, and to the largest there is.
template <class T>
void store_dim(T* row, int d, double x) {
  const auto integer = [&](int least, int most) {
    return static_cast<int>(std::clamp<double>(std::nearbyint(x), least, most));
  };
  if constexpr (std::is_same_v<T, std::int8_t>) {
    row[d] = static_cast<std::int8_t>(integer(-128, 127));
  } else if constexpr (std::is_same_v<T, int4x2_t>) {
    int4x2_t& two = row[d / 2];
    two           = d % 2 == 0 ? int4x2_t(integer(-8, 7), two[1]) : int4x2_t(two[0], integer(-8, 7));
  } else {
    row[d] = to_element<T>(x);
  }
}

/// Dim d of a row as it is stored, without a scale.
template <class T>
double load_dim(const T* row, int d) {
  if constexpr (std::is_same_v<T, int4x2_t>) {
    return row[d / 2][d % 2];
  } else {
    return static_cast<double>(row[d]);
  }
}

/// What is left of x once it has been stored.
inline double rounded(double x, DType type) {
  return with_type(type, [&]<class T>(T*) { return static_cast<double>(to_element<T>(x)); });
}

}  // namespace pagoda::test
