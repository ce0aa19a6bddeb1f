// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"

namespace pagoda::tuned::wgmma::latent {

/// The kernel for a type, as a pointer to launch. It takes Args (equal), RaggedArgs (ragged), PassArgs
/// (in_passes) or SmallPageArgs (small_pages). pairs: it is launched in clusters of two (PairedArgs), but not the last
/// two. Each type has a translation
/// unit of its own, kernels_TYPE.cu, compiled for sm_90a.
template <Type T>
const void* kernel_of(int blocks_per_head, Instance instance, bool pairs);

}  // namespace pagoda::tuned::wgmma::latent
