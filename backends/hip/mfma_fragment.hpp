// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/lanes.hpp"
#include "backends/hip/mfma_tile.hpp"
#include "backends/hip/tile_cursor.hpp"
#include "backends/hip/tuning.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/pack.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pagoda::detail {

/// The fragment for matrix instructions of CDNA, fp16 and bf16. The arithmetic is that of hip::MfmaTile; this class
/// finds the rows and brings queries and results. Keys of the next tile are loaded when the scores are complete, values
/// when the output is.
///
///  - If queries are of another type, they are rounded to the cache's type, and their rounding errors are multiplied
///    too.
///  - If query rows see different tokens, a value that is not finite must not reach the rows that do not see it, and 0
///    times it is NaN. Tiles with such values are multiplied row by row.
///
/// DimTile: 64, 128 or 256, the largest head dim; dims beyond the actual ones are zeros. AnyQuery: queries of types
/// other than the cache's, and score options.
template <class T, int DimTile, int RowTiles = 1, bool AnyQuery = false>
class MfmaFragment : public FragmentDefaults<T> {
  static constexpr hip::MfmaTuning tuning = hip::mfma_tuning(DimTile, RowTiles);
  static constexpr auto type              = std::is_same_v<T, half_t> ? hip::MfmaType::fp16 : hip::MfmaType::bf16;
  using Tile                              = hip::MfmaTile<type, DimTile, RowTiles, tuning.token_blocks>;
  using Queries                           = typename Tile::Queries;
  static_assert(std::is_same_v<T, half_t> || std::is_same_v<T, bfloat16_t>);

 public:
  template <bool General>
  using Instance = MfmaFragment<T, DimTile, RowTiles, General>;
  using Acc      = float;
  using Member   = typename Kokkos::TeamPolicy<Kokkos::HIP>::member_type;

  static constexpr int rows                   = Tile::rows;
  static constexpr int lane_rows              = RowTiles;
  static constexpr int tile_tokens            = Tile::tokens;
  static constexpr int part_rows              = tuning.part_rows;
  static constexpr int waves_per_simd         = AnyQuery ? tuning.general_waves_per_simd : tuning.waves_per_simd;
  static constexpr int scratch_alignment      = 16;
  static constexpr bool any_query             = AnyQuery;
  static constexpr DType probability_type     = dtype_v<T>;
  static constexpr int row_alignment          = 16;
  static constexpr std::int64_t max_row_units = (std::int64_t(1) << 32) - 1;

  static bool can_run(const FragmentShape& s) {
    return s.dense_dims && s.row_alignment >= row_alignment && s.head_dim <= DimTile && s.head_dim_v <= DimTile &&
           s.head_dim % chunk_dims == 0 && s.head_dim_v % chunk_dims == 0 && s.row_units <= max_row_units;
  }
  /// Queries of other types and, after the last tile, the states of the workers.
  static constexpr std::size_t scratch_bytes(int, int, int workers, int) {
    return greatest<std::size_t>(std::size_t(workers) * worker_bytes, AnyQuery ? 2 * query_bytes : 0);
  }

  KOKKOS_FUNCTION MfmaFragment(const Member& team, const KernelArgsOf<T>& args, char* memory)
      : team_(team), args_(args), memory_(memory), lane_(hip::Lanes::lane(team)), tile_(lane_) {}

  KOKKOS_FUNCTION int lane_row(int j) const { return 16 * j + tile_.column(); }

  /// Loads the first tile.
  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int first, int step, int last) {
    const int u = hip::uniform(first), end = hip::uniform(last);
    step_ = hip::uniform(step);
    cursor_.begin(where, lane_, step_);
    const int kv_head = hip::uniform(where.kv_head);
    keys_             = source(args_.k, args_.k_units, kv_head, args_.head_dim, 16);
    values_           = source(args_.v, args_.v_units, kv_head, args_.head_dim_v, sizeof(typename Tile::ValueWords));
    more_             = u < end;
    if (!more_) return;
    cursor_.advance(where, u, end);
    load_keys();
    load_values();
  }

  template <class Rows>
  KOKKOS_FUNCTION void load_queries(const Rows& rows_of, float scale) {
    scale_ = scale;
    if (!AnyQuery || args_.wide_queries) {
      for_each_chunk([&](int n, int s) {
        const int r = lane_row(n), d = chunk_dims * tile_.key_chunk(s);
        const bool none       = !rows_of.valid(r) || d >= args_.head_dim;
        const T* const from   = static_cast<const T*>(args_.q.data) + (none ? 0 : rows_of.query_offset(r) + d);
        const hip::Words4 got = hip::load_global<hip::Words4>(reinterpret_cast<const char*>(from));
        PAGODA_UNROLL_ALL
        for (int w = 0; w < 4; ++w) q_.at[n][s][w] = none ? 0 : got[w];
      });
    } else if constexpr (AnyQuery) {
      convert_queries(rows_of);
    }
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int first, int last) {
    const int u = hip::uniform(first), end = hip::uniform(last);
    more_ = static_cast<unsigned>(u) + static_cast<unsigned>(step_) < static_cast<unsigned>(end);
    if (more_) cursor_.advance(where, u + step_, end);
    if (args_.head_dim < DimTile) tile_.clear_keys(args_.head_dim / chunk_dims);
    tile_.multiply_keys(q_);
    if constexpr (AnyQuery)
      if (args_.q.type != dtype_v<T>) tile_.add_key_products(staged_queries(query_bytes));  // loaded again: registers
    if (more_) load_keys();
    tile_.finish_scores(scale_, end - u);
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    tile_.for_each_score(count, change);
  }
  KOKKOS_FUNCTION void softmax(bool hides) { tile_.softmax(AnyQuery && hides); }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where&, int, int, bool hides) {
    if (AnyQuery && hides && !tile_.values_are_finite()) {
      tile_.multiply_visible_values();
    } else {
      tile_.multiply_values();
    }
    if (more_) load_values();
  }

  /// Team-wide: the states of all workers, for rows from `first` on.
  KOKKOS_FUNCTION StateArray<float> finish(int first) {
    if (first == 0) tile_.sum_lanes();
    team_.team_barrier();  // all have read their queries, or the part before
    char* const mine = memory_ + team_.team_rank() * worker_bytes;
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      const int r = lane_row(n) - first;
      if (r < 0 || r >= part_rows) continue;
      float* const row = reinterpret_cast<float*>(mine) + r * value_stride;
      PAGODA_UNROLL_ALL
      for (int h = 0; h < Tile::value_loads; ++h)
        for (int i = 0; i < 4; ++i)
          for (int j = 0; j < Tile::value_dims; j += 4)
            *reinterpret_cast<Pack<float, 4>*>(row + Tile::value_dim(h, 4 * tile_.group() + i) +
                                               j) = {{tile_.output(n, h, i, j), tile_.output(n, h, i, j + 1),
                                                      tile_.output(n, h, i, j + 2), tile_.output(n, h, i, j + 3)}};
      if (tile_.group() == 0) reinterpret_cast<RowState<float>*>(mine + states_at)[r] = {tile_.most(n), tile_.sum(n)};
    }
    team_.team_barrier();
    return {reinterpret_cast<RowState<float>*>(memory_ + states_at), reinterpret_cast<float*>(memory_), value_stride,
            worker_bytes / static_cast<int>(sizeof(RowState<float>)), worker_bytes / static_cast<int>(sizeof(float))};
  }

 private:
  static constexpr int chunk_dims   = 8;  ///< dims in 16 bytes
  static constexpr int value_stride = DimTile + 4;
  static constexpr int states_at    = part_rows * value_stride * static_cast<int>(sizeof(float));
  static constexpr int worker_bytes = states_at + part_rows * static_cast<int>(sizeof(RowState<float>));
  static constexpr int query_bytes  = rows * DimTile * static_cast<int>(sizeof(T));
  static_assert(worker_bytes % 16 == 0);

  /// Rows of keys or values of a kv head.
  struct Source {
    const char* base;                 ///< token 0 of page 0
    std::uint64_t page_bytes;         ///< from a page to the next
    std::uint32_t page_units, token;  ///< distances of pages and tokens in units
    std::uint32_t token_bytes;        ///< the same in bytes, if it is small
    std::uint32_t last_load;          ///< bytes from the start of a row to the last that a lane loads
    bool full;                        ///< rows have DimTile dims
  };
  KOKKOS_FORCEINLINE_FUNCTION Source source(const void* base, const RowSteps& steps, int kv_head, int dims,
                                            int load_bytes) const {
    const std::uint64_t unit = args_.row_unit;
    return {static_cast<const char*>(base) + kv_head * (steps.head * unit),
            steps.page * unit,
            steps.page,
            steps.token,
            steps.token * args_.row_unit,
            static_cast<std::uint32_t>(dims * int(sizeof(T)) - load_bytes),
            dims == DimTile};
  }

  /// Calls load(address), where address(token, at) is the address of byte lane_at + at of the row of token lane_token +
  /// token of the tile. Rows of a tile within a page are evenly spaced, and a scalar holds the part of the address that
  /// is the same for all lanes. Otherwise lanes exchange the places of rows.
  template <class Load>
  KOKKOS_FORCEINLINE_FUNCTION void load_rows(const Source& from, int lane_token, int lane_at, const Load& load) const {
    if (cursor_.whole() && from.full) {
      const char* const row = from.base + static_cast<std::uint32_t>(cursor_.page()) * from.page_bytes +
                              static_cast<std::uint64_t>(cursor_.slot()) * from.token_bytes;
      const std::uint32_t share = hip::settle(lane_token * from.token_bytes + lane_at);  // 32 bits of an address
      load([&](int token, int at) { return row + std::uint64_t(token) * from.token_bytes + share + at; });
      hip::keep_order<1>();
    } else {
      const PagePlace place     = cursor_.place_of_lane();
      const std::uint32_t units = place.page * from.page_units + place.slot * from.token;
      const int token0 = hip::settle(lane_token), at0 = hip::settle(lane_at);  // or addresses occupy registers always
      load([&](int token, int at) {
        return from.base + std::uint64_t(hip::from_lane(units, token + token0)) * args_.row_unit +
               least(static_cast<std::uint32_t>(at0 + at), from.last_load);
      });
      hip::keep_order<2>();
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_keys() {
    load_rows(keys_, tile_.column(), 16 * tile_.key_chunk(0),
              [&](const auto& address) { tile_.load_keys([&](int b, int s) { return address(16 * b, 64 * s); }); });
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_values() {
    constexpr int bytes = static_cast<int>(sizeof(T));
    load_rows(values_, 4 * tile_.group(), bytes * Tile::value_dim(0, tile_.column()), [&](const auto& address) {
      tile_.load_values([&](int b, int i, int h) { return address(16 * b + i, bytes * Tile::value_dim(h, 0)); });
    });
  }

  /// Team-wide: rounds queries of any type and strides, and stores them and their rounding errors in scratch.
  template <class Rows>
  KOKKOS_FORCEINLINE_FUNCTION void convert_queries(const Rows& rows_of) {
    const int threads = team_.team_size() * 64, thread = team_.team_rank() * 64 + lane_;
    PAGODA_UNROLL(1)
    for (int i = thread; i < rows * DimTile; i += threads) {
      const int r = i / DimTile, d = i % DimTile;
      const float x      = d < args_.head_dim ? rows_of.template load_query<float>(r, d) : 0.0f;
      const auto rounded = T(x);
      T* const at        = reinterpret_cast<T*>(memory_) + i;
      at[0]              = rounded;
      at[rows * DimTile] = T(x - static_cast<float>(rounded));
    }
    team_.team_barrier();
    q_ = staged_queries(0);
  }
  /// The lane's operands of the queries, or of their rounding errors, which lie query_bytes behind them.
  KOKKOS_FORCEINLINE_FUNCTION Queries staged_queries(int part) const {
    const char* const rows_at = memory_ + hip::settle(part + tile_.column() * DimTile * int(sizeof(T)));
    Queries q;
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < Tile::key_loads; ++s)
        q.at[n][s] = *reinterpret_cast<const hip::Words4*>(rows_at + 16 * n * DimTile * int(sizeof(T)) +
                                                           16 * tile_.key_chunk(s));
    }
    return q;
  }
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION static void for_each_chunk(const F& f) {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < Tile::key_loads; ++s) f(n, s);
    }
  }

  const Member& team_;
  const KernelArgsOf<T>& args_;
  char* memory_;
  int lane_;
  Tile tile_;
  hip::TileCursor<tile_tokens> cursor_;
  Source keys_{}, values_{};
  int step_    = 0;
  bool more_   = false;  ///< there is a tile to load
  float scale_ = 1;
  Queries q_;
};

}  // namespace pagoda::detail
