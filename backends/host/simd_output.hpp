// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_target.hpp"
#include "backends/host/simd_vec.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <algorithm>
#include <cstdint>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

template <class Acc, class Out>
void add_states(const StateArray<Acc>& from, int n, int r, Acc factor, int dims, Out* to, std::int64_t stride) {
  constexpr int width = simd_bytes / int(sizeof(Acc));
  using Vec           = SimdVec<Acc, width>;
  const auto times    = Vec::all(factor);
  for (int d = 0; d < dims; d += width) {
    const int count = std::min(width, dims - d);
    auto x          = Vec::all(0);
    for (int j = 0; j < n; ++j) {
      const Acc* const value = from.values + (j * from.value_step + r * from.value_stride + d);
      x.add_product_at(&from.state(j, r).most, count == width ? Vec::load(value) : Vec::load_part(value, count));
    }
    x.multiply(times);
    if (count == width && stride == 1) {
      x.store_as(to + d);
    } else {
      Acc part[width];
      x.store(part);
      for (int i = 0; i < count; ++i) to[(d + i) * stride] = static_cast<Out>(part[i]);
    }
  }
}

/// Adds the values of n states of row r, each times its weight (join_row_states), and stores the sum times factor.
template <class Acc>
void store_row(const StateArray<Acc>& from, int n, int r, Acc factor, int dims, const OutputRow& to) {
  switch (to.type) {
    case DType::fp64:
      return add_states(from, n, r, factor, dims, static_cast<double*>(to.data) + to.at, to.stride);
    case DType::fp32:
      return add_states(from, n, r, factor, dims, static_cast<float*>(to.data) + to.at, to.stride);
    case DType::fp16:
      return add_states(from, n, r, factor, dims, static_cast<half_t*>(to.data) + to.at, to.stride);
    default:
      return add_states(from, n, r, factor, dims, static_cast<bfloat16_t*>(to.data) + to.at, to.stride);
  }
}

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
