// SPDX-License-Identifier: Apache-2.0
#include <pagoda/entries.hpp>
#include <pagoda/merge.hpp>

#include "backends/machines.hpp"
#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/device_arrays.hpp"
#include "src/kernel/merge.hpp"
#include "src/kernel/merge_rows.hpp"

#include <cstdint>
#include <type_traits>

namespace pagoda::detail {

namespace {

void check_shape(const char* who, const char* name, const TensorRef& t, int first_axis, const TensorRef& out) {
  for (int axis = first_axis; axis < t.rank; ++axis)
    require(t.extent[axis] == out.extent[axis - first_axis], who, ": axis ", axis, " of ", name, " has extent ",
            t.extent[axis], "; allowed: ", out.extent[axis - first_axis], ", as out has");
}

/// All axes but the first.
void check_heads_and_dims(const char* who, const char* name, const TensorRef& t, const TensorRef& out) {
  for (int axis = 1; axis < t.rank; ++axis)
    require(t.extent[axis] == out.extent[axis], who, ": axis ", axis, " of ", name, " has extent ", t.extent[axis],
            "; allowed: ", out.extent[axis], ", as out has");
}

/// Merges the states of a list in the kernel of their type, or in the general one where a GPU cannot load vectors.
template <class ExecutionSpace, class Acc>
void launch_entries(const ExecutionSpace& exec, const ListedStates<Acc>& states, const Problem& p) {
  using Plain             = MergeKernel<ExecutionSpace, ListedStates<Acc>>;
  const char* const label = "Pagoda::merge_entries";
  const int tokens        = static_cast<int>(p.out.extent[0]);
  if constexpr (Plain::in_teams) {
    const auto in_vectors_of = [&]<class T>(T) {
      MergeRowsKernel<ExecutionSpace, T, Acc>::launch(label, exec, tokens, states, in_quads(p.out));
    };
    constexpr bool fp64 = std::is_same_v<Acc, double>;
    if (in_quads(p.state_out) && p.state_lse.type == (fp64 ? DType::fp64 : DType::fp32)) {
      if constexpr (fp64) {
        return in_vectors_of(double());
      } else {
        if (p.state_out.type == DType::fp32) return in_vectors_of(float());
        if (p.state_out.type == DType::fp16) return in_vectors_of(half_t());
        if (p.state_out.type == DType::bf16) return in_vectors_of(bfloat16_t());
      }
    }
  }
  Plain::launch(label, exec, std::int64_t(tokens) * states.num_heads, states, states.dims);
}

}  // namespace

template <class ExecutionSpace>
void merge(const ExecutionSpace& exec, const MergeProblem& p) {
  const char* const who = "pagoda::merge";
  check_shape(who, "the first state's output", p.first_out, 0, p.out);
  check_shape(who, "the first state's log-sum-exp", p.first_lse, 0, p.out);
  check_shape(who, "the other states' outputs", p.rest_out, 1, p.out);
  check_shape(who, "the other states' log-sum-exps", p.rest_lse, 1, p.out);
  if (p.lse.data) check_shape(who, "lse", p.lse, 0, p.out);
  require_plain(who, "the first state's output holds", p.first_out.type);
  require_plain(who, "the other states' outputs hold", p.rest_out.type);
  require_plain(who, "out holds", p.out.type);
  require_data(who, "the first state's output", p.first_out);
  require_data(who, "the first state's log-sum-exp", p.first_lse);
  require_data(who, "the array of the other states' outputs", p.rest_out);
  require_data(who, "the array of the other states' log-sum-exps", p.rest_lse);
  require_data(who, "out", p.out);

  const auto launch = [&]<class Acc>(Acc) {
    CallerStates<Acc> states{};
    states.first_out = device_array(p.first_out), states.rest_out = device_array(p.rest_out, 1);
    states.first_lse = device_array(p.first_lse), states.rest_lse = device_array(p.rest_lse, 1);
    states.to_out = device_array(p.out), states.to_lse = device_array(p.lse);
    states.out_state_stride = p.rest_out.stride[0], states.lse_state_stride = p.rest_lse.stride[0];
    states.num_states = static_cast<int>(1 + p.rest_out.extent[0]);
    states.num_heads  = static_cast<int>(p.out.extent[1]);
    MergeKernel<ExecutionSpace, CallerStates<Acc>>::launch("Pagoda::merge", exec, p.out.extent[0] * p.out.extent[1],
                                                           states, static_cast<int>(p.out.extent[2]));
  };
  const bool fp64 = p.first_out.type == DType::fp64 || p.rest_out.type == DType::fp64;
  fp64 ? launch(double()) : launch(float());
}

template <class ExecutionSpace>
void merge_entries(const ExecutionSpace& exec, const Problem& p, const float* sinks) {
  const char* const who = "pagoda::merge_entries";
  const EntriesRef& e   = p.entries;
  if (e.num_state_begin == 0) return;
  require(e.state_begin && e.num_state_begin == p.out.extent[0] + 1, who, ": the list's state_begin has ",
          e.num_state_begin, " elements; allowed: none, or out.extent(0) + 1 = ", p.out.extent[0] + 1, ", not null");
  require_plain(who, "states.out holds", p.state_out.type);
  require_plain(who, "out holds", p.out.type);
  check_heads_and_dims(who, "states.out", p.state_out, p.out);
  check_heads_and_dims(who, "states.lse", p.state_lse, p.out);
  require(p.state_lse.extent[0] == p.state_out.extent[0], who, ": states.lse has ", p.state_lse.extent[0],
          " states; allowed: ", p.state_out.extent[0], ", as states.out has");
  if (p.lse.data) check_shape(who, "lse", p.lse, 0, p.out);
  require_data(who, "states.out", p.state_out);
  require_data(who, "states.lse", p.state_lse);
  require_data(who, "out", p.out);
  if (p.state_out.extent[0] == 0) return;

  const auto launch = [&]<class Acc>(Acc) {
    ListedStates<Acc> states{};
    states.state_begin = e.state_begin, states.sinks = sinks;
    states.from = device_array(p.state_out), states.from_lse = device_array(p.state_lse);
    states.to = device_array(p.out), states.to_lse = device_array(p.lse);
    states.num_heads = static_cast<int>(p.out.extent[1]);
    states.dims      = static_cast<int>(p.out.extent[2]);
    launch_entries(exec, states, p);
  };
  p.state_out.type == DType::fp64 ? launch(double()) : launch(float());
}

#define PAGODA_INSTANTIATE(Space)                                              \
  template PAGODA_EXPORT void merge<Space>(const Space&, const MergeProblem&); \
  template PAGODA_EXPORT void merge_entries<Space>(const Space&, const Problem&, const float*);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
