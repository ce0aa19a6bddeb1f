// SPDX-License-Identifier: Apache-2.0
// Number of teams that a multiprocessor runs at the same time, with the limits of real devices.
#include "src/plan/occupancy.hpp"

#include <gtest/gtest.h>

namespace pagoda::detail {
namespace {

// Shared memory, reserved shared memory of a team, registers, warps, teams: CUDA C++ Programming Guide.
constexpr MultiprocessorLimits a100{164 * 1024, 1024, 65536, 64, 32};  // 8.0
constexpr MultiprocessorLimits a40{100 * 1024, 1024, 65536, 48, 16};   // 8.6
constexpr MultiprocessorLimits h100{228 * 1024, 1024, 65536, 64, 32};  // 9.0

/// Four warps whose launch bounds allow three teams by registers, with the scratch of 16-bit caches of head_dim 128.
TeamNeeds four_warps(const MultiprocessorLimits& limits) { return {37500, 4, registers_for_teams(limits, 3, 4)}; }

TEST(Occupancy, SharedMemoryCounts) {
  EXPECT_EQ(teams_per_multiprocessor(a40, four_warps(a40)), 2);
  EXPECT_EQ(teams_per_multiprocessor(a100, four_warps(a100)), 3);
  EXPECT_EQ(teams_per_multiprocessor(h100, four_warps(h100)), 3);
}

// The largest team of which two fit an A40, and one byte more.
TEST(Occupancy, ReservedSharedMemoryCounts) {
  EXPECT_EQ(teams_per_multiprocessor(a40, {50 * 1024 - 1024, 4, 64}), 2);
  EXPECT_EQ(teams_per_multiprocessor(a40, {50 * 1024 - 1024 + 1, 4, 64}), 1);
}

TEST(Occupancy, RegistersCount) {
  for (int teams = 2; teams <= 4; ++teams)
    for (const int warps : {1, 2, 4}) {
      const int registers = registers_for_teams(h100, teams, 4);
      EXPECT_EQ(teams_per_multiprocessor(h100, {1024, warps, registers}), teams * 4 / warps) << teams << " " << warps;
    }
  EXPECT_EQ(registers_for_teams(h100, 3, 4), 168);
  EXPECT_EQ(registers_for_teams(h100, 1, 4), 255);  // the limit of a lane
}

TEST(Occupancy, WarpsAndTeamsCount) {
  EXPECT_EQ(teams_per_multiprocessor(a40, {0, 8, 16}), 6);
  EXPECT_EQ(teams_per_multiprocessor(a100, {0, 8, 16}), 8);
  EXPECT_EQ(teams_per_multiprocessor(a40, {0, 1, 16}), 16);
  EXPECT_EQ(teams_per_multiprocessor(h100, {0, 1, 16}), 32);
}

}  // namespace
}  // namespace pagoda::detail
