// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>

#include "src/kernel/kernel_args.hpp"
#include "src/plan/backend.hpp"
#include "src/plan/kernel_choice.hpp"

namespace pagoda::detail {

/// The backend of the Kokkos kernels (src/kernel). It supports every problem that a plan accepts.
template <class ExecutionSpace>
const Backend<ExecutionSpace>& generic_backend();

/// choose_fragment for caches of T.
template <class ExecutionSpace, class T>
FragmentChoice choose_fragment_for(const ExecutionSpace& exec, const FragmentShape& shape);

/// Launches the decode kernel of the schedule's fragment. A kernel of a type without scales takes the args without
/// them. general: the instance with all options and queries of any type; otherwise the one without.
template <class ExecutionSpace, class T>
void launch_decode(const ExecutionSpace& exec, const Schedule& schedule, const AllKernelArgs& args, bool general);

}  // namespace pagoda::detail
