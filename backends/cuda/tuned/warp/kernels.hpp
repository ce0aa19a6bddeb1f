// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

namespace pagoda::tuned::warp {

/// The kernel for a type, head_dim, group size, block size and ring, as a pointer to launch. Null where no card has
/// room for such a block. heads: kv heads that a warp reads at once. Each type has a translation unit of its own,
/// kernels_TYPE.cu.
template <Type T>
const void* kernel_of(int head_dim, int group_size, int warps, int stages, bool tensor_maps, int heads);

/// The same, with score options (option_kernels_TYPE.cu).
template <Type T>
const void* option_kernel_of(int head_dim, int group_size, int warps, int stages, bool tensor_maps, int heads);

/// The same for cu_seqlens_q, with and without score options (ragged_kernels_TYPE.cu).
template <Type T>
const void* ragged_kernel_of(int head_dim, int group_size, int warps, int stages, bool tensor_maps, bool options);

/// The kernel for fixed splits (fixed_splits.cuh), which are for tensor maps only. Null for integers.
template <Type T>
const void* fixed_kernel_of(int head_dim, int group_size);

/// The kernel for lists of entries with few query rows (list_kernel.cuh). Null for 32-bit elements and int4.
template <Type T>
const void* list_kernel_of(int head_dim);

}  // namespace pagoda::tuned::warp
