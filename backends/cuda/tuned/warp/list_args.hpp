// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_args.hpp"
#include "backends/cuda/tuned/warp/list_tuning.hpp"

#include <cstddef>

namespace pagoda::tuned::warp {

struct ListBase : Args {
  Divisor heads;       ///< query heads that share a kv head
  int q_tokens_bound;  ///< query tokens of an entry
  int2* late;          ///< LateBoard
  int heads_at_once;   ///< warps that take as many kv heads of an entry at the same time, see list_heads_at_once
};
/// What the kernel for lists reads. `partials` is indexed [warp][2][output quad of max_list_rows rows].
using ListArgs = ListArgsOf<ListBase>;
/// Bytes of the partial results of all warps.
constexpr std::size_t list_partial_bytes(int num_sms, int head_dim) {
  return sizeof(QuadPartial) * 2 * std::size_t(num_sms) * list_warps * std::size_t(list_partial_quads(head_dim));
}

/// The same, and behind them the board of late shares.
constexpr std::size_t list_workspace_bytes(int num_sms, int head_dim) {
  return list_partial_bytes(num_sms, head_dim) + late_board_bytes(num_sms * list_warps);
}
inline void set_list_workspace(void* workspace, int num_sms, int head_dim, ListArgs& a) {
  a.partials = static_cast<QuadPartial*>(workspace);
  a.late     = reinterpret_cast<int2*>(static_cast<char*>(workspace) + list_partial_bytes(num_sms, head_dim));
}

}  // namespace pagoda::tuned::warp
