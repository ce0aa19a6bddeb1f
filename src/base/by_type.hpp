// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/types.hpp>

#include "pagoda_enabled_types.hpp"
#include "src/base/checks.hpp"

namespace pagoda::detail {

/// Calls f with a null pointer of the C++ type of `type`, among the types for which this build has kernels.
template <class F>
void by_type(DType type, F&& f) {
  switch (type) {
#define PAGODA_CASE(name) \
  case DType::name:       \
    return f(static_cast<type_##name*>(nullptr));
    PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_CASE)
#undef PAGODA_CASE
    default:
      break;
  }
#define PAGODA_NAME(name) " " #name
  throw InvalidArgument(concat("pagoda: the cache's element type is ", name_of(type), "; allowed in this build:",
                               "" PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_NAME), " (CMake's PAGODA_TYPES)"));
#undef PAGODA_NAME
}

/// The same for types that are not quantized. Only these have kernels that write a cache.
template <class F>
void by_plain_type(DType type, F&& f) {
  by_type(type, [&]<class T>(T* which) {
    if constexpr (!is_quantized_v<T>) {
      f(which);
    } else {
      throw InvalidArgument(concat("pagoda: the cache's element type is ", name_of(type), "; allowed: ", plain_types(),
                                   ", for quantized caches are only read"));
    }
  });
}

}  // namespace pagoda::detail
