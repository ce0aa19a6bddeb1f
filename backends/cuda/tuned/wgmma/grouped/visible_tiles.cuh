// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/segment_cursor.cuh"

/// Which tokens of a sequence the query tokens of an entry see, and so which tiles are read. Without a window they are
/// all tiles. With a window they are the tiles of the initial tokens and those that some query token's window reaches,
/// and the tiles between them are skipped.
///
/// Work is divided by the index of a tile among those that are read: tile `index` lies at place(index) of the sequence.
/// The number of skipped tiles is whole, so a length without the skipped tokens takes the place of the length wherever
/// tiles are counted.
namespace pagoda::tuned::wgmma {

/// Position of the first token of a window. position: of the query token; negative where an entry has more query tokens
/// than its sequence has tokens.
template <class Base>
PAGODA_DEVICE int window_begin(const OptionArgs<Base>& args, int position) {
  return max(max(position, 0) - args.window_left, 0);
}
/// Position of the first query token of an entry. entry: with the tokens of the whole sequence.
template <class Base>
PAGODA_DEVICE int first_position(const OptionArgs<Base>& args, int batch, const EntryView& entry) {
  return entry.tokens - tokens_behind(static_cast<const Base&>(args), batch) - entry.queries;
}
/// Tiles between those of the initial tokens and those of the windows. position: of the entry's first query token.
template <class Base>
PAGODA_DEVICE int skipped_tiles(const OptionArgs<Base>& args, int position) {
  return max(window_begin(args, position) / tile_tokens - args.initial_tiles, 0);
}

/// A batch entry whose sequence is as long as it is.
template <class Base>
PAGODA_DEVICE EntryView whole_entry_of(const OptionArgs<Base>& args, int batch) {
  return entry_of(static_cast<const Base&>(args), batch);
}
/// The same; `tokens` does not count skipped tiles.
template <class Base>
PAGODA_DEVICE EntryView entry_of(const OptionArgs<Base>& args, int batch) {
  EntryView entry = whole_entry_of(args, batch);
  entry.tokens -= tile_tokens * skipped_tiles(args, first_position(args, batch, entry));
  return entry;
}

namespace grouped {

/// The tiles of a segment without score options.
template <class Args>
struct VisibleTiles {
  const Segment& segment;

  PAGODA_DEVICE VisibleTiles(const Args&, const Segment& s) : segment(s) {}
  PAGODA_DEVICE int place(int index) const { return index; }
  /// Whether a token is read, where tokens are copied one by one.
  PAGODA_DEVICE bool reads(int token) const { return token < segment.len; }

  /// Which runs of 8 tokens of a tile are copied: their number.
  PAGODA_DEVICE int eights(int index) const {
    return min(tile_tokens / 8, (segment.len - index * tile_tokens + 7) >> 3);
  }
};
PAGODA_DEVICE int count_of(int eights) { return eights; }
PAGODA_DEVICE bool contains(int eights, int i) { return i < eights; }

/// Bit i: run i of 8 tokens of a tile is copied.
struct EightsMask {
  unsigned bits;
};
PAGODA_DEVICE int count_of(EightsMask eights) { return __popc(eights.bits); }
PAGODA_DEVICE bool contains(EightsMask eights, int i) { return (eights.bits >> i & 1) != 0; }

/// The same with score options. Tokens of an entry are seen by all, some or none of its query tokens.
template <class Base>
struct VisibleTiles<OptionArgs<Base>> {
  int len;                ///< tokens of the sequence
  int position;           ///< of the first query token
  int first_begin;        ///< where the window of the first query token begins
  int last_begin;         ///< where that of the last query token begins
  int first_end;          ///< behind the newest token that the first query token sees
  int num_initial, skip;  ///< initial tokens; skipped tiles
  int initial_tiles;

  PAGODA_DEVICE VisibleTiles(const OptionArgs<Base>& args, const Segment& s)
      : num_initial(args.num_initial_tokens), initial_tiles(args.initial_tiles) {
    const EntryView entry = whole_entry_of(args, s.batch);
    len = entry.tokens, position = first_position(args, s.batch, entry), skip = skipped_tiles(args, position);
    first_begin = window_begin(args, position), last_begin = window_begin(args, position + entry.queries - 1);
    first_end = len - min(args.hidden_bound, entry.queries - 1);
  }
  /// Place of a tile in its sequence, and the index of the tile at a place.
  PAGODA_DEVICE int place(int index) const { return index < initial_tiles ? index : index + skip; }
  PAGODA_DEVICE int index_at(int place) const { return place < initial_tiles ? place : place - skip; }

  PAGODA_DEVICE bool reads(int token) const { return seen_by_any(token); }
  PAGODA_DEVICE bool seen_by_any(int token) const {
    return token < len && (token >= first_begin || token < num_initial);
  }
  PAGODA_DEVICE bool seen_by_all(int token) const {
    return token < first_end && (token >= last_begin || token < num_initial);
  }
  /// Whether some query token does not see all tokens of the tile whose first token is `first`.
  PAGODA_DEVICE bool hides_any(int first) const {
    return first_end - first < tile_tokens || (first < last_begin && num_initial - first < tile_tokens);
  }

  PAGODA_DEVICE EightsMask eights(int index) const {
    const int first    = place(index) * tile_tokens;
    const auto up_to   = [](int count) { return (1u << count) - 1; };  // count: 0 to 8
    const auto of      = [](int tokens) { return min(max(tokens, 0), tile_tokens); };
    const unsigned all = up_to((of(len - first) + 7) / 8), initial = up_to((of(num_initial - first) + 7) / 8);
    return {all & (initial | ~up_to(of(first_begin - first) / 8))};
  }
};

}  // namespace grouped

}  // namespace pagoda::tuned::wgmma
