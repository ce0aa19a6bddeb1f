// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"

namespace pagoda::tuned {

/// How many owners, of at most `most`, carry out `entries` entries with `heads` batch heads each. Where entries are of
/// about one size, owners get whole batch heads, or equal parts of one, if that leaves few owners without work. With
/// any other number most owners have parts of one more batch head: its queries, partial results and joins cost more
/// than shares of the same size save. That pays for a few batch heads to an owner. total, largest: units of all entries
/// and of the largest.
PAGODA_HOST_DEVICE constexpr int even_owners(int entries, int heads, int total, int largest, int most) {
  constexpr int most_each = 4;
  const int all           = entries * heads;
  const bool equal = 4 * static_cast<float>(largest) * static_cast<float>(entries) <= 5 * static_cast<float>(total);
  if (all == 0 || all > most_each * most || !equal) return most;
  int each = 1;  // batch heads of an owner, if there are enough
  while (all > each * most) ++each;
  const int owners = all < most ? all * (most / all) : all / each;
  return (all < most || owners * each == all) && 16 * owners >= 15 * most ? owners : most;
}

/// Divides `total` units of work, fewer than 2^31, evenly among owners. A share has at least min_units; owners from
/// `owners` on have none. In a list min_units is at least the units of two tiles, so that two owners never split a
/// batch head at the same tile.
struct WorkDivision {
  int owners, units_per_owner;
  int longer_shares;  ///< the first shares, which have one unit more

  PAGODA_HOST_DEVICE static constexpr WorkDivision of(int total, int max_owners, int min_units) {
    const int fit    = total / min_units;
    const int owners = fit < 1 ? 1 : fit < max_owners ? fit : max_owners;
    return {owners, total / owners, total % owners};
  }
  PAGODA_HOST_DEVICE constexpr int begin(int owner) const { return begin_of(owner < owners ? owner : owners); }
  /// The same for one of the owners, or the number of them.
  PAGODA_HOST_DEVICE constexpr int begin_of(int owner) const {
    return units_per_owner * owner + (owner < longer_shares ? owner : longer_shares);
  }
  /// The owner of the unit, which must be less than `total`.
  PAGODA_HOST_DEVICE constexpr int owner_of(int unit) const {
    const int in_longer = (units_per_owner + 1) * longer_shares;
    const bool longer   = unit < in_longer;
    return (longer ? 0 : longer_shares) + (unit - (longer ? 0 : in_longer)) / (units_per_owner + (longer ? 1 : 0));
  }
};

}  // namespace pagoda::tuned
