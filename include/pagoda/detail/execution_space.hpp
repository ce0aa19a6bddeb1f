// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <type_traits>

namespace pagoda::detail {

/// Requirements on the execution space of a call. Another space would compile, and not link.
template <class ExecutionSpace>
constexpr void check_execution_space() {
  static_assert(std::is_same_v<ExecutionSpace, Kokkos::DefaultExecutionSpace> ||
                    std::is_same_v<ExecutionSpace, Kokkos::DefaultHostExecutionSpace>,
                "Pagoda has kernels for Kokkos' default execution space and its default host execution space");
}

}  // namespace pagoda::detail
