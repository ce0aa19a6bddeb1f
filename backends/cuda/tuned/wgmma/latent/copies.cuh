// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/barriers.cuh"
#include "backends/cuda/tuned/wgmma/segment_cursor.cuh"
#include "backends/cuda/tuned/wgmma/tiles.cuh"

namespace pagoda::tuned::wgmma::latent {

/// Copies tiles with one warp; each of eight lanes copies eight tokens.
template <int BlocksPerHead>
class TileCopies {
 public:
  PAGODA_DEVICE TileCopies(int /*warp*/, int lane) : lane_(lane) {}

  /// Looks up the page ids of `tile`, which is the next one to copy.
  PAGODA_DEVICE void begin(const Args& args, const Segment& s, int tile) {
    pages_.begin(args, s.sequence);
    next_ = look_up(args, s, tile);
  }
  template <class Args>
  PAGODA_DEVICE void copy_queries(const Args& args, const Segment& s, SharedMemory shared) const {
    if (lane_ != 0) return;
    // Results of rows beyond the entry's last are not stored, but a warp raises the maxima of its 16 rows together. So
    // all 16 are filled, with rows of the entry's last query token or zeros: what was in memory before must not count.
    // No box lies outside q.
    const EntryView entry = entry_of(args, s.batch);
    const int rows        = block_rows<BlocksPerHead>(args.rows_bound);
    const int eights      = (rows + 15) / 16 * 2;
    barrier_expect_bytes(shared.barrier(Barriers::q_full), eights * bytes_of_8);
#pragma unroll 1
    for (int i = 0; i < eights; ++i) {
      const int row = first_row<BlocksPerHead>() + 8 * i, token = args.heads.divide(row);
      copy_tensor_box(shared.address + SharedLayout::q + i * bytes_of_8, &args.q_map, row - token * args.heads.value,
                      s.head, entry.query_begin + min(token, entry.queries - 1), shared.barrier(Barriers::q_full),
                      read_once_policy());
    }
  }
  /// Copies a tile to a slot, as the round-th tile of the slot. Each quarter is copied as soon as the quarter of the
  /// tile before it has been used. next_tile: the tile to copy after this one.
  PAGODA_DEVICE void copy_tile(const Args& args, const Segment& s, SharedMemory shared, int slot, int round, int tile,
                               int next_tile) {
    const TokenLocation now  = next_;
    next_                    = look_up(args, s, next_tile);
    const int eights         = min(tile_tokens / 8, (s.len - tile * tile_tokens + 7) >> 3);
    const std::uint32_t full = shared.barrier(Barriers::full + slot);
    if (lane_ == 0) barrier_expect_bytes(full, eights * bytes_of_8);
#pragma unroll 1
    for (int quarter = 0; quarter < Barriers::quarters; ++quarter) {
      if (round > 0) shared.wait(Barriers::empty + slot * Barriers::quarters + quarter, round - 1);
      __syncwarp();
      if (lane_ / 2 == quarter && lane_ < eights)
        copy_tensor_box(shared.address + SharedLayout::tiles + slot * tile_bytes + lane_ * bytes_of_8, &args.k_map,
                        now.token, s.head, now.page, full, read_once_policy());
    }
  }

 protected:
  PAGODA_DEVICE TokenLocation look_up(const Args& args, const Segment& s, int tile) const {
    return pages_.look_up(args, s.sequence, tile * (tile_tokens / copy_tokens) + (lane_ & 7));
  }
  int lane_;
  PageCursor<copy_tokens> pages_;
  TokenLocation next_{};  ///< of eight tokens of the next tile
};

}  // namespace pagoda::tuned::wgmma::latent
