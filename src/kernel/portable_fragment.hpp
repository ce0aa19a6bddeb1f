// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/unroll.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace pagoda::detail {

/// Loads dims d .. d + W of a row. Wide: rows are dense and aligned, and head_dim is a multiple of W. Otherwise loads
/// element by element, with zeros past head_dim. Rows with a format of their own are always dense and aligned.
template <class Vec, int W, bool Wide, class T>
KOKKOS_INLINE_FUNCTION Vec load_dims(const T* row, int d, [[maybe_unused]] std::int64_t dim_stride,
                                     [[maybe_unused]] int head_dim) {
  if constexpr (has_row_format_v<T>) {
    static_assert(RowPlaces<T>::block_dims % W == 0, "a vector has dims of one scale alone");
    return Vec::load_from_row(row, d);
  } else if constexpr (Wide) {
    return Vec::load(row + d / dims_per_element_v<T>);
  } else {
    auto v = Vec::all(0);
    for (int j = 0; j < W; ++j)
      if (d + j < head_dim) v.set(j, stored_dim(row, d + j, dim_stride));
    return v;
  }
}

/// The fragment in plain code. It multiplies a tile of queries by a tile of keys, and probabilities by a tile of
/// values, with only nested Kokkos ranges and scratch memory. A worker (a team thread with its vector lanes) owns its
/// scores, its (max, sum) and its output. Lanes are distributed over tokens for the scores and over dims for the
/// values, so lanes never exchange registers, and the code works with any number of lanes.
///
/// Machine defines the widths; R is the number of query rows that share one pass over the keys. Other fragments (with
/// matrix instructions or SIMD) have the public interface of this class; their accumulators may have any layout.
template <class Machine, class T, int R, bool Wide>
class PortableFragment : public FragmentDefaults<T> {
 public:
  using Acc    = accumulator_t<T>;
  using Member = typename Machine::Member;
  template <bool>
  using Instance                     = PortableFragment;
  static constexpr bool general_only = !Wide;  ///< compiled in the general instance only: the slower path
  static constexpr bool any_query    = true;   ///< queries of any type, in the instance without score options too
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  static constexpr int rows              = R;
  static constexpr int lane_rows         = R;  ///< rows that one lane holds scores of
  static constexpr int tile_tokens       = Machine::tile_tokens;
  static constexpr int scratch_alignment = 16;
  static constexpr int key_width         = Machine::template key_width<T>;
  static constexpr int value_width = Machine::template value_width<T>;  ///< a multiple of 4: states are joined in quads
  static constexpr int score_width = Machine::template score_width<R>;  ///< a multiple of R
  using KeyVec                     = typename Machine::template Vec<Acc, key_width>;
  using ValueVec                   = typename Machine::template Vec<Acc, value_width>;
  using ScoreVec = typename Machine::template Vec<Acc, score_width>;  ///< element j belongs to row j % R
  static_assert(block_dims % key_width == 0 && block_dims % value_width == 0, "a vector has dims of one block alone");

  /// One value per query row, the same in every lane.
  struct PerRow {
    Acc at[R];
    KOKKOS_FUNCTION Acc& operator[](int r) { return at[r]; }
    KOKKOS_FUNCTION const Acc& operator[](int r) const { return at[r]; }
  };

  /// Bytes of team scratch for a team of `workers`.
  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int workers, int /*heads*/) {
    const std::size_t worker =
        sizeof(Acc) * (R * padded(head_dim_v, value_width) + R * tile_tokens + 2 * R + scale_tokens) +
        (offset_arrays * sizeof(std::int64_t) + sizeof(unsigned)) * tile_tokens;
    return sizeof(Acc) * R * padded(head_dim, key_width) + workers * ((worker + 15) / 16 * 16) + 16;
  }

  /// Type to which probabilities are rounded before they are multiplied by the values.
  static constexpr DType probability_type     = dtype_v<Acc>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  /// Alignment in bytes that vector loads of rows require; 0: elements are read one by one, with any strides.
  static constexpr int row_alignment = Wide ? 16 : 0;
  static bool can_run(const FragmentShape& s) { return !Wide || s.aligned_vectors<T>(); }

  /// memory: scratch_bytes of team scratch.
  KOKKOS_FUNCTION PortableFragment(const Member& team, const KernelArgsOf<T>& args, char* memory)
      : team_(team), args_(args), head_dim_(args.head_dim), head_dim_v_(args.head_dim_v) {
    const int output_bytes = static_cast<int>(sizeof(Acc)) * R * o_stride();
    const int score_bytes  = static_cast<int>(sizeof(Acc)) * R * tile_tokens;
    worker_bytes_          = (output_bytes + score_bytes + static_cast<int>(sizeof(Acc)) * (2 * R + scale_tokens) +
                     static_cast<int>(offset_arrays * sizeof(std::int64_t) + sizeof(unsigned)) * tile_tokens + 15) /
                    16 * 16;
    q_        = reinterpret_cast<Acc*>(memory);
    base_     = memory + static_cast<int>(sizeof(Acc)) * R * q_stride();
    o_        = output_of(team.team_rank());
    s_        = o_ + R * o_stride();
    v_offset_ = reinterpret_cast<std::int64_t*>(s_ + R * tile_tokens);  // R * tile_tokens is even: stays aligned
    hidden_   = reinterpret_cast<unsigned*>(state_of(team.team_rank()) + R);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, R * o_stride()), [&](int i) { o_[i] = Acc(0); });
    for (int r = 0; r < R; ++r) max_[r] = -Kokkos::Experimental::infinity_v<Acc>, sum_[r] = Acc(0);
  }

  /// Index in the tile of the lane's j-th row.
  KOKKOS_FUNCTION static constexpr int lane_row(int j) { return j; }

  /// Team-wide, after load_queries. This worker's tiles of tokens begin at u, u + step ... before end. Fragments that
  /// load ahead start here. A fragment that `starts_speculatively` may get the queries before the lengths are known,
  /// and page ids here.
  template <class Where>
  KOKKOS_FUNCTION void begin(const Where&, int, int, int) {}

  /// Team-wide. Loads the queries. Scores must be multiplied by scale.
  template <class Rows>
  KOKKOS_FUNCTION void load_queries(const Rows& rows_of, Acc scale) {
    const int stride = q_stride(), dims = head_dim_;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team_, R * stride), [&](int i) {
      const int r = i / stride, d = i % stride;
      q_[i] = d < dims ? rows_of.template load_query<Acc>(r, d) * scale : Acc(0);
    });
    team_.team_barrier();  // all queries are written, before any worker multiplies them
  }

  /// Computes the scores of all rows with the tile of tokens that begins at u. Tokens from `end` on get -infinity.
  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    const int stride = q_stride(), dims = head_dim_, count = end - u;
    const Acc* const q = q_;
    const T* const k   = static_cast<const T*>(args_.k);
    const T* const v   = static_cast<const T*>(args_.v);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, tile_tokens), [&](int n) {
      typename KeyVec::Dot dot[R];
      [[maybe_unused]] Acc key_scale = Acc(1);
      if (n < count) {
        if constexpr (Wide && Machine::prefetch_distance > 0) {
          if (n + Machine::prefetch_distance < count) {
            const TokenRow next = where.row(where.place(u + n + Machine::prefetch_distance));
            if constexpr (has_row_format_v<T>) {
              Machine::prefetch(k + next.k, row_format_of(dtype_v<T>).bytes);
            } else {
              Machine::prefetch(k + next.k, dims / dims_per_element_v<T>);
              Machine::prefetch(v + next.v, head_dim_v_ / dims_per_element_v<T>);
            }
          }
        }
        const PagePlace place = where.place(u + n);
        const TokenRow row    = where.row(place);
        v_offset_[n]          = row.v;
        if constexpr (scaled) {
          const ScaleArray &ks = args_.k_scale, &vs = args_.v_scale;
          if (ks.per_token()) key_scale = ks.of_token(ks.offset(place.page, place.slot), where.kv_head);
          if (vs.per_token()) v_scale()[n] = vs.of_token(vs.offset(place.page, place.slot), where.kv_head);
        }
        [[maybe_unused]] std::int64_t key_block = 0;
        if constexpr (block_dims > 0) {
          key_block                  = args_.k_blocks.offset(place.page, place.slot, where.kv_head);
          v_offset_[tile_tokens + n] = args_.v_blocks.offset(place.page, place.slot, where.kv_head);
        }
        const T* const key = k + row.k;
        PAGODA_UNROLL(8)
        for (int d = 0; d < dims; d += key_width) {
          const KeyVec x = load_scaled<KeyVec, key_width>(key, d, args_.k_dim, dims, key_blocks(), key_block);
          for (int r = 0; r < R; ++r) dot[r].add_product(x, KeyVec::load(q + r * stride + d));
        }
      }
      for (int r = 0; r < R; ++r) {
        Acc score = dot[r].total();
        if constexpr (scaled) score *= key_scale;
        s_[n * R + r] = n < count ? score : -Kokkos::Experimental::infinity_v<Acc>;
      }
    });
  }

  /// Calls change(j, n, score) for every row (the lane's j-th) and the first `count` tokens of the tile.
  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, count), [&](int n) {
      for (int r = 0; r < R; ++r) change(r, n, s_[n * R + r]);
    });
  }

  /// One step of the online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax"), in base 2.
  /// Scores become probabilities relative to the running maximum; multiply_values rescales the output. hides: some row
  /// may not see some token of the tile. The score of such a token is -infinity, and multiply_values must skip its
  /// value, because 0 times NaN is NaN.
  KOKKOS_FUNCTION void softmax(bool hides) {
    constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
    if (hides)
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, tile_tokens), [&](int n) {
        unsigned hidden = 0;
        for (int r = 0; r < R; ++r) hidden |= static_cast<unsigned>(s_[n * R + r] == -infinity) << r;
        hidden_[n] = hidden;
      });
    constexpr int vectors = R * tile_tokens / score_width;
    auto most             = ScoreVec::all(-infinity);
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, vectors),
        [&](int i, ScoreVec& m) { m.raise_to(ScoreVec::load(s_ + i * score_width)); }, ScoreReducer<true>(most));
    auto base = ScoreVec::all(0);
    for (int r = 0; r < R; ++r) {
      Acc raised = max_[r];
      for (int j = r; j < score_width; j += R) raised = Kokkos::max(raised, most[j]);
      const Acc finite = raised == -infinity ? Acc(0) : raised;  // no token seen yet: every exponent is -infinity
      for (int j = r; j < score_width; j += R) base.set(j, finite);
      correction_[r] = Kokkos::exp2(max_[r] - finite);
      max_[r]        = raised;
    }
    auto total = ScoreVec::all(0);
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, vectors),
        [&](int i, ScoreVec& sum) {
          const auto p = ScoreVec::exp2_difference(ScoreVec::load(s_ + i * score_width), base);
          p.store(s_ + i * score_width);
          sum += p;
        },
        ScoreReducer<false>(total));
    for (int r = 0; r < R; ++r) {
      Acc tile = Acc(0);  // summed separately, so that rounding grows with the number of tiles only
      for (int j = r; j < score_width; j += R) tile += total[j];
      sum_[r] = sum_[r] * correction_[r] + tile;
    }
    Machine::sync_worker(team_);  // the worker's probabilities are written, before its lanes read them
  }

  /// output = output * correction + probabilities x values, for the tile of the last multiply_keys.
  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where&, int u, int end, bool hides) {
    const int dims = head_dim_v_, chunks = (dims + value_width - 1) / value_width, stride = o_stride();
    const int count  = Kokkos::min(int(tile_tokens), end - u);
    const T* const v = static_cast<const T*>(args_.v);
    if constexpr (scaled) weigh(count);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, chunks), [&](int chunk) {
      const int d = chunk * value_width;
      // A tile is summed separately and then added, so rounding grows with the number of tiles, not of tokens.
      ValueVec o[R];
      for (int r = 0; r < R; ++r) o[r] = ValueVec::all(0);
      const auto add = [&](int n, unsigned hidden) {
        const std::int64_t value_block = block_dims > 0 ? v_offset_[tile_tokens + n] : 0;
        const ValueVec x =
            load_scaled<ValueVec, value_width>(v + v_offset_[n], d, args_.v_dim, dims, value_blocks(), value_block);
        for (int r = 0; r < R; ++r)
          if ((hidden >> r & 1u) == 0) o[r].add_product(s_[n * R + r], x);
      };
      if (hides) {
        for (int n = 0; n < count; ++n) add(n, hidden_[n]);
      } else {
        PAGODA_UNROLL(8)
        for (int n = 0; n < count; ++n) add(n, 0);
      }
      for (int r = 0; r < R; ++r) {
        o[r].add_product(correction_[r], ValueVec::load(o_ + r * stride + d));
        o[r].store(o_ + r * stride + d);
      }
    });
  }

  /// Team-wide, called once at the end: returns the states of all workers.
  KOKKOS_FUNCTION StateArray<Acc> finish() {
    Kokkos::single(Kokkos::PerThread(team_), [&] {
      RowState<Acc>* const state = state_of(team_.team_rank());
      for (int r = 0; r < R; ++r) state[r] = {max_[r], sum_[r]};
    });
    team_.team_barrier();  // the states of all workers are written, before they are joined
    return {state_of(0), output_of(0), o_stride(), worker_bytes_ / static_cast<int>(sizeof(RowState<Acc>)),
            worker_bytes_ / static_cast<int>(sizeof(Acc))};
  }

 private:
  /// Multiplies probabilities by the scales of their tokens' values, if tokens have scales. The sum of probabilities is
  /// already computed.
  KOKKOS_FUNCTION void weigh(int count) {
    if (!args_.v_scale.per_token()) return;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, count), [&](int n) {
      const Acc scale = v_scale()[n];
      for (int r = 0; r < R; ++r) s_[n * R + r] *= scale;
    });
    Machine::sync_worker(team_);  // weighted, before other lanes read them
  }

  /// Elementwise maximum or sum over lanes.
  template <bool Max>
  struct ScoreReducer {
    using reducer          = ScoreReducer;
    using value_type       = ScoreVec;
    using result_view_type = Kokkos::View<ScoreVec, Kokkos::AnonymousSpace, Kokkos::MemoryUnmanaged>;
    ScoreVec* result;
    KOKKOS_FUNCTION explicit ScoreReducer(ScoreVec& r) : result(&r) {}
    KOKKOS_FUNCTION void join(ScoreVec& into, const ScoreVec& from) const {
      if constexpr (Max) {
        into.raise_to(from);
      } else {
        into += from;
      }
    }
    KOKKOS_FUNCTION void init(ScoreVec& value) const {
      value = ScoreVec::all(Max ? -Kokkos::Experimental::infinity_v<Acc> : Acc(0));
    }
    KOKKOS_FUNCTION value_type& reference() const { return *result; }
    KOKKOS_FUNCTION result_view_type view() const { return result_view_type(result); }
    KOKKOS_FUNCTION bool references_scalar() const { return true; }
  };

  static constexpr int scale_tokens = scaled ? tile_tokens : 0;
  /// Offset arrays for each token of the tile: of its value row and, if there are any, of its block scales.
  static constexpr int offset_arrays = block_dims > 0 ? 2 : 1;

  /// Loads dims from d on of a row and multiplies them by their common block scale. row: offset of the row's block
  /// scales.
  template <class Vec, int W, class Args>
  KOKKOS_FUNCTION static Vec load_scaled(const T* from, int d, std::int64_t dim_stride, int dims,
                                         [[maybe_unused]] const Args& blocks, [[maybe_unused]] std::int64_t row) {
    Vec x = load_dims<Vec, W, Wide>(from, d, dim_stride, dims);
    if constexpr (block_dims > 0) x.multiply(Vec::all(blocks.template of_dim<T>(row, d)));
    return x;
  }
  /// The block scales of keys or values; nothing where there are none.
  KOKKOS_FUNCTION auto key_blocks() const {
    if constexpr (block_dims > 0) {
      return args_.k_blocks;
    } else {
      return 0;
    }
  }
  KOKKOS_FUNCTION auto value_blocks() const {
    if constexpr (block_dims > 0) {
      return args_.v_blocks;
    } else {
      return 0;
    }
  }

  KOKKOS_FUNCTION int q_stride() const { return padded(head_dim_, key_width); }
  KOKKOS_FUNCTION int o_stride() const { return padded(head_dim_v_, value_width); }
  KOKKOS_FUNCTION Acc* output_of(int worker) const { return reinterpret_cast<Acc*>(base_ + worker * worker_bytes_); }
  KOKKOS_FUNCTION RowState<Acc>* state_of(int worker) const {
    // After the scores (R * tile_tokens), the offsets of the values' rows and their scales.
    return reinterpret_cast<RowState<Acc>*>(
        reinterpret_cast<char*>(output_of(worker) + R * o_stride() + R * tile_tokens + scale_tokens) +
        offset_arrays * sizeof(std::int64_t) * tile_tokens);
  }

  /// [tile_tokens], this worker's: scales of the tokens' values, behind the offsets of their rows.
  KOKKOS_FUNCTION Acc* v_scale() const { return reinterpret_cast<Acc*>(v_offset_ + offset_arrays * tile_tokens); }

  const Member& team_;
  const KernelArgsOf<T>& args_;
  int head_dim_, head_dim_v_, worker_bytes_;
  char* base_;
  Acc* q_;                  ///< [R][q_stride], shared by the team
  Acc* o_;                  ///< [R][o_stride], this worker's
  Acc* s_;                  ///< [tile_tokens][R], this worker's
  std::int64_t* v_offset_;  ///< [tile_tokens], this worker's
  unsigned* hidden_;        ///< [tile_tokens], this worker's: a bit for each row that does not see the token
  PerRow max_, sum_, correction_;
};

}  // namespace pagoda::detail
