// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

namespace pagoda::tuned::wgmma::grouped {

/// The kernel of a type, as a pointer to launch. Each is compiled in a unit of its own type, for sm_90a.
template <Type T>
const void* kernel_of(int head_dim, int groups);

}  // namespace pagoda::tuned::wgmma::grouped
