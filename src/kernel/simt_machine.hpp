// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/array_vec.hpp"
#include "src/kernel/fragment_list.hpp"
#include "src/kernel/machine.hpp"
#include "src/kernel/portable_fragment.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>

namespace pagoda::detail {

/// Common to the machines of GPUs. A worker is one warp (or wave); its lanes are the vector lanes of a team thread. The
/// number of lanes is known only at launch.
template <class ExecutionSpace, class Derived>
struct SimtMachine : MachineDefaults<ExecutionSpace> {
  static constexpr int max_workers = 4;
  // Without launch bounds Kokkos compiles for the largest team, which leaves too few registers. Two such teams leave
  // 128 registers on CUDA, so that four teams of 128 lanes fit an SM (teams_resident assumes this).
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<max_workers * 64, 2>>;
  using Member = typename Policy::member_type;

  /// 16 bytes of a key row per lane; four dims of a value row, so that a warp reads 128 dims at once.
  template <class T>
  static constexpr int key_width = sizeof(T) <= 4 ? 16 / static_cast<int>(sizeof(T)) : 4;
  template <class T>
  static constexpr int value_width = 4;
  /// A lane's part of a tile: the scores of one token.
  template <int R>
  static constexpr int score_width = R;
  template <class Acc, int W>
  using Vec = ArrayVec<Acc, W>;

  static constexpr int min_split_tokens = 64;
  static constexpr int max_split_tokens = 1 << 24;
  static constexpr bool deals_tiles     = true;  ///< so a split's tiles can be found without the length
  static constexpr int join_block       = 8;

  /// The portable fragments, in order of preference.
  template <class T>
  using PortableFragments = FragmentList<PortableFragment<Derived, T, 1, true>, PortableFragment<Derived, T, 4, true>,
                                         PortableFragment<Derived, T, 8, true>, PortableFragment<Derived, T, 4, false>>;

  /// Counts an arrival and returns the number of arrivals before it. The last to arrive can read what the others wrote
  /// before they arrived.
  KOKKOS_FUNCTION static int arrive(int* counter) {
    Kokkos::memory_fence();
    const int before = Kokkos::atomic_fetch_add(counter, 1);
    Kokkos::memory_fence();
    return before;
  }

  static int lanes() { return Policy::vector_length_max(); }
  static std::size_t scratch_limit() {
    return static_cast<std::size_t>(Policy::scratch_size_max(SimtMachine::scratch_level));
  }
  /// Teams of a fragment that run at the same time. Registers limit them to a quarter of the lanes that a
  /// multiprocessor can hold; the scratch of the portable fragments is small enough for this.
  template <class Fragment>
  static int teams_resident(const ExecutionSpace& exec, int workers, [[maybe_unused]] std::size_t scratch) {
    return exec.concurrency() / (4 * workers * lanes());
  }

  /// Passes the functor by value as a kernel argument. Constant memory would need a fence, which graph capture does not
  /// allow.
  template <class P>
  static auto light(const P& policy) {
    return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
  }
  static auto policy(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return light(Policy(exec, league, workers, lanes())
                     .set_scratch_size(SimtMachine::scratch_level, Kokkos::PerTeam(static_cast<int>(scratch))));
  }
  template <class Fragment>
  static auto policy_of(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return policy(exec, league, workers, scratch);
  }
};

}  // namespace pagoda::detail
