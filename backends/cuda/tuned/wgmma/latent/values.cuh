// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/tuned/wgmma/latent/pair.cuh"
#include "backends/cuda/wgmma.cuh"

namespace pagoda::tuned::wgmma::latent {

/// Starts o += probabilities x values, with a group of products for each 16 tokens and half of the dims of a tile's
/// values. Each product has 128 dims: ptxas accepts no more for a block of this many threads.
template <bool Bf16>
PAGODA_DEVICE void start_value_products(float (&o)[2][64], std::uint64_t p, std::uint64_t tile, bool adds) {
  wgmma_fence_registers(o[0]), wgmma_fence_registers(o[1]);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < Barriers::quarters; ++j) {
#pragma unroll
    for (int d = 0; d < 2; ++d)
      wgmma_transposed_b<Bf16>(o[d], advance_descriptor(p, j * 32),
                               advance_descriptor(tile, j * 2 * bytes_of_8 + d * 2 * run_bytes), adds || j > 0);
    wgmma_commit();
  }
}

/// Waits for the products of tile n, and releases each quarter of the tile as soon as it has been used.
PAGODA_DEVICE void finish_value_products(float (&o)[2][64], SharedMemory shared, int n, int lane) {
  const int empty = Barriers::empty + n % stages * Barriers::quarters;
  wgmma_wait<3>();
  shared.arrive(empty, lane);
  wgmma_wait<2>();
  shared.arrive(empty + 1, lane);
  wgmma_wait<1>();
  shared.arrive(empty + 2, lane);
  wgmma_wait<0>();
  shared.arrive(empty + 3, lane);
  shared.arrive(Barriers::p_empty + (n & 1), lane);
  wgmma_fence_registers(o[0]), wgmma_fence_registers(o[1]);
}

/// The state of row and row + 8, merged from both score warpgroups.
PAGODA_DEVICE void merge_states(const float2* states, int row, float2 (&state)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 one = states[row + 8 * r], other = states[tile_rows + row + 8 * r];
    state[r].x = fmaxf(one.x, other.x);
    state[r].y = one.y * exp2_fast(one.x - state[r].x) + other.y * exp2_fast(other.x - state[r].x);
  }
}

/// Stores half of a segment's dims in two quarters, so that the code is short. A pair of blocks has a quarter each.
template <int BlocksPerHead>
PAGODA_DEVICE void store_half(const auto& args, const FinishedSegment& segment, float (&o)[2][64],
                              const float2 (&state)[2], int half, int row, int lane) {
  int quarter       = 2 * half;
  const bool paired = args.pairs && segment.paired;
  if (paired) quarter += cluster_rank();
  for (bool more = !paired;; more = false, ++quarter) {
    store_segment<BlocksPerHead, 4>(args, segment, reinterpret_cast<const float (&)[1][64]>(o[0]), state, quarter,
                                    opaque(row),
                                    opaque(lane));  // or registers are kept for them in the loop over tiles
    if (!more) return;
#pragma unroll
    for (int e = 0; e < 64; ++e) o[0][e] = o[1][e];
  }
}

/// Adds the values of all tiles to half of the output's dims, with one warpgroup. A lane has two rows, eight apart, and
/// two dims of each eight.
template <bool Bf16, int BlocksPerHead>
PAGODA_DEVICE void add_values(const auto& args, SharedMemory shared, char* memory, int half, int warp, int lane) {
  const float* const corrections = reinterpret_cast<const float*>(memory + SharedLayout::corrections);
  const int* const warp_flags    = reinterpret_cast<const int*>(memory + SharedLayout::flags) + warp;
  const float2* const states     = reinterpret_cast<const float2*>(memory + SharedLayout::states);
  const int row                  = 16 * warp + (lane >> 2);
  const bool active              = 16 * warp < block_rows<BlocksPerHead>(args.rows_bound);

  shared.begin(args.pairs);
  if (args.pairs) cluster_wait();
  store_empty_sequences<BlocksPerHead, head_dim_v, 2 * 128>(args);  // while the first tiles come
  int segments = 0;
  float o[2][64];
  for (int n = 0;; ++n) {
    const int slot = n % stages;
    shared.wait(Barriers::p_full, n);
    const int flags = *warp_flags;
    if (flags & no_more_tiles) break;
    shared.wait(Barriers::full + slot, n / stages);
    if (flags & max_raised) {
      const float correction0 = corrections[row], correction1 = corrections[row + 8];
#pragma unroll
      for (int e = 0; e < 128; ++e) o[e / 64][e % 64] *= e & 2 ? correction1 : correction0;
    }
    const std::uint64_t p    = opaque(matrix_descriptor(shared.address + SharedLayout::probabilities, run_bytes));
    const std::uint64_t tile = opaque(matrix_descriptor(
        shared.address + SharedLayout::tiles + slot * tile_bytes + half * (head_dim_v / 128) * run_bytes, bytes_of_8,
        run_bytes));
    start_value_products<Bf16>(o, p, tile, !(flags & first_of_segment));
    if (args.pairs && flags & last_of_pair)
      allow_pair_to_send(shared, lane);  // before the products it would delay them
    finish_value_products(o, shared, n, lane);
    if (!(flags & last_of_segment)) continue;

    shared.wait(Barriers::states_full, segments++);
    const FinishedSegment finished = *reinterpret_cast<const FinishedSegment*>(memory + SharedLayout::finished);
    float2 state[2];
    merge_states(states, row, state);
    shared.arrive(Barriers::states_empty, lane);
    if (!active) continue;
    if (args.pairs && finished.paired) join_pair(o, state, shared, 4 * half + warp, lane);
    store_half<BlocksPerHead>(args, finished, o, state, half, row, lane);
  }
}

}  // namespace pagoda::tuned::wgmma::latent
