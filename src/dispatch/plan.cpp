// SPDX-License-Identifier: Apache-2.0
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include "src/base/spaces.hpp"
#include "src/base/warnings.hpp"
#include "src/dispatch/checked.hpp"
#include "src/dispatch/plan_memory.hpp"
#include "src/plan/backend.hpp"
#include "src/plan/workspace.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <utility>

namespace pagoda::detail {

namespace {

/// Reports once in a process, on standard error, that a plan cannot run at full speed.
void warn_once_if_slow(const Schedule& s) {
  static std::atomic<bool> said{false};
  if (!s.kernel.slow_because) return;
  if (!warnings_enabled() || said.exchange(true)) return;
  std::cerr << concat("pagoda: slow plan: ", describe(s), ". This is said once; PAGODA_WARN=0 turns it off.\n");
}

/// Initializes the memory of the backends that may run a decode of the plan, and loads their kernels.
template <class ExecutionSpace>
void prepare_backends(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  const auto list   = backends<ExecutionSpace>();
  const Schedule& s = plan.schedule();
  const int last    = static_cast<int>(list.size()) - 1;
  list[last]->prepare(exec, plan, plan.memory().data() + persistent_offset(s, last));
  if (s.backend.index != last)
    list[s.backend.index]->prepare(exec, plan, plan.memory().data() + persistent_offset(s, s.backend.index));
}

}  // namespace

template <class ExecutionSpace>
Plan<ExecutionSpace> make_plan(const ExecutionSpace& exec, const CacheRef& kv,
                               const DecodeOptions<typename ExecutionSpace::memory_space>& options,
                               typename Plan<ExecutionSpace>::Workspace workspace) {
  Schedule schedule       = make_schedule(exec, kv, options);
  const std::size_t bytes = schedule.workspace.bytes;
  if (!workspace.data()) {
    workspace = typename Plan<ExecutionSpace>::Workspace(
        Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::plan::workspace"), bytes);
  }
  require(workspace.extent(0) >= bytes, "pagoda::plan: workspace has ", workspace.extent(0),
          " bytes; allowed: at least ", bytes);
  require(reinterpret_cast<std::uintptr_t>(workspace.data()) % workspace_alignment == 0,
          "pagoda::plan: workspace is at address ", workspace.data(), "; allowed: aligned to ", workspace_alignment,
          " bytes");
  if (options.checked) {
    schedule.checked = {true, std::max(kv.num_sequences, schedule.bounds.max_batch), schedule.options.cu_seqlens_q};
    schedule.persistent.checked = schedule.persistent.bytes;
    schedule.persistent.bytes += checked_bytes(schedule);
  }
  auto memory = std::make_shared<PlanMemory<ExecutionSpace>>(exec, schedule.persistent.bytes);
  if (schedule.checked.on && schedule.options.cu_seqlens_q)
    schedule.options.cu_seqlens_q = CheckedArrays(schedule, memory->data()).cu_seqlens_q;
  const Plan<ExecutionSpace> plan(schedule, options, workspace, std::move(memory));
  prepare_backends(exec, plan);
  if (schedule.checked.on) prepare_checked(exec, plan);
  plan.memory().initialized_by(exec);
  warn_once_if_slow(schedule);
  return plan;
}

#define PAGODA_INSTANTIATE(Space)                      \
  template PAGODA_EXPORT Plan<Space> make_plan<Space>( \
      const Space&, const CacheRef&, const DecodeOptions<Space::memory_space>&, Plan<Space>::Workspace);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
