// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdlib>

/// Elements whose type is known only when the test runs.
namespace pagoda::test {

/// Calls f with a null pointer of the C++ type that `type` stands for.
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
  }
  std::abort();
}

template <class T>
T to_element(double x) {
  return static_cast<T>(std::conditional_t<std::is_same_v<T, double>, double, float>(x));
}

inline double load(const std::byte* at, DType type) {
  return with_type(type, [&]<class T>(T*) { return static_cast<double>(*reinterpret_cast<const T*>(at)); });
}

inline void store(std::byte* at, DType type, double x) {
  with_type(type, [&]<class T>(T*) { *reinterpret_cast<T*>(at) = to_element<T>(x); });
}

/// What is left of x once it has been stored.
inline double rounded(double x, DType type) {
  return with_type(type, [&]<class T>(T*) { return static_cast<double>(to_element<T>(x)); });
}

}  // namespace pagoda::test
