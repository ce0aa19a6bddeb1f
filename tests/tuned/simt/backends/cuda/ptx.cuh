// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/tuned/simt/simt.hpp"

/// In place of backends/cuda/ptx.cuh, for device code that a host runs.
namespace pagoda::ptx {

#define PAGODA_DEVICE inline

PAGODA_DEVICE float exp2_fast(float x) { return std::exp2(x); }
PAGODA_DEVICE float reciprocal(float x) { return 1 / x; }

}  // namespace pagoda::ptx
