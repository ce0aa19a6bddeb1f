// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/warp/option_args.hpp"
#include "backends/cuda/tuned/warp/tuning.hpp"

/// Which tiles of a sequence are read. Without a window they are all tiles. With a window they are the tiles of the
/// initial tokens and those of the window, and the tiles between them are skipped.
///
/// Work is divided by the index of a tile among those that are read: tile `index` lies at tile_at(args, sequence,
/// index) of the sequence. The number of skipped tiles is whole, so a length without the skipped tokens takes the place
/// of the length wherever tiles are counted.
namespace pagoda::tuned::warp {

/// Position of the first token of the window.
PAGODA_DEVICE int window_begin(const OptionArgs& a, int len) { return max(len - 1 - a.window_left, 0); }
/// Tiles between those of the initial tokens and those of the window.
PAGODA_DEVICE int skipped_tiles(const OptionArgs& a, int len) {
  return max(window_begin(a, len) / tile_tokens - a.initial_tiles, 0);
}

/// Overloads of common/segments.cuh, for batch entries with one query token. `tokens` does not count skipped tiles.
PAGODA_DEVICE int load_length(const OptionArgs& a, int batch) {
  return entry_of(static_cast<const Args&>(a), batch).tokens;
}
PAGODA_DEVICE int tokens_of(const OptionArgs& a, int length) { return length - tile_tokens * skipped_tiles(a, length); }
PAGODA_DEVICE EntryView entry_of(const OptionArgs& a, int batch) {
  EntryView entry = entry_of(static_cast<const Args&>(a), batch);
  entry.tokens    = tokens_of(a, entry.tokens);
  return entry;
}

/// The same for entries that may have no query token. These have no tokens either, so that no block reads their
/// sequences.
template <class Base>
PAGODA_DEVICE EntryView entry_of(const RaggedArgs<Base>& a, int batch) {
  EntryView entry   = entry_of(static_cast<const Base&>(a), batch);
  entry.query_begin = __ldg(a.cu_seqlens_q + batch);
  if (__ldg(a.cu_seqlens_q + batch + 1) <= entry.query_begin) entry.queries = entry.tokens = 0;
  return entry;
}
struct RaggedLength {
  int length, query_begin, query_end;
};
template <class Base>
PAGODA_DEVICE RaggedLength load_length(const RaggedArgs<Base>& a, int batch) {
  return {load_length(static_cast<const Base&>(a), batch), __ldg(a.cu_seqlens_q + batch),
          __ldg(a.cu_seqlens_q + batch + 1)};
}
template <class Base>
PAGODA_DEVICE int tokens_of(const RaggedArgs<Base>& a, const RaggedLength& loaded) {
  return loaded.query_begin < loaded.query_end ? tokens_of(static_cast<const Base&>(a), loaded.length) : 0;
}

/// Place of a tile in its sequence.
PAGODA_DEVICE int tile_at(const Args&, int, int index) { return index; }
PAGODA_DEVICE int tile_at(const OptionArgs& a, int sequence, int index) {
  if (index < a.initial_tiles) return index;
  return index + skipped_tiles(a, __ldg(a.seq_lens + sequence));
}

/// Bit i: the query token does not see token i of the tile whose first token is `first`. len: tokens of the sequence.
PAGODA_DEVICE unsigned hidden_tokens(const OptionArgs& a, int first, int len, int window_begin) {
  const int count = len - first;
  unsigned hidden = count < tile_tokens ? ~0u << count : 0;
  // Tokens that are neither initial nor in the window.
  const int begin = max(a.num_initial_tokens - first, 0), end = min(window_begin - first, tile_tokens);
  if (begin < end) hidden |= (1u << end) - (1u << begin);
  return hidden;
}

/// Bit i: the query token sees token i of a tile. index: of the tile among those that are read; tokens: of the
/// sequence, without skipped tiles.
PAGODA_DEVICE unsigned visible_tokens(const Args&, int, int index, int tokens) {
  return (1u << min(tokens - index * tile_tokens, tile_tokens)) - 1;
}
PAGODA_DEVICE unsigned visible_tokens(const OptionArgs& a, int sequence, int index, int) {
  const int len = __ldg(a.seq_lens + sequence);
  return ~hidden_tokens(a, tile_at(a, sequence, index) * tile_tokens, len, window_begin(a, len)) & 0xffff;
}

}  // namespace pagoda::tuned::warp
