// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_args.hpp"

namespace pagoda::tuned::warp {

struct ListBase : Args {
  Divisor heads;       ///< query heads that share a kv head
  int q_tokens_bound;  ///< query tokens of an entry
  int heads_at_once;   ///< warps that take as many kv heads of an entry at the same time, see list_heads_at_once
};
/// What the kernel for lists reads. `partials` is indexed [warp][2][output quad of max_list_rows rows].
using ListArgs = ListArgsOf<ListBase>;

}  // namespace pagoda::tuned::warp
