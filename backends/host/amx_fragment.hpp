// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/amx_tile.hpp"
#include "backends/host/isa.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace pagoda::detail {

/// The functions with instructions of AMX. Defined in amx_products.hpp.
template <class T, int R>
struct AmxCode {
  using Tile = AmxTile<T, R>;
  /// Stores query row r of the selected head. data: null for a row of zeros.
  static void load_query(Tile& tile, int r, const QueryRow& row, float scale);
  static void multiply_keys(Tile& tile);
  static void softmax(Tile& tile);
  static void multiply_values(Tile& tile);
  static bool repeats(Tile& tile);
  static void finish(Tile& tile);
  static void store_row(const StateArray<float>& from, int n, int r, float factor, int dims, const OutputRow& to);
};

/// The fragment for processors with Intel AMX: tile registers of 16 rows of 64 bytes. Interface: PortableFragment.
/// What the operands are: DirectOperands (bfloat16), ConvertedOperands (quantized types).
///
/// The softmax and the second product work on all heads of a set. The calls for its last head start them.
template <class Machine, class T, int R>
class AmxFragment : public FragmentDefaults<T> {
 public:
  using Tile   = AmxTile<T, R>;
  using Code   = AmxCode<T, R>;
  using Acc    = float;
  using Member = typename Machine::Member;
  template <bool>
  using Instance                   = AmxFragment;
  static constexpr bool any_query  = true;
  static constexpr bool many_heads = true;
  static constexpr bool has_isa    = true;
  static constexpr bool joins_rows = true;
  static constexpr int rows        = R;
  static constexpr int lane_rows   = R;
  static constexpr int tile_tokens = Tile::tile_tokens;
  /// Limit on the bytes of keys for each token of heads that are processed together: see SimdFragment.
  static constexpr int walked_bytes      = 8192;
  static constexpr int scratch_alignment = 64;
  /// Converted rows are multiplied by probabilities that are the sum of two bfloat16 numbers: 16 bits.
  static constexpr DType probability_type     = Tile::converts ? DType::fp16 : DType::bf16;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  static constexpr int row_alignment          = 1;
  /// Few rows of a quantized cache are faster without tiles: to convert an element takes longer than to multiply it.
  static bool can_run(const FragmentShape& s) {
    return s.dense_dims && (!Tile::converts || s.rows > 4) && s.head_dim % Tile::chunk_dims == 0 &&
           s.head_dim_v % Tile::chunk_dims == 0 && host_isa() == HostIsa::amx;
  }
  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int, int heads) {
    return Tile::scratch_bytes(head_dim, head_dim_v, heads);
  }

  AmxFragment(const Member&, const KernelArgsOf<T>& args, char* memory) : tile_(args, memory) {
    static_assert(Machine::max_workers == 1, "a worker is alone in its team: nothing is joined at the end");
  }

  static constexpr int lane_row(int j) { return j; }

  void select(int head) { tile_.head = head; }
  template <class Rows>
  void load_queries(const Rows& rows_of, Acc scale) {
    for (int r = 0; r < R; ++r) Code::load_query(tile_, r, rows_of.query_row(r), scale);
  }
  template <class Where>
  void locate(const Where& where, int u, int end) {
    tile_.locate(where, u, end);
  }
  template <class Where>
  void multiply_keys(const Where&, int, int) {
    if (tile_.head == tile_.first_head()) Code::multiply_keys(tile_);
  }
  template <class Change>
  void for_each_score(int count, const Change& change) {
    float* const s = tile_.scores + tile_.first_column();
    for (int n = 0; n < count; ++n)
      for (int r = 0; r < R; ++r) change(r, n, s[n * Tile::columns + r]);
  }
  void softmax(bool) {
    if (ends_set()) Code::softmax(tile_);
  }
  template <class Where>
  void multiply_values(const Where&, int, int, bool) {
    if (ends_set()) Code::multiply_values(tile_);
  }
  /// Products with zeros assume that keys and values are finite: a NaN or an infinity in a key reaches the scores of
  /// the other heads of the set, and one in a value reaches rows that do not see the token, and the dim beside it. If a
  /// result is NaN, the tiles are processed again, the scores of each head alone, and such values without tiles.
  bool repeats() { return Code::repeats(tile_); }
  /// States of all heads.
  StateArray<Acc> finish() {
    Code::finish(tile_);
    return {tile_.states, tile_.output, tile_.head_dim_v, 0, 0, R, Tile::sums * R * tile_.head_dim_v};
  }
  void store_row(const StateArray<Acc>& from, int n, int r, Acc factor, const OutputRow& to) {
    Code::store_row(from, n, r, factor, tile_.head_dim_v, to);
  }

 private:
  bool ends_set() const { return tile_.head + 1 == tile_.first_head() + tile_.heads_of_set(); }

  Tile tile_;
};

}  // namespace pagoda::detail
