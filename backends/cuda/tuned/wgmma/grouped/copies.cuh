// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/ring.cuh"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/visible_tiles.cuh"
#include "backends/cuda/tuned/wgmma/tiles.cuh"

namespace pagoda::tuned::wgmma::grouped {

/// A block's shared memory and the barriers in it.
template <int D, int Warpgroups>
struct SharedMemory {
  static constexpr SharedLayout layout = shared_layout(D, Warpgroups);
  static constexpr int num_stages      = stages(D, Warpgroups);
  std::uint32_t address;
  PAGODA_DEVICE std::uint32_t keys(int slot) const { return address + layout.ring + slot * 2 * tile_bytes(D); }
  PAGODA_DEVICE std::uint32_t values(int slot) const { return keys(slot) + tile_bytes(D); }
  PAGODA_DEVICE std::uint32_t full(int slot) const { return address + layout.barriers + 8 * slot; }
  PAGODA_DEVICE std::uint32_t empty(int slot) const { return full(num_stages + slot); }
};

/// Copies all tiles of a block in the order of their use, across segments, with one warp. Each lane knows the location
/// of the same eight tokens of every fourth tile, so page ids are looked up for four tiles at a time.
template <int D, int Warpgroups, class Args>
PAGODA_DEVICE void copy_tiles(const Args& args, SegmentCursor<1>& cursor, SharedMemory<D, Warpgroups> shared,
                              int lane) {
  const std::uint64_t policy = read_once_policy();
  Ring<SharedMemory<D, Warpgroups>::num_stages> to;
  PageCursor<copy_tokens> pages;
  for (; cursor.valid; cursor.next(args)) {
    const Segment& s = cursor.segment;
    const int count  = cursor.tiles();
    const VisibleTiles<Args> tiles(args, s);
    const auto look_up = [&](int first) {  // for tiles first to first + 3 of the segment
      const int tile = tiles.place(s.first_tile + (first + (lane >> 3)) * s.tile_step);
      return pages.look_up(args, s.sequence, tile * (tile_tokens / copy_tokens) + (lane & 7));
    };
    if (count == 0) continue;
    pages.begin(args, s.sequence);
    TokenLocation now = look_up(0), next{};
    for (int i = 0; i < count; ++i) {
      if ((i & 3) == 0) {
        if (i > 0) now = next;
        if (i + 4 < count) next = look_up(i + 4);
      }
      const auto eights = tiles.eights(s.first_tile + i * s.tile_step);
      barrier_wait(shared.empty(to.slot), to.parity ^ 1);  // in the first round all are empty
      if (lane == 0) barrier_expect_bytes(shared.full(to.slot), 2 * count_of(eights) * bytes_of_8_tokens(D));
      __syncwarp();
      if (lane >> 3 == (i & 3) && contains(eights, lane & 7)) {
        const int offset = (lane & 7) * bytes_of_8_tokens(D);
        copy_tensor_box(shared.keys(to.slot) + offset, &args.k_map, now.token, s.head, now.page, shared.full(to.slot),
                        policy);
        copy_tensor_box(shared.values(to.slot) + offset, &args.v_map, now.token, s.head, now.page, shared.full(to.slot),
                        policy);
      }
      to.next();
    }
  }
}

/// The same without tensor maps, for pages of any number of tokens. Each of four warps copies 16 tokens of every tile,
/// 16 bytes a lane. Tokens that no query token sees are not read. warp: among those that copy.
template <int D, int Warpgroups, class Args>
PAGODA_DEVICE void copy_tiles_by_lanes(const Args& args, SegmentCursor<1>& cursor, SharedMemory<D, Warpgroups> shared,
                                       int warp, int lane) {
  constexpr int tokens = tile_tokens / 4, chunks = D / 8, rows_at_once = 32 / chunks;
  const int chunk = lane % chunks, first_row = warp * tokens;
  Ring<SharedMemory<D, Warpgroups>::num_stages> to;
  PageCursor<1> pages;
  for (; cursor.valid; cursor.next(args)) {
    const Segment& s = cursor.segment;
    const int count  = cursor.tiles();
    const VisibleTiles<Args> tiles(args, s);
    if (count == 0) continue;
    const auto first_token = [&](int i) {
      return tiles.place(s.first_tile + i * s.tile_step) * tile_tokens + first_row;
    };
    const auto look_up = [&](int i) { return pages.look_up(args, s.sequence, first_token(i) + lane % tokens); };
    pages.begin(args, s.sequence);
    TokenLocation now        = look_up(0), next{};
    const char* const keys   = static_cast<const char*>(args.k.data) + s.head * args.k.head + 16 * chunk;
    const char* const values = static_cast<const char*>(args.v.data) + s.head * args.v.head + 16 * chunk;
    for (int i = 0; i < count; ++i) {
      if (i > 0) now = next;
      if (i + 1 < count) next = look_up(i + 1);
      const int first = first_token(i);
      barrier_wait(shared.empty(to.slot), to.parity ^ 1);  // in the first round all are empty
#pragma unroll
      for (int step = 0; step < tokens; step += rows_at_once) {
        const int token         = step + lane / chunks;
        const std::int64_t page = __shfl_sync(~0u, now.page, token), of_page = __shfl_sync(~0u, now.token, token);
        if (!tiles.reads(first + token)) continue;
        const std::uint32_t offset = swizzled_offset<D>(first_row + token, chunk);
        copy_async(shared.keys(to.slot) + offset, keys + page * args.k.page + of_page * args.k.token);
        copy_async(shared.values(to.slot) + offset, values + page * args.v.page + of_page * args.v.token);
      }
      barrier_arrive_after_copies(shared.full(to.slot));
      to.next();
    }
  }
}

/// Copies the queries of a segment to shared memory; each thread copies 16 bytes at a time. Rows beyond the entry's
/// last are zeros.
template <int D, int Warpgroups>
PAGODA_DEVICE void load_queries(const auto& args, const Segment& s, std::uint32_t to) {
  constexpr int chunks  = D / 8;
  const EntryView entry = entry_of(args, s.batch);
#pragma unroll
  for (int item = 0; item < Warpgroups * tile_rows * chunks; item += compute_threads(Warpgroups)) {
    const int r = (item + static_cast<int>(threadIdx.x)) / chunks, chunk = static_cast<int>(threadIdx.x) % chunks;
    uint4 x{0, 0, 0, 0};
    if (r < num_rows(args, entry)) {
      const std::int64_t from = QueryRow(args, s.head, r).offset(args.q, entry.query_begin);
      x = __ldg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(args.q.data) + from) + chunk);
    }
    store_shared(to + swizzled_offset<D>(r, chunk), x);
  }
}

}  // namespace pagoda::tuned::wgmma::grouped
