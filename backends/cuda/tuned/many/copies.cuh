// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/many/block.cuh"
#include "backends/cuda/tuned/tile.cuh"

namespace pagoda::tuned::many {

/// Copies tiles, eight tokens by each of eight lanes, by one warp.
template <int Together>
class TileCopies {
 public:
  using Segment = SegmentOf<tokens>;
  PAGODA_DEVICE explicit TileCopies(int lane) : lane_(lane) {}

  /// The next tile to copy will be this one: asks for its page ids.
  PAGODA_DEVICE void begin(const Args& args, const Segment& s, int tile) {
    row_   = args.has_indptr ? __ldg(args.page_indptr + s.sequence) : s.sequence * args.table_row;
    ahead_ = look_up(args, s, tile);
  }
  PAGODA_DEVICE void queries(const Args& args, const Segment& s, Place at) const {
    if (lane_ != 0) return;
    // Rows beyond the group's: up to eight are zeros, the others anything, as nobody looks at what becomes of them.
    const int eights = (rows_here<Together>(args) + 7) / 8;
    barrier_expect(at.barrier(Shared::q_full), eights * eight);
#pragma unroll 1
    for (int i = 0; i < eights; ++i)
      copy_box(at.memory + Shared::q + i * eight, &args.q_map, first_row<Together>() + 8 * i, s.head, s.batch,
               at.barrier(Shared::q_full), read_once_policy());
  }
  /// The round-th tile of a slot, a quarter as soon as the one there has been used. next: the tile after it.
  PAGODA_DEVICE void tile(const Args& args, const Segment& s, Place at, int slot, int round, int tile, int next) {
    const Source now         = ahead_;
    ahead_                   = look_up(args, s, next);
    const int eights         = min(tokens / 8, (s.len - tile * tokens + 7) >> 3);
    const std::uint32_t full = at.barrier(Shared::full + slot);
    if (lane_ == 0) barrier_expect(full, eights * eight);
#pragma unroll 1
    for (int quarter = 0; quarter < Shared::quarters; ++quarter) {
      if (round > 0) at.wait(Shared::empty + slot * Shared::quarters + quarter, round - 1);
      __syncwarp();
      if (lane_ / 2 == quarter && lane_ < eights)
        copy_box(at.memory + Shared::tiles + slot * tile_bytes + lane_ * eight, &args.k_map, now.token, s.head,
                 now.page, full, read_once_policy());
    }
  }

 private:
  /// Beyond a row's end its last entry again, so that nothing behind the table is read.
  PAGODA_DEVICE Source look_up(const Args& args, const Segment& s, int tile) const {
    const int group = tile * (tokens / 8) + (lane_ & 7);
    if (!args.block_table) return {s.sequence, group * 8};
    const int index = args.tiles_per_page.divide(group);
    const int last  = args.has_indptr ? args.last_page - row_ : args.last_page;
    return {__ldg(args.block_table + (row_ + min(index, last) * args.table_page)),
            (group - index * args.tiles_per_page.value) * 8};
  }
  int lane_, row_ = 0;  ///< row_: where the sequence's pages begin in the table
  Source ahead_{};
};

}  // namespace pagoda::tuned::many
