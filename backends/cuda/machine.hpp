// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/dmma_fragment.hpp"
#include "backends/cuda/ds_mla_fragment.hpp"
#include "backends/cuda/fma_fragment.hpp"
#include "backends/cuda/latent_fragment.hpp"
#include "backends/cuda/mma_fragment.hpp"
#include "backends/cuda/stream.hpp"
#include "src/kernel/one_lane.hpp"
#include "src/kernel/simt_machine.hpp"
#include "src/plan/occupancy.hpp"

#include <cuda_runtime.h>

#include <type_traits>

namespace pagoda::detail {

#if defined(__CUDA_ARCH__)
struct CudaLanes {
  template <class Member>
  __device__ static int lane(const Member&) {
    return static_cast<int>(threadIdx.x);
  }
  template <class Member>
  __device__ static constexpr int lanes_of(const Member&) {
    return 32;
  }
  __device__ static int lane_sum(int x) { return __reduce_add_sync(~0u, x); }
  __device__ static int lane_max(int x) { return __reduce_max_sync(~0u, x); }
  /// Sum over this lane and those before it.
  __device__ static int lane_scan(int x) {
    PAGODA_UNROLL_ALL
    for (int d = 1; d < 32; d *= 2) {
      const int below = __shfl_up_sync(~0u, x, d);
      if (static_cast<int>(threadIdx.x) >= d) x += below;
    }
    return x;
  }
  /// The first lane with `is`; -1 if there is none.
  __device__ static int first_lane(bool is) { return __ffs(static_cast<int>(__ballot_sync(~0u, is))) - 1; }
  __device__ static int broadcast(int x, int lane) { return __shfl_sync(~0u, x, lane); }
};
#else
using CudaLanes = OneLane;
#endif

struct CudaMachine : SimtMachine<Kokkos::Cuda, CudaMachine>, CudaLanes {
  using Stream                     = CudaStream;
  static constexpr int tile_tokens = 32;

  template <class T>
  struct Choose {
    using type = PortableFragments<T>;
  };
  template <class T>
  using Fragments = typename Choose<T>::type;

  /// A launch may use 48 KB without opting in to more. Kokkos uses a few bytes of these for each worker.
  static constexpr std::size_t scratch_limit() { return 48 * 1024 - 8 * (max_workers + 4); }

  /// Fragments with teams_per_sm get a kernel with launch bounds.
  template <class Fragment>
  static constexpr bool bounded = Fragment::teams_per_sm > 0;
  /// Teams of max_workers for which the registers suffice, by the launch bounds of the fragment's kernel.
  template <class Fragment>
  static constexpr int bounded_teams = [] {
    if constexpr (bounded<Fragment>) return Fragment::teams_per_sm;
    return 4;  // see SimtMachine::Policy
  }();

  /// Teams of a fragment that the multiprocessors of the instance run at the same time. scratch: bytes of team scratch.
  template <class Fragment>
  static int teams_resident(const Kokkos::Cuda& exec, int workers, std::size_t scratch) {
    const MultiprocessorLimits limits{
        ask(exec, cudaDevAttrMaxSharedMemoryPerMultiprocessor), ask(exec, cudaDevAttrReservedSharedMemoryPerBlock),
        ask(exec, cudaDevAttrMaxRegistersPerMultiprocessor), ask(exec, cudaDevAttrMaxThreadsPerMultiProcessor) / 32,
        ask(exec, cudaDevAttrMaxBlocksPerMultiprocessor)};
    // As many registers as the launch bounds allow; Kokkos keeps a double for each worker, and two, in shared memory.
    const TeamNeeds team{static_cast<int>(scratch) + 8 * (workers + 2), workers,
                         registers_for_teams(limits, bounded_teams<Fragment>, max_workers)};
    return CudaStream::multiprocessors(exec) * teams_per_multiprocessor(limits, team);
  }

  template <class Fragment>
  static auto policy_of(const Kokkos::Cuda& exec, int league, int workers, std::size_t scratch) {
    if constexpr (bounded<Fragment>) {
      using Bounded = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<max_workers * 32, Fragment::teams_per_sm>>;
      return light(Bounded(exec, league, workers, 32)
                       .set_scratch_size(scratch_level, Kokkos::PerTeam(static_cast<int>(scratch))));
    } else {
      return policy(exec, league, workers, scratch);
    }
  }

  /// An attribute of the instance's device, which need not be the default one.
  static int ask(const Kokkos::Cuda& exec, cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, exec.cuda_device()), "cudaDeviceGetAttribute");
    return value;
  }

  /// fp64 runs at half the rate of fp32 on A100, H100 and H200, and at 1/32 or less on cards such as A40.
  template <class Fragment>
  static bool suits(const Kokkos::Cuda& exec) {
    return !Fragment::needs_fast_fp64 || ask(exec, cudaDevAttrSingleToDoublePrecisionPerfRatio) <= 2;
  }

  /// Orders this worker's scratch writes before its other lanes' reads.
  KOKKOS_FUNCTION static void sync_worker(const Member&) { cuda::sync_warp(); }

  /// Whole lines only.
  KOKKOS_FUNCTION static void discard(const Member& team, void* begin, int bytes) {
    cuda::discard_lines(begin, bytes, 32 * team.team_rank() + CudaLanes::lane(team), 32 * team.team_size());
  }

  using SimtMachine::exp2;
  KOKKOS_FUNCTION static float exp2(float x) { return cuda::exp2(x); }

  /// One instruction. A fence, an atomic and a fence take half a microsecond more.
  KOKKOS_FUNCTION static int arrive([[maybe_unused]] int* counter) {
    int before = 0;
    KOKKOS_IF_ON_DEVICE(
        (asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");))
    return before;
  }
};

template <>
struct CudaMachine::Choose<float> {
  using type = typename Prepend<PortableFragments<float>, FmaFragment<64, 1>, FmaFragment<128, 1>, FmaFragment<256, 1>,
                                FmaFragment<64, 4>, FmaFragment<128, 4>, FmaFragment<256, 4>, FmaFragment<64, 8>,
                                FmaFragment<128, 8>, FmaFragment<256, 8>, FmaFragment<64, 8, false, true>,
                                FmaFragment<128, 8, false, true>, FmaFragment<256, 8, false, true>>::type;
};

template <>
struct CudaMachine::Choose<fp8_ds_mla_t> {
  using type = typename Prepend<PortableFragments<fp8_ds_mla_t>, DsMlaFragment<1>, DsMlaFragment<2>>::type;
};

template <>
struct CudaMachine::Choose<double> {
  using type =
      typename Prepend<PortableFragments<double>, DmmaFragment<64>, DmmaFragment<128>, DmmaFragment<256>>::type;
};

// Matrix instructions of fp16 and bf16, which every GPU has from Ampere on. Quantized elements become fp16 first.
template <class T>
  requires(size_of(dtype_v<T>) <= 2 && !has_row_format_v<T>)
struct CudaMachine::Choose<T> {
  template <int DimTile>
  using AnyAlignment = MmaFragment<T, DimTile, false, true>;

  using Long  = typename Prepend<PortableFragments<T>, MmaFragment<T, 128>, MmaFragment<T, 256>, AnyAlignment<128>,
                                 AnyAlignment<256>>::type;
  using Plain = typename Prepend<PortableFragments<T>, MmaFragment<T, 64>, MmaFragment<T, 128>, MmaFragment<T, 256>,
                                 LatentFragment<T, 1>, LatentFragment<T, 2>, AnyAlignment<64>, AnyAlignment<128>,
                                 AnyAlignment<256>>::type;
  using type  = std::conditional_t<is_quantized_v<T>, Long, Plain>;
};

}  // namespace pagoda::detail
