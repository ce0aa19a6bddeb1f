// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

namespace pagoda::tuned {

/// The kernel of a type, head_dim, group, block size and ring, as a pointer to launch; null where no card has room for
/// such a block. Each is compiled in a unit of its own type.
template <Type T>
const void* kernel_of(int head_dim, int group, int warps, int stages, bool tensor_maps);

}  // namespace pagoda::tuned
