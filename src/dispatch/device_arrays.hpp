// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>

#include "src/kernel/kernel_args.hpp"

#include <cstdint>

/// Arrays of the caller, as kernels take them.
namespace pagoda::detail {

/// (token, head, dim) of an array, or of each state of an array of states, which begins with another axis.
inline DeviceArray device_array(const TensorRef& t, int first_axis = 0) {
  const auto stride = [&](int axis) { return first_axis + axis < t.rank ? t.stride[first_axis + axis] : 0; };
  return {t.data, stride(0), stride(1), stride(2), t.type};
}

/// Whether every (token, head) row is dense and starts on a multiple of `bytes`.
inline bool in_vectors(const TensorRef& t, int bytes) {
  const auto whole = [&](std::int64_t stride) { return stride * size_of(t.type) % bytes == 0; };
  return t.stride[2] == 1 && reinterpret_cast<std::uintptr_t>(t.data) % bytes == 0 && whole(t.stride[0]) &&
         whole(t.stride[1]) && whole(t.extent[2]);
}

/// Whether every row can be read and written in aligned vectors of four elements.
inline bool in_quads(const TensorRef& t) { return in_vectors(t, 4 * size_of(t.type)); }

}  // namespace pagoda::detail
