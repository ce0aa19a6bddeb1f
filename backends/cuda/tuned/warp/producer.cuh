// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/page_cursor.cuh"
#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/warp/tiles.cuh"
#include "backends/cuda/tuned/warp/visible_tiles.cuh"

namespace pagoda::tuned::warp {

using Segment = tuned::Segment<tile_tokens>;

/// Looks up page ids before their use. Each lane holds the location of one of the warp's next 32 copies and loads that
/// of one of the 32 after them. SmallPages: a tile may have several copies (Args::log_copies); otherwise it has one.
template <bool SmallPages>
class PageLookahead {
 public:
  template <class Args>
  PAGODA_DEVICE void begin(const Args& a, const Segment& s, int lane) {
    const int log = log_copies(a);
    next_tile_ = s.first_tile + (lane >> log) * s.tile_step, step_ = (32 >> log) * s.tile_step, sequence_ = s.sequence;
    if constexpr (SmallPages) copy_ = lane & ((1 << log) - 1);
    cursor_.begin(a, s.sequence);
    now_ = look_up(a);
  }
  /// The same without skipped tiles, if the lane has the location of the first of its tiles.
  PAGODA_DEVICE void begin(const Args& a, const Segment& s, int lane, TokenLocation first) {
    step_ = 32 * s.tile_step, next_tile_ = s.first_tile + lane * s.tile_step + step_, sequence_ = s.sequence;
    cursor_.begin(a, s.sequence);
    now_ = first;
  }
  /// Lane that knows where the first copy of a tile lies; those of its other copies follow. tile: counted from the
  /// first one of the segment.
  PAGODA_DEVICE static int owner(const Args& a, int tile) { return tile << log_copies(a) & 31; }
  /// Looks ahead, when `tiles` tiles of the segment are done.
  template <class Args>
  PAGODA_DEVICE void done(const Args& a, int tiles) {
    const int half = 16 >> log_copies(a);
    if ((tiles & (half - 1)) != 0) return;
    if (tiles & half) {
      next_ = look_up(a);
    } else {
      now_ = next_;
    }
  }
  PAGODA_DEVICE TokenLocation now() const { return now_; }

 private:
  PAGODA_DEVICE static int log_copies(const Args& a) { return SmallPages ? a.log_copies : 0; }
  template <class Args>
  PAGODA_DEVICE TokenLocation look_up(const Args& a) {
    const int tile = next_tile_, log = log_copies(a);
    next_tile_ += step_;
    return cursor_.look_up(a, sequence_, (tile_at(a, sequence_, tile) << log) + copy_, tile_tokens >> log);
  }
  PageCursor<tile_tokens> cursor_;
  int next_tile_ = 0, step_ = 0, sequence_ = 0;
  int copy_ = 0;  ///< index of the lane's copies in their tiles
  TokenLocation now_{}, next_{};
};

/// Whether the next tile of a segment holds one of the newest 16 tokens of its sequence, which the previous kernel may
/// still write. These lie in the last two tiles, unless the length is a multiple of 16. Skipped tiles change nothing:
/// the length does not count their tokens.
PAGODA_DEVICE bool has_newest_16_tokens(const Segment& s) { return 16 * (s.first_tile + 2) > s.len; }

/// Starts the copies of all tiles of a warp in the order of their use, across segments.
template <class Walk, int Stages, bool SmallPages>
struct TileProducer {
  Walk walk;
  typename Walk::Segment segment;  ///< segment of the next tile to copy; first_tile is that tile
  PageLookahead<SmallPages> pages;
  int tiles_done = 0;      ///< tiles of the segment that are done
  bool more      = false;  ///< there is a next tile; while lengths are unknown: a next segment

  PAGODA_DEVICE explicit TileProducer(const Walk& from) : walk(from) {}

  /// Finds the next segment, and asks for its page ids before its length is known.
  template <class Args>
  PAGODA_DEVICE void next_segment(const Args& args, int lane) {
    more = walk.next(args, segment);
    if (more) pages.begin(args, segment, lane);
  }
  template <class Args>
  PAGODA_DEVICE void skip_empty_segments(const Args& args, int lane) {
    while (more && segment.first_tile >= segment.end_tile()) next_segment(args, lane);
    tiles_done = 0;
  }
  template <class Args, class Copies>
  PAGODA_DEVICE void copy_next_tile(const Args& args, Copies& copies, Ring<Stages>& issued, int lane) {
    if (!more) return copies.begin_none();
    const int owner = pages.owner(args, tiles_done);
    if constexpr (SmallPages) {
      copies.begin(issued.slot, owner, pages.now(), segment.head,
                   [&] { return visible_tokens(args, segment.sequence, segment.first_tile, segment.len); });
    } else {
      copies.begin(issued.slot, lane == owner, owner, pages.now(), segment.head);
    }
    issued.next();
    segment.first_tile += segment.tile_step;
    if (segment.first_tile >= segment.end_tile()) {
      skip_empty_segments(args, lane);
    } else {
      pages.done(args, ++tiles_done);
    }
  }
};

}  // namespace pagoda::tuned::warp
