// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/portable_fragment.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <limits>

namespace pagoda::detail {

/// A worker is a thread, alone in its team.
template <class ExecutionSpace>
struct HostMachine {
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>>;
  using Member = typename Policy::member_type;

  static constexpr int max_workers = 1;
  static constexpr int tile_tokens = 64;
  static constexpr int dot_width   = 16;
  template <class T>
  static constexpr int key_width = 16;
  template <class T>
  static constexpr int value_width = 16;

  static constexpr int min_piece = 256;
  /// Bounds the length of a float32 running sum, and with it the rounding (about eps * sqrt(tiles)).
  static constexpr int max_piece = 16384;

  template <class T, int R, bool Wide>
  using Fragment = PortableFragment<HostMachine, T, R, Wide>;

  KOKKOS_FUNCTION static float exp2(float x) { return Kokkos::exp2(x); }
  KOKKOS_FUNCTION static double exp2(double x) { return Kokkos::exp2(x); }
  KOKKOS_FUNCTION static void sync_worker(const Member&) {}

  static std::size_t scratch_limit() { return std::size_t(1) << 20; }
  /// More items than threads, so that dynamic scheduling evens them out.
  static int teams_resident(const ExecutionSpace& exec, int) { return 4 * exec.concurrency(); }

  /// One team for small irregular work.
  static auto flat_policy(const ExecutionSpace& exec) { return Policy(exec, 1, 1, 1); }

  static auto policy(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return Policy(exec, league, workers, 1).set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(scratch)));
  }
};

}  // namespace pagoda::detail
