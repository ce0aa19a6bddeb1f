// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
#include "backends/cuda/warp_sums.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/online_softmax.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace pagoda::detail {

/// The fragment for fp32 caches. It uses plain multiply-adds; lanes are distributed over dims in both products.
///
///  - Keys and values are copied asynchronously to the worker's own part of scratch, one tile ahead, as in MmaFragment.
///    Each lane reads four dims at a time, and 16 or 32 lanes read a row.
///  - Each lane has a partial sum of every score of the tile. Sums are reduced and scattered over the lanes: each step
///    halves the number of sums that a lane holds and the number of lanes left to add. A score costs one shuffle, not
///    five.
///  - Lanes exchange probabilities through scratch, four tokens at a time.
///  - The running maximum is raised only when a score exceeds it by more than rescale_threshold.
///  - Groups of a few tiles are summed separately before they are added to the output, so that rounding grows with the
///    number of groups only.
/// DimTile: the largest head dim; dims beyond the actual ones are zeros. Rows: query rows, a power of two. AnyQuery:
/// queries of types other than fp32, and score options. AnyAlignment: rows may begin on any float and have any length;
/// they are copied float by float.
template <int DimTile, int Rows, bool AnyQuery = false, bool AnyAlignment = false>
class FmaFragment : public FragmentDefaults<float> {
 public:
  template <bool General>
  using Instance                              = FmaFragment<DimTile, Rows, General, AnyAlignment>;
  using Acc                                   = float;
  using Member                                = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  static constexpr bool general_only          = AnyAlignment;  ///< compiled in the general instance only
  static constexpr bool any_query             = AnyQuery;
  static constexpr int rows                   = Rows;
  static constexpr int lane_rows              = 1;
  static constexpr int scratch_alignment      = 128;             ///< a line of all banks
  static constexpr int tile_tokens            = 1024 / DimTile;  ///< 4 KB of keys and 4 KB of values
  static constexpr DType probability_type     = DType::fp32;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  /// Teams have four warps. Registers limit how many fit.
  static constexpr int teams_per_sm      = Rows * DimTile <= 512 && Rows <= 4 ? 4 : Rows * DimTile <= 1024 ? 3 : 2;
  static constexpr int long_split_factor = Rows == 8 ? 4 : 1;
  static constexpr bool discards_states  = Rows == 8;
  /// Three teams on each of 132 multiprocessors then take powers of two of tokens in rounds that are 97% full.
  static constexpr int fixed_split_bytes = Rows == 8 && DimTile == 128 ? 5 << 17 : 1 << 19;

  static constexpr int row_alignment = AnyAlignment ? 4 : 16;  ///< bytes
  static bool can_run(const FragmentShape& s) {
    return s.dense_dims && s.row_alignment >= row_alignment && s.head_dim <= DimTile && s.head_dim_v <= DimTile &&
           (AnyAlignment || (s.head_dim % 4 == 0 && s.head_dim_v % 4 == 0));
  }
  static constexpr std::size_t scratch_bytes(int, int, int workers, int) { return std::size_t(workers) * worker_bytes; }

  KOKKOS_FUNCTION FmaFragment(const Member& team, const KernelArgs& args, char* memory)
      : team_(team), args_(args), memory_(memory), keys_(memory + team.team_rank() * worker_bytes) {
    KOKKOS_IF_ON_DEVICE((lane_ = static_cast<int>(threadIdx.x & 31);))
    score_ = lane_ % row_lanes / replicas * lane_scores;
  }

  KOKKOS_FUNCTION int lane_row(int) const { return score_ / lane_tokens; }

  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int step, int end) {
    step_ = step;
    if (u >= end) return;
    look_up(where, u, end);
    copy_keys(where);
    copy_values(where);
    look_up(where, u + step, end);
  }

  template <class QueryRows>
  KOKKOS_FUNCTION void load_queries(const QueryRows& rows_of, float scale) {
    scale_ = scale;
    if constexpr (!AnyQuery) {
      PAGODA_UNROLL_ALL
      for (int h = 0; h < Rows; ++h) {
        const bool valid     = rows_of.valid(h);
        const float* const q = static_cast<const float*>(args_.q.data) + (valid ? rows_of.query_offset(h) : 0);
        PAGODA_UNROLL_ALL
        for (int c = 0; c < chunks; ++c)
          q_[h][c] = valid && dim(c) < args_.head_dim ? *reinterpret_cast<const Quad*>(q + dim(c)) : Quad{};
      }
    } else if (args_.q.type == DType::fp32) {  // any strides: issues all loads before the first result is used
      PAGODA_UNROLL_ALL
      for (int h = 0; h < Rows; ++h) {
        const bool valid     = rows_of.valid(h);
        const float* const q = static_cast<const float*>(args_.q.data) + (valid ? rows_of.query_offset(h) : 0);
        PAGODA_UNROLL_ALL
        for (int c = 0; c < chunks; ++c)
          for (int e = 0; e < 4; ++e)
            q_[h][c].at[e] = valid && dim(c) + e < args_.head_dim ? q[rows_of.dims(args_.q, dim(c) + e)] : 0.0f;
      }
    } else {  // any type: staged in scratch that no copy uses yet
      float* const staged = reinterpret_cast<float*>(keys_);
      PAGODA_UNROLL(1)
      for (int i = lane_; i < Rows * DimTile; i += 32) {
        const int r = i / DimTile, d = i % DimTile;
        staged[i] = d < args_.head_dim ? rows_of.template load_query<float>(r, d) : 0.0f;
      }
      cuda::sync_warp();
      PAGODA_UNROLL_ALL
      for (int h = 0; h < Rows; ++h)
        for (int c = 0; c < chunks; ++c) q_[h][c] = *reinterpret_cast<const Quad*>(staged + h * DimTile + dim(c));
      cuda::sync_warp();
    }
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    cuda::wait_copies<1>();
    cuda::sync_warp();
    float s[lane_tokens];
    PAGODA_UNROLL_ALL
    for (int t = 0; t < lane_tokens; ++t) {
      float of_row[Rows] = {};
      PAGODA_UNROLL_ALL
      for (int c = 0; c < chunks; ++c) {
        const Quad k = quad(keys_, t, c);
        PAGODA_UNROLL_ALL
        for (int h = 0; h < Rows; ++h)
          for (int e = 0; e < 4; ++e) of_row[h] += q_[h][c].at[e] * k.at[e];
      }
      cuda::add_and_spread<row_lanes / 2, Rows>(of_row, lane_);
      s[t] = of_row[0];
    }
    cuda::sync_warp();
    more_ = u + step_ < end;
    if (more_) {
      copy_keys(where);
    } else {
      cuda::commit_copies();
    }
    cuda::add_and_spread<row_lanes / 2 / Rows, lane_tokens>(s, lane_);
#if defined(__CUDA_ARCH__)
    PAGODA_UNROLL_ALL
    for (int d = replicas / 2; d > 0; d /= 2) s[0] += __shfl_xor_sync(~0u, s[0], d);
#endif
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_scores; ++i) x_[i] = token_at(i) < end - u ? s[i] * scale_ : -infinity;
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_scores; ++i)
      if (token_at(i) < count) change(0, token_at(i), x_[i]);
  }

  KOKKOS_FUNCTION void softmax(bool hides) {
#if defined(__CUDA_ARCH__)
    float most = x_[0];
    PAGODA_UNROLL_ALL
    for (int i = 1; i < lane_scores; ++i) most = fmaxf(most, x_[i]);
    if (__any_sync(~0u, most > base_ + rescale_threshold)) {
      for_each_lane_of_row(1, [&](int d) { most = fmaxf(most, __shfl_xor_sync(~0u, most, d)); });
      most             = fmaxf(most, base_);
      const float kept = cuda::exp2(base_ - most);
      base_            = most;
      sum_ *= kept, few_sum_ *= kept;
      PAGODA_UNROLL_ALL
      for (int h = 0; h < Rows; ++h) {
        const float of_row = __shfl_sync(~0u, kept, h * (row_lanes / Rows));
        PAGODA_UNROLL_ALL
        for (int c = 0; c < chunks; ++c)
          for (int e = 0; e < 4; ++e) out_[h][c].at[e] *= of_row, few_[h][c].at[e] *= of_row;
      }
    }
    Pack<float, lane_scores> p;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_scores; ++i) {
      const bool hidden = AnyQuery && hides && x_[i] == -infinity;
      p.at[i]           = cuda::exp2(x_[i] - base_);
      few_sum_ += p.at[i];
      if (hidden) p.at[i] = hidden_probability;
    }
    *reinterpret_cast<Pack<float, lane_scores>*>(probabilities() + score_) = p;
#endif
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where& where, int u, int end, bool hides) {
    cuda::wait_copies<1>();
    cuda::sync_warp();
    if (AnyQuery && hides && !values_are_finite()) {
      add_products<true>();
    } else {
      add_products<false>();
    }
    cuda::sync_warp();
    if (more_) {
      copy_values(where);
      look_up(where, u + 2 * step_, end);
    } else {
      cuda::commit_copies();
    }
    if (++tiles_ % few_tiles == 0) add_few();
  }

  KOKKOS_FUNCTION StateArray<float> finish() {
#if defined(__CUDA_ARCH__)
    add_few();
    for_each_lane_of_row(replicas, [&](int d) { sum_ += __shfl_xor_sync(~0u, sum_, d); });
    // Writes to the worker's own part, which no copy uses any more. If a base was never raised, the row has seen no
    // token.
    if (lane_ < row_lanes && lane_ % (row_lanes / Rows) == 0)
      reinterpret_cast<RowState<float>*>(keys_ + states_at)[lane_row(0)] = {sum_ == 0.0f ? -infinity : base_, sum_};
    PAGODA_UNROLL_ALL
    for (int h = 0; h < Rows; ++h) {
      PAGODA_UNROLL_ALL
      for (int c = 0; c < chunks; ++c) {
        PAGODA_UNROLL_ALL
        for (int d = row_lanes; d < 32; d *= 2)
          for (float& e : out_[h][c].at) e += __shfl_xor_sync(~0u, e, d);
        if (lane_ < row_lanes) *reinterpret_cast<Quad*>(keys_ + (h * DimTile + dim(c)) * 4) = out_[h][c];
      }
    }
    team_.team_barrier();  // the states of all warps are written, before they are joined
#endif
    return {reinterpret_cast<RowState<float>*>(memory_ + states_at), reinterpret_cast<float*>(memory_), DimTile,
            worker_bytes / static_cast<int>(sizeof(RowState<float>)), worker_bytes / static_cast<int>(sizeof(float))};
  }

 private:
  using Quad = Pack<float, 4>;

  static constexpr int row_bytes   = DimTile * 4;
  static constexpr int row_lanes   = DimTile < 128 ? DimTile / 4 : 32;  ///< lanes that read a row together
  static constexpr int chunks      = DimTile / 4 / row_lanes;           ///< chunks of four dims for each lane
  static constexpr int at_once     = 32 / row_lanes;                    ///< rows
  static constexpr int lane_tokens = tile_tokens / at_once;
  /// Scores are distributed over the lanes of a row. If there are fewer scores than lanes, several lanes hold the same
  /// score.
  static constexpr int lane_scores  = Rows * lane_tokens > row_lanes ? Rows* lane_tokens / row_lanes : 1;
  static constexpr int replicas     = row_lanes * lane_scores / (Rows * lane_tokens);
  static constexpr int few_tiles    = 8;
  static constexpr int tile_bytes   = tile_tokens * row_bytes;
  static constexpr int half_scores  = Rows * lane_tokens + 4;  ///< floats of a row; no bank conflicts
  static constexpr int states_at    = 2 * tile_bytes;          ///< first probabilities, then states
  static constexpr int worker_bytes = states_at + (at_once * half_scores * 4 + 127) / 128 * 128;
  static constexpr int copied_rows  = tile_tokens / 4;  ///< rows that a lane helps to copy, by eight lanes each
  static_assert(Rows * DimTile * 4 <= states_at && Rows * static_cast<int>(sizeof(RowState<float>)) <= half_scores * 4);
  static_assert(Rows <= row_lanes && lane_tokens % 4 == 0);
  static constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

  /// First dim of the lane's c-th chunk in a row.
  KOKKOS_FUNCTION int dim(int c) const { return 4 * (lane_ % row_lanes + c * row_lanes); }
  /// The lane's c-th chunk in the t-th of its rows of a tile.
  KOKKOS_FUNCTION Quad quad(const char* tile, int t, int c) const {
    return *reinterpret_cast<const Quad*>(tile + (lane_ / row_lanes * lane_tokens + t) * row_bytes + 4 * dim(c));
  }
  /// Probabilities of the lane's rows of a tile, [query row][token].
  KOKKOS_FUNCTION float* probabilities() const {
    return reinterpret_cast<float*>(keys_ + states_at) + lane_ / row_lanes * half_scores;
  }
  /// Token in the tile of the lane's i-th score.
  KOKKOS_FUNCTION int token_at(int i) const { return lane_ / row_lanes * lane_tokens + score_ % lane_tokens + i; }

  /// Calls f(d) for each bit d, from `first` on, in which lanes with scores of the same query row differ.
  template <class F>
  KOKKOS_FUNCTION static void for_each_lane_of_row(int first, const F& f) {
    PAGODA_UNROLL_ALL
    for (int d = first; d < row_lanes / Rows; d *= 2) f(d);
    PAGODA_UNROLL_ALL
    for (int d = row_lanes; d < 32; d *= 2) f(d);
  }

  KOKKOS_FUNCTION bool values_are_finite() const {
    float zeros = 0;
    PAGODA_UNROLL_ALL
    for (int t = 0; t < lane_tokens; ++t)
      for (int c = 0; c < chunks; ++c)
        for (const float v : quad(keys_ + tile_bytes, t, c).at) zeros += 0.0f * v;
    return !cuda::any_lane(zeros != 0.0f);  // false for NaN too
  }
  /// few_ += probabilities x values of the lane's tokens. Masked: skips values of tokens that a row does not see. Such
  /// a value may not be finite, and 0 times it is NaN.
  template <bool Masked>
  KOKKOS_FUNCTION void add_products() {
    PAGODA_UNROLL_ALL
    for (int t = 0; t < lane_tokens; t += 4) {
      Quad v[4][chunks];
      PAGODA_UNROLL_ALL
      for (int i = 0; i < 4; ++i)
        for (int c = 0; c < chunks; ++c) v[i][c] = quad(keys_ + tile_bytes, t + i, c);
      PAGODA_UNROLL_ALL
      for (int h = 0; h < Rows; ++h) {
        const Quad p = *reinterpret_cast<const Quad*>(probabilities() + h * lane_tokens + t);
        PAGODA_UNROLL_ALL
        for (int i = 0; i < 4; ++i)
          for (int c = 0; c < chunks; ++c)
            for (int e = 0; e < 4; ++e)
              if (!Masked || !cuda::is_hidden(p.at[i])) few_[h][c].at[e] += p.at[i] * v[i][c].at[e];
      }
    }
  }

  KOKKOS_FUNCTION void add_few() {
    sum_ += few_sum_, few_sum_ = 0;
    PAGODA_UNROLL_ALL
    for (int h = 0; h < Rows; ++h)
      for (int c = 0; c < chunks; ++c)
        for (int e = 0; e < 4; ++e) out_[h][c].at[e] += few_[h][c].at[e], few_[h][c].at[e] = 0;
  }

  /// Locates the rows that the lane helps to copy of the tile from u on, one tile ahead. Behind the last token, it
  /// repeats that token, so every copied row belongs to the sequence.
  template <class Where>
  KOKKOS_FUNCTION void look_up(const Where& where, int u, int end) {
    PAGODA_UNROLL_ALL
    for (int j = 0; j < copied_rows; ++j) place_[j] = where.place(Kokkos::min(u + (lane_ >> 3) + 4 * j, end - 1));
  }
  template <class Where>
  KOKKOS_FUNCTION void copy_keys(const Where& where) {
    copy_tile(keys_, args_.head_dim,
              [&](const PagePlace& p) { return static_cast<const float*>(args_.k) + where.row(p).k; });
  }
  template <class Where>
  KOKKOS_FUNCTION void copy_values(const Where& where) {
    copy_tile(keys_ + tile_bytes, args_.head_dim_v,
              [&](const PagePlace& p) { return static_cast<const float*>(args_.v) + where.row(p).v; });
  }
  template <class RowAt>
  KOKKOS_FUNCTION void copy_tile(const char* tile, int head_dim, const RowAt& row_at) {
    if constexpr (AnyAlignment) {
      copy_floats(tile, head_dim, row_at);
    } else {
      copy(tile, head_dim, row_at);
    }
  }
  /// Starts to copy the rows of a tile.
  template <class RowAt>
  KOKKOS_FUNCTION void copy(const char* tile, int head_dim, const RowAt& row_at) {
    const int first            = 4 * (lane_ & 7);  // dim
    const std::uint32_t to     = cuda::shared_address(tile) + (lane_ >> 3) * row_bytes + 4 * first;
    const std::uint64_t policy = cuda::read_once_policy();
    PAGODA_UNROLL_ALL
    for (int j = 0; j < copied_rows; ++j) {
      const char* const from = reinterpret_cast<const char*>(row_at(place_[j]) + first);
      PAGODA_UNROLL_ALL
      for (int i = 0; i < row_bytes / 128; ++i)
        cuda::copy_async(to + 4 * j * row_bytes + 128 * i, from + 128 * i, policy, first + 32 * i >= head_dim);
    }
    cuda::commit_copies();
  }

  /// Starts to copy the rows of a tile; all lanes copy each row.
  template <class RowAt>
  KOKKOS_FUNCTION void copy_floats(const char* tile, int head_dim, const RowAt& row_at) {
    const std::uint32_t to     = cuda::shared_address(tile) + 4 * lane_;
    const std::uint64_t policy = cuda::read_once_policy();
    PAGODA_UNROLL_ALL
    for (int j = 0; j < copied_rows; ++j) {
      const auto mine = reinterpret_cast<std::uint64_t>(row_at(place_[j]));
      PAGODA_UNROLL_ALL
      for (int r = 0; r < 4; ++r) {
        const auto* const row = reinterpret_cast<const float*>(cuda::from_lane(mine, 8 * r));
        PAGODA_UNROLL_ALL
        for (int d = 0; d < DimTile; d += 32) {
          const bool beyond = d + lane_ >= head_dim;
          cuda::copy_word_or_clear_async(to + (4 * j + r) * row_bytes + 4 * d,
                                         reinterpret_cast<const char*>(row + (beyond ? 0 : d + lane_)), policy, beyond);
        }
      }
    }
    cuda::commit_copies();
  }

  const Member& team_;
  const KernelArgs& args_;
  char* memory_;
  char* keys_;  ///< the worker's part of scratch: a tile of keys, one of values, probabilities
  int lane_ = 0, step_ = 0, tiles_ = 0;
  int score_;          ///< index of the lane's first score, over [query row][token] of the lanes of a row
  bool more_ = false;  ///< there is a tile after this one
  PagePlace place_[copied_rows];
  Quad q_[Rows][chunks];
  float x_[lane_scores];
  Quad out_[Rows][chunks] = {}, few_[Rows][chunks] = {};  ///< few_: sums of the latest tiles, not yet added to out_
  float base_ = initial_max, sum_ = 0, few_sum_ = 0, scale_ = 1;
};

}  // namespace pagoda::detail
