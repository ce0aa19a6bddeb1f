// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"

namespace pagoda::tuned {

/// A position in a ring of stages in shared memory. `parity` flips with each round, as the phases of barriers do.
template <int Stages>
struct Ring {
  int slot = 0, parity = 0;
  PAGODA_DEVICE void next() {
    if (++slot == Stages) slot = 0, parity ^= 1;
  }
  PAGODA_DEVICE bool operator==(const Ring& o) const { return slot == o.slot && parity == o.parity; }
};

}  // namespace pagoda::tuned
