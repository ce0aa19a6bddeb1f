// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

/// The machine trait of an execution space. Generic kernels access their machine only through it. backends/machines.hpp
/// selects the machine of each execution space.
namespace pagoda::detail {

/// The stream interface of execution spaces whose kernels have completed when their launch returns, so there is nothing
/// to order. CudaStream and HipStream have the same members.
struct NoStream {
  template <class ExecutionSpace>
  static int device(const ExecutionSpace&) {
    return 0;
  }
  /// Two instances of a device with the same handle are the same stream.
  template <class ExecutionSpace>
  static std::uintptr_t handle(const ExecutionSpace&) {
    return 0;
  }
  /// Multiprocessors that kernels of the instance may run on; 0 where the space has none.
  template <class ExecutionSpace>
  static int multiprocessors(const ExecutionSpace&) {
    return 0;
  }
  template <class ExecutionSpace>
  static bool capturing(const ExecutionSpace&) {
    return false;
  }
  /// A point in the work of one instance, for which other instances and the host can wait.
  struct Event {
    template <class ExecutionSpace>
    explicit Event(const ExecutionSpace&) {}
    template <class ExecutionSpace>
    void record(const ExecutionSpace&) {}
    template <class ExecutionSpace>
    void precede(const ExecutionSpace&) const {}
    bool passed() const { return true; }
    void synchronize() const {}
  };
};

template <class S, class ExecutionSpace>
concept Stream = requires(const ExecutionSpace& exec, typename S::Event& event) {
  { S::device(exec) } -> std::same_as<int>;
  { S::handle(exec) } -> std::same_as<std::uintptr_t>;
  { S::multiprocessors(exec) } -> std::same_as<int>;
  { S::capturing(exec) } -> std::same_as<bool>;
  typename S::Event;
  event.record(exec);
  event.precede(exec);
  { event.passed() } -> std::same_as<bool>;
  event.synchronize();
};

/// The instruction set that the fragments of a plan use, on machines that choose one at run time.
struct MachineIsa {
  int number       = 0;  ///< KernelArgs::isa
  const char* name = nullptr;
};

/// Base of the machines. A machine redefines the members in which it differs.
template <class ExecutionSpaceType>
struct MachineDefaults {
  using ExecutionSpace = ExecutionSpaceType;
  using Stream         = NoStream;
  /// Rounds of splits for rows of equal and, least and most, of unequal lengths: see limit_splits.
  static constexpr int even_waves = 1, waves = 2, max_waves = 8;
  /// Resident teams that run on a processor one after another.
  static constexpr int teams_in_turn = 1;
  /// Splits interleave tiles; otherwise a split is a run of tokens.
  static constexpr bool deals_tiles = false;
  /// Tokens that a worker of the portable fragment prefetches ahead (then the machine defines prefetch); 0: none.
  static constexpr int prefetch_distance = 0;
  /// Level of the Kokkos scratch memory of a team.
  static constexpr int scratch_level = 0;
  /// The instruction set for a plan. Throws InvalidArgument if the environment names one that is not there.
  static MachineIsa isa() { return {}; }

  /// Lets caches drop memory that will be written before it is read again, so that they do not write it back.
  /// Team-wide, after all of the team have read the memory.
  template <class Member>
  KOKKOS_FUNCTION static void discard(const Member&, void* /*begin*/, int /*bytes*/) {}

  /// Whether the fragment suits the device of the instance. Another fragment of the list takes its place if not.
  template <class Fragment>
  static bool suits(const ExecutionSpace&) {
    return true;
  }

  template <class Acc>
  KOKKOS_FUNCTION static Acc exp2(Acc x) {
    return Kokkos::exp2(x);
  }
};

/// The members that the host reads and every machine defines. Members that run on the device are checked when a kernel
/// is compiled:
///   lane, lanes_of, lane_sum, lane_max,
///   lane_scan, first_lane, broadcast     collectives over the lanes of a worker (OneLane has those of one lane)
///   sync_worker, arrive, exp2            order scratch within a worker, count arrivals of teams, arithmetic
/// The portable fragment also reads Vec, key_width, value_width, score_width and tile_tokens: the widths and numbers of
/// elements that a lane processes together.
template <class M>
concept Machine = requires(const typename M::ExecutionSpace& exec, std::size_t bytes) {
  typename M::Member;                     // member type of the teams that policy launches
  typename M::template Fragments<float>;  // FragmentList in order of preference
  requires Stream<typename M::Stream, typename M::ExecutionSpace>;
  requires M::max_workers > 0;  // workers of a team
  requires M::min_split_tokens > 0;
  requires M::max_split_tokens >= M::min_split_tokens;
  requires M::even_waves > 0 && M::waves > 0 && M::max_waves >= M::waves;
  requires M::join_block > 0;  // states that are loaded before the first is used
  { M::deals_tiles } -> std::convertible_to<bool>;
  { M::scratch_level } -> std::convertible_to<int>;
  { M::scratch_limit() } -> std::convertible_to<std::size_t>;  // bytes of a team
  // A policy of `league` teams: for any kernel, and for the decode kernel of a fragment.
  M::policy(exec, int(), int(), bytes);
  M::template policy_of<typename M::template Fragments<float>::First>(exec, int(), int(), bytes);
  // Teams of a fragment that run at the same time, for this many workers and bytes of scratch.
  { M::template teams_resident<void>(exec, int(), bytes) } -> std::same_as<int>;
};

template <class ExecutionSpace>
struct MachineSelector;

template <class ExecutionSpace>
using MachineOf = typename MachineSelector<ExecutionSpace>::type;

}  // namespace pagoda::detail
