// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

namespace pagoda::tuned::wgmma {

/// What the wgmma kernels read, by value. Row r of the query rows that share a kv head is query token r / group_size,
/// head r % group_size of the group.
struct Args : tuned::Args {
  CUtensorMap q_map;                           ///< latent caches: boxes of eight rows
  Divisor heads;                               ///< query heads that share a kv head
  int num_rows;                                ///< query rows that share a kv head
  int hidden;                                  ///< newest tokens that the first query token does not see
  std::int64_t q_token, out_token, lse_token;  ///< strides from one query token to the next, in elements
  float4* wgmma_partials;                      ///< [block][2][partial_quads]
  std::int64_t partial_quads;
};

}  // namespace pagoda::tuned::wgmma
