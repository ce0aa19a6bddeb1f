// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/shapes.hpp"
#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/tuned/wgmma/softmax.cuh"
#include "backends/cuda/wgmma.cuh"

/// Decode attention where up to 128 query rows share a kv head of 64 or 128 dims. A warp copies tiles into a ring; a
/// warpgroup (two beyond 64 rows) multiplies. Probabilities never leave the registers (FlashAttention-3: Shah et al.,
/// 2024).
namespace pagoda::tuned::wgmma::grouped {

/// Where things are in a block's shared memory.
template <int D, int Groups>
struct Place {
  static constexpr Shared offsets = shared(D, Groups);
  static constexpr int count      = stages(D, Groups);
  std::uint32_t memory;
  PAGODA_DEVICE std::uint32_t keys(int slot) const { return memory + offsets.ring + slot * 2 * tile_bytes(D); }
  PAGODA_DEVICE std::uint32_t values(int slot) const { return keys(slot) + tile_bytes(D); }
  PAGODA_DEVICE std::uint32_t full(int slot) const { return memory + offsets.barriers + 8 * slot; }
  PAGODA_DEVICE std::uint32_t empty(int slot) const { return full(count + slot); }
};

/// Copies all tiles of a block in the order of their use, across rows, by one warp. A lane knows where the same eight
/// tokens of every fourth tile lie, so that page ids are asked for four tiles at a time.
template <int D, int Groups>
PAGODA_DEVICE void copy_tiles(const Args& args, Course<1>& course, Place<D, Groups> at, int lane) {
  const std::uint64_t policy = read_once_policy();
  Ring<Place<D, Groups>::count> to;
  Pages pages;
  for (; course.any; course.next(args)) {
    const auto& s      = course.s;
    const int count    = course.tiles();
    const auto look_up = [&](int first) {  // of four tiles, counted in the segment
      return pages.look_up(args, s, (s.first + (first + (lane >> 3)) * s.step) * (tokens / 8) + (lane & 7));
    };
    if (count == 0) continue;
    pages.begin(args, s);
    Source now = look_up(0), ahead{};
    for (int i = 0; i < count; ++i) {
      if ((i & 3) == 0) {
        if (i > 0) now = ahead;
        if (i + 4 < count) ahead = look_up(i + 4);
      }
      const int there = s.len - (s.first + i * s.step) * tokens, eights = min(tokens / 8, (there + 7) >> 3);
      barrier_wait(at.empty(to.slot), to.parity ^ 1);  // the first round finds all empty
      if (lane == 0) barrier_expect(at.full(to.slot), 2 * eights * eight_bytes(D));
      __syncwarp();
      if (lane >> 3 == (i & 3) && (lane & 7) < eights) {
        const int part = (lane & 7) * eight_bytes(D);
        copy_box(at.keys(to.slot) + part, &args.k_map, now.token, s.head, now.page, at.full(to.slot), policy);
        copy_box(at.values(to.slot) + part, &args.v_map, now.token, s.head, now.page, at.full(to.slot), policy);
      }
      to.next();
    }
  }
}

/// The queries of a segment to shared memory, 16 bytes a thread at a time. Rows beyond the last are zeros.
template <int D, int Groups>
PAGODA_DEVICE void load_queries(const Args& args, const SegmentOf<tokens>& s, std::uint32_t to) {
  constexpr int chunks = D / 8;
#pragma unroll
  for (int item = 0; item < Groups * rows * chunks; item += workers(Groups)) {
    const int r = (item + static_cast<int>(threadIdx.x)) / chunks, chunk = static_cast<int>(threadIdx.x) % chunks;
    uint4 x{0, 0, 0, 0};
    if (r < args.rows) {
      const std::int64_t from = QueryRow(args, s.head, r).in(args.q, args.q_token, s.batch);
      x = __ldg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(args.q.data) + from) + chunk);
    }
    store_shared(to + place_of<D>(r, chunk), x);
  }
}

/// Adds the infinities and NaNs that clear_non_finite took out of the values of a segment to the rows that see their
/// tokens, once more from memory. Their weights do not matter. o: of the lane's rows, `row` and the one eight below it.
template <bool Bf16, int D>
PAGODA_DEVICE void add_non_finite(const Args& args, const SegmentOf<tokens>& s, float (&o)[D / 2], int row,
                                  int column) {
  Pages pages;
  pages.begin(args, s);
  const int seen0 = s.len - QueryRow(args, 0, row).hidden(args);
  const int seen1 = s.len - QueryRow(args, 0, row + 8).hidden(args);
#pragma unroll 1
  for (int t = max(s.len - args.hidden, 0); t < s.len; ++t) {
    const int tile = t / tokens;
    if (tile < s.first || tile >= s.end() || (tile - s.first) % s.step != 0) continue;  // another block's
    const Source from    = pages.look_up(args, s, t / 8);
    const char* const at = static_cast<const char*>(args.v.data) + from.page * args.v.page +
                           (from.token + t % 8) * args.v.token + s.head * args.v.head;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const float2 v = unpack<Bf16>(__ldg(reinterpret_cast<const unsigned*>(at) + 4 * j + column));
      const float x = isfinite(v.x) ? 0.0f : v.x, y = isfinite(v.y) ? 0.0f : v.y;
      o[4 * j] += t < seen0 ? x : 0.0f, o[4 * j + 1] += t < seen0 ? y : 0.0f;
      o[4 * j + 2] += t < seen1 ? x : 0.0f, o[4 * j + 3] += t < seen1 ? y : 0.0f;
    }
  }
}

/// A warpgroup's rows of all the block's segments. A lane has two rows, eight apart, of scores and of outputs; of each
/// eight tokens or dims, two.
template <bool Bf16, int D, int Groups>
PAGODA_DEVICE void multiply(const Args& args, Course<1>& course, Place<D, Groups> at, char* memory, int warp,
                            int lane) {
  constexpr float lowest      = Quad::lowest;
  constexpr int eight         = eight_bytes(D);
  Debt* const debts           = reinterpret_cast<Debt*>(memory + at.offsets.debts);
  volatile int* const cleared = reinterpret_cast<int*>(memory + at.offsets.cleared);
  const int group = warp / 4, row = 16 * warp + (lane >> 2), column = lane & 3;
  const bool active = 16 * warp < args.rows;
  Ring<Place<D, Groups>::count> used;
  for (bool again = false; course.any; course.next(args)) {
    const auto& s   = course.s;
    const int count = course.tiles();
    if (count == 0) continue;
    if (again) sync_block<workers(Groups)>();  // all have used the queries
    again = true;
    // Stored by all threads, or by all lanes of a warp: after a store by some of them the compiler keeps the ring's
    // slot in a register of each lane and moves it for every product, which costs 6% at 128 query rows.
    *cleared = 0;
    load_queries<D, Groups>(args, s, at.memory);
    fence_copies();
    sync_block<workers(Groups)>();
    float base[2] = {lowest, lowest}, sum[2] = {0, 0}, o[1][D / 2];
    for (int i = 0; i < count; ++i) {
      const int there       = s.len - (s.first + i * s.step) * tokens;
      const std::uint64_t q = operand(at.memory + group * (rows / 8) * eight, eight);
      const std::uint64_t k = operand(at.keys(used.slot), eight), v = operand(at.values(used.slot), eight, run_bytes);
      barrier_wait(at.full(used.slot), used.parity);
      float x[32];
      begin_scores<Bf16, D>(x, q, k);
      if (there < tokens + args.hidden) {  // beside the products
        const int thread = static_cast<int>(threadIdx.x);
        clear_values<D, D, workers(Groups)>(at.values(used.slot), there, thread);
        // Rows that do not see a token must not get 0 times an infinity or NaN.
        if (args.hidden > 0) {
          const bool found = clear_non_finite<Bf16, D, D, workers(Groups)>(
              at.values(used.slot), max(there - args.hidden, 0), min(there, tokens), thread);
          if (__any_sync(~0u, found)) *cleared = 1;
        }
        fence_copies();
        sync_block<workers(Groups)>();
      }
      wgmma_wait<0>();
      wgmma_keep(x);

      std::uint32_t p[16] = {};
      bool raises         = false;
      float kept[2]       = {1, 1};
      if (active) {
        hide_unseen(args, x, there, row, column);
        float most[2];
        find_largest(x, args.scale, most);
        raises = __any_sync(~0u, most[0] > base[0] + let_pass || most[1] > base[1] + let_pass);
        if (raises) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float now = fmaxf(base[r], largest_of_row(most[r]));
            kept[r]         = exp2_fast(base[r] - now);
            base[r]         = now, sum[r] *= kept[r];
          }
        }
        weigh<Bf16>(x, args.scale, base, sum, p);
      }
      if (raises && i > 0) {
#pragma unroll
        for (int e = 0; e < D / 2; ++e) o[0][e] *= kept[e >> 1 & 1];
      }
      wgmma_keep(o[0]);
      wgmma_begin();
#pragma unroll
      for (int j = 0; j < tokens / 16; ++j)
        wgmma_of_registers<Bf16>(o[0], p + 4 * j, operand_at(v, j * 2 * eight), i > 0 || j > 0);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_keep(o[0]);
      __syncwarp();
      if (lane == 0) barrier_arrive(at.empty(used.slot));
      used.next();
    }

    if (args.hidden > 0 && *cleared != 0) [[unlikely]]
      add_non_finite<Bf16, D>(args, s, o[0], row, column);
    float2 state[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) state[r] = make_float2(base[r], sum_of_row(sum[r]));
    const bool whole = s.from >= course.last;
    if (!whole && threadIdx.x == 0) debts[s.begins] = {s.batch, s.head, s.from, course.last};
    if (active) end_row<1, 1>(args, {s.batch, s.head, s.begins, whole}, o, state, 0, row, lane);
  }
}

template <bool Bf16, int D, int Groups>
PAGODA_DEVICE void decode_block(const Args& args) {
  using Here = Place<D, Groups>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const Here at{shared_address(memory)};
  Debt* const debts = reinterpret_cast<Debt*>(memory + Here::offsets.debts);
  Course<1> course(args, lane);
  if (warp == 0) {
    if (lane < Here::count) barrier_init(at.full(lane)), barrier_init(at.empty(lane), 4 * Groups);
    if (lane < 2) debts[lane] = {0, 0, 0, -1};
    barrier_init_done();
    if (lane == 0) prefetch_map(&args.k_map), prefetch_map(&args.v_map);
  }
  __syncthreads();
  course.settle(args, lane);
  if (warp == workers(Groups) / 32) return copy_tiles(args, course, at, lane);
  multiply<Bf16>(args, course, at, memory, warp, lane);
  finish<1, D, workers(Groups)>(args, debts, memory + Here::offsets.ring, warp, lane);
}

template <bool Bf16, int D, int Groups>
__global__ void __launch_bounds__(threads(Groups), blocks(Groups)) decode_kernel(const __grid_constant__ Args args) {
#if PAGODA_SM90A
  decode_block<Bf16, D, Groups>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::wgmma::grouped
