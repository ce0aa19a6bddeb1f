// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/partials.cuh"
#include "backends/cuda/tuned/wgmma/segment_cursor.cuh"

/// Stores accumulators at the end of a segment: as outputs, or as a partial result that blocks will join.
namespace pagoda::tuned::wgmma {

/// Stores two dims of an output.
PAGODA_DEVICE void store_two(const auto& args, const QueryRow& row, const auto& query_begin, int dim, float x,
                             float y) {
  const std::int64_t at = row.offset(args.out, query_begin) + dim;
  if (args.out.type == Type::fp32) {
    *reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(args.out.data) + at) =
        args.out.type == Type::bf16 ? pack<true>(x, y) : pack<false>(x, y);
  }
}

PAGODA_DEVICE void store_lse(const auto& args, const QueryRow& row, const auto& query_begin, float row_max,
                             float row_sum) {
  store_lse_at(args, token_row(query_begin, row.token) * args.lse_token + row.head * args.lse_head, row_max, row_sum);
}

/// One of a block's two places for partial results (see PendingJoin). block: as SegmentWalk counts it.
template <int BlocksPerHead, class Args>
PAGODA_DEVICE float4* partials_of(const Args& args, int block, bool has_first_tile) {
  const int y     = static_cast<int>(blockIdx.y);
  const int place = BlocksPerHead > 1 ? block * BlocksPerHead + y
                    : Args::in_passes ? block * args.side_by_side.value + y
                                      : block;
  return args.wgmma_partials + (2 * place + has_first_tile) * args.partial_quads;
}

/// The segment that just ended.
struct FinishedSegment {
  int batch, head;
  bool has_first_tile;
  bool whole;           ///< the block stores outputs: no block outside of its pair has a split of the batch head
  bool paired = false;  ///< the two blocks of a cluster join their splits first
};

/// Stores accumulators as they are, in the layout that tuning.hpp describes. The template parameters and the last three
/// arguments are those of store_segment.
///
/// Accumulators need no avoid_sentinel: matrix instructions on 16-bit elements give the NaN 0x7fffffff, and an
/// element's own NaN has zeros in its lower half as a float.
template <int BlocksPerHead, int DimParts, int Count, int Each>
PAGODA_DEVICE void store_partial(const auto& args, const FinishedSegment& segment, const float (&o)[Count][Each],
                                 const float2 (&state)[2], int dim_part, int row, int lane) {
  constexpr int eights = Count * Each / 4, across = DimParts * eights / 2;
  const int block  = SegmentCursor<BlocksPerHead>::Walk::block();
  float4* const to = partials_of<BlocksPerHead>(args, block, segment.has_first_tile) +
                     (row / 16 * across + dim_part * (across / DimParts)) * block16_quads;
#pragma unroll
  for (int j = 0; j < eights; ++j) {
    const float* const z = o[4 * j / Each] + 4 * j % Each;
    store_relaxed_gpu4(to + j / 2 * block16_quads + j % 2 * 32 + lane, make_float4(z[0], z[1], z[2], z[3]));
  }
#pragma unroll
  for (int u = 0; u < eights / 8; ++u)
    store_relaxed_gpu4(to + (4 * u + (lane & 3)) * block16_quads + 64 + lane / 4,
                       make_float4(state[0].x, avoid_sentinel(state[0].y), state[1].x, avoid_sentinel(state[1].y)));
}

/// Stores outputs of 32 bits. num_rows: rows of the entry that are the block's.
template <int BlocksPerHead, int DimParts, int Count, int Each>
PAGODA_DEVICE void store_floats(const auto& args, const auto& query_begin, int head, const float (&o)[Count][Each],
                                const float (&weights)[2], int dim_part, int row, int num_rows, int column) {
  constexpr int eights = Count * Each / 4, quads = 2 * DimParts * eights;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const QueryRow query_row(args, head, first_row<BlocksPerHead>() + row + 8 * r);
    const std::int64_t at = query_row.offset(args.out, query_begin);
    float2* const to =
        reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) + dim_part * (2 * quads / DimParts) + column;
    if (row + 8 * r >= num_rows) continue;
#pragma unroll
    for (int j = 0; j < eights; ++j) {
      const float* const z = o[4 * j / Each] + 4 * j % Each + 2 * r;
      to[4 * j]            = make_float2(z[0] * weights[r], z[1] * weights[r]);
    }
  }
}

/// Stores outputs of 16 bits. Lanes exchange words of two rows until each lane has whole 16-byte vectors of one row.
template <int BlocksPerHead, int DimParts, int Count, int Each>
PAGODA_DEVICE void store_halves(const auto& args, const auto& query_begin, int head, const float (&o)[Count][Each],
                                const float (&weights)[2], int dim_part, int row, int num_rows, int column) {
  constexpr int eights = Count * Each / 4, quads = 2 * DimParts * eights;
  const bool odd = column & 1, second = column & 2;
  const int mine = row + (second ? 8 : 0);
  const QueryRow query_row(args, head, first_row<BlocksPerHead>() + mine);
  const std::int64_t at = query_row.offset(args.out, query_begin);
  uint4* const to       = reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(args.out.data) + at) +
                    dim_part * (quads / 2 / DimParts) + odd;
  const bool bf16 = args.out.type == Type::bf16;
#pragma unroll
  for (int j = 0; j < eights; j += 2) {
    const float* const z = o[4 * j / Each] + 4 * j % Each;  // eight dims and the next eight
    const auto word      = [&](int i) {
      const float low = z[2 * i] * weights[i & 1], high = z[2 * i + 1] * weights[i & 1];
      return bf16 ? pack<true>(low, high) : pack<false>(low, high);
    };
    const std::uint32_t first[2] = {word(0), word(1)}, next[2] = {word(2), word(3)};
    // First step: this lane and the lane two columns away get words of one row each. Second step: the lane and its
    // neighbour get words of one group of eight dims each.
    const std::uint32_t a = second ? first[1] : first[0], b = second ? next[1] : next[0];
    const std::uint32_t c = __shfl_xor_sync(~0u, second ? first[0] : first[1], 2);
    const std::uint32_t d = __shfl_xor_sync(~0u, second ? next[0] : next[1], 2);
    const std::uint32_t e = __shfl_xor_sync(~0u, odd ? a : b, 1), f = __shfl_xor_sync(~0u, odd ? c : d, 1);
    const std::uint32_t g = odd ? b : a, h = odd ? d : c;
    // Words of columns 0 to 3: the lane's own, its neighbour's, and those of the two lanes two columns away.
    const std::uint32_t near0 = odd ? e : g, near1 = odd ? g : e, far0 = odd ? f : h, far1 = odd ? h : f;
    if (mine < num_rows) to[j] = second ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
  }
}

/// Stores the outputs of a kv head. The arguments are those of store_segment. args: kernel arguments, or another place
/// for the results, in members of the same names. query_begin: see QueryRow::offset.
template <int BlocksPerHead, int DimParts, int Count, int Each>
PAGODA_DEVICE void store_outputs(const auto& args, const auto& query_begin, int head, const float (&o)[Count][Each],
                                 const float2 (&state)[2], int dim_part, int row, int rows, int column) {
  // Lanes of columns 0 and 1 store the log-sum-exp of the row and of the one eight below it.
  const int lse_row = row + 8 * column, first = first_row<BlocksPerHead>() + row;
  const FinishedRow one(args, QueryRow(args, head, first).head, state[0].x, state[0].y),
      other(args, QueryRow(args, head, first + 8).head, state[1].x, state[1].y);
  if (dim_part == 0 && column < 2 && lse_row < rows && args.lse) {
    const FinishedRow& mine = column == 0 ? one : other;
    const QueryRow query_row(args, head, first_row<BlocksPerHead>() + lse_row);
    store_lse(args, query_row, query_begin, mine.row_max, mine.row_sum);
  }
  const float weights[2] = {one.weight, other.weight};
  if (args.out.type == Type::fp32) {
    store_floats<BlocksPerHead, DimParts>(args, query_begin, head, o, weights, dim_part, row, rows, column);
  } else {
    store_halves<BlocksPerHead, DimParts>(args, query_begin, head, o, weights, dim_part, row, rows, column);
  }
}

/// Stores a segment: outputs if it is whole, else the block's partial result. The code is kept small because it runs
/// once, from a cold instruction cache. o: accumulators of Count products of Each / 4 times eight dims; row: the lane's
/// first row, the other is eight below; dim_part: index among the DimParts parts of a row's dims.
template <int BlocksPerHead, int DimParts, class Args, int Count, int Each>
PAGODA_DEVICE void store_segment(const Args& args, const FinishedSegment& segment, const float (&o)[Count][Each],
                                 const float2 (&state)[2], int dim_part, int row, int lane) {
  const EntryView entry = entry_of(args, segment.batch);
  const int column = lane & 3, rows = block_rows<BlocksPerHead>(num_rows(args, entry));
  if (Args::ragged && !__any_sync(~0u, row < rows)) return;  // the entry has none of the warp's rows
  if (!segment.whole) return store_partial<BlocksPerHead, DimParts>(args, segment, o, state, dim_part, row, lane);
  store_outputs<BlocksPerHead, DimParts>(args, entry.query_begin, segment.head, o, state, dim_part, row, rows, column);
}

}  // namespace pagoda::tuned::wgmma
