// SPDX-License-Identifier: Apache-2.0
#define PAGODA_TUNED_TYPE Type::int8
#include "backends/cuda/tuned/wgmma/grouped/list_kernels.inc"
