// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/isa.hpp"
#include "backends/host/simd_code.hpp"
#include "backends/host/simd_tile.hpp"
#include "src/kernel/fragment.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace pagoda::detail {

/// The fragment for host threads with vector registers. It takes dense rows (dims side by side) of any length at any
/// address. Interface: PortableFragment. How it multiplies, in the instructions that the plan has chosen
/// (KernelArgs::isa): SimdProducts.
///
/// The fragment can process several kv heads of the same tokens together (`heads`, select). In NHD order the rows
/// of all heads of a token are adjacent, and only processing them together reads memory sequentially (bench/NOTES.md).
template <class Machine, class T, int R>
class SimdFragment : public FragmentDefaults<T> {
 public:
  using Tile   = SimdTile<T, R>;
  using Acc    = typename Tile::Acc;
  using Member = typename Machine::Member;
  template <bool>
  using Instance                   = SimdFragment;
  static constexpr bool any_query  = true;
  static constexpr bool many_heads = true;
  static constexpr bool has_isa    = true;
  static constexpr bool joins_rows = true;
  static constexpr int rows        = R;
  static constexpr int lane_rows   = R;
  static constexpr int tile_tokens = Tile::tile_tokens;
  /// Limit on the bytes of keys for each token of heads that are processed together. It keeps this tile and the
  /// next, keys and values, in a second-level cache of 1 MB.
  static constexpr int walked_bytes           = 8192;
  static constexpr int scratch_alignment      = 64;
  static constexpr DType probability_type     = dtype_v<Acc>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  static constexpr int row_alignment          = 1;
  static bool can_run(const FragmentShape& s) { return s.dense_dims; }
  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int, int heads) {
    return Tile::scratch_bytes(head_dim, head_dim_v, heads);
  }

  SimdFragment(const Member&, const KernelArgsOf<T>& args, char* memory)
      : tile_(*by_isa<T>(HostIsa(args.isa),
                         [&]<class Code>(Code) { return Code::template tile<T, R>(object_, args, memory); })) {
    static_assert(Machine::max_workers == 1, "a worker is alone in its team: nothing is joined at the end");
  }
  SimdFragment(const SimdFragment&)            = delete;
  SimdFragment& operator=(const SimdFragment&) = delete;

  static constexpr int lane_row(int j) { return j; }

  void select(int head) { tile_.select(head); }
  template <class Rows>
  void load_queries(const Rows& rows_of, Acc scale) {
    for (int r = 0; r < R; ++r) tile_.load_query(r, rows_of.query_row(r), scale);
  }
  template <class Where>
  void locate(const Where& where, int u, int end) {
    tile_.locate(where, u, end);
  }
  template <class Where>
  void multiply_keys(const Where&, int, int) {
    tile_.multiply_keys();
  }
  template <class Change>
  void for_each_score(int count, const Change& change) {
    tile_.for_each_score(count, change);
  }
  void softmax(bool hides) { tile_.softmax(hides); }
  template <class Where>
  void multiply_values(const Where&, int, int, bool hides) {
    tile_.multiply_values(hides);
  }
  StateArray<Acc> finish() { return tile_.finish(); }
  void store_row(const StateArray<Acc>& from, int n, int r, Acc factor, const OutputRow& to) {
    tile_.store_row(from, n, r, factor, to);
  }

 private:
  alignas(Tile) std::byte object_[sizeof(Tile)];
  Tile& tile_;
};

}  // namespace pagoda::detail
