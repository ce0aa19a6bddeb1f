// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

namespace pagoda::tuned::wgmma::latent {

/// The kernel for a type, as a pointer to launch. ragged: it takes RaggedArgs, otherwise Args. pairs: it is launched in
/// clusters of two (PairedArgs). Each type has a
/// translation unit of its own, kernels_TYPE.cu, compiled for sm_90a.
template <Type T>
const void* kernel_of(int blocks_per_head, bool ragged, bool pairs);

}  // namespace pagoda::tuned::wgmma::latent
