// SPDX-License-Identifier: Apache-2.0
#define PAGODA_TUNED_TYPE Type::fp16
#include "backends/cuda/tuned/wgmma/grouped/option_kernels.inc"
