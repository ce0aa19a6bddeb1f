// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/many/join.cuh"
#include "backends/cuda/wgmma.cuh"

namespace pagoda::tuned::many {

/// Stores a row's outputs, or the block's part of them, out of the products' accumulators: as little code as can be, as
/// it is run once and cold.
template <bool Bf16, int Together>
PAGODA_DEVICE void end_row(const Args& args, const Ended& ended, const float (&o)[2][64], const float2 (&state)[2],
                           int half, int row, int lane) {
  const int column = lane & 3, here = rows_here<Together>(args), head = ended.head * args.group + first_row<Together>();
  const bool odd = column & 1, second = column & 2;
  if (!ended.whole) {
    float4* const to = part_of(args, static_cast<int>(blockIdx.x), ended.begins) +
                       (row / 16 * units_of_16_rows + half * (units_of_16_rows / 2)) * unit_quads;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float* const z = o[j / 16] + j % 16 * 4;
      store_shared_word4(to + j / 2 * unit_quads + j % 2 * 32 + lane, make_float4(z[0], z[1], z[2], z[3]));
    }
#pragma unroll
    for (int u = 0; u < units_of_16_rows / 8; ++u)
      store_shared_word4(to + (4 * u + column) * unit_quads + 64 + lane / 4,
                         make_float4(state[0].x, state[0].y, state[1].x, state[1].y));
    return;
  }
  // Lanes of a row's first two columns speak for the row and for the one eight below it.
  const int spoken = row + 8 * column;
  if (half == 0 && column < 2 && spoken < here && args.lse) {
    const float2 mine = column == 0 ? state[0] : state[1];
    store_lse(args, ended.batch, head + spoken, mine.x, mine.y);
  }
  const float weights[2] = {reciprocal(state[0].y), reciprocal(state[1].y)};
  if (args.out.type == Type::fp32) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at = ended.batch * args.out.batch + (head + row + 8 * r) * args.out.head;
      float2* const to = reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) + half * quads + column;
      if (row + 8 * r >= here) continue;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const float* const z = o[j / 16] + j % 16 * 4 + 2 * r;
        to[4 * j]            = make_float2(z[0] * weights[r], z[1] * weights[r]);
      }
    }
  } else {
    // Lanes exchange what they have of two rows until each has whole vectors of one.
    const int mine        = row + (second ? 8 : 0);
    const std::int64_t at = ended.batch * args.out.batch + (head + mine) * args.out.head;
    uint4* const to =
        reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(args.out.data) + at) + half * (quads / 4) + odd;
    const bool bf16 = args.out.type == Type::bf16;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
      const float* const z = o[j / 16] + j % 16 * 4;  // eight dims and the next eight
      const auto word      = [&](int i) {
        const float low = z[2 * i] * weights[i & 1], high = z[2 * i + 1] * weights[i & 1];
        return bf16 ? pack<true>(low, high) : pack<false>(low, high);
      };
      const std::uint32_t first[2] = {word(0), word(1)}, next[2] = {word(2), word(3)};
      // Of one row, this lane's words and those of the lane two columns on; then of one eight dims.
      const std::uint32_t a = second ? first[1] : first[0], b = second ? next[1] : next[0];
      const std::uint32_t c = __shfl_xor_sync(~0u, second ? first[0] : first[1], 2);
      const std::uint32_t d = __shfl_xor_sync(~0u, second ? next[0] : next[1], 2);
      const std::uint32_t e = __shfl_xor_sync(~0u, odd ? a : b, 1), f = __shfl_xor_sync(~0u, odd ? c : d, 1);
      const std::uint32_t g = odd ? b : a, h = odd ? d : c;
      // Columns 0 to 3: mine, beside mine, and those two columns on (or before).
      const std::uint32_t near0 = odd ? e : g, near1 = odd ? g : e, far0 = odd ? f : h, far1 = odd ? h : f;
      if (mine < here) to[j] = second ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
    }
  }
}

/// Adds the values of all tiles to half of the output's dims, by a warpgroup. A lane has two rows, eight apart, and of
/// each eight dims two.
template <bool Bf16, int Together>
PAGODA_DEVICE void add_values(const Args& args, Place at, char* memory, int half, int warp, int lane) {
  const float* const kept    = reinterpret_cast<const float*>(memory + Shared::kept);
  const int* const sign_here = reinterpret_cast<const int*>(memory + Shared::signs) + warp;
  const float2* const states = reinterpret_cast<const float2*>(memory + Shared::states);
  const int row = 16 * warp + (lane >> 2), here = rows_here<Together>(args);
  const bool active = 16 * warp < here;

  at.begin();
  int segments = 0;
  float o[2][64];  // 128 dims each: ptxas takes no more for a block of so many threads
  for (int n = 0;; ++n) {
    const int slot = n % stages;
    at.wait(Shared::p_full, n);
    const int sign = *sign_here;
    if (sign & no_more) break;
    at.wait(Shared::full + slot, n / stages);
    if (sign & raised) {
      const float kept0 = kept[row], kept1 = kept[row + 8];
#pragma unroll
      for (int e = 0; e < 128; ++e) o[e / 64][e % 64] *= e & 2 ? kept1 : kept0;
    }
    const std::uint64_t p    = fresh(operand(at.memory + Shared::probabilities, run_bytes));
    const std::uint64_t tile = fresh(operand(
        at.memory + Shared::tiles + slot * tile_bytes + half * (head_dim_v / 128) * run_bytes, eight, run_bytes));
    const bool adds          = !(sign & first_of_row);
    wgmma_keep(o[0]), wgmma_keep(o[1]);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < Shared::quarters; ++j) {
#pragma unroll
      for (int d = 0; d < 2; ++d)
        wgmma_transposed<Bf16>(o[d], operand_at(p, j * 32), operand_at(tile, j * 2 * eight + d * 2 * run_bytes),
                               adds || j > 0);
      wgmma_commit();
    }
    const int empty = Shared::empty + slot * Shared::quarters;
    wgmma_wait<3>();
    at.arrive(empty, lane);
    wgmma_wait<2>();
    at.arrive(empty + 1, lane);
    wgmma_wait<1>();
    at.arrive(empty + 2, lane);
    wgmma_wait<0>();
    at.arrive(empty + 3, lane);
    at.arrive(Shared::p_empty + (n & 1), lane);
    wgmma_keep(o[0]), wgmma_keep(o[1]);
    if (!(sign & last_of_row)) continue;

    at.wait(Shared::state_full, segments++);
    const Ended ended = *reinterpret_cast<const Ended*>(memory + Shared::ended);
    float2 state[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 one = states[row + 8 * r], other = states[rows + row + 8 * r];
      state[r].x = fmaxf(one.x, other.x);
      state[r].y = one.y * exp2_fast(one.x - state[r].x) + other.y * exp2_fast(other.x - state[r].x);
    }
    at.arrive(Shared::state_empty, lane);
    if (active) end_row<Bf16, Together>(args, ended, o, state, half, row, lane);
  }
}

}  // namespace pagoda::tuned::many
