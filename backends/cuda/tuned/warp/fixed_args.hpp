// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

#include <cstdint>

namespace pagoda::tuned::warp {

/// What the kernels of fixed splits read.
struct FixedSplitArgs : Args {
  int split_shift;     ///< the shortest splits have 2^split_shift tiles
  int slots_per_head;  ///< partial results of a batch head for which the workspace has room
  char* slots;         ///< partial results of splits: a float4 for each output quad, then a float2 for each
};
inline constexpr int fixed_quad_bytes = 16 + 8;

}  // namespace pagoda::tuned::warp
