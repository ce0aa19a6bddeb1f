// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstdint>

/// The plain split: how rows (the query rows that share one pass over a kv head's tokens) are cut so that the machine
/// is busy whatever the lengths. Pure functions of the lengths' totals, so that every team can work out its own share
/// and a host can make the same plan.
namespace pagoda::detail {

/// Lengths are counted in chunks of 2^chunk_shift tokens, the least that occupies a team.
struct RowTotals {
  int chunks;   ///< of all rows of a batch
  int rows;     ///< that see any token
  int longest;  ///< chunks
};

/// How one row is cut: all pieces but the last are of `length` chunks.
struct RowCut {
  int pieces, length;
};

/// a / b for a >= 0 and b > 0. GPUs divide integers by way of floating point; so little of it is needed here.
KOKKOS_INLINE_FUNCTION int quotient(int a, int b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  int q    = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  int rest = a - q * b;
  for (; rest < 0; rest += b) --q;
  for (; rest >= b; rest -= b) ++q;
  return q;
#else
  return a / b;
#endif
}

KOKKOS_INLINE_FUNCTION int ceil_div(int a, int b) { return quotient(a + b - 1, b); }

/// How rows are cut: into 1 + chunks * density pieces, but no piece longer than max_chunks.
struct PieceLimit {
  int cuts;  ///< in all, at most
  float density;
  int max_chunks;
};

///  - Even rows, as most batches have: as many pieces as fit `even_waves` rounds of the resident teams; none are cut
///    where there are enough rows, since a cut costs a merge and buys nothing.
///  - Uneven rows are cut to a share of `waves` rounds, so that no row is left to run alone at the end.
/// The workspace has room for max_cuts, whatever the lengths.
KOKKOS_INLINE_FUNCTION PieceLimit limit_pieces(const RowTotals& t, const SplitBounds& bounds) {
  const float chunks = static_cast<float>(t.chunks);
  const bool even    = static_cast<float>(t.longest) * static_cast<float>(t.rows) <= 1.25f * chunks;
  const int room     = even ? bounds.even_waves * bounds.teams - t.rows : bounds.waves * bounds.teams;
  PieceLimit limit{Kokkos::min(Kokkos::max(room, 0), bounds.max_cuts), 0.0f, bounds.max_chunks};
  if (t.longest > bounds.max_chunks) {  // every piece of max_chunks ends in a cut
    const int long_cuts = quotient(t.chunks, bounds.max_chunks);
    limit.cuts          = Kokkos::min(limit.cuts + long_cuts, bounds.max_cuts);
    if (long_cuts > bounds.max_cuts) limit.max_chunks = ceil_div(t.chunks, bounds.max_cuts);
  }
  // Rounded down a little, so that the cuts of all rows never come to more.
  if (t.chunks > 0) limit.density = static_cast<float>(limit.cuts) * 0.999999f / chunks;
  return limit;
}

/// Teams to launch for so many rows, of `bounds.teams` = three (or any number) for each multiprocessor. Where rows stay
/// whole, their last round may leave many of them idle; two for each then run faster.
inline int teams_for(std::int64_t rows, const SplitBounds& bounds) {
  if (2 * rows <= bounds.teams) return bounds.teams;
  const auto busy = [&](double teams) { return rows / (teams * std::ceil(rows / teams)); };
  const int fewer = 2 * bounds.teams / 3;
  return busy(fewer) > busy(bounds.teams) + 0.15 ? fewer : bounds.teams;
}

/// Even pieces, none empty. At most chunks * density cuts, or chunks / max_chunks where that asks for more.
KOKKOS_INLINE_FUNCTION RowCut cut_row(int chunks, const PieceLimit& limit) {
  int pieces = 1 + static_cast<int>(static_cast<float>(chunks) * limit.density);
  if (chunks > limit.max_chunks) pieces = Kokkos::max(pieces, ceil_div(chunks, limit.max_chunks));
  if (pieces == 1) return {1, chunks};
  const int length = ceil_div(chunks, pieces);
  return {ceil_div(chunks, length), length};
}

/// Pieces of a row are joined in groups, and the groups' states again: so many in a group. Loads of a group's states
/// are in flight together, so what counts is how many rounds of arrivals follow each other.
KOKKOS_INLINE_FUNCTION int merge_group(int pieces) {
  if (pieces <= 24) return pieces;
  int group = 16;
  while (group * group < pieces) group *= 2;
  return group;
}

}  // namespace pagoda::detail
