// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
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

/// The fragment for fp64 caches, with mma.sync.m8n8k4 (sm_80 and newer): 8 query rows, 16 tokens a tile.
///
///  - Query rows are operand A in both products, and keys and values operand B. A lane has scores of one query row and
///    four tokens. The order of the tokens in the second product is free, and one is taken in which the lane's
///    probabilities are its operand: lanes exchange neither scores nor probabilities.
///  - Keys and values are copied asynchronously to the worker's own part of scratch, in chunks of 32 dims of a tile's
///    rows. There is room for two chunks: while one is multiplied, the next one is copied. Only the worker itself
///    waits for its copies.
///  - Queries lie in the team's scratch, in the order of the operands.
///  - The running maximum is raised only when a score exceeds it by more than rescale_threshold.
///  - The values of a tile are summed separately before they are added to the output, so that rounding grows with the
///    number of tiles only.
///
/// If query rows see different tokens, a value that is not finite must not reach the rows that do not see it, and 0
/// times it is NaN. Chunks with such values are multiplied row by row (multiply_visible_values).
///
/// DimTile: the largest head dim; dims beyond the actual ones are zeros. AnyQuery: queries of any type and strides, and
/// score options.
template <int DimTile, bool AnyQuery = false>
class DmmaFragment : public FragmentDefaults<double> {
 public:
  template <bool General>
  using Instance                              = DmmaFragment<DimTile, General>;
  using Acc                                   = double;
  using Member                                = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  static constexpr bool needs_fast_fp64       = true;
  static constexpr bool any_query             = AnyQuery;
  static constexpr int rows                   = 8;
  static constexpr int lane_rows              = 1;
  static constexpr int tile_tokens            = 16;
  static constexpr int scratch_alignment      = 256;  ///< a row of a chunk
  static constexpr DType probability_type     = DType::fp64;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  /// Teams have four warps. Registers limit how many fit.
  static constexpr int teams_per_sm      = DimTile <= 128 ? 3 : 2;
  static constexpr int join_block        = 4;  ///< limited by registers
  static constexpr int long_split_factor = 2;
  static constexpr bool discards_states  = true;
  /// 688 tokens of 128 dims. Three teams on each of 132 multiprocessors then take powers of two of tokens in rounds
  /// that are 97% full.
  static constexpr int fixed_split_bytes = 5 << 18;
  /// A worker has room for the outputs of so many rows; 0: of all rows.
  static constexpr int part_rows = DimTile <= 128 ? 0 : 4;

  static constexpr int row_alignment = 16;  ///< bytes
  static bool can_run(const FragmentShape& s) {
    return s.dense_dims && s.row_alignment >= row_alignment && s.head_dim <= DimTile && s.head_dim_v <= DimTile &&
           s.head_dim % 2 == 0 && s.head_dim_v % 2 == 0;
  }
  static constexpr std::size_t scratch_bytes(int, int, int workers, int) {
    return std::size_t(workers) * worker_bytes + query_bytes;
  }

  KOKKOS_FUNCTION DmmaFragment(const Member& team, const KernelArgs& args, char* memory)
      : team_(team),
        args_(args),
        memory_(memory),
        chunks_(memory + team.team_rank() * worker_bytes),
        queries_(memory + team.team_size() * worker_bytes) {
    KOKKOS_IF_ON_DEVICE((lane_ = static_cast<int>(threadIdx.x & 31);))
    row_    = lane_ >> 2;
    column_ = lane_ & 3;
    // Rows of a chunk start on multiples of their size, so XOR on the address changes the position in the row.
    const std::uint32_t at = cuda::shared_address(chunks_);
    copy_at_               = at + (lane_ >> 3) * row_bytes + (((lane_ & 7) ^ swizzle(lane_ >> 3)) << 4);
    keys_at_               = at + row_ * row_bytes + ((column_ ^ swizzle(row_)) << 4);
    values_at_             = at + 2 * column_ * row_bytes + ((row_ ^ swizzle(2 * column_)) << 4);
    queries_at_            = cuda::shared_address(queries_) + 16 * lane_;
  }

  KOKKOS_FUNCTION int lane_row(int) const { return row_; }

  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int step, int end) {
    step_ = step;
    if (u >= end) return;
    more_ = true;
    look_up(where, u, end);
    take_next(where);
    copy(0, keys_, 0, args_.head_dim);
    copy(1, keys_, chunk_dims, args_.head_dim);
    look_up(where, u + step, end);
  }

  /// Team-wide.
  template <class Rows>
  KOKKOS_FUNCTION void load_queries(const Rows& rows_of, double scale) {
    scale_            = scale;
    const int threads = 32 * team_.team_size(), thread = 32 * team_.team_rank() + lane_;
    if (!AnyQuery || args_.wide_queries) {
      PAGODA_UNROLL(4)
      for (int i = thread; i < rows * DimTile / 2; i += threads) {
        const int r = i / (DimTile / 2), d = 2 * (i % (DimTile / 2));
        const bool none       = !rows_of.valid(r) || d >= args_.head_dim;
        const double* const q = static_cast<const double*>(args_.q.data) + (none ? 0 : rows_of.query_offset(r) + d);
        *query(r, d)          = none ? Pair{} : *reinterpret_cast<const Pair*>(q);
      }
    } else {
      PAGODA_UNROLL(1)
      for (int i = thread; i < rows * DimTile; i += threads) {
        const int r = i / DimTile, d = i % DimTile;
        query(r, d)->at[d % 2] = d < args_.head_dim ? rows_of.template load_query<double>(r, d) : 0.0;
      }
    }
    team_.team_barrier();  // all queries are written, before any worker multiplies them
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    double s[2][2][2] = {};  // tokens 0 .. 7 and 8 .. 15; even and odd dims have separate sums: shorter chains
    PAGODA_UNROLL_ALL
    for (int c = 0; c < chunks; ++c) {
      wait_for_chunk();
      PAGODA_UNROLL_ALL
      for (int i = 0; i < chunk_dims / 8; ++i) {
        double q[2], k[2];
        cuda::load_shared(q, queries_at_ + (chunk_dims / 8 * c + i) * operand_bytes);
        PAGODA_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
          cuda::load_shared(k, (keys_at_ ^ (i << 6)) + place_of(c) + 8 * half * row_bytes);
          PAGODA_UNROLL_ALL
          for (int e = 0; e < 2; ++e) cuda::mma(s[half][e], q[e], k[e]);
        }
      }
      copy_ahead(where, c, u, end);
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      x_[i] = token_at(i) < end - u ? (s[i / 2][0][i % 2] + s[i / 2][1][i % 2]) * scale_ : -infinity;
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      if (token_at(i) < count) change(0, token_at(i), x_[i]);
  }

  /// Turns scores into probabilities.
  KOKKOS_FUNCTION void softmax(bool hides) {
#if defined(__CUDA_ARCH__)
    const double most = fmax(fmax(x_[0], x_[1]), fmax(x_[2], x_[3]));
    if (cuda::any_lane(most > base_ + rescale_threshold)) raise_base(most);
    hidden_ = 0;
    if (AnyQuery && hides)
      for (int i = 0; i < 4; ++i) hidden_ |= (x_[i] == -infinity) << i;
    PAGODA_UNROLL_ALL
    for (double& x : x_) x = exp2(x - base_);
    sum_ += (x_[0] + x_[1]) + (x_[2] + x_[3]);
#endif
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where& where, int u, int end, bool hides) {
    PAGODA_UNROLL_ALL
    for (int c = 0; c < chunks; ++c) {
      wait_for_chunk();
      if (AnyQuery && hides && !values_are_finite(c)) {
        multiply_visible_values(c);
      } else {
        PAGODA_UNROLL_ALL
        for (int block = 0; block < chunk_dims / 16; ++block) {
          double sum[2][2] = {};
          PAGODA_UNROLL_ALL
          for (int i = 0; i < 4; ++i) {
            double v[2];
            load_values(v, c, block, i);
            PAGODA_UNROLL_ALL
            for (int e = 0; e < 2; ++e) cuda::mma(sum[e], x_[i], v[e]);
          }
          add_output(c, block, sum);
        }
      }
      copy_ahead(where, chunks + c, u, end);
    }
  }

  /// Team-wide: returns the states of rows `first` and on, part_rows of them or all.
  KOKKOS_FUNCTION StateArray<double> finish(int first = 0) {
#if defined(__CUDA_ARCH__)
    if (first == 0) {
      sum_ += __shfl_xor_sync(~0u, sum_, 1);
      sum_ += __shfl_xor_sync(~0u, sum_, 2);
    } else {
      team_.team_barrier();  // the states of the last part are read, before they are overwritten
    }
    // Writes to the worker's own part, which no copy uses any more. If a base was never raised, the row has seen no
    // token.
    const int r = row_ - first;
    if (r >= 0 && r < state_rows) {
      if (column_ == 0)
        reinterpret_cast<RowState<double>*>(chunks_ + states_at)[r] = {sum_ == 0.0 ? -infinity : base_, sum_};
      PAGODA_UNROLL_ALL
      for (int i = 0; i < DimTile / 16; ++i) {
        Pair* const to = reinterpret_cast<Pair*>(chunks_) + (r * DimTile + 16 * i + 4 * column_) / 2;
        PAGODA_UNROLL_ALL
        for (int n = 0; n < 2; ++n) to[n] = {out_[i][0][n], out_[i][1][n]};
      }
    }
    team_.team_barrier();  // the states of all warps are written, before they are joined
#endif
    return {reinterpret_cast<RowState<double>*>(memory_ + states_at), reinterpret_cast<double*>(memory_), DimTile,
            worker_bytes / static_cast<int>(sizeof(RowState<double>)), worker_bytes / static_cast<int>(sizeof(double))};
  }

 private:
  using Pair = Pack<double, 2>;

  static constexpr int chunk_dims    = 32;
  static constexpr int chunks        = DimTile / chunk_dims;  ///< of the keys of a tile, and of the values
  static constexpr int row_bytes     = 8 * chunk_dims;
  static constexpr int chunk_bytes   = tile_tokens * row_bytes;
  static constexpr int operand_bytes = 32 * static_cast<int>(sizeof(Pair));  ///< queries of 8 dims
  static constexpr int query_bytes   = DimTile / 8 * operand_bytes;
  static constexpr int state_rows    = part_rows > 0 ? part_rows : rows;
  static constexpr int states_at     = 2 * chunk_bytes;
  static constexpr int worker_bytes  = states_at + 256;
  static_assert(chunks % 2 == 0, "the first chunk of each tile has the same place");
  static_assert(state_rows * DimTile * 8 <= states_at && state_rows * int(sizeof(RowState<double>)) <= 256);
  static_assert(worker_bytes % scratch_alignment == 0 && row_bytes == scratch_alignment);
  static constexpr double infinity = Kokkos::Experimental::infinity_v<double>;

  /// XOR mask of the positions of 16 bytes in a row of a chunk. Lanes that load together find different banks: for
  /// keys, those of four positions in two adjacent rows; for values, of two positions in four rows of equal parity.
  KOKKOS_FUNCTION static constexpr int swizzle(int row) { return (row & 6) ^ ((row & 1) << 2); }
  /// Offset of a chunk, counted from the first chunk of a tile's keys.
  KOKKOS_FUNCTION static constexpr int place_of(int chunk) { return chunk % 2 * chunk_bytes; }
  /// Token in the tile of the lane's i-th score.
  KOKKOS_FUNCTION int token_at(int i) const { return 8 * (i / 2) + 2 * column_ + i % 2; }
  /// Place in scratch of dims d and d + 1 of a query row, or of d - 1 and d.
  KOKKOS_FUNCTION Pair* query(int r, int d) const {
    return reinterpret_cast<Pair*>(queries_ + d / 8 * operand_bytes) + 4 * r + d % 8 / 2;
  }

  KOKKOS_FUNCTION void raise_base([[maybe_unused]] double most) {
#if defined(__CUDA_ARCH__)
    PAGODA_UNROLL_ALL
    for (int d = 1; d < 4; d *= 2) most = fmax(most, __shfl_xor_sync(~0u, most, d));
    most              = fmax(most, base_);
    const double kept = exp2(base_ - most);
    base_             = most;
    sum_ *= kept;
    PAGODA_UNROLL_ALL
    for (auto& block : out_)
      for (auto& o : block) o[0] *= kept, o[1] *= kept;
#endif
  }

  /// Loads the lane's operand of the values: dims 16 block + 2 row_ and the next one of a chunk, of token_at(i).
  KOKKOS_FUNCTION void load_values(double (&v)[2], int c, int block, int i) const {
    cuda::load_shared(
        v, (values_at_ ^ (i % 2 << 6)) + place_of(chunks + c) + (8 * (i / 2) + i % 2) * row_bytes + 128 * block);
  }
  KOKKOS_FUNCTION void add_output(int c, int block, const double (&sum)[2][2]) {
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e)
      for (int n = 0; n < 2; ++n) out_[chunk_dims / 16 * c + block][e][n] += sum[e][n];
  }
  KOKKOS_FUNCTION bool values_are_finite(int c) const {
    double zeros = 0;
    PAGODA_UNROLL_ALL
    for (int block = 0; block < chunk_dims / 16; ++block)
      for (int i = 0; i < 4; ++i) {
        double v[2];
        load_values(v, c, block, i);
        zeros += 0.0 * v[0], zeros += 0.0 * v[1];
      }
    return !cuda::any_lane(zeros != 0.0);  // false for NaN too
  }
  /// The second product for chunks with values that are not finite and tokens that a row does not see: one product for
  /// each row, with 0 in place of the values that it does not see. Slow and rarely needed.
  KOKKOS_FUNCTION void multiply_visible_values(int c) {
    PAGODA_UNROLL(1)
    for (int r = 0; r < rows; ++r) {
      const int hidden = cuda::from_lane(hidden_, 4 * r + column_);
      PAGODA_UNROLL_ALL
      for (int block = 0; block < chunk_dims / 16; ++block) {
        double sum[2][2] = {};
        PAGODA_UNROLL_ALL
        for (int i = 0; i < 4; ++i) {
          double v[2];
          load_values(v, c, block, i);
          PAGODA_UNROLL_ALL
          for (int e = 0; e < 2; ++e) cuda::mma(sum[e], x_[i], (hidden >> i & 1) != 0 ? 0.0 : v[e]);
        }
        if (row_ == r) add_output(c, block, sum);
      }
    }
  }

  /// Locates token lane % 16 of the tile from u on, one tile ahead. Behind the last token, it repeats that token, so
  /// every copied row belongs to the sequence.
  template <class Where>
  KOKKOS_FUNCTION void look_up(const Where& where, int u, int end) {
    next_ = where.place(Kokkos::min(u + (lane_ & 15), end - 1));
  }
  /// Takes the rows of the tile that was looked up.
  template <class Where>
  KOKKOS_FUNCTION void take_next(const Where& where) {
    const TokenRow row = where.row(next_);
    keys_ = static_cast<const double*>(args_.k) + row.k, values_ = static_cast<const double*>(args_.v) + row.v;
  }

  KOKKOS_FUNCTION static void wait_for_chunk() {
    cuda::wait_copies<1>();
    cuda::sync_warp();
  }
  /// Starts to copy the chunk two after chunk `c` to the place of the latter. Chunks are counted from the first one of
  /// a tile's keys, through its values and on into the next tile.
  template <class Where>
  KOKKOS_FUNCTION void copy_ahead(const Where& where, int c, int u, int end) {
    cuda::sync_warp();  // all lanes have read the chunk
    const int n = c + 2;
    if (n < chunks) {
      copy(c, keys_, n * chunk_dims, args_.head_dim);
    } else if (n < 2 * chunks) {
      copy(c, values_, (n - chunks) * chunk_dims, args_.head_dim_v);
    } else {
      if (n == 2 * chunks) more_ = u + step_ < end;
      if (!more_) return cuda::commit_copies();
      if (n == 2 * chunks) take_next(where);
      copy(c, keys_, (n - 2 * chunks) * chunk_dims, args_.head_dim);
      if (n == 2 * chunks) look_up(where, u + 2 * step_, end);
    }
  }
  /// Starts to copy dims `first` and on of a tile's rows to the place of chunk c. row: that of token lane % 16.
  KOKKOS_FUNCTION void copy(int c, const double* row, int first, int head_dim) {
    const int dim              = first + 2 * (lane_ & 7);
    const std::uint64_t policy = cuda::read_once_policy(), mine = reinterpret_cast<std::uint64_t>(row);
    PAGODA_UNROLL_ALL
    for (int j = 0; j < tile_tokens / 4; ++j) {
      const auto* const from = reinterpret_cast<const double*>(cuda::from_lane(mine, (lane_ >> 3) + 4 * j)) + dim;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < chunk_dims / 16; ++i)
        cuda::copy_async((copy_at_ ^ (j % 2 << 6)) + place_of(c) + 4 * j * row_bytes + 128 * i,
                         reinterpret_cast<const char*>(from + 16 * i), policy, dim + 16 * i >= head_dim);
    }
    cuda::commit_copies();
  }

  const Member& team_;
  const KernelArgs& args_;
  char* memory_;
  char* chunks_;   ///< the worker's part of scratch: two chunks; at the end, its states
  char* queries_;  ///< [8 dims][lane], the operands of the team
  int lane_   = 0, row_, column_;
  int step_   = 0;
  int hidden_ = 0;      ///< a bit for each of the lane's scores, of tokens that its row does not see
  bool more_  = false;  ///< there is a tile after this one
  std::uint32_t copy_at_, keys_at_, values_at_, queries_at_;  ///< the lane's, in shared memory
  PagePlace next_{};
  const double *keys_ = nullptr, *values_ = nullptr;  ///< rows of token lane % 16 of the tile that is copied
  double x_[4];                                       ///< scores, then probabilities
  double out_[DimTile / 16][2][2] = {};               ///< dims 16 i + 4 column_ + 2 n + e
  double base_ = Kokkos::Experimental::finite_min_v<double>, sum_ = 0, scale_ = 1;
};

}  // namespace pagoda::detail
