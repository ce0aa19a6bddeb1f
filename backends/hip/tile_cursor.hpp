// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "src/base/arithmetic.hpp"
#include "src/kernel/rows.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail::hip {

/// Finds the tiles of tokens of one wave, in turn. If tiles lie within pages, each lane holds the page of one tile:
/// pages are loaded once for as many tiles as there are lanes, and addresses are scalars. Otherwise each lane holds the
/// place of one token, and places are loaded once for that many tokens. u, step and end must be scalars: see uniform().
///
/// The wave waits for these loads at once. If a load were left in flight in one branch, the compiler would wait for it
/// wherever its registers are used again, and so for keys and values too.
template <int Lanes, int TileTokens>
class TileCursor {
 public:
  static_assert(TileTokens <= Lanes);
  /// Tiles begin at u, u + step and so on before end.
  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int lane, int step) {
    lane_ = lane, step_ = step, tile_ = 0;
    by_tile_ = where.in_pages(TileTokens) && where.args.near_tokens;
    at_once_ = by_tile_ ? Lanes : Lanes / TileTokens;
  }

  /// Advances to the tile that begins at u.
  template <class Where>
  KOKKOS_FUNCTION void advance(const Where& where, int u, int end) {
    if (tile_ == 0) {
      const int tile           = by_tile_ ? lane_ : lane_ / TileTokens;
      const std::int64_t token = u + std::int64_t(tile) * step_ + (by_tile_ ? 0 : lane_ % TileTokens);
      const PagePlace place    = where.place(static_cast<int>(least(token, std::int64_t(end - 1))));
      pages_ = settle(place.page), slots_ = place.slot;
    }
    page_  = scalar_of_lane(pages_, tile_);
    slot_  = where.args.page_size.rest(where.token(u));
    first_ = TileTokens * tile_;
    last_  = least(TileTokens - 1, end - 1 - u);
    tile_  = tile_ + 1 < at_once_ ? tile_ + 1 : 0;
  }

  /// The tile lies in one page and has TileTokens tokens. page() and slot() are those of its first token.
  KOKKOS_FUNCTION bool whole() const { return by_tile_ && last_ == TileTokens - 1; }
  KOKKOS_FUNCTION int page() const { return page_; }
  KOKKOS_FUNCTION int slot() const { return slot_; }
  /// The place of token lane % TileTokens; behind the last token, of that one, so that it belongs to the sequence.
  KOKKOS_FUNCTION PagePlace place_of_lane() const {
    const int token = lane_ % TileTokens;
    if (by_tile_) return {page_, slot_ + least(token, last_)};
    return {from_lane(pages_, first_ + token), from_lane(slots_, first_ + token)};
  }

 private:
  int lane_ = 0, step_ = 0;
  bool by_tile_ = false;
  int pages_ = 0, slots_ = 0;  ///< of the lane's tile or token
  int at_once_ = 0;            ///< tiles whose places are loaded together
  int tile_ = 0, first_ = 0;   ///< the lane with the next tile, and the first one with a token of this tile
  int page_ = 0, slot_ = 0, last_ = 0;
};

}  // namespace pagoda::detail::hip
