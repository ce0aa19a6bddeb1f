// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include "backends/host/isa.hpp"
#include "backends/host/many_rows_tile.hpp"
#include "backends/host/simd_code.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"
#include "src/plan/kernel_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace pagoda::detail {

/// The fragment for host threads that multiplies many query rows with each tile of tokens: those of a prefix that many
/// sequences share, of drafts and of prompts, or of many query heads. It converts the tile to floats once, and then
/// multiplies matrices (ManyRowsProducts). Only rows that an item has are multiplied. Interface: PortableFragment.
///
/// It processes one kv head at a time: products take much longer than reads here.
template <class Machine, class T>
class ManyRowsFragment : public FragmentDefaults<T> {
 public:
  using Acc    = float;
  using Tile   = ManyRowsTile;
  using Member = typename Machine::Member;
  template <bool>
  using Instance = ManyRowsFragment;
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  static constexpr bool general_only          = true;  ///< options cost nothing beside so many products
  static constexpr bool any_query             = true;
  static constexpr bool has_isa               = true;
  static constexpr bool joins_rows            = true;
  static constexpr int rows                   = Tile::rows;
  static constexpr int lane_rows              = rows;
  static constexpr int tile_tokens            = Tile::tile_tokens;
  static constexpr int scratch_alignment      = 64;
  static constexpr DType probability_type     = dtype_v<Acc>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  static constexpr int row_alignment          = 1;
  static bool can_run(const FragmentShape& s) { return s.dense_dims && s.rows >= fewest_rows && !multiplies_faster(); }
  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int, int) {
    return Tile::scratch_bytes(head_dim, head_dim_v);
  }

  ManyRowsFragment(const Member&, const KernelArgsOf<T>& args, char* memory)
      : args_(args),
        code_(by_isa<T>(HostIsa(args.isa), [](auto code) { return code.template many_rows<T>(); })),
        tile_(*code_.make(object_, args.head_dim, args.head_dim_v, memory)) {
    static_assert(Machine::max_workers == 1, "a worker is alone in its team: nothing is joined at the end");
    if constexpr (block_dims > 0)
      for (RowsOfTile& tile : tiles_) tile.k.block_step = args.k_blocks.block, tile.v.block_step = args.v_blocks.block;
  }
  ManyRowsFragment(const ManyRowsFragment&)            = delete;
  ManyRowsFragment& operator=(const ManyRowsFragment&) = delete;

  static constexpr int lane_row(int j) { return j; }

  template <class Where>
  void begin(const Where&, int, int, int) {}
  template <class Rows>
  void load_queries(const Rows& rows_of, Acc scale) {
    tile_.begin(rows_of.count);
    for (int r = 0; r < tile_.used_rows(); ++r) tile_.load_query(r, rows_of.query_row(r), scale);
  }
  template <class Where>
  void multiply_keys(const Where& where, int u, int end) {
    locate(where, u, end);
    code_.convert_keys(here().k, count_, args_.head_dim, tile_.keys());
    code_.convert_values(here().v, count_, args_.head_dim_v, tile_.values());
    tile_.multiply_keys(count_);
  }
  template <class Change>
  void for_each_score(int count, const Change& change) {
    tile_.for_each_score(count, change);
  }
  void softmax(bool hides) { tile_.softmax(hides); }
  template <class Where>
  void multiply_values(const Where&, int, int, bool) {
    tile_.multiply_values();
  }
  StateArray<Acc> finish() { return tile_.finish(); }
  void store_row(const StateArray<Acc>& from, int n, int r, Acc factor, const OutputRow& to) {
    tile_.store_row(from, n, r, factor, to);
  }

 private:
  static constexpr int fewest_rows = 9;
  /// Whether other fragments multiply this type faster: by tile registers, or integers as bytes.
  static bool multiplies_faster() {
    const HostIsa isa = host_isa();
    return has_bf16_code<T> && (isa == HostIsa::amx || (isa == HostIsa::avx512_bf16 && SimdTile<T, 8>::by_bytes));
  }

  struct RowsOfTile {
    CacheRows<T> k, v;
  };
  RowsOfTile& here() { return tiles_[which_]; }
  RowsOfTile& ahead() { return tiles_[1 - which_]; }

  /// Finds the rows of the tile from token u on, and those of the next tile, which are prefetched. The tiles of an item
  /// come in order, so each tile is located only once.
  template <class Where>
  void locate(const Where& where, int u, int end) {
    count_ = std::min(tile_tokens, end - u);
    if (next_ > 0) {
      which_ = 1 - which_;
    } else {
      find(where, u, count_, here());
    }
    next_ = std::clamp(end - u - tile_tokens, 0, tile_tokens);
    tile_.clear_prefetches();
    if (next_ == 0) return;
    find(where, u + tile_tokens, next_, ahead());
    const auto bytes_of = [](int dims) {
      return has_row_format_v<T> ? row_format_of(dtype_v<T>).bytes
                                 : static_cast<int>(dims * sizeof(T)) / dims_per_element_v<T>;
    };
    for (int n = 0; n < next_; ++n) {
      tile_.prefetch_later(ahead().k.row[n], bytes_of(args_.head_dim));
      if (ahead().v.row[n] != ahead().k.row[n]) tile_.prefetch_later(ahead().v.row[n], bytes_of(args_.head_dim_v));
    }
  }
  template <class Where>
  void find(const Where& where, int u, int count, RowsOfTile& to) const {
    for (int n = 0; n < count; ++n) {
      const PagePlace place = where.place(u + n);
      const TokenRow row    = where.row(place);
      to.k.row[n]           = static_cast<const T*>(args_.k) + row.k;
      to.v.row[n]           = static_cast<const T*>(args_.v) + row.v;
      if constexpr (block_dims > 0) {
        to.k.blocks[n] = first_block(args_.k_blocks, place, where.kv_head);
        to.v.blocks[n] = first_block(args_.v_blocks, place, where.kv_head);
      } else if constexpr (scaled) {
        to.k.scale[n] = scale_of(args_.k_scale, place, where.kv_head);
        to.v.scale[n] = scale_of(args_.v_scale, place, where.kv_head);
      }
    }
  }
  static const void* first_block(const BlockScaleArray& scales, const PagePlace& place, int kv_head) {
    return static_cast<const block_scale_t<T>*>(scales.at) + scales.offset(place.page, place.slot, kv_head);
  }
  static float scale_of(const ScaleArray& scale, const PagePlace& place, int kv_head) {
    return scale.per_token() ? scale.of_token(scale.offset(place.page, place.slot), kv_head) : 1.0f;
  }

  const KernelArgsOf<T>& args_;
  ManyRowsCode<T> code_;
  alignas(Tile) std::byte object_[sizeof(Tile)];
  Tile& tile_;
  int count_ = 0, next_ = 0;  ///< tokens of the tile and of the next one
  int which_ = 0;
  RowsOfTile tiles_[2];
};

}  // namespace pagoda::detail
