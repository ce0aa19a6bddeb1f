// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

namespace pagoda::tuned::wgmma {

/// What the kernels for many query rows read, by value. Row r of a kv head is query token r / heads of head r % heads
/// of those that share the kv head.
struct Args : tuned::Args {
  CUtensorMap q_map;  ///< latent caches: eight rows at a time
  Divisor heads;
  int rows;
  int hidden;                                  ///< newest tokens that the first query token does not see
  std::int64_t q_token, out_token, lse_token;  ///< from one query token to the next, in elements
  float4* parts;                               ///< [block][2] of part_quads
  std::int64_t part_quads;
};

}  // namespace pagoda::tuned::wgmma
