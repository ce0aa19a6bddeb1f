// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

namespace pagoda::detail {

/// Single-lane stand-ins for the warp collectives (machine.hpp): on hosts, and in the host pass over a GPU's kernels,
/// which is compiled and never run.
struct OneLane {
  template <class Member>
  KOKKOS_FUNCTION static constexpr int lane(const Member&) {
    return 0;
  }
  template <class Member>
  KOKKOS_FUNCTION static constexpr int lanes_of(const Member&) {
    return 1;
  }
  KOKKOS_FUNCTION static int lane_sum(int x) { return x; }
  KOKKOS_FUNCTION static int lane_max(int x) { return x; }
  KOKKOS_FUNCTION static int lane_scan(int x) { return x; }
  KOKKOS_FUNCTION static int first_lane(bool is) { return is ? 0 : -1; }
  KOKKOS_FUNCTION static int broadcast(int x, int) { return x; }
};

}  // namespace pagoda::detail
