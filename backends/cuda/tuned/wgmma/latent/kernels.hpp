// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

namespace pagoda::tuned::wgmma::latent {

/// The kernel of a type, as a pointer to launch. Each is compiled in a unit of its own type, for sm_90a.
template <Type T>
const void* kernel_of(int together);

}  // namespace pagoda::tuned::wgmma::latent
