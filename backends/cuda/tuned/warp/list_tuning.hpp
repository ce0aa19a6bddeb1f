// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_work.hpp"
#include "backends/cuda/tuned/warp/tuning.hpp"

/// The kernel for lists of entries with few query rows: prices of work and the block's shape, as data and pure
/// functions.
namespace pagoda::tuned::warp {

inline constexpr int max_list_rows   = 8;             ///< query rows of an entry that share a kv head
inline constexpr int list_warps      = warps_per_sm;  ///< of a block that is the only one of a multiprocessor
inline constexpr int queued_segments = 3;             ///< segments that a warp has begun to copy and not to multiply

/// The work of a batch head. A unit is the reading of eight tokens. Starting and ending a batch head costs a tile and a
/// half, and four query rows half a tile more. A split is worth 128 tokens. There are no chains, but late shares.
using ListWork                       = ListHeadWork<tile_tokens, 8, 3, 4, 8, false, true>;
inline constexpr int min_share_units = 8 * ListWork::tile_units;  ///< shorter lists occupy fewer warps

/// Warps of a block of `warps` that share an owner's work: each takes one of as many neighboring kv heads. Their rows
/// of a token lie side by side in memory, and are read at about the same time.
constexpr int list_heads_at_once(int num_kv_heads, int warps) {
  int heads = warps;
  while (num_kv_heads % heads != 0) heads /= 2;
  return heads;
}

/// Stages of a warp's ring of tiles. Queries take the place of a third one.
constexpr int list_stages(int tile_bytes) { return stages_of(tile_bytes, false); }

/// Query rows of a queued segment.
inline constexpr int queued_segment_bytes = 48 + max_list_rows * 4;
PAGODA_HOST_DEVICE constexpr int query_bytes(int head_dim) { return max_list_rows * head_dim * 2; }
/// The queries of a warp's queued segments, then the segments.
PAGODA_HOST_DEVICE constexpr int queue_bytes(int head_dim) {
  return (queued_segments * (query_bytes(head_dim) + queued_segment_bytes) + 127) / 128 * 128;
}
/// Offset of eight dims of row r: runs of 64 dims, swizzled as tiles are.
PAGODA_HOST_DEVICE constexpr int query_offset(int r, int chunk) {
  return (chunk >> 3) * 1024 + r * 128 + (((chunk & 7) ^ r) << 4);
}

/// Offsets in a block's shared memory, of the parts of all warps: rings of tiles, queues, states on their way to
/// outputs, barriers.
struct ListLayout {
  int queues, values, states;
  int pending;  ///< PendingJoin [2]
  int barriers, bytes;
};
PAGODA_HOST_DEVICE constexpr ListLayout list_layout(int tile_bytes, int head_dim, int stages, int warps) {
  ListLayout l{};
  l.queues   = warps * stages * 2 * tile_bytes;
  l.values   = l.queues + warps * queue_bytes(head_dim);
  l.states   = l.values + warps * max_list_rows * (head_dim + 4) * 4;
  l.pending  = l.states + warps * max_list_rows * 8;
  l.barriers = l.pending + warps * 2 * 16;
  l.bytes    = l.barriers + warps * stages * 8;
  return l;
}

/// Whether there are instances for the type and dims of keys and values.
constexpr bool has_list_elements(const Problem& p) {
  return p.type != Type::fp32 && p.type != Type::int4 && p.head_dim == p.head_dim_v &&
         (p.head_dim == 128 || (p.head_dim == 64 && !is_quantized(p.type)));
}

/// Whether lists of this shape run in this kernel: up to 8 query rows to a kv head, all of which see the same tokens of
/// an entry. With 16 bits and several query heads to a kv head, or 8 bits and more than four, the wgmma kernels are as
/// fast or faster: queries and outputs of an entry then cost its warp more than its smaller tiles save (bench/NOTES.md,
/// "Lists of entries"). A decode with another page size or with masks may still need the wgmma kernels.
constexpr bool has_list_kernel(const Problem& p) {
  const int group = group_size_of(p);
  return is_list(p) && !p.list.chains && has_list_elements(p) && group * p.max_q_tokens <= max_list_rows &&
         (p.max_q_tokens == 1 || !p.causal) && group <= (is_quantized(p.type) ? 4 : 1);
}

/// Float4s of a partial result.
PAGODA_HOST_DEVICE constexpr int list_partial_quads(int head_dim) { return max_list_rows * head_dim / 4; }

}  // namespace pagoda::tuned::warp
