// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/latent_layout.hpp"
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

/// What the fragments for latent caches (multi-head latent attention: head_dim 576, of which the first 512 are the
/// values) have in common. Queries are rows, 16 to a matrix; a row of the cache is read once for both products.
///
/// Queries and outputs of one matrix fill the registers of four warps, so all four work on the same 16 tokens:
///
///  - A tile lies in the team's scratch, and the next ones are being copied there (asynchronous copies).
///  - Q K^T: each warp multiplies a quarter of the dims. The sums of the four warps are added through scratch.
///  - Softmax: each warp processes a quarter of the rows and stores their probabilities in scratch. The maximum is
///    raised only when a score exceeds it by more than rescale_threshold, as in MmaFragment.
///  - P V: each warp multiplies the tile's values of the same dims as before.
///
/// T: type of the cache. Operand: type of the values in the second product. RowGroups: number of groups of 16 query
/// rows. AnyQuery: the instance for all problems.
template <class T, class Operand, int RowGroups, bool AnyQuery>
class LatentTiles : public FragmentDefaults<T> {
 public:
  using Acc                            = float;
  using Member                         = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  static constexpr bool any_query      = AnyQuery;
  static constexpr bool shared_tiles   = true;
  static constexpr bool values_in_keys = true;
  using Layout                         = LatentLayout<T, RowGroups>;
  using RowQuads                       = typename Layout::RowQuads;
  static constexpr int key_dims = Layout::key_dims, value_dims = Layout::value_dims;
  static constexpr int rows      = Layout::rows;
  static constexpr int lane_rows = 1;
  static constexpr int part_rows = Layout::part_rows;
  /// Blocking of join_states, limited by registers: quads of an output row, splits.
  static constexpr int part_quads = 16;
  static constexpr int join_block = RowGroups == 1 ? 6 : 4, join_quads = RowGroups == 1 ? 4 : 8;
  static constexpr int scratch_alignment      = 128;  ///< a line of all banks
  static constexpr int tile_tokens            = Layout::tile_tokens;
  static constexpr DType probability_type     = dtype_v<Operand>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  /// Limited by registers.
  static constexpr int teams_per_sm = RowGroups == 1 ? 3 : 2;

  static constexpr int row_alignment = 16;  ///< bytes
  static bool can_run(const FragmentShape& s) {
    return s.aligned_vectors<T>() && s.values_in_keys && s.head_dim == key_dims && s.head_dim_v == value_dims;
  }
  /// The number of workers is fixed.
  static constexpr std::size_t scratch_bytes(int, int, int, int) { return Layout::all_bytes; }

  KOKKOS_FUNCTION int lane_row(int) const { return warp_ * warp_rows + lane() / row_lanes; }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    const int token = token_at(0);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens; ++i)
      if (token + i < count) change(0, token + i, x_[i]);
  }

 protected:
  static constexpr int warps       = Layout::warps;
  static constexpr int key_steps   = key_dims / 16 / warps;  ///< steps of 16 dims for each warp
  static constexpr int value_steps = value_dims / 16 / warps;
  static constexpr int warp_rows   = rows / warps;  ///< rows whose softmax a warp computes
  static constexpr int row_lanes   = 32 / warp_rows;
  static constexpr int lane_tokens = tile_tokens / row_lanes;
  static constexpr float infinity  = Kokkos::Experimental::infinity_v<float>;

  KOKKOS_FUNCTION LatentTiles(const Member& team, const KernelArgs& args, char* memory) : args_(args), memory_(memory) {
    KOKKOS_IF_ON_DEVICE((lane_ = static_cast<int>(threadIdx.x & 31);))
    warp_ = team.team_rank();
  }

  /// Recomputed at each use, so that addresses that depend on it occupy no registers elsewhere.
  KOKKOS_FUNCTION int lane() const { return cuda::opaque(lane_); }
  /// Token in the tile of the lane's i-th score.
  KOKKOS_FUNCTION int token_at(int i) const { return lane() % row_lanes * lane_tokens + i; }
  /// Index of a sum in rows of 16. The halves are swapped in every other pair of rows, so that no two rows of a half
  /// warp share banks.
  KOKKOS_FUNCTION static int sum_at(int row, int token) { return row * tile_tokens + (token ^ ((row >> 1 & 1) << 3)); }
  KOKKOS_FUNCTION float* sums_of(int warp) const {
    return reinterpret_cast<float*>(memory_ + Layout::sums_at) + warp * rows * tile_tokens;
  }
  /// For each row, the factor of its output and sum when its maximum is raised.
  KOKKOS_FUNCTION float* kept_of_rows() const { return reinterpret_cast<float*>(memory_ + Layout::kept_at); }
  /// Row of the lane's e-th word in the first operand of the first product.
  KOKKOS_FUNCTION int query_row(int m, int e) const { return 16 * m + (lane() >> 2) + e % 2 * 8; }

  KOKKOS_FUNCTION int copy_row() const { return 4 * warp_ + (lane() >> 3); }
  /// Locates the row that the lane helps to copy of the tile from u on. Behind the last token, it repeats that token,
  /// so every copied row belongs to the sequence.
  template <class Where>
  KOKKOS_FUNCTION PagePlace place(const Where& where, int u, int end) const {
    return where.place(Kokkos::min(u + copy_row(), end - 1));
  }
  /// Address of the lane's first chunk of the row. Eight lanes copy a row.
  template <class Where>
  KOKKOS_FUNCTION const char* address(const Where& where, const PagePlace& place) const {
    return static_cast<const char*>(args_.k) + where.row(place).k * static_cast<int>(sizeof(T)) + 16 * (lane() & 7);
  }

  /// Stores sums of this warp: those of 8 tokens (half), in the two rows that the lane has of group m.
  KOKKOS_FUNCTION void store_sums(int m, int half, const float (&s)[4]) const {
    float* const to = sums_of(warp_) + (sum_at(lane() >> 2, 2 * (lane() & 3)) ^ (8 * half));
    PAGODA_UNROLL_ALL
    for (int below = 0; below < 2; ++below)
      *reinterpret_cast<Pack<float, 2>*>(to + (16 * m + 8 * below) * tile_tokens) = {s[2 * below], s[2 * below + 1]};
  }
  /// Adds the sums of all warps: the lane's scores. count: tokens up to the end; later ones get -infinity.
  KOKKOS_FUNCTION void add_sums(int count) {
    const int token              = token_at(0);
    Pack<float, lane_tokens> sum = {};
    PAGODA_UNROLL_ALL
    for (int w = 0; w < warps; ++w) {
      const auto part = *reinterpret_cast<const Pack<float, lane_tokens>*>(sums_of(w) + sum_at(lane_row(0), token));
      PAGODA_UNROLL_ALL
      for (int i = 0; i < lane_tokens; ++i) sum.at[i] += part.at[i];
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens; ++i) x_[i] = token + i < count ? sum.at[i] * scale_ : -infinity;
  }

  /// Turns the lane's scores into probabilities, and notes the factor of its row's sums and outputs. Returns whether
  /// the warp raised a maximum.
  KOKKOS_FUNCTION bool exponentiate([[maybe_unused]] bool hides) {
#if defined(__CUDA_ARCH__)
    float most = x_[0], kept = 1.0f;
    PAGODA_UNROLL_ALL
    for (int i = 1; i < lane_tokens; ++i) most = fmaxf(most, x_[i]);
    const bool raised = __any_sync(~0u, most > base_ + rescale_threshold);
    if (raised) {
      most  = fmaxf(cuda::max_of_group<row_lanes>(most), base_);
      kept  = cuda::exp2(base_ - most);
      base_ = most;
      sum_ *= kept;
    }
    PAGODA_UNROLL_ALL
    for (float& x : x_) {
      const bool hidden = AnyQuery && hides && x == -infinity;
      x                 = cuda::exp2(x - base_);
      sum_ += x;
      if (hidden) x = hidden_probability;
    }
    if (token_at(0) == 0) kept_of_rows()[lane_row(0)] = kept;
    return raised;
#else
    return false;
#endif
  }
  /// Multiplies the outputs by the factors that the softmax noted.
  KOKKOS_FUNCTION void rescale_outputs() {
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      const float* const of_row = kept_of_rows() + 16 * m + (lane() >> 2);
      const float kept0 = of_row[0], kept1 = of_row[8];
      PAGODA_UNROLL_ALL
      for (auto& pair : out_[m])
        for (auto& o : pair) o[0] *= kept0, o[1] *= kept0, o[2] *= kept1, o[3] *= kept1;
    }
  }

  /// Returns whether all values are finite. load(i, v): the lane's operands of step i.
  template <class Load>
  KOKKOS_FUNCTION static bool values_are_finite(const Load& load) {
    std::uint32_t zeros = 0;
    PAGODA_UNROLL(1)
    for (int i = 0; i < value_steps; ++i) {
      std::uint32_t v[4];
      load(i, v);
      PAGODA_UNROLL_ALL
      for (const std::uint32_t word : v) zeros = cuda::add_zero_times<Operand>(word, zeros);
    }
    return !cuda::any_lane((zeros & 0x7fff7fffu) != 0);
  }
  /// The second product with 0 in place of the values that a row does not see, as in MmaFragment. p: probabilities, the
  /// first operand.
  template <class Load>
  KOKKOS_FUNCTION void multiply_visible_values(const Load& load, const std::uint32_t (&p)[RowGroups][4]) {
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL(1)
      for (int r = 0; r < 16; ++r) {
        const bool below         = r >= 8;
        const int of             = 4 * (r & 7) + (lane() & 3);
        const std::uint32_t seen = cuda::visible_halves(cuda::from_lane(below ? p[m][1] : p[m][0], of));
        const std::uint32_t next = cuda::visible_halves(cuda::from_lane(below ? p[m][3] : p[m][2], of));
        const bool mine          = lane() >> 2 == (r & 7);
        PAGODA_UNROLL_ALL
        for (int i = 0; i < value_steps; ++i) {
          std::uint32_t v[4];
          load(i, v);
          PAGODA_UNROLL_ALL
          for (int n = 0; n < 2; ++n) {
            float sum[4] = {};
            cuda::mma<Operand>(sum, p[m][0], p[m][1], p[m][2], p[m][3], v[2 * n] & seen, v[2 * n + 1] & next);
            PAGODA_UNROLL_ALL
            for (int e = 0; e < 4; ++e)
              if (mine && below == (e >= 2)) out_[m][i][n][e] += sum[e];
          }
          cuda::sync_warp();  // keeps the next loads from being moved up, which would need registers
        }
      }
    }
  }

  /// Team-wide: returns the state of part_rows rows, from `first` on. store(m, at): stores the lane's outputs of row
  /// group m in rows of value_stride floats.
  template <class Store>
  KOKKOS_FUNCTION StateArray<float> finish_part([[maybe_unused]] int first, [[maybe_unused]] const Store& store) {
    float* const values           = reinterpret_cast<float*>(memory_);
    RowState<float>* const states = reinterpret_cast<RowState<float>*>(memory_ + Layout::states_at);
#if defined(__CUDA_ARCH__)
    cuda::wait_copies<0>();
    cuda::sync_team();  // no warp accesses a tile or the previous part any more
    const RowState<float> state = row_state();
    if (token_at(0) == 0) states[lane_row(0)] = state;
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m)
      if (first == 16 * m) store(m, values + (lane() >> 2) * Layout::value_stride);
    cuda::sync_team();
#endif
    return {states + first, values, Layout::value_stride, 0, 0};
  }

  const KernelArgs& args_;
  char* memory_;
  int lane_   = 0, warp_;
  int tile_   = 0;  ///< offset of the current tile in scratch
  int raised_ = 0;  ///< whether some row's maximum was raised
  PagePlace place_{};
  const char* copy_ = nullptr;  ///< the lane's part of the next tile to copy, in global memory
  float x_[lane_tokens];
  float out_[RowGroups][value_steps][2][4] = {};
  float base_ = initial_max, sum_ = 0, scale_ = 1;

 private:
  KOKKOS_FUNCTION RowState<float> row_state() const {
    const float sum = cuda::sum_of_group<row_lanes>(sum_);
    return {sum == 0.0f ? -infinity : base_, sum};  // a base that was never raised: the row has seen no token
  }
};

}  // namespace pagoda::detail
