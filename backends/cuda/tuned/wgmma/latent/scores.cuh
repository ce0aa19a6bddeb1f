// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/copies.cuh"
#include "backends/cuda/tuned/wgmma/output.cuh"
#include "backends/cuda/tuned/wgmma/softmax.cuh"
#include "backends/cuda/wgmma.cuh"

namespace pagoda::tuned::wgmma::latent {

/// Scores and probabilities of every other tile, by a warpgroup. A lane has two rows, eight apart, and of each 16
/// tokens. The running maximum (base) is one for both warpgroups, handed on from tile to tile; it is raised only when a
/// score exceeds it by more than 2^8. Sums are each warpgroup's own.
template <bool Bf16, int Together>
PAGODA_DEVICE void score_tiles(const Args& args, Place at, char* memory, int which, int warp, int lane) {
  constexpr float lowest      = Quad::lowest;
  float* const shared_base    = reinterpret_cast<float*>(memory + Shared::base);
  float* const kept           = reinterpret_cast<float*>(memory + Shared::kept);
  int* const sign             = reinterpret_cast<int*>(memory + Shared::signs) + warp;
  float2* const states        = reinterpret_cast<float2*>(memory + Shared::states) + which * rows;
  Debt* const debts           = reinterpret_cast<Debt*>(memory + Shared::debts);
  const std::uint32_t tile_at = at.memory + Shared::tiles + which * tile_bytes;
  const int row = 16 * warp + (lane >> 2), column = lane & 3;
  const bool active = 16 * warp < rows_here<Together>(args), speaks = column == 0;
  // Where the lane's share of a store goes: rows of 128 bytes, 16-byte chunks swizzled.
  const int store_row          = 16 * warp + (lane & 15);
  const std::uint32_t store_to = at.memory + Shared::probabilities + store_row * 128;

  // Of a row that the block's share begins, and of one that began before it.
  if (which == 0 && warp == 0 && lane < 2) debts[lane] = {0, 0, 0, -1};
  Course<Together> course(args, lane);
  auto& s = course.s;
  TileCopies<Together> copies(lane);
  const bool copies_here = warp == 0;
  int n = 0, segments = 0, i = 0;  // i: of the warpgroup's next tile in the segment
  const auto begin = [&] {
    i = (which - n) & 1;
    if (copies_here && course.any) copies.begin(args, s, s.first + i * s.step);
  };
  begin();
  at.begin();
  if (course.settle(args, lane)) begin();
  for (; course.any; course.next(args), begin()) {
    const int count = course.tiles();
    if (count == 0) continue;
    float base[2] = {lowest, lowest}, sum[2] = {0, 0};
    const auto queries = [&] {
      if (!copies_here || which != 0) return;
      if (segments > 0) at.wait(Shared::q_empty, segments - 1);
      copies.queries(args, s, at);
    };
    if (i >= count) {
      queries();
      at.wait(Shared::q_full, segments);
      at.arrive(Shared::q_empty, lane);
    }
    for (; i < count; i += 2) {
      const int m = n + i, there = s.len - (s.first + i * s.step) * tokens;
      float x[32];
      if (copies_here) {
        const int tile = s.first + i * s.step;
        copies.tile(args, s, at, which, m / stages, tile, tile + 2 * s.step);
      }
      if (i < 2) {
        queries();
        at.wait(Shared::q_full, segments);
      }
      at.wait(Shared::full + which, m / stages);
      const std::uint64_t q = fresh(operand(at.memory + Shared::q, eight));
      const std::uint64_t k = fresh(operand(at.memory + Shared::tiles + which * tile_bytes, eight));
      begin_scores<Bf16, head_dim>(x, q, k);
      wgmma_wait<0>();
      wgmma_keep(x);
      if (i + 2 >= count) at.arrive(Shared::q_empty, lane);

      bool raises = false;
      std::uint32_t p[16];
      if (m > 0) at.wait(Shared::turn + (which ^ 1), (m - 1) / 2);
      float before[2] = {lowest, lowest};
      if (active) {
        hide_unseen(args, x, there, first_row<Together>() + row, column);
        float most[2];
        find_largest(x, args.scale, most);
        if (i > 0) before[0] = shared_base[row], before[1] = shared_base[row + 8];
        float now[2] = {before[0], before[1]};
        raises       = __any_sync(~0u, most[0] > before[0] + let_pass || most[1] > before[1] + let_pass);
        if (raises) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            now[r] = fmaxf(before[r], largest_of_row(most[r]));
            if (speaks) shared_base[row + 8 * r] = now[r];
          }
        } else if (i == 0 && speaks) {
          shared_base[row] = shared_base[row + 8] = lowest;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[r] *= exp2_fast(base[r] - now[r]), base[r] = now[r];
      }
      at.arrive(Shared::turn + which, lane);
      if (active) weigh<Bf16>(x, args.scale, base, sum, p);

      if (m > 0) at.wait(Shared::p_empty + (which ^ 1), (m - 1) / 2);
      if (lane == 0)
        *sign = (raises && i > 0 ? raised : 0) | (i == 0 ? first_of_row : 0) | (i + 1 == count ? last_of_row : 0);
      if (active) {
        if (raises && i > 0 && speaks) {
          kept[row]     = exp2_fast(before[0] - base[0]);
          kept[row + 8] = exp2_fast(before[1] - base[1]);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2)
          store_matrices(store_to + (((j + (lane >> 4)) ^ (store_row & 7)) << 4), p + 2 * j);
      }
      if (there < tokens) clear_values<head_dim, head_dim_v, 128>(tile_at, there, 32 * warp + lane);
      // A row that does not see a token must not get 0 times an infinity or NaN. A row that sees a NaN is NaN by its
      // score, as values are the first dims of keys.
      if (args.hidden > 0 && there < tokens + args.hidden) {
        at.wait(Shared::turn + which, m / 2);  // all four warps have their scores: nobody reads the tile as keys
        clear_non_finite<Bf16, head_dim, head_dim_v, 128>(tile_at, max(there - args.hidden, 0), min(there, tokens),
                                                          32 * warp + lane);
      }
      fence_copies();
      at.arrive(Shared::p_full, lane);
    }

    sum[0] = sum_of_row(sum[0]), sum[1] = sum_of_row(sum[1]);
    if (segments > 0) at.wait(Shared::state_empty, segments - 1);
    if (which == 0 && warp == 0 && lane == 0) {
      const bool whole                                  = s.from >= course.last;
      *reinterpret_cast<Ended*>(memory + Shared::ended) = {s.batch, s.head, s.begins, whole};
      if (!whole) debts[s.begins] = {s.batch, s.head, s.from, course.last};
    }
    if (speaks) states[row] = make_float2(base[0], sum[0]), states[row + 8] = make_float2(base[1], sum[1]);
    at.arrive(Shared::state_full, lane);
    n += count, ++segments;
  }
  if ((n & 1) == which) {
    if (n > 0) at.wait(Shared::p_empty + (which ^ 1), (n - 1) / 2);
    if (lane == 0) *sign = no_more;
    at.arrive(Shared::p_full, lane);
  }
}

}  // namespace pagoda::tuned::wgmma::latent
