// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/simt_machine.hpp"

namespace pagoda::detail {

struct CudaMachine : SimtMachine<Kokkos::Cuda, CudaMachine> {
  static constexpr int tile_tokens = 32;

  /// Orders this worker's scratch writes before its other lanes' reads.
  KOKKOS_FUNCTION static void sync_worker(const Member&) { KOKKOS_IF_ON_DEVICE((__syncwarp();)) }
};

}  // namespace pagoda::detail
