// SPDX-License-Identifier: Apache-2.0
#include "src/plan/split_bounds.hpp"

#include <algorithm>
#include <bit>

namespace pagoda::detail {

namespace {

int log2_rounded_up(int n) { return std::bit_width(static_cast<unsigned>(n) - 1); }

/// Splits of a row of max_seq_len tokens.
std::int64_t max_splits_of_row(const SplitBounds& split, int max_seq_len) {
  return max_seq_len / (1 << (split.chunk_shift + split.split_shift)) + 1;
}

/// Number of resident teams; if there are more row tiles than teams, of teams with one worker (fit_teams_to_rows).
std::int64_t max_resident_teams(const SplitBounds& split, std::int64_t row_tiles) {
  const bool may_be_smaller = split.deals_tiles && row_tiles > split.num_teams;
  return std::int64_t(split.num_teams) << (may_be_smaller ? split.round_shift : 0);
}

}  // namespace

SplitBounds split_lengths(const FragmentChoice& choice) {
  // A chunk is a worker's tile; a split occupies all workers of a team.
  SplitBounds s;
  s.num_teams   = std::max(choice.resident_teams, 1);
  s.even_waves  = choice.machine.even_waves;
  s.waves       = choice.machine.waves;
  s.chunk_shift = log2_rounded_up(choice.tile_tokens);
  s.round_shift = log2_rounded_up(choice.round_tiles);
  s.split_shift =
      log2_rounded_up(std::max(choice.machine.min_split_tokens, choice.kernel.num_workers * choice.tile_tokens)) -
      s.chunk_shift;
  s.deals_tiles = choice.deals_tiles;
  s.max_chunks  = choice.machine.max_split_tokens >> s.chunk_shift;
  return s;
}

SplitBounds bound_splits(SplitBounds split, std::int64_t row_tiles, int max_seq_len) {
  const std::int64_t splits     = max_splits_of_row(split, max_seq_len);
  split.num_teams               = static_cast<int>(std::min<std::int64_t>(split.num_teams, row_tiles * splits));
  const std::int64_t for_waves  = std::max(split.waves, split.even_waves) * max_resident_teams(split, row_tiles);
  const std::int64_t for_length = row_tiles * max_seq_len / max_split_tokens(split) + 1;
  const std::int64_t possible   = row_tiles * std::max<std::int64_t>(splits - 1, 1);
  split.max_cuts = static_cast<int>(std::max<std::int64_t>(std::min(std::max(for_waves, for_length), possible), 1));
  return split;
}

int max_slots(const SplitBounds& split, std::int64_t row_tiles, int max_seq_len) {
  // A row of n splits has n - 1 cuts. If work items are numbered consecutively (State::one_round of share.hpp), an
  // item's number is its slot, and there are at most as many items as teams.
  const std::int64_t teams =
      std::min(max_resident_teams(split, row_tiles), row_tiles * max_splits_of_row(split, max_seq_len));
  return std::max(2 * split.max_cuts, static_cast<int>(teams));
}

}  // namespace pagoda::detail
