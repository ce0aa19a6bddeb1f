// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/anywhere.hpp"

#include <cstdint>

/// Rules of the generic and of the tuned kernels alike, without Kokkos.
namespace pagoda::detail {

/// No row is much longer than the others: the longest, times how many see any token, against the sum of all.
PAGODA_ANYWHERE bool even_lengths(int longest, int rows, std::int64_t sum) {
  return static_cast<float>(longest) * static_cast<float>(rows) <= 1.25f * static_cast<float>(sum);
}

/// Teams (or blocks) to launch for so many items of an even batch, of the teams that can run at the same time. Idle
/// ones do harm on a GPU: the system puts several of them on one multiprocessor, which then reads nothing, rather than
/// one on each of several (4 us of 240 where 8 of 264 were idle). So there are none, unless that would leave much of
/// the machine out should the batch turn out uneven.
constexpr int teams_launched(std::int64_t items, int teams) {
  return 4 * items >= 3 * std::int64_t(teams) && items < teams ? static_cast<int>(items) : teams;
}

}  // namespace pagoda::detail
