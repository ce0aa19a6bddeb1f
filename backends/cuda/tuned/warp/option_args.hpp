// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/common/option_args.hpp"

namespace pagoda::tuned::warp {

/// What the kernels with score options read.
struct OptionArgs : OptionArgsOf<Args> {};

/// The same as Base, which is Args or OptionArgs, for entries with different numbers of query tokens: one or none.
template <class Base>
struct RaggedArgs : Base {};

}  // namespace pagoda::tuned::warp
