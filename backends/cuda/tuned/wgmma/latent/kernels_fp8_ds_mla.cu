// SPDX-License-Identifier: Apache-2.0
#define PAGODA_TUNED_TYPE Type::fp8_ds_mla
#include "backends/cuda/tuned/wgmma/latent/kernels.inc"
