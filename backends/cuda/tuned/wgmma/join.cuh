// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/output.cuh"
#include "backends/cuda/tuned/wgmma/segment_cursor.cuh"

/// Joins the splits of batch heads that several blocks share, through device memory (common/partials.cuh).
namespace pagoda::tuned::wgmma {

/// A lane's part of a 16 x 16 block of a partial result: two dims of a row (x, y) and of the row eight below (z, w),
/// the same eight dims further on, and the rows' maxima (base 2) and sums (x, y and z, w).
struct Block16 {
  float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0}, state = {initial_max, 0, initial_max, 0};

  PAGODA_DEVICE void add(const Block16& o) {
    const float max0 = fmaxf(state.x, o.state.x), max1 = fmaxf(state.z, o.state.z);
    const float old0 = exp2_fast(state.x - max0), old1 = exp2_fast(state.z - max1);
    const float new0 = exp2_fast(o.state.x - max0), new1 = exp2_fast(o.state.z - max1);
    const auto mix = [&](float4& to, const float4& from) {
      to = make_float4(to.x * old0 + from.x * new0, to.y * old0 + from.y * new0, to.z * old1 + from.z * new1,
                       to.w * old1 + from.w * new1);
    };
    mix(a, o.a), mix(b, o.b);
    state = make_float4(max0, state.y * old0 + o.state.y * new0, max1, state.w * old1 + o.state.w * new1);
  }
  /// Reads it from another block's partial result, which may not have been written yet.
  PAGODA_DEVICE void load(const float4* from, int lane) {
    a = load_relaxed_gpu4(from + lane), b = load_relaxed_gpu4(from + 32 + lane);
    state = load_relaxed_gpu4(from + 64 + lane / 4);
  }
  PAGODA_DEVICE bool is_written() const {
    const auto largest = [](const float4& v) {
      return max(max(__float_as_uint(v.x), __float_as_uint(v.y)), max(__float_as_uint(v.z), __float_as_uint(v.w)));
    };
    return max(max(largest(a), largest(b)), largest(state)) != empty_sentinel;
  }
  PAGODA_DEVICE static void reset(float4* at, int lane) {
    store_sentinels(at + lane);
    store_sentinels(at + 32 + lane);
    if (lane % 4 == 0) store_sentinels(at + 64 + lane / 4);
  }
};

/// The 16 x 16 blocks of a batch head that one of its blocks joins, or runs of them: `begin` to `end` - 1.
struct JoinSlice {
  int begin, end;

  /// rows: of the batch head; across: 16 x 16 blocks, or runs, of 16 rows; block: as SegmentWalk counts it.
  PAGODA_DEVICE JoinSlice(const PendingJoin& join, int rows, int across, int block) {
    const int count = (rows + 15) / 16 * across, size = (count + join.num_splits() - 1) / join.num_splits();
    begin = (block - join.first_block) * size, end = min(count, begin + size);
  }
};
/// Where 16 x 16 block `index` of a split lies. block: the one that stores the split. The batch head begins in the
/// share of its first block, which stores it in its second place.
template <int BlocksPerHead>
PAGODA_DEVICE float4* block16_of_split(const auto& args, int block, int split, int index) {
  return partials_of<BlocksPerHead>(args, block, split == 0) + index * block16_quads;
}

/// Adds to x a 16 x 16 block of splits first_split, first_split + step and so on, two at once. place(p): where the
/// block of split p is.
template <class Place>
PAGODA_DEVICE void join_block16(const Place& place, int first_split, int num_splits, int step, int lane, Block16& x) {
#pragma unroll 1
  for (int p = first_split; p < num_splits; p += 2 * step) {
    const bool two    = p + step < num_splits;
    float4 *const one = place(p), *const other = place(two ? p + step : p);
    Block16 y, z;
    do y.load(one, lane), z.load(other, lane);
    while (__any_sync(~0u, !y.is_written() || !z.is_written()));
    Block16::reset(one, lane);
    x.add(y);
    if (two) Block16::reset(other, lane), x.add(z);
  }
}

/// Stores a joined 16 x 16 block as outputs of a kv head. index: index of the block, [16 rows][16 dims].
template <int BlocksPerHead, int DimsV>
PAGODA_DEVICE void store_block16(const auto& args, const auto& query_begin, int head, const Block16& x, int index,
                                 int num_rows, int lane) {
  constexpr int across = block16s_per_16_rows(DimsV);
  const int r = index / across * 16 + lane / 4, dim = index % across * 16 + lane % 4 * 2;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    if (r + 8 * below >= num_rows) continue;
    const int head_row = first_row<BlocksPerHead>() + r + 8 * below;
    const QueryRow row(args, head, head_row);
    const FinishedRow done(args, row.head, below ? x.state.z : x.state.x, below ? x.state.w : x.state.y);
    const float weight = done.weight;
    store_two(args, row, query_begin, dim, (below ? x.a.z : x.a.x) * weight, (below ? x.a.w : x.a.y) * weight);
    store_two(args, row, query_begin, dim + 8, (below ? x.b.z : x.b.x) * weight, (below ? x.b.w : x.b.y) * weight);
    if (dim == 0 && args.lse) store_lse(args, row, query_begin, done.row_max, done.row_sum);
  }
}

/// Joins a batch head's splits: each of its blocks joins a slice of the 16 x 16 blocks. If there are more warps than 16
/// x 16 blocks, several warps join one. pairs: pairs of blocks have joined their splits, and each block of a pair has
/// published every other run of `paired_dims` dims. memory: shared memory of the block, no longer used.
template <int BlocksPerHead, int DimsV, int Threads>
PAGODA_DEVICE void join_slice(const auto& args, const PendingJoin& join, bool pairs, char* memory, int warp, int lane) {
  constexpr int warps = Threads / 32, across = block16s_per_16_rows(DimsV);
  const EntryView entry = entry_of(args, join.batch);
  const int rows        = block_rows<BlocksPerHead>(num_rows(args, entry));
  const int num_blocks = join.num_splits(), num_splits = pairs ? num_blocks / 2 : num_blocks;
  const auto [begin, end] = JoinSlice(join, rows, across, SegmentCursor<BlocksPerHead>::Walk::block());
  int helpers             = 1;  // warps to a 16 x 16 block
  while (helpers < warps && helpers * (end - begin) < warps && helpers < num_splits) helpers *= 2;
  const int which = warp / helpers, helper = warp % helpers;
  Block16* const shared = reinterpret_cast<Block16*>(memory);
#pragma unroll 1
  for (int index = begin + which; index - which < end; index += warps / helpers) {
    Block16 x;
    if (index < end) {
      const int of_pair = pairs ? index / (paired_dims / 16) % 2 : 0;
      const auto place  = [&](int p) {
        const int split = pairs ? 2 * p + of_pair : p;
        return block16_of_split<BlocksPerHead>(args, join.first_block + split, split, index);
      };
      join_block16(place, helper, num_splits, helpers, lane, x);
    }
    if (helpers > 1) {
      shared[threadIdx.x] = x;
      sync_block<Threads>();
      if (helper == 0)
#pragma unroll 1
        for (int w = 1; w < helpers; ++w) x.add(shared[threadIdx.x + 32 * w]);
      sync_block<Threads>();  // before the next blocks are written
    }
    if (index >= end || helper != 0) continue;
    store_block16<BlocksPerHead, DimsV>(outputs_of(args, join.batch), rows_of(args, join.batch, entry), join.head, x,
                                        index, rows, lane);
  }
}

/// Stores the outputs of sequences without tokens, which are in no block's share.
template <int BlocksPerHead, int DimsV, int Threads>
PAGODA_DEVICE void store_empty_sequences(const auto& args) {
  using Walk = typename SegmentCursor<BlocksPerHead>::Walk;
  for (int i = Walk::block(); i < args.batch * args.num_kv_heads.value; i += Walk::num_blocks()) {
    const int batch = args.num_kv_heads.divide(i), head = i - batch * args.num_kv_heads.value;
    const EntryView entry = entry_of(args, batch);
    if (entry.tokens > 0) continue;
    constexpr int pairs = DimsV / 2;
    for (int item = threadIdx.x; item < block_rows<BlocksPerHead>(num_rows(args, entry)) * pairs; item += Threads) {
      const QueryRow row(args, head, first_row<BlocksPerHead>() + item / pairs);
      const FinishedRow none(args, row.head, initial_max, 0);
      store_two(args, row, entry.query_begin, item % pairs * 2, 0 * none.weight, 0 * none.weight);
      if (item % pairs == 0 && args.lse) store_lse(args, row, entry.query_begin, none.row_max, none.row_sum);
    }
  }
}

/// Joins the pending batch heads of a block, on all of its threads, after all of its own partial results have been
/// published. pending: [2], see PendingJoin. pairs: see join_slice; shared by the block's warps.
template <int BlocksPerHead, int DimsV, int Threads>
PAGODA_DEVICE void join_pending(const auto& args, const PendingJoin* pending, const bool& pairs, char* memory, int warp,
                                int lane) {
  sync_block<Threads>();
#pragma unroll 1
  for (int place = 0; place < 2; ++place) {
    const PendingJoin join = pending[place];
    if (join.any()) join_slice<BlocksPerHead, DimsV, Threads>(args, join, args.pairs && pairs, memory, warp, lane);
  }
}

/// Runs at the end of a batch.
template <int BlocksPerHead, int DimsV, int Threads>
PAGODA_DEVICE void finish(const auto& args, const PendingJoin* pending, char* memory, int warp, int lane) {
  join_pending<BlocksPerHead, DimsV, Threads>(args, pending, false, memory, warp, lane);
  store_empty_sequences<BlocksPerHead, DimsV, Threads>(args);
}

}  // namespace pagoda::tuned::wgmma
