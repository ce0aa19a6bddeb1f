// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>

#include "src/base/arithmetic.hpp"
#include "src/kernel/entry.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The tokens of an entry that at least one of its query rows can see: the first `head` tokens, and all from position
/// `tail` on. With a sliding window the tokens between them are skipped. Work is split in this compressed index space:
/// index i is the token at position token(i).
struct VisibleTokens {
  int first, head, tail, count;

  KOKKOS_FUNCTION VisibleTokens(const AttentionOptions& options, const EntryView& entry)
      : first(entry.first), head(0), tail(entry.first), count(entry.tokens) {
    if (options.window_left < 0) return;
    const int end = first + entry.tokens;
    // The first token that the first query token sees. 64 bits: window_left may be as large as an int.
    const std::int64_t earliest = std::int64_t(end) - entry.queries - options.window_left;
    tail                        = static_cast<int>(least(greatest(earliest, std::int64_t(first)), std::int64_t(end)));
    head                        = least(greatest(options.num_initial_tokens - first, 0), tail - first);
    count                       = head + end - tail;
  }
  KOKKOS_FUNCTION int token(int index) const { return index < head ? first + index : index - head + tail; }
};

}  // namespace pagoda::detail
