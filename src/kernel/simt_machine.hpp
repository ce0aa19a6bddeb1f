// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/array_vec.hpp"
#include "src/kernel/fragment_list.hpp"
#include "src/kernel/portable_fragment.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>

namespace pagoda::detail {

/// What all GPUs share: a worker is one warp (or wave), its lanes the vector lanes of a team thread. How many lanes
/// that is, only the launch knows.
template <class ExecutionSpace, class Derived>
struct SimtMachine {
  static constexpr int max_workers = 4;
  // Kokkos compiles for the largest team otherwise, which leaves too few registers; two such teams leave 128 on CUDA,
  // so that four teams of 128 lanes fit an SM (teams_resident counts on it).
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<max_workers * 64, 2>>;
  using Member = typename Policy::member_type;

  /// 16 bytes of a key row per lane; four dims of a value row, so that a warp reads 128 dims at once.
  template <class T>
  static constexpr int key_width = sizeof(T) <= 4 ? 16 / static_cast<int>(sizeof(T)) : 4;
  template <class T>
  static constexpr int value_width = 4;
  /// The scores of one token: a lane's share of a tile.
  template <int R>
  static constexpr int score_width = R;
  template <class Acc, int W>
  using Vec = ArrayVec<Acc, W>;

  static constexpr int prefetch_distance = 0;  ///< other warps hide the latency
  static constexpr int min_split_tokens  = 64;
  static constexpr bool deals_tiles      = true;   ///< a split is every so many-th tile: nobody need know how many
  static constexpr int even_waves = 1, waves = 2;  ///< see limit_splits
  static constexpr int join_block       = 8;       ///< states that are loaded before the first is used
  static constexpr int max_split_tokens = 1 << 24;

  /// In order of preference, where a query takes as few passes.
  template <class T>
  using PortableFragments = FragmentList<PortableFragment<Derived, T, 1, true>, PortableFragment<Derived, T, 4, true>,
                                         PortableFragment<Derived, T, 8, true>, PortableFragment<Derived, T, 4, false>>;

  template <class Acc>
  KOKKOS_FUNCTION static Acc exp2(Acc x) {
    return Kokkos::exp2(x);
  }

  /// Counts one more arrival and returns how many there were before. What the others wrote before theirs can be read
  /// after it by whoever comes last.
  KOKKOS_FUNCTION static int arrive(int* counter) {
    Kokkos::memory_fence();
    const int before = Kokkos::atomic_fetch_add(counter, 1);
    Kokkos::memory_fence();
    return before;
  }

  static int lanes() { return Policy::vector_length_max(); }
  static constexpr int scratch_level = 0;
  static std::size_t scratch_limit() { return static_cast<std::size_t>(Policy::scratch_size_max(scratch_level)); }
  /// Teams of a fragment that run at the same time: a quarter of the lanes a multiprocessor can hold, given the
  /// registers each takes. The fragments of this list leave room for as many by their scratch.
  template <class Fragment>
  static int teams_resident(const ExecutionSpace& exec, int workers, [[maybe_unused]] std::size_t scratch) {
    return exec.concurrency() / (4 * workers * lanes());
  }

  /// By value as a kernel argument, never through constant memory: that needs a fence and refuses graph capture.
  template <class P>
  static auto light(const P& policy) {
    return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
  }
  static auto policy(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return light(Policy(exec, league, workers, lanes())
                     .set_scratch_size(scratch_level, Kokkos::PerTeam(static_cast<int>(scratch))));
  }
  template <class Fragment>
  static auto policy_of(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return policy(exec, league, workers, scratch);
  }
};

}  // namespace pagoda::detail
