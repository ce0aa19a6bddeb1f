// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/convert.cuh"
#include "backends/cuda/tuned/wgmma/grouped/list_copies.cuh"
#include "backends/cuda/tuned/wgmma/grouped/list_join.cuh"
#include "backends/cuda/tuned/wgmma/softmax.cuh"
#include "backends/cuda/wgmma.cuh"

/// Decode attention for a list of entries. Lists have many segments of one or two tiles, so everything that a segment
/// needs is loaded while earlier segments are multiplied.
///
/// Two warpgroups multiply the rows of an entry together if it has more than 64. Otherwise one of them does, in turn;
/// the other one goes on to the next segment.
namespace pagoda::tuned::wgmma::grouped {

/// A warpgroup's part of the segments of a block. A lane has two rows, eight apart, of scores and of outputs, and two
/// tokens or dims of each eight.
template <Type T, int D, int Warpgroups>
class ListMultiplier {
 public:
  using Memory               = ListMemory<T, D, Warpgroups>;
  static constexpr bool bf16 = T == Type::bf16, converted = is_converted(T);

  PAGODA_DEVICE ListMultiplier(const ListArgs& args, Memory shared, int warp, int lane)
      : args_(args), shared_(shared), group_(warp / 4), warp_row_(warp % 4 * 16), lane_(lane), column_(lane & 3) {}

  /// Multiplies all segments of the block. Returns the unit of the ring of queries that has the joins.
  PAGODA_DEVICE int run() {
    for (Ring<Memory::units> from;; from.next()) {
      barrier_wait(shared_.assigned(from.slot), from.parity);
      const int4 a    = shared_.assignment(from.slot)[0];
      const int tiles = __shfl_sync(~0u, a.x, 0);
      if (tiles < 0) return __shfl_sync(~0u, a.y, 0);
      const Segment s{tiles,
                      __shfl_sync(~0u, a.y, 0),
                      __shfl_sync(~0u, a.z, 0),
                      a.w,
                      __shfl_sync(~0u, assignment(from.slot).hidden, 0),
                      from.slot};
      const bool together = Warpgroups == 1 || (s.rows & 0xffff) > tile_rows;
      if (together || (from.slot & 1) == group_) {
        attend(s, together);
      } else {
        pass(tiles);
      }
      __syncwarp();
      const int place = __shfl_sync(~0u, assignment(s.slot).place, 0);
      if (lane_ < place >> 16) barrier_arrive(shared_.unit_empty(((place >> 8 & 255) + lane_) % Memory::units));
    }
  }

 private:
  /// What is needed of an Assignment for its tiles. The rest is read again from `slot` where it is needed, which takes
  /// fewer registers.
  struct Segment {
    int tiles, tokens_left, rows, head, hidden, slot;
  };
  PAGODA_DEVICE const volatile Assignment& assignment(int slot) const {
    return *reinterpret_cast<const Assignment*>(shared_.assignment(slot));
  }
  static constexpr int bytes_of_8 = bytes_of_8_tokens(D);

  /// Waits for the warps that multiply the segment.
  PAGODA_DEVICE void sync(bool together) const {
    if (Warpgroups == 1 || together) {
      sync_block<compute_threads(Warpgroups)>();
    } else if (group_ == 0) {
      sync_threads<2, compute_threads(1)>();
    } else {
      sync_threads<3, compute_threads(1)>();
    }
  }
  /// The thread among those that multiply the segment, and their number.
  PAGODA_DEVICE int thread(bool together) const {
    return static_cast<int>(threadIdx.x) - (together ? 0 : group_ * compute_threads(1));
  }

  /// Leaves a segment to the other warpgroup. The wait keeps the warps from running a round of the ring ahead.
  PAGODA_DEVICE void pass(int tiles) {
#pragma unroll 1
    for (int i = 0; i < 2 * tiles; ++i) {
      barrier_wait(shared_.full(used_.slot), used_.parity);
      free_slot();
      if (i & 1) descriptions_.next();
    }
  }
  PAGODA_DEVICE void free_slot() {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(shared_.empty(used_.slot));
    used_.next();
  }

  PAGODA_DEVICE void attend(const Segment& s, bool together) {
    const int rows      = s.rows & 0xffff;
    const int first_row = warp_row_ + (together ? group_ * tile_rows : 0), row = first_row + (lane_ >> 2);
    const int queries =
        (assignment(s.slot).place & 255) * unit_bytes(D) + (together ? group_ * (tile_rows / 8) * bytes_of_8 : 0);
    const std::uint64_t q = matrix_descriptor(shared_.address + queries, bytes_of_8);
    const RowsOfLane mine{first_row < rows, row < rows, row + 8 < rows};
    fence_async_proxy();  // the queries were written by threads
    if constexpr (converted) scale_ = scale_of_keys(s.head);
    float max[2] = {initial_max, initial_max}, sum[2] = {0, 0}, o[1][D / 2];
    if (s.tiles == 0) [[unlikely]] {
#pragma unroll
      for (float& x : o[0]) x = 0;
    }
    if (s.rows & Assignment::chain) {
      add_chain(s, together, mine, q, row, max, sum, o[0]);
    } else {
      add_entry(s, together, mine, q, row, max, sum, o[0]);
    }
    if (!mine.any) return;

    float2 state[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) state[r] = make_float2(max[r], row_sum(sum[r]));
    if constexpr (converted) scale_values(s.head, state, o[0]);
    if (s.rows & Assignment::whole) {
      const LoadedRows at{shared_.rows(assignment(s.slot).place & 255)};
      store_outputs<1, 1>(list_outputs(args_, s.rows & Assignment::to_states), at, s.head, o, state, 0, row, rows,
                          column_);
    } else {
      const bool has_first_tile = (s.rows & Assignment::has_first_tile) != 0;
      store_partial<1, 1>(args_, {assignment(s.slot).index, s.head, has_first_tile, false}, o, state, 0, row, lane_);
    }
  }

  /// Rows of the entry that the warp and the lane have.
  struct RowsOfLane {
    bool any, first, second;
  };

  /// Adds all tiles of a segment of an entry that stands alone. row: the lane's first.
  PAGODA_DEVICE void add_entry(const Segment& s, bool together, const RowsOfLane& mine, std::uint64_t q, int row,
                               float (&max)[2], float (&sum)[2], float (&o)[D / 2]) {
    volatile int* const cleared = shared_.cleared(Warpgroups == 1 ? 0 : together ? Warpgroups : group_);
    if (s.hidden > 0) [[unlikely]] {
      sync(together);  // all have seen the segment before
      *cleared = 0;
      sync(together);
    }
    for (int i = 0; i < s.tiles; ++i, descriptions_.next()) {
      const int tokens_left = s.tokens_left - i * tile_tokens;
      const auto clear = [&](std::uint32_t values) { clear_unseen_values(s, together, cleared, values, tokens_left); };
      const auto hide  = [&](auto& x) {
        SeenTokens seen[2];
        if (s.hidden > 0) [[unlikely]]
          load_seen(s, row, seen);
        mask_unseen(x, tokens_left, seen);
      };
      const auto add = [&]<int Tokens>() {
        const bool unseen = tokens_left < Tokens + s.hidden;
        add_tile<Tokens>(unseen, unseen, clear, hide, mine, q, i, max, sum, o);
      };
      if (tokens_left > half_tokens) {
        add.template operator()<tile_tokens>();
      } else {
        add.template operator()<half_tokens>();
      }
    }
    if (mine.any && s.hidden > 0 && *cleared != 0) [[unlikely]] {
      SeenTokens seen[2];
      load_seen(s, row, seen);
      add_non_finite(s, o, seen);
    }
  }

  /// Adds all tiles of a segment of a chain.
  PAGODA_DEVICE void add_chain(const Segment& s, bool together, const RowsOfLane& mine, std::uint64_t q, int row,
                               float (&max)[2], float (&sum)[2], float (&o)[D / 2]) {
    for (int i = 0; i < s.tiles; ++i) add_chain_tile(s, together, mine, q, i, row, max, sum, o);
    if (!mine.any) return;
    float zero[2] = {0, 0};  // NaN if an output of the row is not finite. Rows behind the last one may hold anything.
#pragma unroll
    for (int e = 0; e < D / 2; ++e) zero[e >> 1 & 1] += 0 * o[e];
    if (__any_sync(~0u, (mine.first && zero[0] != 0) || (mine.second && zero[1] != 0))) [[unlikely]]
      decode_again(s, row - (lane_ >> 2), max, sum, o);
  }

  /// Adds tile i of a segment of a chain: one half or two, each with its own query rows.
  PAGODA_DEVICE void add_chain_tile(const Segment& s, bool together, const RowsOfLane& mine, std::uint64_t q, int i,
                                    int row, float (&max)[2], float (&sum)[2], float (&o)[D / 2]) {
    barrier_wait(shared_.full(used_.slot), used_.parity);
    const int word = shared_.chain_tile(descriptions_.slot)[lane_ & 1];
    const auto one = HalfTile::of(__shfl_sync(~0u, word, 0)), other = HalfTile::of(__shfl_sync(~0u, word, 1));
    const int rows  = s.rows & 0xffff;
    const bool two  = other.tokens > 0;
    const bool full = one.tokens == half_tokens && (!two || other.tokens == half_tokens);
    const bool all  = full && one.begin == 0 && one.end == rows && (!two || (other.begin == 0 && other.end == rows));
    descriptions_.next();
    // Tokens of a half that a row sees.
    const auto seen = [&](const HalfTile& half, int r) { return r >= half.begin && r < half.end ? half.tokens : 0; };
    const int first_row = row - (lane_ >> 2);
    const auto of_warp  = [&](const HalfTile& half) { return first_row < half.end && first_row + 16 > half.begin; };
    // Rows that see nothing of the tile have scores of -infinity, so they raise no maximum.
    const RowsOfLane sees = {mine.any && (of_warp(one) || (two && of_warp(other))), mine.first, mine.second};
    const auto hide       = [&]<int N>(float (&x)[N]) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int h = 0; h < N / 16; ++h) {
          // Unpacked again, which takes fewer registers.
          const int tokens = seen(HalfTile::of(__shfl_sync(~0u, word, h)), row + 8 * r) - 2 * column_;
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (8 * (e / 2) + (e & 1) >= tokens) x[16 * h + 4 * (e / 2) + 2 * r + (e & 1)] = -INFINITY;
        }
    };
    const auto clear = [&](std::uint32_t values) {
      const int t     = thread(together);
      const auto zero = [&]<int Threads>() {
        clear_tokens<D, D, Threads>(values, one.tokens, half_tokens, t);
        if (two) clear_tokens<D, D, Threads>(values, half_tokens + other.tokens, tile_tokens, t);
      };
      change_values(together, zero);
    };
    if (two) {
      add_tile<tile_tokens>(!all, !full, clear, hide, sees, q, i, max, sum, o);
    } else {
      add_tile<half_tokens>(!all, !full, clear, hide, sees, q, i, max, sum, o);
    }
  }

  /// Adds the first `Tokens` tokens of tile i of the segment to running maxima, sums and outputs. hides: some rows do
  /// not see some of them, and hide(scores) makes their scores -infinity. clears: clear(values) zeroes values that must
  /// not be multiplied. mine: the rows that see any.
  template <int Tokens>
  PAGODA_DEVICE void add_tile(bool hides, bool clears, const auto& clear, const auto& hide, const RowsOfLane& mine,
                              std::uint64_t q, int i, float (&max)[2], float (&sum)[2], float (&o)[D / 2]) {
    const std::uint64_t k = matrix_descriptor(shared_.tile(used_.slot), bytes_of_8);
    barrier_wait(shared_.full(used_.slot), used_.parity);
    float x[Tokens / 2];
    start_scores<bf16, D>(x, q, k);
    Ring<Memory::slots> values = used_;
    values.next();
    const std::uint64_t v = matrix_descriptor(shared_.tile(values.slot), bytes_of_8, run_bytes);
    if (clears) {  // beside the products
      barrier_wait(shared_.full(values.slot), values.parity);
      clear(shared_.tile(values.slot));
    }
    wgmma_wait<0>();
    wgmma_fence_registers(x);
    free_slot();

    std::uint32_t p[Tokens / 4] = {};
    bool raised                 = false;
    float correction[2]         = {1, 1};
    if (mine.any) {
      if (hides) hide(x);
      raised = update_max(x, mine, max, sum, correction);
      exponentiate<bf16>(x, scale(), max, sum, p);
    }
    if (raised && i > 0) {
#pragma unroll
      for (int e = 0; e < D / 2; ++e) o[e] *= correction[e >> 1 & 1];
    }
    barrier_wait(shared_.full(used_.slot), used_.parity);
    wgmma_fence_registers(o);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < Tokens / 16; ++j)
      wgmma_register_a<bf16>(o, p + 4 * j, advance_descriptor(v, j * 2 * bytes_of_8), i > 0 || j > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_registers(o);
    free_slot();
  }

  /// Zeroes the values that would turn products with probabilities of 0 into NaN: those behind the last token, and
  /// infinities and NaNs of tokens that some row does not see.
  PAGODA_DEVICE void clear_unseen_values(const Segment& s, bool together, volatile int* cleared, std::uint32_t values,
                                         int tokens_left) const {
    const int t      = thread(together);
    const auto clear = [&]<int Threads>() {
      clear_values<D, D, Threads>(values, tokens_left, t);
      if (s.hidden > 0) {
        const bool found = clear_non_finite<bf16, D, D, Threads>(values, ::max(tokens_left - s.hidden, 0),
                                                                 min(tokens_left, tile_tokens), t);
        if (__any_sync(~0u, found)) *cleared = 1;
      }
    };
    change_values(together, clear);
  }

  /// Calls change<Threads>() on all threads that multiply the segment. Their next products read what it has stored.
  PAGODA_DEVICE void change_values(bool together, const auto& change) const {
    if (Warpgroups == 1 || together) {
      change.template operator()<compute_threads(Warpgroups)>();
    } else {
      change.template operator()<compute_threads(1)>();
    }
    fence_async_proxy();
    sync(together);
  }

  /// What the lane's rows see of an entry that goes to the end of its sequence.
  PAGODA_DEVICE void load_seen(const Segment& s, int row, SeenTokens (&seen)[2]) const {
    const Entry entry = list_entry(args_, assignment(s.slot).index);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (row + 8 * r < (s.rows & 0xffff))
        seen[r] =
            seen_tokens(args_, entry.sequence, list_query(args_, entry.query_begin + args_.heads.divide(row + 8 * r)));
  }
  template <int N>
  PAGODA_DEVICE void mask_unseen(float (&x)[N], int tokens_left, const SeenTokens (&seen)[2]) const {
    std::uint64_t bits[2];  // bit 0: the lane's first token
#pragma unroll
    for (int r = 0; r < 2; ++r) bits[r] = seen[r].of_tile(args_.masks, tokens_left) >> 2 * column_;
#pragma unroll
    for (int e = 0; e < N; ++e)
      if ((bits[e >> 1 & 1] >> (8 * (e / 4) + (e & 1)) & 1) == 0) x[e] = -INFINITY;
  }

  /// Raises the running maxima to those of the tile's scores x if needed, and rescales the sums. correction: factor of
  /// the outputs. Returns whether the maximum of a row was raised. Rows that the entry does not have hold anything, and
  /// never cause it.
  template <int N>
  PAGODA_DEVICE bool update_max(const float (&x)[N], const RowsOfLane& mine, float (&max)[2], float (&sum)[2],
                                float (&correction)[2]) const {
    float largest[2];
    lane_max(x, scale(), largest);
    const bool raised = __any_sync(~0u, (mine.first && largest[0] > max[0] + rescale_threshold) ||
                                            (mine.second && largest[1] > max[1] + rescale_threshold));
    if (raised) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now = fmaxf(max[r], row_max(largest[r]));
        correction[r]   = exp2_fast(max[r] - now);
        max[r]          = now, sum[r] *= correction[r];
      }
    }
    return raised;
  }

  /// Adds the infinities and NaNs that clear_non_finite removed from the values of a segment to the rows that see their
  /// tokens. It reads them from the cache again. Their weights do not matter.
  PAGODA_DEVICE void add_non_finite(const Segment& s, float (&o)[D / 2], const SeenTokens (&seen)[2]) const {
    const EntryView entry = entry_of(args_, assignment(s.slot).index);
    PageCursor<copy_tokens> pages;
    pages.begin(args_, entry.sequence);
    const int begin = assignment(s.slot).first_tile * tile_tokens,
              end   = min(begin + s.tiles * tile_tokens, entry.tokens);
#pragma unroll 1
    for (int t = ::max(entry.tokens - s.hidden, begin); t < end; ++t) {
      const int token          = entry.first + t;
      const TokenLocation from = pages.look_up(args_, entry.sequence, token / copy_tokens);
      const char* const at     = static_cast<const char*>(args_.v.data) + from.page * args_.v.page +
                             (from.token + token % copy_tokens) * args_.v.token + s.head * args_.v.head;
      const bool seen0 = seen[0].contains(args_.masks, entry.tokens - t);
      const bool seen1 = seen[1].contains(args_.masks, entry.tokens - t);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        const float2 v = unpack<bf16>(load_two(at, 4 * j + column_));
        const float a = isfinite(v.x) ? 0.0f : v.x, b = isfinite(v.y) ? 0.0f : v.y;
        o[4 * j] += seen0 ? a : 0.0f, o[4 * j + 1] += seen0 ? b : 0.0f;
        o[4 * j + 2] += seen1 ? a : 0.0f, o[4 * j + 3] += seen1 ? b : 0.0f;
      }
    }
  }

  /// Computes the results of a segment of a chain from the cache again, token by token, with products of each row and
  /// the tokens that it sees only. So an infinity or a NaN reaches no other row.
  PAGODA_DEVICE void decode_again(const Segment& s, int first_row, float (&max)[2], float (&sum)[2],
                                  float (&o)[D / 2]) const {
    const Entry chain = stored_entry(args_, assignment(s.slot).index);
    const int rows    = s.rows & 0xffff;
    int row[2];
    const unsigned* q[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = first_row + (lane_ >> 2) + 8 * r, max[r] = initial_max, sum[r] = 0;
      const QueryRow of(args_, s.head, min(row[r], rows - 1));
      const int token = list_query(args_, chain.query_begin + of.token).token;
      q[r] = reinterpret_cast<const unsigned*>(static_cast<const std::uint16_t*>(args_.q.data) + token * args_.q.token +
                                               of.head * args_.q.head);
    }
#pragma unroll
    for (float& x : o) x = 0;
    PageCursor<copy_tokens> pages;
    int halves = 0;  // of the entries before
#pragma unroll 1
    for (int i = 0; i <= chain.chain; ++i) {
      const Entry entry   = stored_entry(args_, assignment(s.slot).index + i);
      const int tokens    = ::max(end_of(args_, entry) - entry.first, 0),
                end_half  = halves + HeadWork::chain_halves(tokens);
      const int begin_row = (entry.query_begin - chain.query_begin) * args_.heads.value,
                end_row   = begin_row + entry.num_queries * args_.heads.value;
      const int begin     = (::max(2 * assignment(s.slot).first_tile, halves) - halves) * half_tokens,
                end =
                    min((min(2 * (assignment(s.slot).first_tile + s.tiles), end_half) - halves) * half_tokens, tokens);
      pages.begin(args_, entry.sequence);
      halves = end_half;
      if (begin_row >= first_row + 16 || end_row <= first_row) continue;
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        const int token          = entry.first + t;
        const TokenLocation from = pages.look_up(args_, entry.sequence, token / copy_tokens);
        const auto at            = [&](const auto& of) {
          return static_cast<const char*>(of.data) + from.page * of.page +
                 (from.token + token % copy_tokens) * of.token + s.head * of.head;
        };
        const char *const k = at(args_.k), *const v = at(args_.v);
        float x[2] = {0, 0}, p[2], correction[2];
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
          const float2 key = unpack<bf16>(load_two(k, 4 * j + column_));
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float2 query = unpack<bf16>(__ldg(q[r] + 4 * j + column_));
            x[r] += query.x * key.x + query.y * key.y;
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const bool sees   = row[r] >= begin_row && row[r] < end_row;
          const float score = row_sum(x[r]) * scale(), now = sees ? fmaxf(max[r], score) : max[r];
          correction[r] = exp2_fast(max[r] - now);
          p[r]          = sees ? exp2_fast(score - now) : 0;
          max[r] = now, sum[r] = sum[r] * correction[r] + (column_ == 0 ? p[r] : 0);  // a row has four lanes
        }
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
          const float2 value = unpack<bf16>(load_two(v, 4 * j + column_));
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float &a = o[4 * j + 2 * r], &b = o[4 * j + 2 * r + 1];
            a *= correction[r], b *= correction[r];
            if (row[r] >= begin_row && row[r] < end_row) a += p[r] * value.x, b += p[r] * value.y;
          }
        }
      }
    }
  }

  /// Elements 2 i and 2 i + 1 of a row of values, as an operand has them.
  PAGODA_DEVICE static unsigned load_two(const char* row, int i) {
    if constexpr (!converted) return __ldg(reinterpret_cast<const unsigned*>(row) + i);
    return fp16_of_bytes<T, 0>(__ldg(reinterpret_cast<const std::uint16_t*>(row) + i));
  }

  /// Factor of products, which makes scores of them, to base 2.
  PAGODA_DEVICE float scale() const {
    if constexpr (!converted) return args_.scale;
    return scale_;
  }
  /// The same for converted keys of a kv head. Their scale may be 0, but 0 times a hidden token's -infinity is NaN.
  PAGODA_DEVICE float scale_of_keys(int head) const {
    return args_.k.scale ? fmaxf(args_.scale * __ldg(args_.k.scale + head * args_.k.scale_head), 0x1p-126f)
                         : args_.scale;
  }
  /// Multiplies converted values by their scale. Rows that see no token stay 0.
  PAGODA_DEVICE void scale_values(int head, const float2 (&state)[2], float (&o)[D / 2]) const {
    if (!args_.v.scale) return;
    const float scale      = __ldg(args_.v.scale + head * args_.v.scale_head);
    const float factors[2] = {state[0].y == 0 ? 1 : scale, state[1].y == 0 ? 1 : scale};
#pragma unroll
    for (int e = 0; e < D / 2; ++e) o[e] *= factors[e >> 1 & 1];
  }

  const ListArgs& args_;
  const Memory shared_;
  const int group_, warp_row_, lane_, column_;
  Ring<Memory::slots> used_;
  Ring<Memory::chain_tiles> descriptions_;
  float scale_ = 0;  ///< of converted keys
};

/// Carries out the share of a block. A barrier of the block has followed `Memory::init`. Registers: of the threads that
/// multiply; 0: as compiled.
template <Type T, int D, int Warpgroups, int Registers>
PAGODA_DEVICE void carry_out_share(const ListArgs& args, const ListStart& start,
                                   const ListMemory<T, D, Warpgroups>& shared, int warp, int lane) {
  constexpr int compute_warps = compute_threads(Warpgroups) / 32;
  if (warp >= compute_warps) {
    if constexpr (Registers > 0) decrease_registers<copier_registers(Warpgroups, Registers)>();
    if (warp == compute_warps) {
      ListWalk<HeadWork> walk(start);
      copy_list_tiles(args, walk, shared, lane);
    } else if (warp == compute_warps + 1) {
      ListWalk<HeadWork> walk(start);
      QueryLoader<T, D, Warpgroups>(args, shared, lane).run(walk);
    } else if constexpr (is_converted(T)) {
      convert_list_tiles(shared, static_cast<int>(threadIdx.x) - (compute_warps + 2) * 32);
    }
    return;
  }
  if constexpr (Registers > 0) increase_registers<Registers>();
  const int joins = ListMultiplier<T, D, Warpgroups>(args, shared, warp, lane).run();
  join_list_heads<D, compute_warps>(args, shared.joins(joins));
}

template <Type T, int D, int Warpgroups>
PAGODA_DEVICE void decode_list(const ListArgs& args) {
  constexpr int threads = list_threads(T, Warpgroups);
  using Memory          = ListMemory<T, D, Warpgroups>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const Memory shared{memory, shared_address(memory)};
  if (warp == 0) shared.init(lane);
  if (threadIdx.x == 0) prefetch_map(&args.k_map), prefetch_map(&args.v_map);
  // The ring of queries is still free.
  constexpr int capacity = Memory::layout.ring / 4 - start_memory(threads, 1);
  const ListStart start = find_start<threads, capacity>(OneRole<HeadWork>{1, args.heads_at_once, min_block_units}, args,
                                                        reinterpret_cast<int*>(memory), warp);
  constexpr int registers = is_converted(T) ? byte_multiplier_registers(Warpgroups) : 0;
  carry_out_share<T, D, Warpgroups, registers>(args, start, shared, warp, lane);
}

template <Type T, int D, int Warpgroups>
__global__ void __launch_bounds__(list_threads(T, Warpgroups), blocks_per_sm(Warpgroups))
    list_kernel(const __grid_constant__ ListArgs args) {
#if PAGODA_SM90A
  decode_list<T, D, Warpgroups>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::wgmma::grouped
