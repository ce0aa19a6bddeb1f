// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/plan.hpp>

#include "src/kernel/arithmetic.hpp"
#include "src/plan/team_count.hpp"

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstdint>

/// The plain split: how rows (the query rows that share one pass over a kv head's tokens) are cut so that the machine
/// is busy whatever the lengths. Pure functions of the lengths' totals, so that every team can work out its own share
/// and a host can make the same plan.
namespace pagoda::detail {

/// Lengths are counted in chunks of 2^chunk_shift tokens.
struct RowTotals {
  std::int64_t chunks;  ///< of all rows of a batch
  int rows;             ///< that see any token
  int longest;          ///< chunks
};

/// How rows are cut: into 1 + chunks * density splits, but none shorter than SplitBounds says, nor longer than
/// max_chunks.
struct SplitLimit {
  int cuts;  ///< in all, at most
  float density;
  int max_chunks;
};

/// No row is much longer than the others.
KOKKOS_INLINE_FUNCTION bool even(const RowTotals& t) { return even_lengths(t.longest, t.rows, t.chunks); }

///  - Even rows, as most batches have: as many splits as fit `even_waves` rounds of the resident teams; none are cut
///    where there are enough rows, since a cut costs a merge and buys nothing.
///  - Uneven rows are cut to a share of `waves` rounds, so that no row is left to run alone at the end.
/// The workspace has room for max_cuts, whatever the lengths.
///
/// Quotients are products with reciprocals: a precise division contains a call on GPUs, and after a call the compiler
/// keeps addresses that all lanes share in a register of each lane (2 to 4% of a latent decode of 128 heads).
KOKKOS_INLINE_FUNCTION SplitLimit limit_splits(const RowTotals& t, const SplitBounds& bounds) {
  const float chunks = static_cast<float>(t.chunks);
  const int room     = even(t) ? bounds.even_waves * bounds.teams - t.rows : bounds.waves * bounds.teams;
  SplitLimit limit{least(greatest(room, 0), bounds.max_cuts), 0.0f, bounds.max_chunks};
  if (t.longest > bounds.max_chunks) {  // every split of max_chunks ends in a cut
    const float long_cuts = chunks * reciprocal(static_cast<float>(bounds.max_chunks));
    const float left      = static_cast<float>(bounds.max_cuts - limit.cuts);
    limit.cuts            = long_cuts < left ? limit.cuts + static_cast<int>(long_cuts) : bounds.max_cuts;
    // Rounded up a little: longer splits make fewer cuts.
    if (long_cuts > static_cast<float>(bounds.max_cuts))
      limit.max_chunks = static_cast<int>(1.000001f * chunks * reciprocal(static_cast<float>(bounds.max_cuts))) + 1;
  }
  // Rounded down a little, so that the cuts of all rows never come to more.
  if (t.chunks > 0) limit.density = static_cast<float>(limit.cuts) * 0.999999f * reciprocal(chunks);
  return limit;
}

/// The bounds as they are for so many rows: which teams run. `bounds.teams` are so many of all a team's workers, three
/// (or any number) for each multiprocessor.
///
///  - Rows that outnumber them would take turns, and between two rows a team has nothing in flight, while at the end
///    those that are left work alone. Where teams of fewer workers, which are more, take all rows at once, or in two
///    full rounds, they do.
///  - Where rows stay whole, their last round may leave many teams idle; two for each multiprocessor then run faster.
inline SplitBounds fit_teams_to_rows(std::int64_t rows, const SplitBounds& bounds) {
  if (2 * rows <= bounds.teams) return bounds;
  const auto busy       = [&](double teams) { return rows / (teams * std::ceil(rows / teams)); };
  const auto least_idle = [&](SplitBounds b) {
    const int fewer = 2 * b.teams / 3;
    if (busy(fewer) > busy(b.teams) + 0.15) b.teams = fewer;
    return b;
  };
  for (int rounds = 1; bounds.deals_tiles && rounds <= 2; ++rounds) {
    SplitBounds b = bounds;
    for (; b.round_shift > 0 && rows > std::int64_t(rounds) * b.teams; --b.round_shift) b.teams *= 2;
    if (rows > std::int64_t(rounds) * b.teams) continue;
    b = least_idle(b);
    if (rounds == 1 || busy(b.teams) > 0.9) return b;
  }
  return least_idle(bounds);
}

/// Into how many splits a row is cut. At most chunks * density cuts, or chunks / max_chunks where that asks for more.
KOKKOS_INLINE_FUNCTION int num_splits_of(int chunks, const SplitLimit& limit, const SplitBounds& bounds) {
  const int wanted = 1 + static_cast<int>(static_cast<float>(chunks) * limit.density);
  int num_splits   = least(wanted, greatest(chunks >> bounds.split_shift, 1));
  if (chunks > limit.max_chunks) num_splits = greatest(num_splits, ceil_div(chunks, limit.max_chunks));
  return num_splits;
}

/// The other way to cut even rows, on machines that deal out tiles: each into the same number of splits, `grid`, which
/// follows from the number of rows alone; split n has every grid-th round of a team's workers from the n-th on. Rows of
/// fewer rounds make fewer splits.
KOKKOS_INLINE_FUNCTION int grid_splits_of(int chunks, int grid, const SplitBounds& bounds) {
  return greatest(least((chunks + (1 << bounds.round_shift) - 1) >> bounds.round_shift, grid), 1);
}
inline int grid_for(std::int64_t rows, int teams) {
  return static_cast<int>(greatest<std::int64_t>(rows > 0 ? teams / rows : 1, 1));
}

/// Chunks of a split.
struct SplitRange {
  int first, count;
};

/// The split-th of even splits: the first ones are a chunk longer where the row does not divide.
KOKKOS_INLINE_FUNCTION SplitRange split_range(int chunks, int num_splits, int split) {
  if (num_splits == 1) return {0, chunks};
  const int length = quotient(chunks, num_splits), longer = chunks - length * num_splits;
  return {split * length + least(split, longer), length + (split < longer)};
}

/// Splits of a row are joined in groups, and the groups' states again: so many in a group. Loads of a group's states
/// are in flight together, so what counts is how many rounds of arrivals follow each other.
KOKKOS_INLINE_FUNCTION int merge_group(int num_splits) {
  if (num_splits <= 24) return num_splits;
  int group = 16;
  while (group * group < num_splits) group *= 2;
  return group;
}

}  // namespace pagoda::detail
