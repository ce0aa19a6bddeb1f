// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

namespace pagoda::detail {

/// W elements read as one aligned vector.
template <class T, int W>
struct alignas(sizeof(T) * W > 16 ? 16 : sizeof(T) * W) Pack {
  T at[W];
};

/// x[0 .. W) = row[d .. d + W) as the accumulator type. Wide: rows are dense and aligned, and head_dim is a multiple
/// of W; otherwise element by element, with zeros past head_dim.
template <bool Wide, int W, class Acc, class T>
KOKKOS_INLINE_FUNCTION void load_dims(const T* row, int d, std::int64_t dim_stride, int head_dim, Acc (&x)[W]) {
  if constexpr (Wide) {
    const auto pack = *reinterpret_cast<const Pack<T, W>*>(row + d);
    for (int j = 0; j < W; ++j) x[j] = static_cast<Acc>(pack.at[j]);
  } else {
    for (int j = 0; j < W; ++j) x[j] = d + j < head_dim ? static_cast<Acc>(row[(d + j) * dim_stride]) : Acc(0);
  }
}

/// Where the row of one token lies: element offsets from the bases of keys and values.
struct TokenRow {
  std::int64_t k, v;
};

/// The fragment in plain code: how a tile of queries meets a tile of keys, and probabilities a tile of values, with
/// nothing but nested Kokkos ranges and scratch memory. A worker (a team thread with its vector lanes) owns its scores,
/// its (max, sum) and its output; lanes are spread over tokens for the scores and over dims for the values, so no lane ever
/// needs another's registers, and nothing depends on how many lanes there are.
///
/// Machine gives the widths; R is the number of query rows that share one pass over the keys. What a fragment for
/// matrix instructions has to offer instead is the public interface of this class: its accumulators may be laid out in any way.
template <class Machine, class T, int R, bool Wide>
class PortableFragment {
 public:
  using Acc    = accumulator_t<T>;
  using Member = typename Machine::Member;
  static constexpr int rows        = R;
  static constexpr int tile_tokens = Machine::tile_tokens;
  static constexpr int key_width   = Machine::template key_width<T>;
  static constexpr int value_width = Machine::template value_width<T>;

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
                     static_cast<int>(sizeof(std::int64_t)) * tile_tokens + 15) / 16 * 16;
    base_ = static_cast<char*>(team.team_scratch(0).get_shmem_aligned(q_bytes + team.team_size() * worker_bytes_, 16));
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

  /// Scores of all rows with `count` tokens; row_of(n) tells where token n lies. Rows beyond count score -infinity.
  template <class RowOf>
  KOKKOS_FUNCTION void multiply_keys(const T* k, std::int64_t dim_stride, int count, const RowOf& row_of) {
    const int stride = q_stride(), dims = head_dim_;
    const Acc* const q = q_;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, tile_tokens), [&](int n) {
      Acc dot[R][Machine::dot_width];
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < Machine::dot_width; ++j) dot[r][j] = Acc(0);
      if (n < count) {
        const TokenRow row = row_of(n);
        v_offset_[n]       = row.v;
        const T* const key = k + row.k;
        PAGODA_UNROLL(4)
        for (int d = 0; d < dims; d += key_width) {
          Acc x[key_width];
          load_dims<Wide>(key, d, dim_stride, dims, x);
          for (int r = 0; r < R; ++r) {
            Acc y[key_width];
            load_dims<true>(q, r * stride + d, 1, 0, y);
            for (int j = 0; j < key_width; ++j) dot[r][j % Machine::dot_width] += x[j] * y[j];
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        Acc sum = dot[r][0];
        for (int j = 1; j < Machine::dot_width; ++j) sum += dot[r][j];
        s_[n * R + r] = n < count ? sum : -Kokkos::Experimental::infinity_v<Acc>;
      }
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
    Rows tile_max;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, tile_tokens),
        [&](int n, Rows& most) {
          for (int r = 0; r < R; ++r) most[r] = Kokkos::max(most[r], s_[n * R + r]);
        },
        RowReducer<true>(tile_max));
    Rows base;
    for (int r = 0; r < R; ++r) {
      const Acc raised = Kokkos::max(max_[r], tile_max[r]);
      base[r]          = raised == -infinity ? Acc(0) : raised;  // no token seen yet: every exponent is -infinity
      correction_[r]   = Machine::exp2(max_[r] - base[r]);
      max_[r]          = raised;
    }
    Rows tile_sum;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, tile_tokens),
        [&](int n, Rows& sum) {
          for (int r = 0; r < R; ++r) {
            const Acc p   = Machine::exp2(s_[n * R + r] - base[r]);
            s_[n * R + r] = p;
            sum[r] += p;
          }
        },
        RowReducer<false>(tile_sum));
    for (int r = 0; r < R; ++r) sum_[r] = sum_[r] * correction_[r] + tile_sum[r];
    Machine::sync_worker(team_);
  }

  /// output = output * correction + probabilities x values, for the tokens of the last multiply_keys.
  KOKKOS_FUNCTION void multiply_values(const T* v, std::int64_t dim_stride, int count) {
    const int dims = head_dim_v_, chunks = (dims + value_width - 1) / value_width, stride = o_stride();
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, chunks), [&](int chunk) {
      const int d = chunk * value_width;
      // A tile is summed apart and then added, so rounding grows with the number of tiles, not of tokens.
      Acc o[R][value_width];
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < value_width; ++j) o[r][j] = Acc(0);
      PAGODA_UNROLL(4)
      for (int n = 0; n < count; ++n) {
        Acc x[value_width];
        load_dims<Wide>(v + v_offset_[n], d, dim_stride, dims, x);
        for (int r = 0; r < R; ++r)
          for (int j = 0; j < value_width; ++j) o[r][j] += s_[n * R + r] * x[j];
      }
      for (int r = 0; r < R; ++r) {
        Acc before[value_width];
        load_dims<true>(o_, r * stride + d, 1, 0, before);
        for (int j = 0; j < value_width; ++j) o_[r * stride + d + j] = before[j] * correction_[r] + o[r][j];
      }
    });
  }

  /// Team-wide, once, at the end: joins the workers' states and hands out(r, d, value) the normalised output of each row
  /// and lse(r, value) its natural log-sum-exp. extra(r) is the logit (natural) of a token without value, or -infinity.
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
      Acc sum        = Machine::exp2(logit - base), value = Acc(0);
      for (int w = 0; w < workers; ++w) {
        const Acc* const state = state_of(w);
        const Acc weight       = Machine::exp2(state[2 * r] - base);
        sum += weight * state[2 * r + 1];
        value += weight * output_of(w)[r * stride + d];
      }
      out(r, d, sum > Acc(0) ? value / sum : Acc(0));
      if (d == 0) lse(r, sum > Acc(0) ? (base + Kokkos::log2(sum)) / log2e : -infinity);
    });
  }

 private:
  /// Elementwise maximum or sum of Rows over lanes.
  template <bool Max>
  struct RowReducer {
    using reducer          = RowReducer;
    using value_type       = Rows;
    using result_view_type = Kokkos::View<Rows, Kokkos::AnonymousSpace, Kokkos::MemoryUnmanaged>;
    Rows* result;
    KOKKOS_FUNCTION explicit RowReducer(Rows& r) : result(&r) {}
    KOKKOS_FUNCTION void join(Rows& into, const Rows& from) const {
      for (int r = 0; r < R; ++r) into[r] = Max ? Kokkos::max(into[r], from[r]) : into[r] + from[r];
    }
    KOKKOS_FUNCTION void init(Rows& value) const {
      for (int r = 0; r < R; ++r) value[r] = Max ? -Kokkos::Experimental::infinity_v<Acc> : Acc(0);
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
