// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/join.cuh"
#include "backends/cuda/tuned/wgmma/block.cuh"

/// What becomes of a row's accumulators: outputs, or a part that others are joined with.
namespace pagoda::tuned::wgmma {

/// What outputs are multiplied by: 0 for a row that sees no token, NaN for a NaN sum.
PAGODA_DEVICE float weight_of(float sum) { return sum == 0 ? 0 : reciprocal(sum); }

/// Two dims of an output.
PAGODA_DEVICE void store_two(const Args& args, const QueryRow& row, int batch, int dim, float x, float y) {
  const std::int64_t at = row.in(args.out, args.out_token, batch) + dim;
  if (args.out.type == Type::fp32) {
    *reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(args.out.data) + at) =
        args.out.type == Type::bf16 ? pack<true>(x, y) : pack<false>(x, y);
  }
}

PAGODA_DEVICE void store_lse(const Args& args, const QueryRow& row, int batch, float most, float sum) {
  store_lse_at(args, batch * args.lse_batch + row.token * args.lse_token + row.head * args.lse_head, most, sum);
}

PAGODA_DEVICE float4* part_of(const Args& args, int block, bool begins) {
  return args.parts + (2 * block + begins) * args.part_quads;
}

/// The row that just ended, or the block's part of it.
struct Ended {
  int batch, head, begins, whole;
};

/// Stores a row's outputs, or the block's part of them, out of the accumulators of Count products of Each / 4 times
/// eight dims: as little code as can be, as it is run once and cold. row: the lane's, and the one eight below it;
/// share: which of the Shares of a row's dims these are.
template <int Together, int Shares, int Count, int Each>
PAGODA_DEVICE void end_row(const Args& args, const Ended& ended, const float (&o)[Count][Each],
                           const float2 (&state)[2], int share, int row, int lane) {
  constexpr int eights = Count * Each / 4, across = Shares * eights / 2, quads = 2 * Shares * eights;
  const int column = lane & 3, here = rows_here<Together>(args);
  const bool odd = column & 1, second = column & 2;
  if (!ended.whole) {
    // Accumulators need no not_sentinel: matrix instructions on 16-bit elements give the NaN 0x7fffffff, and an
    // element's own NaN has zeros in its lower half as a float.
    float4* const to = part_of(args, static_cast<int>(blockIdx.x), ended.begins) +
                       (row / 16 * across + share * (across / Shares)) * unit_quads;
#pragma unroll
    for (int j = 0; j < eights; ++j) {
      const float* const z = o[4 * j / Each] + 4 * j % Each;
      store_shared_word4(to + j / 2 * unit_quads + j % 2 * 32 + lane, make_float4(z[0], z[1], z[2], z[3]));
    }
#pragma unroll
    for (int u = 0; u < eights / 8; ++u)
      store_shared_word4(to + (4 * u + column) * unit_quads + 64 + lane / 4,
                         make_float4(state[0].x, not_sentinel(state[0].y), state[1].x, not_sentinel(state[1].y)));
    return;
  }
  // Lanes of a row's first two columns speak for the row and for the one eight below it.
  const int spoken  = row + 8 * column;
  const auto row_at = [&](int r) { return QueryRow(args, ended.head, first_row<Together>() + r); };
  if (share == 0 && column < 2 && spoken < here && args.lse) {
    const float2 mine = column == 0 ? state[0] : state[1];
    store_lse(args, row_at(spoken), ended.batch, mine.x, mine.y);
  }
  const float weights[2] = {weight_of(state[0].y), weight_of(state[1].y)};
  if (args.out.type == Type::fp32) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at = row_at(row + 8 * r).in(args.out, args.out_token, ended.batch);
      float2* const to =
          reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) + share * (2 * quads / Shares) + column;
      if (row + 8 * r >= here) continue;
#pragma unroll
      for (int j = 0; j < eights; ++j) {
        const float* const z = o[4 * j / Each] + 4 * j % Each + 2 * r;
        to[4 * j]            = make_float2(z[0] * weights[r], z[1] * weights[r]);
      }
    }
  } else {
    // Lanes exchange what they have of two rows until each has whole vectors of one.
    const int mine        = row + (second ? 8 : 0);
    const std::int64_t at = row_at(mine).in(args.out, args.out_token, ended.batch);
    uint4* const to =
        reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(args.out.data) + at) + share * (quads / 2 / Shares) + odd;
    const bool bf16 = args.out.type == Type::bf16;
#pragma unroll
    for (int j = 0; j < eights; j += 2) {
      const float* const z = o[4 * j / Each] + 4 * j % Each;  // eight dims and the next eight
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

}  // namespace pagoda::tuned::wgmma
