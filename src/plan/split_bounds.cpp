// SPDX-License-Identifier: Apache-2.0
#include "src/plan/split_bounds.hpp"

#include "src/plan/split.hpp"

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

/// Bytes of a token's key and value in one kv head.
double token_bytes(const ProblemShape& shape) {
  return double(shape.head_dim + shape.head_dim_v) / dims_per_element(shape.kv_type) * size_of(shape.kv_type);
}

/// limit_splits keeps the splits as they are if the chunks of all rows make fewer cuts than max_cuts, in float.
std::int64_t most_fixed_cuts(const SplitBounds& split, std::int64_t row_tiles, int max_seq_len) {
  const std::int64_t longest = max_split_tokens(split);
  if (max_seq_len <= longest) return 1;
  const std::int64_t cuts = row_tiles * ((max_seq_len + longest - 1) / longest);
  return cuts + cuts / 100000 + 1;
}

}  // namespace

SplitBounds split_lengths(const FragmentChoice& choice, const ProblemShape& shape) {
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
  s.max_waves   = choice.machine.max_waves;
  s.row_teams   = std::max(choice.resident_teams / choice.machine.teams_in_turn, 1);
  // Splits of a megabyte.
  s.density = static_cast<float>(token_bytes(shape) * (1 << s.chunk_shift) / 0x1p20);
  return s;
}

SplitBounds fixed_split_lengths(const FragmentChoice& choice, const ProblemShape& shape) {
  // A split reads at least what its fragment asks for, and 32 times the bytes of its partial state.
  const double state  = 4.0 * choice.kernel.row_tile * shape.head_dim_v;
  const double tokens = std::max<double>(choice.fixed_split_bytes, 32 * state) / token_bytes(shape);
  SplitBounds s       = split_lengths(choice, shape);
  const int shortest  = 1 << (s.chunk_shift + s.split_shift);
  int length          = 4096;
  while (length > 256 && length / 2 >= shortest && length >= 2 * tokens) length /= 2;
  // A power of two, or two thirds of one where these are enough: splits of long rows then need not end in a round of
  // teams that is mostly empty.
  const int two_thirds = (2 * length + 2) / 3;
  if (two_thirds >= std::max(256, shortest) && 2.0 * length > 3 * tokens) length = two_thirds;
  s.even_waves = s.waves = s.max_waves = 0;
  s.max_chunks                         = (length + (1 << s.chunk_shift) - 1) >> s.chunk_shift;
  return s;
}

SplitBounds bound_splits(SplitBounds split, std::int64_t row_tiles, int max_seq_len) {
  const std::int64_t splits = max_splits_of_row(split, max_seq_len);
  split.num_teams           = static_cast<int>(std::min<std::int64_t>(split.num_teams, row_tiles * splits));
  if (has_fixed_splits(split)) {
    split.max_cuts = static_cast<int>(most_fixed_cuts(split, row_tiles, max_seq_len));
    return split;
  }
  const float chunks = static_cast<float>(row_tiles) * static_cast<float>((max_seq_len >> split.chunk_shift) + 1);
  const std::int64_t for_waves = std::max<std::int64_t>(
      std::max(split.waves, split.even_waves) * max_resident_teams(split, row_tiles), uneven_cuts(chunks, split));
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
  const std::int64_t of_cuts = has_fixed_splits(split)
                                   ? std::min(split.max_cuts + row_tiles, 2 * std::int64_t(split.max_cuts))
                                   : 2 * std::int64_t(split.max_cuts);
  return static_cast<int>(std::max(of_cuts, teams));
}

}  // namespace pagoda::detail
