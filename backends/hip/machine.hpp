// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/lanes.hpp"
#include "backends/hip/mfma_fragment.hpp"
#include "backends/hip/stream.hpp"
#include "src/kernel/fragment_list.hpp"
#include "src/kernel/simt_machine.hpp"

#include <cstddef>
#include <type_traits>

namespace pagoda::detail {

struct HipMachine : SimtMachine<Kokkos::HIP, HipMachine>, hip::Lanes {
  using Stream                     = HipStream;
  static constexpr int tile_tokens = 64;  // one token per lane of wave64, two of wave32

  template <class T>
  struct Choose {
    using type = PortableFragments<T>;
  };
  template <class T>
  using Fragments = typename Choose<T>::type;

  /// Fragments with tuning get a kernel with launch bounds.
  template <class Fragment>
  static auto policy_of(const Kokkos::HIP& exec, int league, int workers, std::size_t scratch) {
    if constexpr (requires { Fragment::waves_per_simd; }) {
      // Clang reads the second number of the bounds as waves of a SIMD.
      using Bounded = Kokkos::TeamPolicy<Kokkos::HIP, Kokkos::LaunchBounds<max_workers * 64, Fragment::waves_per_simd>>;
      return light(Bounded(exec, league, workers, lanes())
                       .set_scratch_size(scratch_level, Kokkos::PerTeam(static_cast<int>(scratch))));
    } else {
      return policy(exec, league, workers, scratch);
    }
  }

  /// Orders this worker's scratch writes before its other lanes' reads. Lanes run in lock-step, but the compiler may
  /// reorder memory operations without this.
  KOKKOS_FUNCTION static void sync_worker(const Member&) {
    KOKKOS_IF_ON_DEVICE((__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier();))
  }
};

#if defined(KOKKOS_ARCH_AMD_GFX90A) || defined(KOKKOS_ARCH_AMD_GFX942)
// Matrix instructions of CDNA 2 and 3.
template <class T>
  requires(std::is_same_v<T, half_t> || std::is_same_v<T, bfloat16_t>)
struct HipMachine::Choose<T> {
  using type = typename Prepend<PortableFragments<T>, MfmaFragment<T, 64>, MfmaFragment<T, 128>, MfmaFragment<T, 256>,
                                MfmaFragment<T, 64, 2>, MfmaFragment<T, 128, 2>>::type;
};
#endif

}  // namespace pagoda::detail
