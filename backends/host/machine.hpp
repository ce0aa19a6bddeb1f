// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/isa.hpp"
#if defined(__NVCC__)
#include "src/kernel/array_vec.hpp"
#else
#include "backends/host/simd_vec.hpp"
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)  // GCC 12, Clang
#define PAGODA_SIMD_FRAGMENT
#include "backends/host/many_rows_fragment.hpp"
#include "backends/host/simd_fragment.hpp"
#endif
#endif
#if PAGODA_HOST_AMX && defined(PAGODA_SIMD_FRAGMENT)
#define PAGODA_AMX_FRAGMENT
#include "backends/host/amx_fragment.hpp"
#endif
#endif
#include "src/kernel/fragment_list.hpp"
#include "src/kernel/machine.hpp"
#include "src/kernel/one_lane.hpp"
#include "src/kernel/portable_fragment.hpp"

#include <Kokkos_Core.hpp>

#include <atomic>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace pagoda::detail {

/// Each team has one worker, which is one thread.
template <class ExecutionSpace>
struct HostMachine : MachineDefaults<ExecutionSpace>, OneLane {
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>>;
  using Member = typename Policy::member_type;

  static constexpr int max_workers = 1;
  static constexpr int tile_tokens = 64;
  template <class T>
  static constexpr int key_width = 16;
  template <class T>
  static constexpr int value_width = 16;
  template <int R>
  static constexpr int score_width = R > 16 ? R : 16;
#if defined(__NVCC__)
  // nvcc parses host kernels too and rejects vector types in them. In a CUDA build the compiler vectorizes.
  template <class Acc, int W>
  using Vec = ArrayVec<Acc, W, W>;
#else
  template <class Acc, int W>
  using Vec = plain::SimdVec<Acc, W>;
#endif

  /// In NHD order rows of one head lie about a page of memory apart, and hardware prefetchers do not cross pages. This
  /// distance hides the latency, the walk of the page table included.
  static constexpr int prefetch_distance = 16;
  template <class T>
  KOKKOS_FUNCTION static void prefetch([[maybe_unused]] const T* row, [[maybe_unused]] int dims) {
    KOKKOS_IF_ON_HOST((const char* const line = reinterpret_cast<const char*>(row);
                       for (int at = 0; at < dims * static_cast<int>(sizeof(T)); at += 64)
                           __builtin_prefetch(line + at);))
  }

  static constexpr int min_split_tokens = 256;
  static constexpr int join_block       = 4;
  /// Bounds the length of a float32 running sum, and with it the rounding (about eps * sqrt(tiles)).
  static constexpr int max_split_tokens = 4096;
  static constexpr int max_waves        = 2;  ///< max_split_tokens already bounds the splits

  static MachineIsa isa() {
    const HostIsa isa = host_isa();
    return {static_cast<int>(isa), name_of(isa)};
  }

#if defined(PAGODA_SIMD_FRAGMENT)
  template <class T, int R>
  using WideFragment = SimdFragment<HostMachine, T, R>;
#else
  template <class T, int R>
  using WideFragment = PortableFragment<HostMachine, T, R, true>;
#endif
  template <class T>
  using FewRowsFragments = FragmentList<WideFragment<T, 1>, WideFragment<T, 4>, WideFragment<T, 8>,
                                        PortableFragment<HostMachine, T, 4, false>>;
  template <class T>
  struct ChooseVectorFragments {
    using type = FewRowsFragments<T>;
  };
#if defined(PAGODA_SIMD_FRAGMENT)
  template <class T>
    requires(std::is_same_v<accumulator_t<T>, float>)
  struct ChooseVectorFragments<T> {
    using type = typename Prepend<FewRowsFragments<T>, ManyRowsFragment<HostMachine, T>>::type;
  };
#endif
  template <class T>
  using VectorFragments = typename ChooseVectorFragments<T>::type;
#if defined(PAGODA_AMX_FRAGMENT)
  /// A type that tile registers do not multiply has no AmxFragment.
  template <class T>
  struct ChooseFragments {
    using type = VectorFragments<T>;
  };
  template <class T>
    requires(has_bf16_code<T> && is_quantized_v<T>)
  struct ChooseFragments<T> {
    using type =
        typename Prepend<VectorFragments<T>, AmxFragment<HostMachine, T, 8>, AmxFragment<HostMachine, T, 16>>::type;
  };
  template <class T>
    requires(has_bf16_code<T> && !is_quantized_v<T>)
  struct ChooseFragments<T> {
    using type = typename Prepend<VectorFragments<T>, AmxFragment<HostMachine, T, 1>, AmxFragment<HostMachine, T, 4>,
                                  AmxFragment<HostMachine, T, 8>, AmxFragment<HostMachine, T, 16>>::type;
  };
  template <class T>
  using Fragments = typename ChooseFragments<T>::type;
#else
  template <class T>
  using Fragments = VectorFragments<T>;
#endif

  KOKKOS_FUNCTION static void sync_worker(const Member&) {}
  /// The atomic itself acquires and releases: thread sanitizers do not understand fences.
  KOKKOS_FUNCTION static int arrive([[maybe_unused]] int* counter) {
    int before = 0;
    KOKKOS_IF_ON_HOST((before = std::atomic_ref<int>(*counter).fetch_add(1, std::memory_order_acq_rel);))
    return before;
  }

  /// Kokkos limits level 0 to the size of a first-level cache. On a host, level 1 is ordinary memory.
  static constexpr int scratch_level = 1;
  static std::size_t scratch_limit() { return std::size_t(20) << 20; }  // what every Kokkos from 4.6 on grants
  /// More teams than threads: a thread that finishes early takes another one.
  static constexpr int teams_in_turn = 4;
  template <class Fragment>
  static int teams_resident(const ExecutionSpace& exec, int, std::size_t) {
    return teams_in_turn * exec.concurrency();
  }

  static auto policy(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return Policy(exec, league, workers, 1).set_scratch_size(scratch_level, Kokkos::PerTeam(static_cast<int>(scratch)));
  }
  template <class Fragment>
  static auto policy_of(const ExecutionSpace& exec, int league, int workers, std::size_t scratch) {
    return policy(exec, league, workers, scratch);
  }
};

}  // namespace pagoda::detail
