// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Unrolls a loop on a GPU, where this determines the number of loads in flight. A host compiler decides itself.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define PAGODA_PRAGMA(text) _Pragma(#text)
#define PAGODA_UNROLL(n) PAGODA_PRAGMA(unroll n)
#define PAGODA_UNROLL_ALL PAGODA_PRAGMA(unroll)
#else
#define PAGODA_UNROLL(n)
#define PAGODA_UNROLL_ALL
#endif
