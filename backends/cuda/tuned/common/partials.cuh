// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/outputs.cuh"

/// How blocks exchange partial results of batch heads that they share: through device memory, without flags or fences.
/// A reader polls each word until it differs from a sentinel, and then writes the sentinel back for the next launch.
/// The host fills the workspace with sentinels once. All blocks of a launch run at the same time (cooperative launch),
/// so a reader waits only for blocks that are running.
namespace pagoda::tuned {

/// A word that has not been written yet: one of the NaNs.
constexpr std::uint32_t empty_sentinel = 0xffffffffu;

PAGODA_DEVICE bool is_written(float x) { return __float_as_uint(x) != empty_sentinel; }
PAGODA_DEVICE bool is_written(const float4& v) {
  return is_written(v.x) && is_written(v.y) && is_written(v.z) && is_written(v.w);
}

/// The same number, but another NaN in place of the sentinel. Without this a NaN could keep a reader polling for ever.
PAGODA_DEVICE float avoid_sentinel(float x) { return __uint_as_float(min(__float_as_uint(x), empty_sentinel - 1)); }
PAGODA_DEVICE float4 avoid_sentinel(const float4& v) {
  return make_float4(avoid_sentinel(v.x), avoid_sentinel(v.y), avoid_sentinel(v.z), avoid_sentinel(v.w));
}

PAGODA_DEVICE void store_sentinels(float4* to) {
  const float empty = __uint_as_float(empty_sentinel);
  store_relaxed_gpu4(to, make_float4(empty, empty, empty, empty));
}
PAGODA_DEVICE void store_sentinels(float2* to) {
  const float empty = __uint_as_float(empty_sentinel);
  store_relaxed_gpu2(to, make_float2(empty, empty));
}

/// A batch head of which a block has a split, and which it must help to join. A block has up to two: the one that began
/// before the block's share (stored in place 0) and the one that begins in its share (in place 1).
struct PendingJoin {
  int batch, head;
  int first_block, last_block;  ///< blocks that have a split; none if last_block < first_block

  PAGODA_DEVICE bool any() const { return last_block >= first_block; }
  PAGODA_DEVICE int num_splits() const { return last_block - first_block + 1; }
};
inline constexpr PendingJoin no_pending_join{0, 0, 0, -1};

}  // namespace pagoda::tuned
