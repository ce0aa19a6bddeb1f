// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>

#include "src/base/arithmetic.hpp"
#include "src/plan/team_count.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

/// How rows (the query rows that share one pass over a kv head's tokens) are split so that the machine is busy for all
/// lengths. These are pure functions of the lengths' totals. Each team computes its own work items with them, and the
/// host computes the same.
namespace pagoda::detail {

/// Lengths are counted in chunks of 2^chunk_shift tokens.
struct RowTotals {
  std::int64_t chunks;  ///< chunks of all rows of a batch
  int rows;             ///< rows that see any token
  int longest;          ///< chunks
};

/// A row is split into 1 + chunks * density splits. No split is shorter than SplitBounds allows or longer than
/// max_chunks.
struct SplitLimit {
  int cuts;       ///< upper bound of the sum over rows of (splits - 1)
  float density;  ///< cuts per chunk
  int max_chunks;
};

/// Whether no row is much longer than the others.
KOKKOS_INLINE_FUNCTION bool even(const RowTotals& t) { return even_lengths(t.longest, t.rows, t.chunks); }

/// Whether the splits of a row do not depend on the other rows.
KOKKOS_INLINE_FUNCTION bool has_fixed_splits(const SplitBounds& bounds) { return bounds.even_waves == 0; }

/// Cuts of rows of unequal lengths. A team that begins its last split late leaves the others without work, so the more
/// tokens each team has, the more rounds pay for their joins.
KOKKOS_INLINE_FUNCTION int uneven_cuts(float chunks, const SplitBounds& bounds) {
  const int least_cuts = bounds.waves * bounds.num_teams, most_cuts = bounds.max_waves * bounds.num_teams;
  return greatest(static_cast<int>(least(chunks * bounds.density, static_cast<float>(most_cuts))), least_cuts);
}

/// Computes how the rows of a batch are split. The number of cuts never exceeds max_cuts, for which the workspace has
/// room.
///  - Even rows (most batches): as many splits as fit in `even_waves` rounds of the resident teams. If there are enough
///    rows, they stay whole: a cut costs a join and gains nothing.
///  - Uneven rows: splits fill `waves` rounds or more, so that no long row runs alone at the end.
///
/// Quotients are computed with reciprocals. A precise division contains a call on GPUs, and after a call the compiler
/// keeps addresses that all lanes share in a register of each lane (2 to 4% of a latent decode of 128 heads).
KOKKOS_INLINE_FUNCTION SplitLimit limit_splits(const RowTotals& t, const SplitBounds& bounds) {
  const float chunks = static_cast<float>(t.chunks);
  const int room     = even(t) ? bounds.even_waves * bounds.num_teams - t.rows : uneven_cuts(chunks, bounds);
  SplitLimit limit{least(greatest(room, 0), bounds.max_cuts), 0.0f, bounds.max_chunks};
  if (t.longest > bounds.max_chunks) {  // every split of max_chunks ends in a cut
    const float long_cuts = chunks * reciprocal(static_cast<float>(bounds.max_chunks));
    const float left      = static_cast<float>(bounds.max_cuts - limit.cuts);
    limit.cuts            = long_cuts < left ? limit.cuts + static_cast<int>(long_cuts) : bounds.max_cuts;
    // Rounded up slightly: longer splits make fewer cuts.
    if (long_cuts > static_cast<float>(bounds.max_cuts))
      limit.max_chunks = static_cast<int>(1.000001f * chunks * reciprocal(static_cast<float>(bounds.max_cuts))) + 1;
  }
  // Rounded down slightly, so that the cuts of all rows never exceed the limit. One row takes all cuts: num_splits_of
  // discards the fraction. Fixed splits must not depend on the number of rows.
  const float cuts = static_cast<float>(limit.cuts);
  const bool all   = t.rows == 1 && !has_fixed_splits(bounds);
  if (t.chunks > 0) limit.density = (all ? cuts + 0.01f : cuts * 0.999999f) * reciprocal(chunks);
  return limit;
}

/// Chooses team count and team size for this number of rows. bounds.num_teams is the number of resident teams that have
/// all workers, three (or any number) for each multiprocessor.
///
///  - If there are more rows than teams, teams process one row after another. Between two rows a team has no loads in
///    flight, and at the end the last teams run alone. Smaller teams, of which more are resident, avoid both if they
///    take all rows at once or in two full rounds.
///  - If rows stay whole, the last round may leave many teams idle. Two teams for each multiprocessor are then faster.
///  - A batch of one row is divided evenly among row_teams teams. More would not balance it better, and the first tile
///    of each split is not prefetched.
inline SplitBounds fit_teams_to_rows(std::int64_t rows, const SplitBounds& bounds) {
  if (rows == 1 && bounds.row_teams > 0 && !has_fixed_splits(bounds)) {
    SplitBounds b = bounds;
    b.num_teams   = std::min(b.num_teams, b.row_teams);
    return b;
  }
  if (has_fixed_splits(bounds) || 2 * rows <= bounds.num_teams) return bounds;
  const auto busy       = [&](double teams) { return rows / (teams * std::ceil(rows / teams)); };
  const auto least_idle = [&](SplitBounds b) {
    const int fewer = 2 * b.num_teams / 3;
    if (busy(fewer) > busy(b.num_teams) + 0.15) b.num_teams = fewer;
    return b;
  };
  for (int rounds = 1; bounds.deals_tiles && rounds <= 2; ++rounds) {
    SplitBounds b = bounds;
    for (; b.round_shift > 0 && rows > std::int64_t(rounds) * b.num_teams; --b.round_shift) b.num_teams *= 2;
    if (rows > std::int64_t(rounds) * b.num_teams) continue;
    b = least_idle(b);
    if (rounds == 1 || busy(b.num_teams) > 0.9) return b;
  }
  return least_idle(bounds);
}

/// Number of splits of a row: at most 1 + chunks * density, or chunks / max_chunks if that is larger.
/// LongSplitFactor, a power of two: fixed splits of long rows are up to so many times as long. They are n times as long
/// where a row then still has 12 n of them.
template <int LongSplitFactor = 1>
KOKKOS_INLINE_FUNCTION int num_splits_of(int chunks, const SplitLimit& limit, const SplitBounds& bounds) {
  if constexpr (LongSplitFactor > 1) {
    for (int times = LongSplitFactor; times > 1 && has_fixed_splits(bounds); times /= 2) {
      const int fewer = ceil_div(chunks, times * limit.max_chunks);
      if (fewer >= 12 * times) return fewer;
    }
  }
  const int wanted = 1 + static_cast<int>(static_cast<float>(chunks) * limit.density);
  int num_splits   = least(wanted, greatest(chunks >> bounds.split_shift, 1));
  if (chunks > limit.max_chunks) num_splits = greatest(num_splits, ceil_div(chunks, limit.max_chunks));
  return num_splits;
}

/// Number of splits of a row of an even batch, on machines whose splits interleave tiles. All rows have the same number
/// of splits, `grid`, which depends only on the number of rows. Split n takes every grid-th round of a team's workers,
/// starting with round n. A row of fewer than `grid` rounds has one split for each round.
KOKKOS_INLINE_FUNCTION int grid_splits_of(int chunks, int grid, const SplitBounds& bounds) {
  return greatest(least((chunks + (1 << bounds.round_shift) - 1) >> bounds.round_shift, grid), 1);
}
/// Splits of each row of an even batch.
inline int grid_for(std::int64_t rows, int teams) {
  return static_cast<int>(greatest<std::int64_t>(rows > 0 ? teams / rows : 1, 1));
}

/// Chunks of a split.
struct SplitRange {
  int first, count;
};

/// Range of a split. Splits have equal lengths; if the chunks do not divide evenly, the first splits have one more.
KOKKOS_INLINE_FUNCTION SplitRange split_range(int chunks, int num_splits, int split) {
  if (num_splits == 1) return {0, chunks};
  const int length = quotient(chunks, num_splits), longer = chunks - length * num_splits;
  return {split * length + least(split, longer), length + (split < longer)};
}

/// Number of splits in a group. The splits of a row are joined in groups, and then the groups' states are joined. Loads
/// of a group's states are in flight together, so the number of successive rounds of arrivals determines the time.
KOKKOS_INLINE_FUNCTION int merge_group(int num_splits) {
  if (num_splits <= 24) return num_splits;
  int group = 16;
  while (group * group < num_splits) group *= 2;
  return group;
}

}  // namespace pagoda::detail
