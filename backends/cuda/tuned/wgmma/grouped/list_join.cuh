// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/list_copies.cuh"
#include "backends/cuda/tuned/wgmma/join.cuh"

/// Joins the splits of a list's batch heads. It is the last thing that a block does, often while others wait, so it is
/// written for latency: all that it needs of an entry is in shared memory, and a warp has several loads under way.
namespace pagoda::tuned::wgmma::grouped {

/// Joins the block's slice of a batch head: some of its 16 x 16 blocks. join: its blocks are owners, of which this
/// block has one. rows: see ListMemory::joined_rows.
template <int D, int Threads>
PAGODA_DEVICE void join_list_slice(const ListArgs& args, const PendingJoin& join, const int* rows, int warp, int lane) {
  constexpr int warps = Threads / 32, at_once = 4;
  const int num_rows = rows[0] & 0xffff, num_splits = join.num_splits(), heads = rows[0] >> Assignment::heads_shift;
  const int owner = static_cast<int>(blockIdx.x) / heads, head = static_cast<int>(blockIdx.x) - owner * heads;
  const auto [begin, end] = JoinSlice(join, num_rows, block16s_per_16_rows(D), owner);
  const Outputs& to       = list_outputs(args, (rows[0] & Assignment::to_states) != 0);
  const auto place        = [&](int s, int index) {
    return block16_of_split<1>(args, (join.first_block + s) * heads + head, s, index);
  };
  Block16 sum;
  int index = begin + warp, split = 0;  // of the next split to load
#pragma unroll 1
  while (index < end) {
    int index_of[at_once], split_of[at_once];
    float4* at[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      index_of[i] = index, split_of[i] = split;
      at[i] = index < end ? place(split, index) : at[0];
      if (++split == num_splits) split = 0, index += warps;
    }
    Block16 x[at_once];
    bool all_written;
    do {
      all_written = true;
#pragma unroll
      for (int i = 0; i < at_once; ++i) x[i].load(at[i], lane);
#pragma unroll
      for (int i = 0; i < at_once; ++i) all_written &= x[i].is_written();
    } while (__any_sync(~0u, !all_written));
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (index_of[i] >= end) continue;
      Block16::reset(at[i], lane);
      sum.add(x[i]);
      if (split_of[i] < num_splits - 1) continue;
      store_block16<1, D>(to, LoadedRows{rows + 1}, join.head, sum, index_of[i], num_rows, lane);
      sum = {};
    }
  }
}

/// Joins the pending batch heads of a block, on all threads that multiply, after all of their partial results have been
/// published.
template <Type T, int D, int Warpgroups>
PAGODA_DEVICE void join_list_heads(const ListArgs& args, const ListMemory<T, D, Warpgroups>& shared, int warp,
                                   int lane) {
  meet_to_join<Warpgroups>();
  meet_to_join<Warpgroups>();  // the rows have been stored
#pragma unroll 1
  for (int place = 0; place < 2; ++place) {
    const PendingJoin join = shared.pending()[place];
    if (join.any()) join_list_slice<D, compute_threads(Warpgroups)>(args, join, shared.joined_rows(place), warp, lane);
  }
}

}  // namespace pagoda::tuned::wgmma::grouped
