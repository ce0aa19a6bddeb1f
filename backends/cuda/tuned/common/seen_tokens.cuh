// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_entries.cuh"

/// Which tokens of a list's entry a query row sees: causal order and masks of draft tokens.
namespace pagoda::tuned {

/// Bits 0 to n - 1. n may have any value.
PAGODA_DEVICE std::uint64_t low_bits(int n) {
  return n >= 64 ? ~std::uint64_t(0) : n <= 0 ? 0 : (std::uint64_t(1) << n) - 1;
}
/// x shifted left, or right if n is negative. n may have any value.
PAGODA_DEVICE std::uint64_t shifted(std::uint64_t x, int n) {
  return n >= 64 || n <= -64 ? 0 : n >= 0 ? x << n : x >> -n;
}

/// A row sees all tokens of an entry but the `newest` ones; of these it sees those that its mask has.
struct SeenTokens {
  static constexpr int mask_bits = 128;
  int newest                     = 0;   ///< at most mask_bits with a mask
  int mask                       = -1;  ///< the first of its two words; negative: none

  /// Bit i: whether the row sees token i of a tile at whose beginning the entry has tokens_left tokens left.
  PAGODA_DEVICE std::uint64_t of_tile(const std::uint64_t* masks, int tokens_left) const {
    const int first    = tokens_left - newest;  // the token of the tile that has bit 0 of the mask
    std::uint64_t bits = low_bits(first);
    if (mask >= 0) bits |= shifted(__ldg(masks + mask), first) | shifted(__ldg(masks + mask + 1), first + 64);
    return bits & low_bits(tokens_left);
  }
  /// from_end: 1 for the entry's last token.
  PAGODA_DEVICE bool contains(const std::uint64_t* masks, int from_end) const {
    const int bit = newest - from_end;
    return bit < 0 || (mask >= 0 && (__ldg(masks + mask + bit / 64) >> bit % 64 & 1) != 0);
  }
};

/// What a query token sees of an entry of `sequence` that goes to the sequence's end. Tokens of other sequences see
/// all.
template <class Base>
PAGODA_DEVICE SeenTokens seen_tokens(const ListArgsOf<Base>& args, int sequence, const EntryQuery& query) {
  if (query.sequence != sequence) return {};
  if (args.masks && query.mask >= 0) return {min(query.behind, SeenTokens::mask_bits), query.mask};
  return {args.causal ? max(query.behind - 1, 0) : 0, -1};
}

}  // namespace pagoda::tuned
