// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/lanes.hpp"
#include "backends/hip/matrix_fragment.hpp"
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
      using Bounded =
          Kokkos::TeamPolicy<Kokkos::HIP,
                             Kokkos::LaunchBounds<max_workers * Fragment::wave_lanes, Fragment::waves_per_simd>>;
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

#if defined(KOKKOS_ARCH_AMD_GFX90A) || defined(KOKKOS_ARCH_AMD_GFX942) || defined(KOKKOS_ARCH_AMD_GFX1100)
// Matrix instructions of 16-bit numbers: CDNA 2 and 3, RDNA 3. Quantized elements become fp16 first. The fragments are
// rows of hip::matrix_tunings.
template <class T>
  requires(size_of(dtype_v<T>) <= 2 && !has_row_format_v<T>)
struct HipMachine::Choose<T> {
#if defined(KOKKOS_ARCH_AMD_GFX1100)
  template <int DimTile>
  using Matrix = MatrixFragment<hip::Rdna3, T, DimTile>;
  using Long   = typename Prepend<PortableFragments<T>, Matrix<128>>::type;
  using type   = std::conditional_t<
        std::is_same_v<T, mxfp4x2_t>, PortableFragments<T>,  // too few registers
        std::conditional_t<dims_per_element_v<T> == 1, typename Prepend<Long, Matrix<64>>::type, Long>>;
#else
  template <int DimTile, int RowTiles = 1>
  using Matrix  = MatrixFragment<hip::Cdna, T, DimTile, RowTiles>;
  using Mxfp4   = typename Prepend<PortableFragments<T>, Matrix<128>>::type;  // 256 dims take too many registers
  using Nibbles = typename Prepend<PortableFragments<T>, Matrix<128>, Matrix<256>>::type;
  using Bytes   = typename Prepend<Nibbles, Matrix<64>>::type;
  using Plain   = typename Prepend<PortableFragments<T>, Matrix<64>, Matrix<128>, Matrix<256>, Matrix<64, 2>,
                                   Matrix<128, 2>, Matrix<576>>::type;
  using type    = std::conditional_t<is_quantized_v<T>,
                                     std::conditional_t<std::is_same_v<T, mxfp4x2_t>, Mxfp4,
                                                        std::conditional_t<dims_per_element_v<T> == 1, Bytes, Nibbles>>,
                                     Plain>;
#endif
};
#endif

}  // namespace pagoda::detail
