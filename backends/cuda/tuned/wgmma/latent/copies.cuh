// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/barriers.cuh"

namespace pagoda::tuned::wgmma::latent {

/// Copies tiles, eight tokens by each of eight lanes, by one warp.
template <int Together>
class TileCopies {
 public:
  using Segment = SegmentOf<tokens>;
  PAGODA_DEVICE explicit TileCopies(int lane) : lane_(lane) {}

  /// The next tile to copy will be this one: asks for its page ids.
  PAGODA_DEVICE void begin(const Args& args, const Segment& s, int tile) {
    pages_.begin(args, s);
    ahead_ = look_up(args, s, tile);
  }
  PAGODA_DEVICE void queries(const Args& args, const Segment& s, Place at) const {
    if (lane_ != 0) return;
    // Rows beyond the last: up to eight are zeros or the next token's, the others anything, as nobody looks at what
    // becomes of them. Of several query tokens, the map's kv heads are tokens (why_not).
    const int eights = (rows_here<Together>(args) + 7) / 8;
    barrier_expect(at.barrier(Shared::q_full), eights * eight);
#pragma unroll 1
    for (int i = 0; i < eights; ++i) {
      const int row = first_row<Together>() + 8 * i, token = args.heads.divide(row);
      copy_box(at.memory + Shared::q + i * eight, &args.q_map, row - token * args.heads.value, s.head + token, s.batch,
               at.barrier(Shared::q_full), read_once_policy());
    }
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
  PAGODA_DEVICE Source look_up(const Args& args, const Segment& s, int tile) const {
    return pages_.look_up(args, s, tile * (tokens / 8) + (lane_ & 7));
  }
  int lane_;
  Pages pages_;
  Source ahead_{};
};

}  // namespace pagoda::tuned::wgmma::latent
