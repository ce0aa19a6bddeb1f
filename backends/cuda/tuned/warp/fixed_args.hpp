// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

#include <cstdint>

namespace pagoda::tuned::warp {

/// What the kernels of fixed splits read.
struct FixedSplitArgs : Args {
  int split_shift;         ///< a split has 2^split_shift tiles
  std::int64_t max_slots;  ///< partial results for which the workspace has room
  char* slots;             ///< partial results of splits: a float4 for each output quad, then a float2 for each
};
inline constexpr int fixed_quad_bytes = 16 + 8;

}  // namespace pagoda::tuned::warp
