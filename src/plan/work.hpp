// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Planners write a list of work items; kernels only carry items out. Everything here is host-device code that never
/// touches keys or values, so the same list can be made anywhere.
namespace pagoda::detail {

/// Tokens of a sequence that some query row can see: the first `head` and all from `tail` on. Rows beside a window skip
/// what lies between. Work is cut in this compressed index space: index i is token(i).
struct VisibleTokens {
  int head, tail, count;

  KOKKOS_FUNCTION VisibleTokens(const ScoreOptions& score, int seq_len, int query_len)
      : head(0), tail(0), count(seq_len) {
    if (score.window_left < 0) return;
    const int earliest = seq_len - query_len - score.window_left;  // of the first query token
    tail               = Kokkos::clamp(earliest, 0, seq_len);
    head               = Kokkos::min(score.num_initial_tokens, tail);
    count              = head + seq_len - tail;
  }
  KOKKOS_FUNCTION int token(int index) const { return index < head ? index : index - head + tail; }
};

/// How one batch entry is cut: `tiles` tiles of query rows over all kv heads, each in `pieces` pieces of `length`
/// tokens.
struct RowCut {
  int tiles, pieces, length;
};

KOKKOS_INLINE_FUNCTION int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// The plain split of one entry, given the longest piece allowed (a multiple of `align`): as few pieces as that
/// allows, of even length. A row that sees nothing still is one (empty) piece, so that its output is written.
KOKKOS_INLINE_FUNCTION RowCut cut_row(int tokens, int tiles, int chunk, int align) {
  const int pieces = tokens > chunk ? ceil_div(tokens, chunk) : 1;
  const int length = ceil_div(ceil_div(tokens, pieces), align) * align;
  return {tiles, pieces, length};
}

/// Tiles of query rows of one batch entry.
KOKKOS_INLINE_FUNCTION int row_tiles(const KernelArgs& args, int b) {
  return args.num_kv_heads * ceil_div(args.query_len(b) * args.group, args.row_tile);
}

KOKKOS_INLINE_FUNCTION int visible_count(const KernelArgs& args, int b) {
  return VisibleTokens(args.score, args.seq_len(b), args.query_len(b)).count;
}

}  // namespace pagoda::detail
