// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/lanes.hpp"
#include "backends/hip/matrix_storage.hpp"
#include "backends/hip/matrix_tile.hpp"
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
#include <variant>

namespace pagoda::detail {

/// How caches of T are stored: see matrix_storage.hpp.
template <class T>
struct MatrixStorageOf;
template <>
struct MatrixStorageOf<half_t> : std::type_identity<hip::Plain16<hip::MatrixType::fp16>> {};
template <>
struct MatrixStorageOf<bfloat16_t> : std::type_identity<hip::Plain16<hip::MatrixType::bf16>> {};
template <>
struct MatrixStorageOf<fp8_e4m3_t> : std::type_identity<hip::StoredE4m3> {};
template <>
struct MatrixStorageOf<fp8_e5m2_t> : std::type_identity<hip::StoredE5m2> {};
template <>
struct MatrixStorageOf<std::int8_t> : std::type_identity<hip::StoredInt8> {};
template <>
struct MatrixStorageOf<int4x2_t> : std::type_identity<hip::StoredInt4> {};
template <>
struct MatrixStorageOf<mxfp4x2_t> : std::type_identity<hip::StoredMxfp4> {};
template <>
struct MatrixStorageOf<nvfp4x2_t> : std::type_identity<hip::StoredNvfp4> {};

/// The fragment for matrix instructions of CDNA and RDNA. The arithmetic is that of hip::MatrixTile; this class finds
/// the rows and brings queries, scales and results. With tuning.loads_ahead, keys of the next tile are loaded when the
/// scores are complete, values when the output is.
///
///  - If queries are of another type, they are rounded to the type that is multiplied, and their rounding errors are
///    multiplied too.
///  - If query rows see different tokens, a value that is not finite must not reach the rows that do not see it, and 0
///    times it is NaN. Tiles with such values are multiplied row by row.
///
/// DimTile: the largest dim of keys, as in hip::MatrixTuning; dims beyond the actual ones are zeros. AnyQuery: queries
/// of types other than those of the products, and score options.
template <class Arch, class T, int DimTile, int RowTiles = 1, bool AnyQuery = false>
class MatrixFragment : public FragmentDefaults<T> {
  using Storage                             = typename MatrixStorageOf<T>::type;
  static constexpr hip::MatrixTuning tuning = hip::matrix_tuning(Arch::lanes, Storage::bits, DimTile, RowTiles);
  using Tile    = hip::MatrixTile<Arch, Storage, DimTile, tuning.value_dims, RowTiles, tuning.token_blocks>;
  using Queries = typename Tile::Queries;
  using Number  = std::conditional_t<Storage::type == hip::MatrixType::fp16, half_t, bfloat16_t>;  ///< multiplied

 public:
  template <bool General>
  using Instance = MatrixFragment<Arch, T, DimTile, RowTiles, General>;
  using Acc      = float;
  using Member   = typename Kokkos::TeamPolicy<Kokkos::HIP>::member_type;

  static constexpr int rows                   = Tile::rows;
  static constexpr int lane_rows              = RowTiles;
  static constexpr int tile_tokens            = Tile::tokens;
  static constexpr int part_rows              = tuning.part_rows;
  static constexpr int waves_per_simd         = AnyQuery ? tuning.general_waves_per_simd : tuning.waves_per_simd;
  static constexpr int wave_lanes             = Arch::lanes;
  static constexpr int scratch_alignment      = 16;
  static constexpr bool any_query             = AnyQuery;
  static constexpr DType probability_type     = dtype_v<Number>;
  static constexpr DType query_type           = dtype_v<Number>;
  static constexpr int row_alignment          = 16;
  static constexpr std::int64_t max_row_units = (std::int64_t(1) << 32) - 1;

  static bool can_run(const FragmentShape& s) {
    return s.dense_dims && s.row_alignment >= row_alignment && s.head_dim <= DimTile &&
           s.head_dim_v <= tuning.value_dims && s.head_dim % chunk_dims == 0 && s.head_dim_v % chunk_dims == 0 &&
           s.row_units <= max_row_units;
  }
  /// Queries that are not in registers and, after the last tile, the states of the workers.
  static constexpr std::size_t scratch_bytes(int, int, int workers, int) {
    return greatest<std::size_t>(std::size_t(workers) * worker_bytes, staged_queries_bytes);
  }

  KOKKOS_FUNCTION MatrixFragment(const Member& team, const KernelArgsOf<T>& args, char* memory)
      : team_(team), args_(args), memory_(memory), lane_(hip::Lanes::lane(team)), tile_(lane_) {}

  KOKKOS_FUNCTION int lane_row(int j) const { return 16 * j + tile_.column(); }

  /// Loads the first tile.
  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int first, int step, int last) {
    const int u = hip::uniform(first), end = hip::uniform(last);
    step_ = hip::uniform(step);
    cursor_.begin(where, lane_, step_);
    kv_head_ = hip::uniform(where.kv_head);
    keys_    = source(args_.k, args_.k_units, args_.head_dim, DimTile, 16);
    values_  = source(args_.v, args_.v_units, args_.head_dim_v, tuning.value_dims, 4 * Tile::value_words);
    if constexpr (has_blocks) {
      key_blocks_   = block_source(args_.k_blocks, args_.head_dim, DimTile, Tile::chunk_dims);
      value_blocks_ = block_source(args_.v_blocks, args_.head_dim_v, tuning.value_dims, Storage::block_dims);
    }
    more_ = u < end;
    if (!more_ || !tuning.loads_ahead) return;
    cursor_.advance(where, u, end);
    load_keys();
    load_values();
  }

  template <class Rows>
  KOKKOS_FUNCTION void load_queries(const Rows& rows_of, float scale) {
    scale_ = scale;
    if constexpr (AnyQuery)
      if (!args_.wide_queries) return convert_queries(rows_of);
    if constexpr (holds_queries) {
      PAGODA_UNROLL_ALL
      for (int n = 0; n < RowTiles; ++n) {
        PAGODA_UNROLL_ALL
        for (int s = 0; s < Tile::query_loads; ++s)
          q_.at[n][s] = load_query_dims(rows_of, lane_row(n), tile_.query_dim(s));
      }
      Tile::order_queries(q_);
    } else {
      for_shares(rows * DimTile / 8, [&](int i) {
        reinterpret_cast<hip::Words4*>(memory_)[i] = load_query_dims(rows_of, 8 * i / DimTile, 8 * i % DimTile);
      });
      team_.team_barrier();  // all queries are written, before any wave loads its operands
    }
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int first, int last) {
    const int u = hip::uniform(first), end = hip::uniform(last);
    more_ = static_cast<unsigned>(u) + static_cast<unsigned>(step_) < static_cast<unsigned>(end);
    if constexpr (!tuning.loads_ahead) {
      cursor_.advance(where, u, end);
      load_keys();
    }
    if (tuning.loads_ahead && more_) cursor_.advance(where, u + step_, end);
    if (args_.head_dim < DimTile) tile_.clear_keys(args_.head_dim / chunk_dims);
    if constexpr (holds_queries) {
      tile_.multiply_keys(q_);
    } else {
      tile_.multiply_keys(staged_queries(0));
    }
    if constexpr (AnyQuery)
      if (args_.q.type != query_type)
        hip::keep_order(), tile_.add_key_products(staged_queries(query_bytes));  // loaded again: registers
    if constexpr (has_token_scales)
      if (args_.k_scale.per_token()) tile_.scale_scores(key_scale_);
    if constexpr (tuning.loads_ahead) {
      if (more_) load_keys();
    } else {
      hip::keep_order();  // or both would occupy registers
      load_values();
    }
    tile_.finish_scores(scale_, end - u);
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    tile_.for_each_score(count, change);
  }
  KOKKOS_FUNCTION void softmax(bool hides) {
    if constexpr (has_token_scales)
      if (args_.v_scale.per_token()) return tile_.softmax_scaled(AnyQuery && hides, value_scale_);
    tile_.softmax(AnyQuery && hides);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where&, int, int, bool hides) {
    tile_.multiply_values(AnyQuery && hides);
    if (tuning.loads_ahead && more_) load_values();
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
      for (int h = 0; h < Tile::value_loads; ++h) {
        PAGODA_UNROLL_ALL
        for (int i = 0; i < Tile::sums; ++i) {
          float* const at = row + Tile::value_dim(h, tile_.sum_row(i));
          PAGODA_UNROLL_ALL
          for (int j = 0; j < Tile::value_dims; j += 4)
            *reinterpret_cast<Pack<float, 4>*>(at + j) = {{tile_.output(n, h, i, j), tile_.output(n, h, i, j + 1),
                                                           tile_.output(n, h, i, j + 2), tile_.output(n, h, i, j + 3)}};
        }
      }
      if (tile_.group() == 0) reinterpret_cast<RowState<float>*>(mine + states_at)[r] = {tile_.most(n), tile_.sum(n)};
    }
    team_.team_barrier();  // the states of all waves are written, before they are joined
    return {reinterpret_cast<RowState<float>*>(memory_ + states_at), reinterpret_cast<float*>(memory_), value_stride,
            worker_bytes / static_cast<int>(sizeof(RowState<float>)), worker_bytes / static_cast<int>(sizeof(float))};
  }

 private:
  static constexpr int chunk_dims   = Tile::chunk_dims;
  static constexpr int value_stride = tuning.value_dims + 4;
  static constexpr int states_at    = part_rows * value_stride * static_cast<int>(sizeof(float));
  static constexpr int worker_bytes = states_at + part_rows * static_cast<int>(sizeof(RowState<float>));
  static constexpr int query_bytes  = rows * DimTile * static_cast<int>(sizeof(Number));
  static_assert(worker_bytes % 16 == 0);
  static constexpr bool has_blocks       = Storage::block_dims > 0,
                        has_token_scales = FragmentDefaults<T>::scaled && !has_blocks;
  /// Queries are in registers, otherwise in LDS: read for each tile, which takes less time than its bytes from memory.
  static constexpr bool holds_queries       = tuning.loads_ahead;
  static constexpr int staged_queries_bytes = (AnyQuery ? 2 : holds_queries ? 0 : 1) * query_bytes;

  /// Rows of keys or values of a kv head.
  struct Source {
    const char* base;                 ///< token 0 of page 0
    std::uint64_t page_bytes;         ///< from a page to the next
    std::uint32_t page_units, token;  ///< distances of pages and tokens in units
    std::uint32_t token_bytes;        ///< the same in bytes, if it is small
    std::uint32_t last_load;          ///< bytes from the start of a row to the last that a lane loads
    bool full;                        ///< rows have as many dims as the tile
  };
  KOKKOS_FORCEINLINE_FUNCTION Source source(const void* base, const RowSteps& steps, int dims, int dim_tile,
                                            int load_bytes) const {
    const std::uint64_t unit = args_.row_unit;
    return {static_cast<const char*>(base) + kv_head_ * (steps.head * unit),
            steps.page * unit,
            steps.page,
            steps.token,
            steps.token * args_.row_unit,
            static_cast<std::uint32_t>(row_bytes(dims) - load_bytes),
            dims == dim_tile};
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
  /// Block scales of a kv head. Their strides are bytes.
  struct BlockSource {
    const char* base;           ///< of token 0 of page 0
    std::uint32_t page, token;  ///< from a page or token to the next
    int last_load;              ///< the last block of a row at which a lane begins to load
    bool plain;                 ///< rows have as many dims as the tile, and 32 bits suffice for offsets in it
  };
  /// load_dims: dims whose scales a lane loads together.
  KOKKOS_FORCEINLINE_FUNCTION BlockSource block_source(const BlockScaleArray& from, int dims, int dim_tile,
                                                       int load_dims) const {
    return {static_cast<const char*>(from.at) + static_cast<std::uint64_t>(kv_head_) * from.head, from.page, from.token,
            (dims - load_dims) / Storage::block_dims, dims == dim_tile && from.token < 1u << 26};
  }
  /// As load_rows. Branch: differs for keys and values, or the compiler merges their branches (keep_order).
  template <int Branch, class Load>
  KOKKOS_FORCEINLINE_FUNCTION void load_blocks(const BlockSource& from, int lane_token, int lane_at,
                                               const Load& load) const {
    if (cursor_.whole() && from.plain) {
      const char* const row = from.base + std::uint64_t(static_cast<std::uint32_t>(cursor_.page())) * from.page +
                              std::uint64_t(static_cast<std::uint32_t>(cursor_.slot())) * from.token;
      const std::uint32_t share = hip::settle(lane_token * from.token + lane_at);
      load([&](int token, int at) { return row + std::uint64_t(token) * from.token + share + at; });
      hip::keep_order<Branch>();
    } else {
      const PagePlace place    = cursor_.place_of_lane();
      const std::uint64_t mine = std::uint64_t(static_cast<std::uint32_t>(place.page)) * from.page +
                                 std::uint64_t(static_cast<std::uint32_t>(place.slot)) * from.token;
      const auto low = static_cast<std::uint32_t>(mine), high = static_cast<std::uint32_t>(mine >> 32);
      const int token0 = hip::settle(lane_token), at0 = hip::settle(lane_at);
      load([&](int token, int at) {
        const std::uint64_t row =
            hip::from_lane(low, token + token0) | std::uint64_t(hip::from_lane(high, token + token0)) << 32;
        return from.base + row + least(at0 + at, from.last_load);
      });
      hip::keep_order<Branch + 1>();
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_keys() {
    load_rows(keys_, tile_.key_token(), 16 * tile_.key_chunk(0), [&](const auto& address) {
      tile_.load_keys([&](int b, int s) { return address(16 * b, 16 * Arch::operand_groups * s); });
    });
    if constexpr (has_token_scales)
      if (args_.k_scale.per_token()) key_scale_ = scale_of_lane(args_.k_scale);
    if constexpr (has_blocks)
      load_blocks<3>(key_blocks_, tile_.key_token(), tile_.key_block(), [&](const auto& address) {
        tile_.load_key_scales([&](int b, int s) { return address(16 * b, Tile::key_block_step * s); });
      });
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_values() {
    load_rows(values_, tile_.value_token(), row_bytes(Tile::value_dim(0, tile_.column())), [&](const auto& address) {
      tile_.load_values([&](int b, int i, int h) { return address(16 * b + i, row_bytes(Tile::value_dim(h, 0))); });
    });
    if constexpr (has_token_scales)
      if (args_.v_scale.per_token()) value_scale_ = scale_of_lane(args_.v_scale);
    if constexpr (has_blocks)
      load_blocks<9>(value_blocks_, tile_.value_token(), tile_.value_block(), [&](const auto& address) {
        tile_.load_value_scales([&](int b, int i) { return address(16 * b + i, 0); });
      });
  }
  KOKKOS_FUNCTION static constexpr int row_bytes(int dims) { return dims * Storage::bits / 8; }
  /// The scale of token lane % tile_tokens.
  template <class Scales>
  KOKKOS_FORCEINLINE_FUNCTION float scale_of_lane(const Scales& scales) const {
    const PagePlace place = cursor_.place_of_lane();
    return scales.of_token(scales.offset(place.page, place.slot), kv_head_);
  }

  /// Team-wide: rounds queries of any type and strides, and stores them and their rounding errors in scratch.
  template <class Rows>
  KOKKOS_FORCEINLINE_FUNCTION void convert_queries(const Rows& rows_of) {
    for_shares(rows * DimTile, [&](int i) {
      const int r = i / DimTile, d = i % DimTile;
      const float x      = d < args_.head_dim ? rows_of.template load_query<float>(r, d) : 0.0f;
      const auto rounded = Number(x);
      Number* const at   = reinterpret_cast<Number*>(memory_) + i;
      at[0]              = rounded;
      at[rows * DimTile] = Number(x - static_cast<float>(rounded));
    });
    team_.team_barrier();  // all queries are written, before any wave loads its operands
    if constexpr (holds_queries) q_ = staged_queries(0);
  }
  /// Calls f(i) for the thread's share of 0 .. count.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_shares(int count, const F& f) const {
    const int threads = team_.team_size() * Arch::lanes;
    PAGODA_UNROLL(1)
    for (int i = team_.team_rank() * Arch::lanes + lane_; i < count; i += threads) f(i);
  }
  /// 8 dims of query row r, or zeros beyond the last row and dim.
  template <class Rows>
  KOKKOS_FORCEINLINE_FUNCTION hip::Words4 load_query_dims(const Rows& rows_of, int r, int d) const {
    const bool none          = !rows_of.valid(r) || d >= args_.head_dim;
    const Number* const from = static_cast<const Number*>(args_.q.data) + (none ? 0 : rows_of.query_offset(r) + d);
    hip::Words4 got          = hip::load_global<hip::Words4>(reinterpret_cast<const char*>(from));
    PAGODA_UNROLL_ALL
    for (int w = 0; w < 4; ++w) got[w] = none ? 0 : got[w];
    return got;
  }
  /// The lane's operands of the queries, or of their rounding errors, which lie query_bytes behind them.
  KOKKOS_FORCEINLINE_FUNCTION Queries staged_queries(int part) const {
    const char* const rows_at = memory_ + hip::settle(part + 2 * (tile_.column() * DimTile));
    Queries q;
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < Tile::query_loads; ++s)
        q.at[n][s] = *reinterpret_cast<const hip::Words4*>(rows_at + 2 * (16 * n * DimTile + tile_.query_dim(s)));
    }
    Tile::order_queries(q);
    return q;
  }
  const Member& team_;
  const KernelArgsOf<T>& args_;
  char* memory_;
  int lane_;
  Tile tile_;
  hip::TileCursor<Arch::lanes, tile_tokens> cursor_;
  Source keys_{}, values_{};
  [[no_unique_address]] std::conditional_t<has_blocks, BlockSource, std::monostate> key_blocks_{}, value_blocks_{};
  int step_ = 0, kv_head_ = 0;
  bool more_                        = false;  ///< there is a tile to load
  float scale_                      = 1;
  [[maybe_unused]] float key_scale_ = 1, value_scale_ = 1;  ///< of token lane % tile_tokens, if tokens have scales
  std::conditional_t<holds_queries, Queries, std::monostate> q_;
};

}  // namespace pagoda::detail
