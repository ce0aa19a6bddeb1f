// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

namespace pagoda::tuned::wgmma::grouped {

/// The kernel for a type, as a pointer to launch. ragged: it takes RaggedArgs, otherwise Args. Each type has a
/// translation unit of its own, kernels_TYPE.cu, compiled for sm_90a.
template <Type T>
const void* kernel_of(int head_dim, int warpgroups, bool ragged);
/// The kernel for lists of entries. It takes ListArgs.
template <Type T>
const void* list_kernel_of(int head_dim, int warpgroups);

}  // namespace pagoda::tuned::wgmma::grouped
