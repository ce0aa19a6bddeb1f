// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"
#include "src/kernel/online_softmax.hpp"

namespace pagoda::tuned {

using namespace ptx;
using detail::initial_max;
using detail::rescale_threshold;

/// Stores the log-sum-exp of a finished query row as element i of to.lse. A sum of 0 means that the row sees no token.
/// A NaN stays a NaN.
PAGODA_DEVICE void store_lse_at(const auto& to, std::int64_t i, float row_max, float row_sum) {
  const float lse = row_sum == 0 ? -INFINITY : (row_max + __log2f(row_sum)) * 0.693147180559945f;
  if (to.lse_double) {
    static_cast<double*>(to.lse)[i] = lse;
  } else {
    static_cast<float*>(to.lse)[i] = lse;
  }
}

}  // namespace pagoda::tuned
