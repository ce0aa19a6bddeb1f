// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"

namespace pagoda::tuned {

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
  PAGODA_HOST_DEVICE constexpr int end_of(int owner) const { return begin_of(owner + 1); }
  /// The owner of the unit, which must be less than `total`.
  PAGODA_HOST_DEVICE constexpr int owner_of(int unit) const {
    const int in_longer = (units_per_owner + 1) * longer_shares;
    const bool longer   = unit < in_longer;
    return (longer ? 0 : longer_shares) + (unit - (longer ? 0 : in_longer)) / (units_per_owner + (longer ? 1 : 0));
  }
};

}  // namespace pagoda::tuned
