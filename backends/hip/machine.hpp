// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/simt_machine.hpp"

namespace pagoda::detail {

struct HipMachine : SimtMachine<Kokkos::HIP, HipMachine> {
  static constexpr int tile_tokens = 64;  // one token per lane of wave64, two of wave32

  /// Orders this worker's scratch writes before its other lanes' reads. Lanes run in lock-step; the compiler does not
  /// know that without being told.
  KOKKOS_FUNCTION static void sync_worker(const Member&) {
    KOKKOS_IF_ON_DEVICE((__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier();))
  }
};

}  // namespace pagoda::detail
