// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/page_cursor.cuh"
#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/warp/tiles.cuh"
#include "backends/cuda/tuned/warp/visible_tiles.cuh"

namespace pagoda::tuned::warp {

using Segment = tuned::Segment<tile_tokens>;

/// Looks up page ids before their use. Each lane holds the location of one of the warp's next 32 tiles and loads that
/// of one of the 32 after them.
class PageLookahead {
 public:
  template <class Args>
  PAGODA_DEVICE void begin(const Args& a, const Segment& s, int lane) {
    next_tile_ = s.first_tile + lane * s.tile_step, step_ = 32 * s.tile_step, sequence_ = s.sequence;
    cursor_.begin(a, s.sequence);
    now_ = look_up(a);
  }
  /// The same without skipped tiles, if the lane has the location of the first of its tiles.
  PAGODA_DEVICE void begin(const Args& a, const Segment& s, int lane, TokenLocation first) {
    step_ = 32 * s.tile_step, next_tile_ = s.first_tile + lane * s.tile_step + step_, sequence_ = s.sequence;
    cursor_.begin(a, s.sequence);
    now_ = first;
  }
  template <class Args>
  PAGODA_DEVICE void load_next(const Args& a) {
    next_ = look_up(a);
  }
  PAGODA_DEVICE void advance() { now_ = next_; }
  PAGODA_DEVICE TokenLocation now() const { return now_; }

 private:
  template <class Args>
  PAGODA_DEVICE TokenLocation look_up(const Args& a) {
    const int tile = next_tile_;
    next_tile_ += step_;
    return cursor_.look_up(a, sequence_, tile_at(a, sequence_, tile));
  }
  PageCursor<tile_tokens> cursor_;
  int next_tile_ = 0, step_ = 0, sequence_ = 0;
  TokenLocation now_{}, next_{};
};

/// Whether the next tile of a segment holds one of the newest 16 tokens of its sequence, which the previous kernel may
/// still write. These lie in the last two tiles, unless the length is a multiple of 16. Skipped tiles change nothing:
/// the length does not count their tokens.
PAGODA_DEVICE bool has_newest_16_tokens(const Segment& s) { return 16 * (s.first_tile + 2) > s.len; }

/// Starts the copies of all tiles of a warp in the order of their use, across segments.
template <class Walk, int Stages>
struct TileProducer {
  Walk walk;
  typename Walk::Segment segment;  ///< segment of the next tile to copy; first_tile is that tile
  PageLookahead pages;
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
    const int owner = tiles_done & 31;  // lane that knows where the tile lies
    copies.begin(issued.slot, lane == owner, owner, pages.now(), segment.head);
    issued.next();
    segment.first_tile += segment.tile_step;
    if (segment.first_tile >= segment.end_tile()) {
      skip_empty_segments(args, lane);
    } else if ((++tiles_done & 15) == 0) {
      tiles_done & 16 ? pages.load_next(args) : pages.advance();
    }
  }
};

}  // namespace pagoda::tuned::warp
