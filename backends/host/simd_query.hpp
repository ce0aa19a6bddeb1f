// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_vec.hpp"
#include "src/kernel/rows.hpp"

#include <algorithm>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

template <class Vec, int W, class Q, class Acc, class Store>
void convert_query(const Q* from, int dims, Acc scale, const Store& store) {
  const auto factor = Vec::all(scale);
  for (int d = 0; d < dims; d += W) {
    auto x = d + W <= dims ? Vec::load(from + d) : Vec::load_part(from + d, dims - d);
    x.multiply(factor);
    store(d, x);
  }
}

/// Calls store(d, x) with dims d .. d + W of a query row, multiplied by scale, for all d. Dims beyond the last are
/// zeros.
template <class Vec, int W, class Acc, class Store>
void load_query_row(const QueryRow& row, int dims, Acc scale, const Store& store) {
  if (!row.data || row.stride != 1) {
    for (int d = 0; d < dims; d += W) {
      Acc x[W] = {};
      row.load(d, std::min(W, dims - d), x);
      for (Acc& e : x) e *= scale;
      store(d, Vec::load(x));
    }
    return;
  }
  switch (row.type) {
    case DType::fp64:
      return convert_query<Vec, W>(static_cast<const double*>(row.data) + row.at, dims, scale, store);
    case DType::fp32:
      return convert_query<Vec, W>(static_cast<const float*>(row.data) + row.at, dims, scale, store);
    case DType::fp16:
      return convert_query<Vec, W>(static_cast<const half_t*>(row.data) + row.at, dims, scale, store);
    default:
      return convert_query<Vec, W>(static_cast<const bfloat16_t*>(row.data) + row.at, dims, scale, store);
  }
}

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
