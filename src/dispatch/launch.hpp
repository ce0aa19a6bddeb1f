// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"

#include <cstddef>

namespace pagoda::detail {

/// Query rows per work item for which kernels are compiled. An item of more rows than the group has wastes arithmetic,
/// of fewer reads the keys more than once.
inline constexpr int row_tiles_compiled[] = {1, 4, 8};
/// The only row tile of rows that cannot be read in aligned vectors (odd head dims, odd strides): the slower path.
inline constexpr int narrow_row_tile = 4;

/// Bytes of team scratch the partial kernel needs for this shape, element type T and row tile R.
template <class ExecutionSpace, class T>
std::size_t partial_scratch(int row_tile, int head_dim, int head_dim_v, int workers);

/// Launches the partial kernel over the work items. Instantiated once per element type.
template <class ExecutionSpace, class T>
void launch_partial(const ExecutionSpace& exec, const PlanState& state, const KernelArgs& args);

}  // namespace pagoda::detail
