// SPDX-License-Identifier: Apache-2.0
#define PAGODA_TUNED_TYPE Type::int4
#include "backends/cuda/tuned/warp/option_kernels.inc"
