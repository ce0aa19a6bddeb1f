// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/c/tensors.hpp"

/// Calls on plan handles.
namespace pagoda::c {

template <class Space>
using PlanOf = pagoda::Plan<Space>;

/// Calls f with the plan of its space, and its instance behind exec.
template <class F>
void with_plan(const char* who, const pagoda_exec* exec, const pagoda_plan* handle, F&& f) {
  std::visit([&]<class Space>(const PlanOf<Space>& plan) { f(plan, exec_of<Space>(who, exec, "plan")); },
             not_null(who, "plan", handle).plan);
}

}  // namespace pagoda::c
