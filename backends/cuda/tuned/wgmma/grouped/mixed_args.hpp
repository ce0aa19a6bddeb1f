// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/list_args.hpp"
#include "backends/cuda/tuned/wgmma/args.hpp"

namespace pagoda::tuned::wgmma::grouped {

/// What the kernel for lists of entries of many query rows and of few reads: the arguments of either kernel. They
/// describe the same list, and say which of its entries each role takes.
struct MixedArgs {
  ListArgs many;
  warp::ListArgs few;
};

}  // namespace pagoda::tuned::wgmma::grouped
