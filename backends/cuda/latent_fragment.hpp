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

/// The fragment for latent caches (multi-head latent attention: head_dim 576, of which the first 512 are the values),
/// with mma.sync.m16n8k16. Queries are rows, 16 to a matrix; a row of the cache is read once for both products.
///
/// Queries and outputs of one matrix fill the registers of four warps, so all four work on the same 16 tokens:
///
///  - A tile lies in the team's scratch, and the next one is being copied there (asynchronous copies, two tiles).
///  - Q K^T: warp w multiplies dims 64 i + 16 w .. 64 i + 16 w + 15, for all i. The sums of the four warps are added
///    through scratch.
///  - Softmax: each warp processes a quarter of the rows and stores their probabilities in scratch, as first operand
///    of the second product. The maximum is raised only when a score exceeds it by more than rescale_threshold, as in
///    MmaFragment.
///  - P V: each warp multiplies the tile's values of the same dims as before.
///
/// RowGroups: number of groups of 16 query rows. AnyQuery: queries of types other than the cache's.
template <class T, int RowGroups, bool AnyQuery = false>
class LatentFragment : public FragmentDefaults<T> {
 public:
  template <bool General>
  using Instance                       = LatentFragment<T, RowGroups, General>;
  using Acc                            = float;
  using Member                         = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  static constexpr bool any_query      = AnyQuery;
  static constexpr bool shared_tiles   = true;
  static constexpr bool values_in_keys = true;
  using Layout                         = LatentLayout<RowGroups>;
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
  static constexpr DType probability_type     = dtype_v<T>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  /// Limited by registers. Each team has a tile of 18 KB in flight.
  static constexpr int teams_per_sm = RowGroups == 1 ? 3 : 2;

  static constexpr int row_alignment = 16;  ///< bytes
  static bool can_run(const FragmentShape& s) {
    return s.aligned_vectors<T>() && s.values_in_keys && s.head_dim == key_dims && s.head_dim_v == value_dims;
  }
  /// The number of workers is fixed.
  static constexpr std::size_t scratch_bytes(int, int, int, int) { return Layout::all_bytes; }

  KOKKOS_FUNCTION LatentFragment(const Member& team, const KernelArgs& args, char* memory)
      : args_(args), memory_(memory) {
    KOKKOS_IF_ON_DEVICE((lane_ = static_cast<int>(threadIdx.x & 31);))
    warp_ = team.team_rank();
  }

  KOKKOS_FUNCTION int lane_row(int) const { return warp_ * warp_rows + lane() / row_lanes; }

  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int, int end) {
    if (u >= end) return;
    const PagePlace first = place(where, u, end);
    const PagePlace next  = place(where, u + tile_tokens, end);
    copy_                 = address(where, first);
    copy(0, false);
    copy_ = address(where, next);
  }

  KOKKOS_FUNCTION void load_queries(const TileRows<AnyQuery>& rows_of, float scale) {
    scale_           = scale;
    queries_         = &rows_of;
    T* const rounded = reinterpret_cast<T*>(memory_);
    if constexpr (AnyQuery) {  // any type and strides: staged in scratch that no copy uses yet
      PAGODA_UNROLL(1)
      for (int i = 32 * warp_ + lane(); i < rows * key_dims; i += 32 * warps)
        rounded[i] = T(rows_of.template load_query<float>(i / key_dims, i % key_dims));
      cuda::sync_team();
    }
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 4; ++e) {
        const int r      = query_row(m, e);
        const bool valid = AnyQuery || rows_of.valid(r);
        const T* q       = rounded + r * key_dims;
        if constexpr (!AnyQuery) q = static_cast<const T*>(args_.q.data) + (valid ? rows_of.query_offset(r) : 0);
        PAGODA_UNROLL_ALL
        for (int i = 0; i < key_steps; ++i)
          q_[m][i][e] = valid ? *reinterpret_cast<const std::uint32_t*>(q + query_dim(i, e)) : 0;
      }
    }
    if constexpr (AnyQuery) cuda::sync_team();
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    cuda::wait_copies<0>();
    cuda::sync_team();  // the tile is complete, and no warp reads the previous one any more
    place_                           = place(where, u + 2 * tile_tokens, end);  // one tile before its use
    const int lane                   = this->lane();
    const std::uint32_t keys         = tile_at(tile_, (lane & 7) + (lane >> 4) * 8, 2 * warp_ + (lane >> 3 & 1));
    float s[chains][RowGroups][2][4] = {};
    std::uint32_t ahead[2][4];  // explicit, because the compiler is short of registers and does not load ahead
    cuda::load_matrices<false>(ahead[0], keys);
    copy(Layout::tile_bytes - tile_, u + tile_tokens >= end);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < key_steps; ++i) {
      if (i + 1 < key_steps) cuda::load_matrices<false>(ahead[(i + 1) % 2], keys + 128 * (i + 1));
      const auto& k = ahead[i % 2];
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) multiply_pair(s[i % chains][m], q_[m][i], k);
    }
    if (AnyQuery && args_.q.type != dtype_v<T>) {
      PAGODA_UNROLL(1)
      for (int i = 0; i < key_steps; ++i) {
        std::uint32_t k[4], q[4];
        cuda::load_matrices<false>(k, keys + 128 * i);
        PAGODA_UNROLL_ALL
        for (int m = 0; m < RowGroups; ++m) {
          PAGODA_UNROLL_ALL
          for (int e = 0; e < 4; ++e) q[e] = rest(query_row(m, e), query_dim(i, e));
          multiply_pair(s[0][m], q, k);
        }
      }
    }
    PAGODA_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
      float* const to = sums_of(warp_) + (sum_at(lane >> 2, 2 * (lane & 3)) ^ (8 * half));
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) {
        PAGODA_UNROLL_ALL
        for (int below = 0; below < 2; ++below) {
          Pack<float, 2> sum{s[0][m][half][2 * below], s[0][m][half][2 * below + 1]};
          if constexpr (chains == 2) sum.at[0] += s[1][m][half][2 * below], sum.at[1] += s[1][m][half][2 * below + 1];
          *reinterpret_cast<Pack<float, 2>*>(to + (16 * m + 8 * below) * tile_tokens) = sum;
        }
      }
    }
    cuda::sync_team();
    const int token              = token_at(0);
    Pack<float, lane_tokens> sum = {};
    PAGODA_UNROLL_ALL
    for (int w = 0; w < warps; ++w) {
      const auto part = *reinterpret_cast<const Pack<float, lane_tokens>*>(sums_of(w) + sum_at(lane_row(0), token));
      PAGODA_UNROLL_ALL
      for (int i = 0; i < lane_tokens; ++i) sum.at[i] += part.at[i];
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens; ++i) x_[i] = token + i < end - u ? sum.at[i] * scale_ : -infinity;
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    const int token = token_at(0);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens; ++i)
      if (token + i < count) change(0, token + i, x_[i]);
  }

  KOKKOS_FUNCTION void softmax(bool hides) {
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
    // Rows have two chunks, swapped in every other group of four rows, so that the chunks of eight rows lie in
    // different banks.
    const int row = lane_row(0), token = token_at(0);
    Pack<std::uint32_t, lane_tokens / 2> p;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens / 2; ++i) p.at[i] = cuda::pack<T>(x_[2 * i], x_[2 * i + 1]);
    *reinterpret_cast<Pack<std::uint32_t, lane_tokens / 2>*>(memory_ + Layout::p_at + row * 32 +
                                                             ((2 * token) ^ ((row >> 2 & 1) << 4))) = p;
    if (token == 0) kept_of_rows()[row] = kept;
    raised_ = cuda::sync_team_or(raised);
#endif
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where& where, int, int, bool hides) {
    copy_          = address(where, place_);
    const int lane = this->lane();
    if (raised_) {
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) {
        const float* const of_row = kept_of_rows() + 16 * m + (lane >> 2);
        const float kept0 = of_row[0], kept1 = of_row[8];
        PAGODA_UNROLL_ALL
        for (auto& pair : out_[m])
          for (auto& o : pair) o[0] *= kept0, o[1] *= kept0, o[2] *= kept1, o[3] *= kept1;
      }
    }
    const std::uint32_t values = tile_at(tile_, lane & 15, 2 * warp_ + (lane >> 4));
    std::uint32_t p[RowGroups][4];
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m)
      cuda::load_matrices<false>(p[m], cuda::shared_address(memory_) + Layout::p_at + 512 * m + (lane & 15) * 32 +
                                           (((lane >> 4) ^ (lane >> 2 & 1)) << 4));
    if constexpr (AnyQuery) {
      if (hides && !values_are_finite(values)) {
        multiply_visible_values(values, p);
        tile_ = Layout::tile_bytes - tile_;
        return;
      }
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < value_steps; ++i) {
      std::uint32_t v[4];
      cuda::load_matrices<true>(v, values + 128 * i);
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) multiply_pair(out_[m][i], p[m], v);
    }
    tile_ = Layout::tile_bytes - tile_;
  }

  /// Team-wide: returns the state of part_rows rows, from `first` on.
  KOKKOS_FUNCTION StateArray<float> finish(int first) {
    float* const values           = reinterpret_cast<float*>(memory_);
    RowState<float>* const states = reinterpret_cast<RowState<float>*>(memory_ + Layout::states_at);
#if defined(__CUDA_ARCH__)
    cuda::wait_copies<0>();
    cuda::sync_team();  // no warp accesses a tile or the previous part any more
    const RowState<float> state = row_state();
    if (token_at(0) == 0) states[lane_row(0)] = state;
    float* const to = values + (lane() >> 2) * Layout::value_stride + 16 * warp_ + 2 * (lane() & 3);
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      if (first != 16 * m) continue;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < value_steps; ++i) {
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 4; ++e) {
          const auto& o = out_[m][i][e / 2];
          *reinterpret_cast<Pack<float, 2>*>(to + 64 * i + 8 * (e / 2) + e % 2 * 8 * Layout::value_stride) = {
              o[e % 2 * 2], o[e % 2 * 2 + 1]};
        }
      }
    }
    cuda::sync_team();
#endif
    return {states + first, values, Layout::value_stride, 0, 0};
  }

 private:
  static constexpr int warps       = Layout::warps;
  static constexpr int key_steps   = key_dims / 16 / warps;  ///< steps of 16 dims for each warp
  static constexpr int value_steps = value_dims / 16 / warps;
  static constexpr int chains      = RowGroups == 1 ? 2 : 1;  ///< product chains: at least four hide their latency
  static constexpr int warp_rows   = rows / warps;            ///< rows whose softmax a warp computes
  static constexpr int row_lanes   = 32 / warp_rows;
  static constexpr int lane_tokens = tile_tokens / row_lanes;
  static_assert(!AnyQuery || rows * Layout::row_bytes <= 2 * Layout::tile_bytes);
  static constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

  /// d += a b for two operands b, of 8 columns each.
  KOKKOS_FUNCTION static void multiply_pair(float (&d)[2][4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[4]) {
    cuda::mma<T>(d[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    cuda::mma<T>(d[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
  /// Recomputed at each use, so that addresses that depend on it occupy no registers elsewhere.
  KOKKOS_FUNCTION int lane() const { return cuda::opaque(lane_); }
  /// Token in the tile of the lane's i-th score.
  KOKKOS_FUNCTION int token_at(int i) const { return lane() % row_lanes * lane_tokens + i; }
  /// Chunk i (16 bytes) of row r lies at position i ^ (r % 8) of the row, so that chunks i of eight rows lie in
  /// different banks. The chunks of a row that one lane accesses are 128 bytes apart, so one address suffices.
  KOKKOS_FUNCTION std::uint32_t tile_at(int tile, int row, int chunk) const {
    return cuda::shared_address(memory_) + tile + row * Layout::row_bytes + ((chunk ^ (row & 7)) << 4);
  }
  /// Index of a sum in rows of 16. The halves are swapped in every other pair of rows, so that no two rows of a half
  /// warp share banks.
  KOKKOS_FUNCTION static int sum_at(int row, int token) { return row * tile_tokens + (token ^ ((row >> 1 & 1) << 3)); }
  KOKKOS_FUNCTION RowState<float> row_state() const {
    const float sum = cuda::sum_of_group<row_lanes>(sum_);
    return {sum == 0.0f ? -infinity : base_, sum};  // a base that was never raised: the row has seen no token
  }
  /// Returns whether all values are finite. values: the lane's address of the tile's values, as in multiply_values.
  KOKKOS_FUNCTION static bool values_are_finite(std::uint32_t values) {
    std::uint32_t zeros = 0;
    PAGODA_UNROLL(1)
    for (int i = 0; i < value_steps; ++i) {
      std::uint32_t v[4];
      cuda::load_matrices<true>(v, values + 128 * i);
      PAGODA_UNROLL_ALL
      for (const std::uint32_t word : v) zeros = cuda::add_zero_times<T>(word, zeros);
    }
    return !cuda::any_lane((zeros & 0x7fff7fffu) != 0);
  }
  /// The second product with 0 in place of the values that a row does not see, as in MmaFragment. p: probabilities, the
  /// first operand.
  KOKKOS_FUNCTION void multiply_visible_values(std::uint32_t values, const std::uint32_t (&p)[RowGroups][4]) {
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
          cuda::load_matrices<true>(v, values + 128 * i);
          PAGODA_UNROLL_ALL
          for (int n = 0; n < 2; ++n) {
            float sum[4] = {};
            cuda::mma<T>(sum, p[m][0], p[m][1], p[m][2], p[m][3], v[2 * n] & seen, v[2 * n + 1] & next);
            PAGODA_UNROLL_ALL
            for (int e = 0; e < 4; ++e)
              if (mine && below == (e >= 2)) out_[m][i][n][e] += sum[e];
          }
          cuda::sync_warp();  // keeps the next loads from being moved up, which would need registers
        }
      }
    }
  }
  KOKKOS_FUNCTION float* sums_of(int warp) const {
    return reinterpret_cast<float*>(memory_ + Layout::sums_at) + warp * rows * tile_tokens;
  }
  /// For each row, the factor of its output and sum when its maximum is raised.
  KOKKOS_FUNCTION float* kept_of_rows() const { return reinterpret_cast<float*>(memory_ + Layout::kept_at); }
  /// Row and first of two dims of the lane's e-th word, in step i of the first operand of the first product.
  KOKKOS_FUNCTION int query_row(int m, int e) const { return 16 * m + (lane() >> 2) + e % 2 * 8; }
  KOKKOS_FUNCTION int query_dim(int i, int e) const { return 64 * i + 16 * warp_ + 2 * (lane() & 3) + e / 2 * 8; }
  /// Two dims of the rounding error of a query. Recomputed for each tile, because registers are short.
  KOKKOS_FUNCTION std::uint32_t rest(int r, int d) const {
    const float x0 = queries_->template load_query<float>(r, d), x1 = queries_->template load_query<float>(r, d + 1);
    return cuda::pack<T>(x0 - static_cast<float>(T(x0)), x1 - static_cast<float>(T(x1)));
  }
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
  /// Starts to copy the lane's part of the tile whose row lies at copy_, or to clear its place.
  KOKKOS_FUNCTION void copy(int tile, bool clear) const {
    const std::uint32_t to     = tile_at(tile, copy_row(), lane() & 7);
    const std::uint64_t policy = cuda::read_once_policy();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Layout::row_bytes / 128; ++i) cuda::copy_async(to + 128 * i, copy_ + 128 * i, policy, clear);
    cuda::commit_copies();
  }

  const KernelArgs& args_;
  const TileRows<AnyQuery>* queries_ = nullptr;
  char* memory_;
  int lane_   = 0, warp_;
  int tile_   = 0;  ///< offset of the current tile in scratch
  int raised_ = 0;  ///< whether some row's maximum was raised
  PagePlace place_{};
  const char* copy_ = nullptr;  ///< the lane's part of the next tile, in global memory
  std::uint32_t q_[RowGroups][key_steps][4];
  float x_[lane_tokens];
  float out_[RowGroups][value_steps][2][4] = {};
  float base_ = initial_max, sum_ = 0, scale_ = 1;
};

}  // namespace pagoda::detail
