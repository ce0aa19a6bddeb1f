// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_walk.cuh"
#include "backends/cuda/tuned/common/seen_tokens.cuh"
#include "backends/cuda/tuned/warp/list_args.hpp"
#include "backends/cuda/tuned/warp/list_tuning.hpp"
#include "backends/cuda/tuned/warp/producer.cuh"

namespace pagoda::tuned::warp {

/// A segment of a share, from the first copies for it until the warp multiplies it. In shared memory.
struct alignas(16) QueuedSegment {
  int index, head;              ///< entry and kv head
  int tiles;                    ///< of the segment
  int tokens_left;              ///< tokens of the entry from the segment's first tile on
  int has_first_tile, whole;    ///< of the batch head
  int first_owner, last_owner;  ///< owners that have a split; only if not whole
  int rows;                     ///< query rows
  int state;                    ///< Entry::state
  int newest, mask;             ///< SeenTokens of all rows: an entry has one query token, or hides nothing (why_not)
  int results[max_list_rows];   ///< of each row: row of the output, or of state 0 of its query token
};
static_assert(sizeof(QueuedSegment) == queued_segment_bytes);

/// What a warp has in shared memory.
template <int D>
struct WarpMemory {
  char* queue;  ///< queries [queued_segments][8 rows], then QueuedSegment [queued_segments]
  std::uint32_t ring, barriers;

  PAGODA_DEVICE char* queries(int i) const { return queue + i * query_bytes(D); }
  PAGODA_DEVICE QueuedSegment* segment(int i) const {
    return reinterpret_cast<QueuedSegment*>(queue + queued_segments * query_bytes(D)) + i;
  }
};

/// Copies the tiles and queries of a warp's share in the order of their use, across segments, and queues the segments.
/// Query tokens and pages of an entry are looked up while the entry before it is copied.
template <class TileShape, int D, int Stages>
class ListProducer {
 public:
  using Copies = TensorCopies<TileShape, Stages>;

  PAGODA_DEVICE ListProducer(const ListArgs& args, const ListStart& start, const WarpMemory<D>& memory, int lane)
      : walk_(start),
        copies_(args, memory.ring, memory.barriers, lane),
        memory_(memory),
        lane_(lane),
        workers_(start.workers) {}

  /// Copies until the ring of tiles or the queue is full, or there is no more.
  PAGODA_DEVICE void fill(const ListArgs& args) {
#pragma unroll 1
    while (in_flight_ < Stages) {
      if (tiles_left_ == 0) {
        if (no_more_ || queued_ == queued_segments || !begin_next(args)) return;
        continue;
      }
      const int owner = pages_.owner(args, tiles_done_);
      copies_.begin(issued_.slot, lane_ == owner, owner, pages_.now(), head_);
      issued_.next(), ++in_flight_, --tiles_left_;
      pages_.done(args, ++tiles_done_);
    }
  }
  /// Takes the next segment from the queue and begins its query rows. Returns null if there is none. The caller has
  /// called fill() since it has used the last tile. The segment stays in the queue's memory until the next fill().
  template <class Rows>
  PAGODA_DEVICE const QueuedSegment* next(Rows& rows) {
    if (queued_ == 0) return nullptr;
    const QueuedSegment* const s = memory_.segment(first_);
    --queued_;
    wait_for_group();
    __syncwarp();
    rows.begin_shared(memory_.queries(first_), s->rows);
    first_ = (first_ + 1) % queued_segments;
    return s;
  }
  /// Waits for the next tile. Returns where its keys lie; its values follow.
  PAGODA_DEVICE std::uint32_t wait_for_tile() const {
    copies_.wait(used_);
    return memory_.ring + used_.slot * 2 * TileShape::bytes;
  }
  /// Frees the tile.
  PAGODA_DEVICE void release_tile() { used_.next(), --in_flight_; }

 private:
  /// Waits for the copies of the segment that was taken last: those of queued_ further segments may be under way.
  PAGODA_DEVICE void wait_for_group() const {
    static_assert(queued_segments == 3);
    queued_ == 0 ? wait_copies<0>() : queued_ == 1 ? wait_copies<1>() : wait_copies<2>();
  }

  /// Queues the next segment.
  PAGODA_DEVICE bool begin_next(const ListArgs& args) {
    ListSegment s;
    if (!walk_.next(args, lane_, s)) {
      no_more_ = !walk_.take_late({args.late}, workers_, lane_);
      return !no_more_;
    }
    if (s.index != loaded_) load_entry(args, s);
    const int rows = s.entry.queries * args.heads.value, place = (first_ + queued_) % queued_segments;
    QueuedSegment* const to = memory_.segment(place);
    copy_queries(args, s.head, rows, memory_.queries(place), to->results, s.state);
    if (lane_ == 0) {  // lane 0 has the entry's first query token
      int4* const at     = reinterpret_cast<int4*>(to);
      const HeadShare& h = s.share;
      at[0] = make_int4(s.index, s.head, h.end_tile - h.first_tile, s.entry.tokens - h.first_tile * tile_tokens);
      at[1] = make_int4(h.has_first_tile, h.whole, h.first_owner, h.last_owner);
      at[2] = make_int4(rows, s.state, now_.seen.newest, now_.seen.mask);
    }
    ++queued_;
    tiles_left_ = s.share.end_tile - s.share.first_tile, tiles_done_ = 0, head_ = s.head;
    if (tiles_left_ == 0) return true;
    Segment from{};
    from.sequence = s.entry.sequence, from.tile_step = 1;
    from.first_tile = s.entry.first / tile_tokens + s.share.first_tile;
    if (s.share.first_tile == 0) {
      const int first =
          lane_ - args.copies_per_page.divide(lane_) * args.copies_per_page.value;  // entries begin at pages
      pages_.begin(args, from, lane_, {now_.page, first * tile_tokens});
    } else {
      pages_.begin(args, from, lane_);
    }
    return true;
  }

  /// What the segments of an entry have in common.
  struct EntryLookup {
    int token = 0;    ///< row of q of the lane's query token
    SeenTokens seen;  ///< of the lane's query token
    int page = 0;     ///< of the lane's tile of the first 32
  };
  /// Looks up the current entry, unless that has been done, and the next one.
  PAGODA_DEVICE void load_entry(const ListArgs& args, const ListSegment& s) {
    now_    = s.index == next_index_ ? next_ : look_up(args, s.entry, s.to_end);
    loaded_ = s.index;
    copies_.read_once(s.to_end);  // other entries may read the same tokens of a prefix
    EntryView next;
    bool to_end;
    next_index_ = -1;
    if (walk_.peek(args, next, to_end)) next_index_ = s.index + 1, next_ = look_up(args, next, to_end);
  }
  PAGODA_DEVICE EntryLookup look_up(const ListArgs& args, const EntryView& e, bool to_end) const {
    const EntryQuery query = list_query(args, e.query_begin + min(lane_, max(e.queries, 1) - 1));
    PageCursor<tile_tokens> pages;
    pages.begin(args, e.sequence);
    return {query.token, to_end ? seen_tokens(args, e.sequence, query) : SeenTokens{},
            pages.look_up(args, e.sequence, e.first / tile_tokens + lane_).page};
  }

  /// Starts to copy the query rows of a kv head, and the rows of their results.
  PAGODA_DEVICE void copy_queries(const ListArgs& args, int head, int rows, char* queries, int* results, int state) {
    constexpr int chunks = D / 8, at_once = 32 / chunks;
    const int chunk = lane_ % chunks;
#pragma unroll 1
    for (int first = 0; first < rows; first += at_once) {
      const int r = first + lane_ / chunks, token_of_entry = args.heads.divide(r);
      const int token = __shfl_sync(~0u, now_.token, token_of_entry);
      if (r >= rows) continue;
      const int of_head       = head * args.heads.value + r - token_of_entry * args.heads.value;
      const std::int64_t from = token * args.q.token + of_head * args.q.head + 8 * chunk;
      copy_async(shared_address(queries) + query_offset(r, chunk),
                 reinterpret_cast<const char*>(static_cast<const std::uint16_t*>(args.q.data) + from));
    }
    const int token = __shfl_sync(~0u, now_.token, args.heads.divide(lane_ % max_list_rows));
    if (lane_ < rows) {
      if (state < 0) {
        results[lane_] = token;
      } else {
        copy_word_async(shared_address(results + lane_), args.state_begin + token);
      }
    }
    commit_copies();
    __syncwarp();
  }

  ListWalk<ListWork> walk_;
  Copies copies_;
  PageLookahead<false> pages_;
  WarpMemory<D> memory_;
  int lane_;
  Ring<Stages> issued_, used_;
  int in_flight_ = 0;              ///< tiles in the ring
  int first_ = 0, queued_ = 0;     ///< segments in the queue
  int tiles_left_ = 0, head_ = 0;  ///< of the segment whose tiles are being copied
  int tiles_done_ = 0;
  int loaded_ = -1, next_index_ = -1;  ///< entries of now_ and next_
  EntryLookup now_, next_;
  bool no_more_ = false;
  int workers_;
};

}  // namespace pagoda::tuned::warp
