// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"

namespace pagoda::tuned::wgmma::grouped {

/// The kernel for a type of 16 bits, as a pointer to launch. It takes Args (equal), RaggedArgs (ragged), PassArgs
/// (in_passes) or SmallPageArgs (small_pages). Each type has a translation unit of its own, kernels_TYPE.cu, compiled
/// for sm_90a.
template <Type T>
const void* kernel_of(int head_dim, int warpgroups, Instance instance);
/// The same with score options (option_kernels_TYPE.cu). It takes OptionArgs of these.
template <Type T>
const void* option_kernel_of(int head_dim, int warpgroups, Instance instance);
/// The kernel for lists of entries of a type of 16 or 8 bits. It takes ListArgs. 8 bits: head_dim is 128.
template <Type T>
const void* list_kernel_of(int head_dim, int warpgroups);
/// The kernel for lists of entries of many query rows and of few. It takes MixedArgs. Null for types of 8 bits.
template <Type T>
const void* mixed_list_kernel_of(int head_dim);

}  // namespace pagoda::tuned::wgmma::grouped
