// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_walk.cuh"
#include "backends/cuda/tuned/common/page_cursor.cuh"
#include "backends/cuda/tuned/common/partials.cuh"
#include "backends/cuda/tuned/common/ring.cuh"
#include "backends/cuda/tuned/common/seen_tokens.cuh"
#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/tuned/wgmma/tiles.cuh"

/// The two warps that load data: one copies tiles, the other one loads queries and assigns segments. Each waits only
/// for room in its own ring, so neither of them delays the other.
namespace pagoda::tuned::wgmma::grouped {

/// What the multiplying warps have to know of a segment.
struct alignas(16) Assignment {
  int tiles;        ///< negative: there are no more segments
  int tokens_left;  ///< tokens of the entry from the segment's first tile on
  int rows;         ///< query rows, and flags
  int head;
  int index;   ///< of the entry
  int hidden;  ///< newest tokens of the entry of which some query token does not see all
  int first_tile;
  int place;  ///< units of the ring of queries: that of the first row, and (<< 8) the first and (<< 16) the number to
              ///< free

  /// Flags of `rows`.
  static constexpr int to_states = 1 << 16, has_first_tile = 1 << 17, whole = 1 << 18, chain = 1 << 19;
};
static_assert(sizeof(Assignment) == 32);

/// 16 x 16 blocks of partial results that a warp joins at once, of the same 16 rows.
inline constexpr int blocks_of_join = 4;

/// What multiplying warps have to know to join the block's slice of a batch head: some of its runs of blocks_of_join
/// 16 x 16 blocks.
template <int Rows>
struct ListJoin {
  int first_block, block_step;  ///< blocks with splits: first_block + s * block_step
  int num_splits;               ///< 0: nothing to join
  int begin, end;               ///< the slice
  int head;
  int rows;           ///< query rows, and flags as in Assignment::rows
  int outputs[Rows];  ///< row of the outputs of each query token

  static constexpr int num_fields = 7;  ///< besides the outputs
};

/// Half of a tile of a chain, as the multiplying warps have to know it.
struct HalfTile {
  int tokens;
  int begin, end;  ///< the chain's query rows that see it

  PAGODA_DEVICE int packed() const { return tokens | begin << 8 | end << 16; }
  PAGODA_DEVICE static HalfTile of(int packed) { return {packed & 255, packed >> 8 & 255, packed >> 16 & 255}; }
};

/// A block's shared memory and the barriers in it.
template <Type T, int D, int Warpgroups>
struct ListMemory {
  static constexpr ListLayout layout = list_layout(T, D, Warpgroups);
  static constexpr int slots = list_slots(T, D, Warpgroups), units = query_units(Warpgroups);
  static constexpr int byte_slots        = grouped::byte_slots(T, Warpgroups);
  static constexpr int chain_tiles       = grouped::chain_tiles(T, D, Warpgroups);
  static constexpr int threads_that_load = 32;
  char* memory;
  std::uint32_t address;  ///< the same in shared memory
  PAGODA_DEVICE std::uint32_t queries(int unit) const { return address + unit * unit_bytes(D); }
  PAGODA_DEVICE std::uint32_t tile(int slot) const { return address + layout.ring + slot * tile_bytes(D); }
  PAGODA_DEVICE std::uint32_t byte_tile(int slot) const {
    return address + layout.bytes_ring + slot * byte_tile_bytes(D);
  }
  PAGODA_DEVICE int* rows(int unit) const { return reinterpret_cast<int*>(memory + layout.rows) + unit * unit_rows; }
  PAGODA_DEVICE int4* assignment(int i) const { return reinterpret_cast<int4*>(memory + layout.assignments) + 2 * i; }
  /// Of the halves of a chain's tile: HalfTile::packed().
  PAGODA_DEVICE volatile int* chain_tile(int i) const {
    return reinterpret_cast<int*>(memory + layout.chain_tiles) + 2 * i;
  }
  /// The two joins of a block. They take the place of a unit of queries.
  using Join = ListJoin<Warpgroups * tile_rows>;
  static_assert(2 * sizeof(Join) <= unit_bytes(D));
  PAGODA_DEVICE Join* joins(int unit) const { return reinterpret_cast<Join*>(memory + unit * unit_bytes(D)); }
  PAGODA_DEVICE volatile int* cleared(int i) const { return reinterpret_cast<int*>(memory + layout.cleared) + i; }
  PAGODA_DEVICE volatile int* end() const { return reinterpret_cast<int*>(memory + layout.end); }
  /// A tile's keys or values have been copied or converted to the slot.
  PAGODA_DEVICE std::uint32_t full(int slot) const { return address + layout.barriers + 8 * slot; }
  /// All warps have used the slot.
  PAGODA_DEVICE std::uint32_t empty(int slot) const { return full(slots + slot); }
  /// An assignment and its queries are complete.
  PAGODA_DEVICE std::uint32_t assigned(int i) const { return full(2 * slots + i); }
  /// All warps have used the unit's queries, and the assignments of which they are.
  PAGODA_DEVICE std::uint32_t unit_empty(int unit) const { return full(2 * slots + units + unit); }

  /// Bytes of keys or values have been copied to the slot, or there are no more.
  PAGODA_DEVICE std::uint32_t byte_full(int slot) const { return full(2 * slots + 2 * units + slot); }
  /// The slot's bytes have been converted.
  PAGODA_DEVICE std::uint32_t byte_empty(int slot) const { return byte_full(byte_slots + slot); }

  /// What copies fill: bytes that are converted, or tiles.
  static constexpr int copy_slots = is_converted(T) ? byte_slots : slots;
  PAGODA_DEVICE std::uint32_t copy_target(int slot) const { return is_converted(T) ? byte_tile(slot) : tile(slot); }
  PAGODA_DEVICE std::uint32_t copy_full(int slot) const { return is_converted(T) ? byte_full(slot) : full(slot); }
  PAGODA_DEVICE std::uint32_t copy_empty(int slot) const { return is_converted(T) ? byte_empty(slot) : empty(slot); }

  /// Called by one warp, before a barrier of the block.
  PAGODA_DEVICE void init(int lane) const {
    constexpr int warps = compute_threads(Warpgroups) / 32;
    static_assert(slots <= 32 && units <= 32);
    constexpr int fill = is_converted(T) ? converting_warps : 1;
    if (lane < slots) barrier_init(full(lane), fill), barrier_init(empty(lane), warps);
    if (lane < byte_slots) barrier_init(byte_full(lane)), barrier_init(byte_empty(lane), converting_warps);
    if (is_converted(T) && lane == 0) *end() = -1;
    if (lane < units) barrier_init(assigned(lane), threads_that_load + 1), barrier_init(unit_empty(lane), warps);
    fence_barrier_init();
  }
};

/// Starts to copy a box of tokens of a head. once: nobody else reads them.
template <int D>
PAGODA_DEVICE void copy_box(const ListArgs& args, std::uint32_t to, const CUtensorMap* map, const TokenLocation& from,
                            int head, std::uint32_t barrier, bool once) {
  const std::uint64_t policy = once ? copy_once_policy() : ordinary_policy();
  if (args.order == EightsMap::none) return copy_tensor_box(to, map, from.token, head, from.page, barrier, policy);
  const bool of_heads = args.order == EightsMap::runs_heads;
  copy_tensor_box_at(to, map, 0, of_heads ? head * (D / 64) : 0, from.token / 8,
                     of_heads ? from.page : from.page * args.num_kv_heads.value + head, barrier, policy);
}

/// Copies all tiles of a block in the order of their use, across segments, with one warp. Each lane knows the location
/// of eight tokens of every fourth tile, so page ids are looked up for four tiles at a time, while the four before are
/// copied. Only the first tile is copied before any other is looked up.
template <Type T, int D, int Warpgroups>
PAGODA_DEVICE void copy_list_tiles(const ListArgs& args, ListWalk<HeadWork>& walk, ListMemory<T, D, Warpgroups> shared,
                                   int lane) {
  using Memory             = ListMemory<T, D, Warpgroups>;
  using Chain              = ChainEntries<HeadWork>;
  constexpr bool bytes     = is_converted(T);
  constexpr int bytes_of_8 = (bytes ? byte_tile_bytes(D) : tile_bytes(D)) / (tile_tokens / 8);
  struct Copy {
    TokenLocation from;  ///< of the lane's tokens
    int head;
    int half;   ///< of the lane's tile: HalfTile::packed(), and whether nobody else reads it (once_bit)
    int tiles;  ///< and whether they are the last ones (last_bit)
  };
  constexpr int once_bit = 1 << 24, last_bit = 1 << 8;
  ListSegment s;
  Chain chain;
  int tile = 0, end = 0;
  const auto find = [&](int most) {  // the next tiles, up to four
    Copy c{};
    int sequence = 0, copy = 0;
#pragma unroll 1
    while (c.tiles < most) {
      if (tile == end) {
        if (!walk.next(args, lane, s)) {
          c.tiles |= last_bit;
          break;
        }
        tile = s.share.first_tile, end = s.share.end_tile;
        if (s.chain > 0) chain = walk.chain(s, lane);
        continue;  // it may have no tiles
      }
      const int count = min(most - c.tiles, end - tile), mine = (lane >> 3) - c.tiles;
      const bool wanted = mine >= 0 && mine < count;
      const int half = 2 * (tile + mine) + (lane >> 2 & 1), skip = half * half_tokens;
      typename Chain::Half h{s.entry.sequence, s.entry.first + skip, min(max(s.entry.tokens - skip, 0), half_tokens), 0,
                             0};
      bool once = s.to_end;
      if (s.chain > 0) h = chain.find(args, half, wanted, lane), once = h.end - h.begin == 1;
      if (wanted && h.tokens > 0) {
        sequence = h.sequence, copy = h.first / copy_tokens + (lane & 3), c.head = s.head;
        c.half =
            HalfTile{h.tokens, h.begin * args.heads.value, h.end * args.heads.value}.packed() | (once ? once_bit : 0);
      }
      tile += count, c.tiles += count;
    }
    __syncwarp();
    if (c.half != 0) {
      PageCursor<copy_tokens> pages;
      pages.begin(args, sequence);
      c.from = pages.look_up(args, sequence, copy);
    }
    return c;
  };
  Ring<Memory::copy_slots> to;
  Ring<Memory::chain_tiles> descriptions;
  [[maybe_unused]] int copied = 0;
  Copy now{};
#pragma unroll 1
  for (int round = 0;; ++round) {
    const Copy next = find(round == 0 ? 1 : round == 1 ? 0 : 4);  // its page ids arrive while `now` is copied
#pragma unroll 1
    for (int i = 0; i < (now.tiles & ~last_bit); ++i) {
      const int others = args.box_eights - 1;
      const bool copies =
          lane >> 3 == i && (lane & others) == 0 && 8 * (lane & 3) < HalfTile::of(now.half).tokens;  // the lane does
      const int boxes = __popc(__ballot_sync(~0u, copies));
      if constexpr (bytes) copied += 2;
      const auto copy_tile = [&](const CUtensorMap* map) {
        barrier_wait(shared.copy_empty(to.slot), to.parity ^ 1);  // in the first round all are empty
        if (lane == 0) barrier_expect_bytes(shared.copy_full(to.slot), boxes * args.box_eights * bytes_of_8);
        __syncwarp();
        if (copies)
          copy_box<D>(args, shared.copy_target(to.slot) + (lane & 7) * bytes_of_8, map, now.from, now.head,
                      shared.copy_full(to.slot), (now.half & once_bit) != 0);
        to.next();
      };
      // The slot is empty, so the tile whose description this one replaces has been multiplied.
      const int first = __shfl_sync(~0u, now.half, 8 * i), second = __shfl_sync(~0u, now.half, 8 * i + 4);
      barrier_wait(shared.copy_empty(to.slot), to.parity ^ 1);
      if (lane < 2) shared.chain_tile(descriptions.slot)[lane] = lane == 0 ? first : second;
      __syncwarp();
      descriptions.next();
      copy_tile(&args.k_map), copy_tile(&args.v_map);
    }
    if (now.tiles & last_bit) break;
    now = next;
  }
  if constexpr (bytes) {
    barrier_wait(shared.copy_empty(to.slot), to.parity ^ 1);
    if (lane == 0) *shared.end() = copied, barrier_arrive(shared.copy_full(to.slot));
  }
}

/// Loads the queries of all segments of a block, with one warp, and hands each segment to the multiplying warps. At the
/// end it tells these what they need for joins.
template <Type T, int D, int Warpgroups>
class QueryLoader {
 public:
  using Memory = ListMemory<T, D, Warpgroups>;

  PAGODA_DEVICE QueryLoader(const ListArgs& args, Memory shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  PAGODA_DEVICE void run(ListWalk<HeadWork>& walk) {
    ListSegment s;
    while (walk.next(args_, lane_, s)) {
      if (s.index != index_) load_query_tokens(s);
      const int rows = s.entry.queries * args_.heads.value;
      reserve(max((rows + unit_rows - 1) / unit_rows, 1));
      copy_rows(s, rows);
      // The copies of the rows have been started: now what is known later.
      if (s.index != index_) load_output_rows(s), index_ = s.index;
#pragma unroll
      for (int i = 0; i < per_lane; ++i)
        if (lane_ + 32 * i < s.entry.queries) shared_.rows(unit_)[lane_ + 32 * i] = output_rows_[i];
      if (lane_ == 0) {
        const HeadShare& h = s.share;
        const int flags    = (s.state >= 0 ? Assignment::to_states : 0) |
                          (h.has_first_tile ? Assignment::has_first_tile : 0) | (h.whole ? Assignment::whole : 0) |
                          (s.chain > 0 ? Assignment::chain : 0);
        int4* const to = shared_.assignment(to_.slot);
        to[0] = make_int4(h.end_tile - h.first_tile, s.entry.tokens - h.first_tile * tile_tokens, rows | flags, s.head);
        to[1] =
            make_int4(s.index, hidden_, h.first_tile, unit_ | (first_ % Memory::units) << 8 | (end_ - first_) << 16);
      }
      if (!s.share.whole) keep_for_join(s, rows, walk.heads_at_once());
      publish();
    }
    reserve(1);
    typename Memory::Join* const joins = shared_.joins(unit_);
    if (lane_ % 16 < Memory::Join::num_fields) reinterpret_cast<int*>(joins + lane_ / 16)[lane_ % 16] = join_;
#pragma unroll
    for (int place = 0; place < 2; ++place)
#pragma unroll
      for (int i = 0; i < per_lane; ++i) joins[place].outputs[lane_ + 32 * i] = joined_outputs_[place][i];
    if (lane_ == 0) shared_.assignment(to_.slot)[0] = make_int4(-1, unit_, 0, 0);
    publish();
  }

 private:
  static constexpr int per_lane = Warpgroups * tile_rows / 32;  ///< query tokens of an entry to each lane

  /// Waits until `count` units side by side are free. The ring's last units are left out if they are fewer. Units
  /// become free in order, so it suffices to wait for the last one.
  PAGODA_DEVICE void reserve(int count) {
    first_       = end_;
    const int at = first_ % Memory::units, left_out = at + count > Memory::units ? Memory::units - at : 0;
    unit_ = (at + left_out) % Memory::units, end_ = first_ + left_out + count;
    barrier_wait(shared_.unit_empty((end_ - 1) % Memory::units), ((end_ - 1) / Memory::units & 1) ^ 1);
  }

  PAGODA_DEVICE void load_query_tokens(const ListSegment& s) {
    int hidden = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      if (lane_ + 32 * i >= s.entry.queries) continue;
      const EntryQuery query = list_query(args_, s.entry.query_begin + lane_ + 32 * i);
      tokens_[i]             = query.token;
      hidden                 = max(hidden, seen_tokens(args_, s.entry.sequence, query).newest);
    }
    hidden_ = s.to_end ? __reduce_max_sync(~0u, hidden) : 0;
  }
  PAGODA_DEVICE void load_output_rows(const ListSegment& s) {
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
      if (lane_ + 32 * i < s.entry.queries) output_rows_[i] = output_row(args_, tokens_[i], s.state);
  }

  /// Keeps what the block needs to join its slice of the segment's batch head. An owner has heads_at_once blocks.
  PAGODA_DEVICE void keep_for_join(const ListSegment& s, int rows, int heads_at_once) {
    constexpr int runs_per_16_rows = block16s_per_16_rows(D) / blocks_of_join;
    const int owner                = static_cast<int>(blockIdx.x) / heads_at_once;
    const PendingJoin join{s.index, s.head, s.share.first_owner, s.share.last_owner};
    const JoinSlice slice(join, rows, runs_per_16_rows, owner);
    const int first_block = static_cast<int>(blockIdx.x) - (owner - join.first_block) * heads_at_once;
    const int flags       = s.state >= 0 ? Assignment::to_states : 0;
    const int fields[Memory::Join::num_fields] = {first_block, heads_at_once, join.num_splits(), slice.begin,
                                                  slice.end,   s.head,        rows | flags};
#pragma unroll
    for (int place = 0; place < 2; ++place) {
      if (s.share.has_first_tile != (place == 1)) continue;
#pragma unroll
      for (int i = 0; i < Memory::Join::num_fields; ++i)
        if (lane_ == 16 * place + i) join_ = fields[i];
#pragma unroll
      for (int i = 0; i < per_lane; ++i) joined_outputs_[place][i] = output_rows_[i];
    }
  }

  /// Starts to copy the rows. Eight lanes copy a row, 16 bytes of each of its runs of 64 dims. Rows beyond the entry's
  /// last keep what was there: nothing depends on them.
  PAGODA_DEVICE void copy_rows(const ListSegment& s, int rows) const {
    constexpr int at_once = 4;
    const int chunk       = lane_ % 8;
#pragma unroll 1
    for (int begin = 0; begin < rows; begin += 32) {
      // Each lane computes where one of 32 rows is. These belong to the same 32 query tokens.
      const QueryRow row(args_, s.head, min(begin + lane_, rows - 1));
      const int which = __shfl_sync(~0u, row.token >> 5, 0);
      int token       = tokens_[0];
#pragma unroll
      for (int i = 1; i < per_lane; ++i)
        if (which == i) token = tokens_[i];
      token                   = __shfl_sync(~0u, token, row.token & 31);
      const std::int64_t mine = token * args_.q.token + row.head * args_.q.head;
#pragma unroll 2
      for (int first = begin; first < min(rows, begin + 32); first += at_once) {
        const int r             = first + lane_ / 8;
        const std::int64_t from = __shfl_sync(~0u, mine, r & 31) + 8 * chunk;
        const char* const at    = reinterpret_cast<const char*>(static_cast<const std::uint16_t*>(args_.q.data) + from);
        const std::uint32_t to  = shared_.queries(unit_) + swizzled_offset<D>(r, chunk);
        if (r < rows) {
#pragma unroll
          for (int run = 0; run < D / 64; ++run) copy_async(to + run * run_bytes, at + 128 * run);
        }
      }
    }
  }

  /// Lets the multiplying warps have the assignment as soon as the queries have arrived.
  PAGODA_DEVICE void publish() {
    __syncwarp();
    barrier_arrive_after_copies(shared_.assigned(to_.slot));
    if (lane_ == 0) barrier_arrive(shared_.assigned(to_.slot));  // orders the warp's stores
    __syncwarp();
    to_.next();
  }

  const ListArgs& args_;
  const Memory shared_;
  const int lane_;
  Ring<Memory::units> to_;   ///< assignments: there are never more than units
  int first_ = 0, end_ = 0;  ///< units that the entry takes, counted from the beginning of the kernel
  int unit_ = 0;             ///< where its rows begin
  // Of entry index_:
  int index_ = -1, hidden_ = 0;
  int tokens_[per_lane] = {}, output_rows_[per_lane] = {};
  // Of the joins: the fields of ListJoin, the first one's in lanes from 0 on, the second one's from 16 on.
  int join_                        = 0;
  int joined_outputs_[2][per_lane] = {};
};

}  // namespace pagoda::tuned::wgmma::grouped
