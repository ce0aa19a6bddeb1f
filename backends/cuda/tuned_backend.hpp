// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/plan/backend.hpp"

namespace pagoda::detail {

/// The backend of the hand-tuned kernels (backends/cuda/tuned). On execution spaces other than Kokkos::Cuda it supports
/// no problem.
template <class ExecutionSpace>
const Backend<ExecutionSpace>& tuned_backend();

}  // namespace pagoda::detail
