// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_walk.cuh"
#include "backends/cuda/tuned/wgmma/grouped/mixed_args.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_tuning.hpp"

namespace pagoda::tuned::wgmma::grouped {

/// Role 0 has entries of many rows, role 1 those of few.
struct MixedRoles {
  static constexpr int count = 2;
  static constexpr bool late = true;
  const MixedArgs& args;

  PAGODA_DEVICE int units_of(const ListArgs& list, const Entry& e, int end) const {
    if (takes(args.few, e)) return -heads_of(list, e) * units_of_head<warp::ListWork>(list, e, end);
    return counts(list, e) ? heads_of(list, e) * units_of_head<HeadWork>(list, e, end) : 0;
  }
  PAGODA_DEVICE RoleBlocks blocks_of(const int (&totals)[count], const int (&entries)[count],
                                     const int (&largest)[count]) const {
    const int blocks = static_cast<int>(gridDim.x);
    const int step   = args.many.heads_at_once;
    int many         = blocks_of_many(blocks, step, totals[0], totals[1]);
    if (many < blocks && are_of_one_size(entries[0], totals[0], largest[0])) [[unlikely]]
      many = whole_heads_each(many, blocks - step, step, entries[0] * args.many.num_kv_heads.value);
    if (static_cast<int>(blockIdx.x) < many) return {0, 0, many, 1, args.many.heads_at_once, min_block_units, {}};
    return {1, many, blocks - many, mixed_few_warps, args.few.heads_at_once, warp::min_share_units, {args.few.late}};
  }
};

}  // namespace pagoda::tuned::wgmma::grouped
