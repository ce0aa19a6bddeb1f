// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"

namespace pagoda::tuned {

/// Inclusive scan: the sum of x over this lane and those before it. All lanes of a warp call it.
PAGODA_DEVICE int inclusive_sum(int x, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int before = __shfl_up_sync(~0u, x, d);
    if (lane >= d) x += before;
  }
  return x;
}

}  // namespace pagoda::tuned
