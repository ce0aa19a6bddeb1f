// SPDX-License-Identifier: Apache-2.0
#define PAGODA_TUNED_TYPE Type::fp8_e4m3
#include "backends/cuda/tuned/wgmma/grouped/list_kernels.inc"
