// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

#include <cstdint>

namespace pagoda::tuned::warp {

/// What the kernels of fixed splits read. `partials` is indexed [slot][output quad].
struct FixedSplitArgs : Args {
  int split_shift;         ///< a split has 2^split_shift tiles
  std::int64_t max_slots;  ///< partial results for which the workspace has room
};

}  // namespace pagoda::tuned::warp
