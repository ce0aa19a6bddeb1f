// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

/// The execution spaces the library is compiled for: the default one and the default host one, which may be the same.
#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA) || defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_HIP)
#define PAGODA_FOR_EACH_SPACE(X) X(Kokkos::DefaultExecutionSpace) X(Kokkos::DefaultHostExecutionSpace)
#else
#define PAGODA_FOR_EACH_SPACE(X) X(Kokkos::DefaultExecutionSpace)
#endif
