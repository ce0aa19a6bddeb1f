// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/barriers.cuh"
#include "backends/cuda/tuned/wgmma/segment_cursor.cuh"
#include "backends/cuda/tuned/wgmma/tiles.cuh"

namespace pagoda::tuned::wgmma::latent {

/// Where the tokens of a tile lie, in the lanes of a warp. CopyTokens: 8 or 1, adjacent tokens that are looked up
/// together.
template <int CopyTokens>
class TileLocations {
 public:
  /// of_lane(0): the eight tokens from 8 (lane % 8) on, or token `lane`; of_lane(1): token 32 + lane.
  static constexpr int each = CopyTokens == 1 ? tile_tokens / 32 : 1;

  PAGODA_DEVICE void begin(const Args& args, const Segment& s) { pages_.begin(args, s.sequence); }
  PAGODA_DEVICE void look_up(const Args& args, const Segment& s, int tile, int lane) {
    static_assert(CopyTokens == 1 || CopyTokens == tile_tokens / 8);
#pragma unroll
    for (int i = 0; i < each; ++i)
      at_[i] = pages_.look_up(args, s.sequence,
                              tile * (tile_tokens / CopyTokens) + (CopyTokens == 1 ? lane + 32 * i : lane & 7));
  }
  PAGODA_DEVICE const TokenLocation& of_lane(int i = 0) const { return at_[i]; }
  /// Location of token t of the tile. All lanes call it; their t are all below 32, or none is.
  PAGODA_DEVICE TokenLocation of_token(int t) const {
    if constexpr (CopyTokens == 1) {
      // A reference to one of them would put both into memory.
      const int page = t < 32 ? at_[0].page : at_[1].page, token = t < 32 ? at_[0].token : at_[1].token;
      return {__shfl_sync(~0u, page, t & 31), __shfl_sync(~0u, token, t & 31)};
    } else {
      return {__shfl_sync(~0u, at_[0].page, t >> 3), __shfl_sync(~0u, at_[0].token, t >> 3) + (t & 7)};
    }
  }

 private:
  PageCursor<CopyTokens> pages_;
  TokenLocation at_[each] = {};
};

/// Copies tiles with one warp; each of eight lanes copies eight tokens.
template <int BlocksPerHead, int CopyTokens = copy_tokens>
class TileCopies {
 public:
  PAGODA_DEVICE TileCopies(int /*warp*/, int lane) : lane_(lane) {}

  /// Looks up the page ids of `tile`, which is the next one to copy.
  PAGODA_DEVICE void begin(const Args& args, const Segment& s, int tile) {
    next_.begin(args, s);
    next_.look_up(args, s, tile, lane_);
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
    const TokenLocation now = next_.of_lane();
    next_.look_up(args, s, next_tile, lane_);
    const int eights         = min(tile_tokens / 8, (s.len - tile * tile_tokens + 7) >> 3);
    const std::uint32_t full = shared.barrier(Barriers::full + slot);
    if (lane_ == 0) barrier_expect_bytes(full, eights * bytes_of_8);
#pragma unroll 1
    for (int quarter = 0; quarter < Barriers::quarters; ++quarter) {
      shared.wait_for_quarter(slot, quarter, round);
      __syncwarp();
      if (lane_ / 2 == quarter && lane_ < eights)
        copy_tensor_box(shared.address + SharedLayout::tiles + slot * tile_bytes + lane_ * bytes_of_8, &args.k_map,
                        now.token, s.head, now.page, full, read_once_policy());
    }
  }

 protected:
  int lane_;
  TileLocations<CopyTokens> next_;  ///< of the next tile
};

}  // namespace pagoda::tuned::wgmma::latent
