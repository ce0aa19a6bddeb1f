// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/anywhere.hpp"

#include <cstdint>

/// Rules that the generic and the tuned kernels share. They do not depend on Kokkos.
namespace pagoda::detail {

/// Whether no row is much longer than the others. longest: length of the longest row; rows: rows that see any token;
/// sum: sum of all lengths.
PAGODA_ANYWHERE bool even_lengths(int longest, int rows, std::int64_t sum) {
  return static_cast<float>(longest) * static_cast<float>(rows) <= 1.25f * static_cast<float>(sum);
}

/// Number of teams (or blocks) to launch for the work items of an even batch. teams: teams that can run at the same
/// time. Idle teams cost time on a GPU: the hardware places several of them on one multiprocessor, which then reads
/// nothing (4 us of 240 with 8 idle teams of 264). So one team is launched for each item. The exception is fewer items
/// than three quarters of the teams: then all teams are launched, because an uneven batch would otherwise leave much of
/// the machine unused.
constexpr int teams_launched(std::int64_t items, int teams) {
  return 4 * items >= 3 * std::int64_t(teams) && items < teams ? static_cast<int>(items) : teams;
}

}  // namespace pagoda::detail
