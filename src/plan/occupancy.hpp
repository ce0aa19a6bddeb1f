// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

/// Number of teams (blocks) of a kernel that run on one multiprocessor of an NVIDIA GPU at the same time. Source: CUDA
/// C++ Programming Guide, "Compute Capabilities"; the allocation units are those of every capability from 8.0 on.
namespace pagoda::detail {

/// Resources of one multiprocessor.
struct MultiprocessorLimits {
  int shared_bytes;           ///< shared memory
  int reserved_shared_bytes;  ///< shared memory that the system takes for each team
  int registers;
  int warps;
  int teams;
};

/// Resources of one team.
struct TeamNeeds {
  int shared_bytes;  ///< without the reserved bytes
  int warps;
  int registers;  ///< registers of each lane
};

constexpr int teams_per_multiprocessor(const MultiprocessorLimits& limits, const TeamNeeds& team) {
  const auto round_up         = [](int n, int unit) { return (n + unit - 1) / unit * unit; };
  const int shared_bytes      = round_up(team.shared_bytes + limits.reserved_shared_bytes, 128);
  const int registers_of_warp = round_up(32 * team.registers, 256);
  return std::min({limits.teams, limits.warps / team.warps, limits.shared_bytes / std::max(shared_bytes, 1),
                   limits.registers / (registers_of_warp * team.warps)});
}

/// The largest number of registers for each lane with which `teams` teams of `warps` warps fit a multiprocessor. This
/// is the limit for a kernel with these launch bounds.
constexpr int registers_for_teams(const MultiprocessorLimits& limits, int teams, int warps) {
  return std::min(limits.registers / (teams * warps * 32) / 8 * 8, 255);
}

}  // namespace pagoda::detail
