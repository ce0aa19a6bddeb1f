// SPDX-License-Identifier: Apache-2.0
#define PAGODA_TUNED_TYPE Type::fp16
#include "backends/cuda/tuned/wgmma/grouped/kernels.inc"
#include "backends/cuda/tuned/wgmma/grouped/list_kernels.inc"
