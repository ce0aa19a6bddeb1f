// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/problem.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/error.hpp>
#include <pagoda/types.hpp>

#include "src/plan/backend.hpp"
#include "src/plan/workspace.hpp"

#include <cstddef>
#include <cstdlib>
#include <string>

/// Which backend runs the decodes of a plan.
namespace pagoda::detail {

/// The usual type of queries and outputs: that of the cache; bf16 for rows of fp8_ds_mla, fp16 for other quantized
/// caches.
constexpr DType usual_row_type(DType kv_type) {
  return has_row_format(kv_type) ? DType::bf16 : is_quantized(kv_type) ? DType::fp16 : kv_type;
}

/// A problem of the plan's cache with dense queries and outputs of the usual type. A plan is chosen for this problem.
/// For a plan of lists it has the numbers of entries and queries, without pointers.
Problem usual_problem(const Schedule& schedule, const CacheRef& kv);

/// The names in the list, each in quotation marks, for error texts.
template <class ExecutionSpace>
std::string names_of(BackendList<ExecutionSpace> list) {
  std::string names;
  for (const auto* backend : list) names += (names.empty() ? "\"" : ", \"") + std::string(backend->name()) + "\"";
  return names;
}

/// Index of the backend with this name; -1 if there is none.
template <class ExecutionSpace>
int index_of(BackendList<ExecutionSpace> list, const std::string& name) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (name == list[i]->name()) return static_cast<int>(i);
  return -1;
}

/// The backend that `option` names, or else the environment variable PAGODA_BACKEND, or else the first in the list that
/// supports the problem and is not slower. Throws InvalidArgument if the named backend does not exist or does not
/// support the problem.
template <class ExecutionSpace>
BackendChoice choose_backend(const ExecutionSpace& exec, BackendList<ExecutionSpace> list, const std::string& option,
                             const Schedule& schedule, const CacheRef& kv) {
  const char* const variable = std::getenv("PAGODA_BACKEND");
  const std::string name     = !option.empty() ? option : variable ? variable : "";
  const int last             = static_cast<int>(list.size()) - 1;
  const int named            = index_of<ExecutionSpace>(list, name);
  require(name.empty() || named >= 0,
          "pagoda::plan: ", option.empty() ? "PAGODA_BACKEND in the environment" : "backend", " is \"", name,
          "\"; allowed: ", names_of<ExecutionSpace>(list), ", or nothing");
  BackendChoice choice{.index = last, .forced = named >= 0};
  const Problem problem = usual_problem(schedule, kv);
  if (choice.forced) {
    choice.index             = named;
    const char* const reason = list[named]->why_not(exec, schedule, problem);
    require(!reason, "pagoda::plan: backend \"", name, "\" does not support this problem: ", reason ? reason : "",
            "; allowed: backend \"", list[last]->name(), "\", or a problem that \"", name, "\" supports");
  } else {
    for (int i = 0; i < last; ++i) {
      if (list[i]->why_not(exec, schedule, problem)) continue;
      // A programmatic launch gains more than the faster backend, and only these backends support it.
      const char* const faster_on = schedule.programmatic_launch ? nullptr : list[i]->why_slower(exec, schedule, kv);
      if (!faster_on) {
        choice.index = i;
        break;
      }
      choice.faster_on = faster_on;
    }
    const char* const reason = choice.index == last ? list[last]->why_not(exec, schedule, problem) : nullptr;
    require(!reason, "pagoda::plan: no backend supports this problem: ", reason ? reason : "");
  }
  choice.name = list[choice.index]->name();
  return choice;
}

/// Memory of the plan's backend and of the last one, which runs the decodes that the plan's backend does not support.
template <class ExecutionSpace>
PersistentLayout persistent_layout(const ExecutionSpace& exec, BackendList<ExecutionSpace> list,
                                   const Schedule& schedule) {
  Allocator space;
  PersistentLayout l;
  l.last   = space.take(list.back()->persistent_bytes(exec, schedule));
  l.chosen = l.last;
  if (const auto* chosen = list[schedule.backend.index]; chosen != list.back())
    l.chosen = space.take(chosen->persistent_bytes(exec, schedule));
  l.bytes = space.used;
  return l;
}

}  // namespace pagoda::detail
