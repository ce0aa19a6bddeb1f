// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

namespace pagoda::detail {

/// Dims d .. d + W of a row. Wide: rows are dense and aligned and head_dim is a multiple of W; otherwise element by
/// element, with zeros past head_dim.
template <class Vec, int W, bool Wide, class T>
KOKKOS_INLINE_FUNCTION Vec load_dims(const T* row, int d, std::int64_t dim_stride, int head_dim) {
  if constexpr (Wide) {
    return Vec::load(row + d);
  } else {
    auto v = Vec::all(0);
    for (int j = 0; j < W; ++j)
      if (d + j < head_dim) v.set(j, row[(d + j) * dim_stride]);
    return v;
  }
}

/// Where the row of one token lies: element offsets from the bases of keys and values.
struct TokenRow {
  std::int64_t k, v;
};

/// The fragment in plain code: how a tile of queries meets a tile of keys, and probabilities a tile of values, with
/// nothing but nested Kokkos ranges and scratch memory. A worker (a team thread with its vector lanes) owns its scores,
/// its (max, sum) and its output; lanes are spread over tokens for the scores and over dims for the values, so no lane
/// ever needs another's registers, and nothing depends on how many lanes there are.
///
/// Machine gives the widths; R is the number of query rows that share one pass over the keys. What a fragment for
/// matrix instructions has to offer instead is the public interface of this class: its accumulators may be laid out in
/// any way.
template <class Machine, class T, int R, bool Wide>
class PortableFragment {
 public:
  using Acc                        = accumulator_t<T>;
  using Member                     = typename Machine::Member;
  static constexpr int rows        = R;
  static constexpr int tile_tokens = Machine::tile_tokens;
  static constexpr int key_width   = Machine::template key_width<T>;
  static constexpr int value_width = Machine::template value_width<T>;
  static constexpr int score_width = Machine::template score_width<R>;  ///< a multiple of R
  using KeyVec                     = typename Machine::template Vec<Acc, key_width>;
  using ValueVec                   = typename Machine::template Vec<Acc, value_width>;
  using ScoreVec = typename Machine::template Vec<Acc, score_width>;  ///< element j belongs to row j % R

  /// One value per query row, the same in every lane.
  struct Rows {
    Acc at[R];
    KOKKOS_FUNCTION Acc& operator[](int r) { return at[r]; }
    KOKKOS_FUNCTION const Acc& operator[](int r) const { return at[r]; }
  };

  static constexpr int padded(int dims, int width) { return (dims + width - 1) / width * width; }

  /// Bytes of team scratch for a team of `workers`.
  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int workers) {
    const std::size_t worker = sizeof(Acc) * (R * padded(head_dim_v, value_width) + R * tile_tokens + 2 * R) +
                               sizeof(std::int64_t) * tile_tokens;
    return sizeof(Acc) * R * padded(head_dim, key_width) + workers * ((worker + 15) / 16 * 16) + 16;
  }

  KOKKOS_FUNCTION PortableFragment(const Member& team, int head_dim, int head_dim_v)
      : team_(team), head_dim_(head_dim), head_dim_v_(head_dim_v) {
    const int q_bytes      = static_cast<int>(sizeof(Acc)) * R * q_stride();
    const int output_bytes = static_cast<int>(sizeof(Acc)) * R * o_stride();
    const int score_bytes  = static_cast<int>(sizeof(Acc)) * R * tile_tokens;
    worker_bytes_          = (output_bytes + score_bytes + static_cast<int>(sizeof(Acc)) * 2 * R +
                     static_cast<int>(sizeof(std::int64_t)) * tile_tokens + 15) /
                    16 * 16;
    base_ = static_cast<char*>(team.team_scratch(int(Machine::scratch_level))
                                   .get_shmem_aligned(q_bytes + team.team_size() * worker_bytes_, 16));
    q_    = reinterpret_cast<Acc*>(base_);
    base_ += q_bytes;
    o_        = output_of(team.team_rank());
    s_        = o_ + R * o_stride();
    v_offset_ = reinterpret_cast<std::int64_t*>(s_ + R * tile_tokens);  // R * tile_tokens is even: stays aligned
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, R * o_stride()), [&](int i) { o_[i] = Acc(0); });
    for (int r = 0; r < R; ++r) max_[r] = -Kokkos::Experimental::infinity_v<Acc>, sum_[r] = Acc(0);
  }

  /// Team-wide: query(r, d) is element d of query row r, scaled.
  template <class Query>
  KOKKOS_FUNCTION void load_queries(const Query& query) {
    const int stride = q_stride(), dims = head_dim_;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team_, R * stride), [&](int i) {
      const int r = i / stride, d = i % stride;
      q_[i] = d < dims ? query(r, d) : Acc(0);
    });
    team_.team_barrier();
  }

  /// Scores of all rows with `count` tokens; row_of(n) tells where the rows of token n < `ahead` lie (ahead >= count:
  /// those behind the tile may be prefetched). Tokens beyond count score -infinity.
  template <class RowOf>
  KOKKOS_FUNCTION void multiply_keys(const T* k, const T* v, std::int64_t dim_stride, int count, int ahead,
                                     const RowOf& row_of) {
    const int stride = q_stride(), dims = head_dim_;
    const Acc* const q = q_;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, tile_tokens), [&](int n) {
      typename KeyVec::Dot dot[R];
      if (n < count) {
        if constexpr (Wide && Machine::prefetch_distance > 0) {
          if (n + Machine::prefetch_distance < ahead) {
            const TokenRow next = row_of(n + Machine::prefetch_distance);
            Machine::prefetch(k + next.k, dims);
            Machine::prefetch(v + next.v, head_dim_v_);
          }
        }
        const TokenRow row = row_of(n);
        v_offset_[n]       = row.v;
        const T* const key = k + row.k;
        PAGODA_UNROLL(8)
        for (int d = 0; d < dims; d += key_width) {
          const KeyVec x = load_dims<KeyVec, key_width, Wide>(key, d, dim_stride, dims);
          for (int r = 0; r < R; ++r) dot[r].add_product(x, KeyVec::load(q + r * stride + d));
        }
      }
      for (int r = 0; r < R; ++r) s_[n * R + r] = n < count ? dot[r].total() : -Kokkos::Experimental::infinity_v<Acc>;
    });
  }

  /// change(r, n, score) for every row and the first `count` tokens of the tile.
  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, count), [&](int n) {
      for (int r = 0; r < R; ++r) change(r, n, s_[n * R + r]);
    });
  }

  /// One step of the online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax"), in base 2:
  /// scores become probabilities relative to the running maximum; the output's rescaling waits for multiply_values.
  KOKKOS_FUNCTION void softmax() {
    constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
    constexpr int vectors  = R * tile_tokens / score_width;
    auto most              = ScoreVec::all(-infinity);
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
      Acc tile = Acc(0);  // apart, so that rounding grows with the number of tiles only
      for (int j = r; j < score_width; j += R) tile += total[j];
      sum_[r] = sum_[r] * correction_[r] + tile;
    }
    Machine::sync_worker(team_);
  }

  /// output = output * correction + probabilities x values, for the tokens of the last multiply_keys.
  KOKKOS_FUNCTION void multiply_values(const T* v, std::int64_t dim_stride, int count) {
    const int dims = head_dim_v_, chunks = (dims + value_width - 1) / value_width, stride = o_stride();
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, chunks), [&](int chunk) {
      const int d = chunk * value_width;
      // A tile is summed apart and then added, so rounding grows with the number of tiles, not of tokens.
      ValueVec o[R];
      for (int r = 0; r < R; ++r) o[r] = ValueVec::all(0);
      PAGODA_UNROLL(8)
      for (int n = 0; n < count; ++n) {
        const ValueVec x = load_dims<ValueVec, value_width, Wide>(v + v_offset_[n], d, dim_stride, dims);
        for (int r = 0; r < R; ++r) o[r].add_product(s_[n * R + r], x);
      }
      for (int r = 0; r < R; ++r) {
        o[r].add_product(correction_[r], ValueVec::load(o_ + r * stride + d));
        o[r].store(o_ + r * stride + d);
      }
    });
  }

  /// Team-wide, once, at the end: joins the workers' states and hands out(r, d, value) the normalised output of each
  /// row and lse(r, value) its natural log-sum-exp. extra(r) is the logit (natural) of a token without value, or
  /// -infinity.
  template <class Extra, class Out, class Lse>
  KOKKOS_FUNCTION void finish(const Extra& extra, const Out& out, const Lse& lse) {
    constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
    constexpr Acc log2e    = Kokkos::numbers::log2e_v<Acc>;
    const int workers      = team_.team_size();
    Kokkos::single(Kokkos::PerThread(team_), [&] {
      Acc* const state = state_of(team_.team_rank());
      for (int r = 0; r < R; ++r) state[2 * r] = max_[r], state[2 * r + 1] = sum_[r];
    });
    team_.team_barrier();
    const int dims = head_dim_v_, stride = o_stride();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team_, R * dims), [&](int i) {
      const int r = i / dims, d = i % dims;
      const Acc logit = extra(r) * log2e;
      Acc most        = logit;
      for (int w = 0; w < workers; ++w) most = Kokkos::max(most, state_of(w)[2 * r]);
      const Acc base = most == -infinity ? Acc(0) : most;
      Acc sum = Kokkos::exp2(logit - base), value = Acc(0);
      for (int w = 0; w < workers; ++w) {
        const Acc* const state = state_of(w);
        const Acc weight       = Kokkos::exp2(state[2 * r] - base);
        sum += weight * state[2 * r + 1];
        value += weight * output_of(w)[r * stride + d];
      }
      out(r, d, sum > Acc(0) ? value / sum : Acc(0));
      if (d == 0) lse(r, sum > Acc(0) ? (base + Kokkos::log2(sum)) / log2e : -infinity);
    });
  }

 private:
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

  KOKKOS_FUNCTION int q_stride() const { return padded(head_dim_, key_width); }
  KOKKOS_FUNCTION int o_stride() const { return padded(head_dim_v_, value_width); }
  KOKKOS_FUNCTION Acc* output_of(int worker) const { return reinterpret_cast<Acc*>(base_ + worker * worker_bytes_); }
  KOKKOS_FUNCTION Acc* state_of(int worker) const {
    // After the scores (R * tile_tokens) and the offsets of the values' rows.
    return reinterpret_cast<Acc*>(reinterpret_cast<char*>(output_of(worker) + R * o_stride() + R * tile_tokens) +
                                  sizeof(std::int64_t) * tile_tokens);
  }

  const Member& team_;
  int head_dim_, head_dim_v_, worker_bytes_;
  char* base_;
  Acc* q_;                  ///< [R][q_stride], shared by the team
  Acc* o_;                  ///< [R][o_stride], this worker's
  Acc* s_;                  ///< [tile_tokens][R], this worker's
  std::int64_t* v_offset_;  ///< [tile_tokens], this worker's
  Rows max_, sum_, correction_;
};

}  // namespace pagoda::detail
