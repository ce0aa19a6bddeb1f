// SPDX-License-Identifier: Apache-2.0
#include <pagoda/merge.hpp>

#include "backends/machines.hpp"
#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/kernel/merge.hpp"

namespace pagoda::detail {

namespace {

/// (token, head, dim) of an array, or of each state of an array of states.
DeviceArray device_array(const TensorRef& t, int first_axis = 0) {
  const auto stride = [&](int axis) { return first_axis + axis < t.rank ? t.stride[first_axis + axis] : 0; };
  return {t.data, stride(0), stride(1), stride(2), t.type};
}

void check_shape(const char* name, const TensorRef& t, int first_axis, const TensorRef& out) {
  for (int axis = first_axis; axis < t.rank; ++axis)
    require(t.extent[axis] == out.extent[axis - first_axis], "pagoda::merge: axis ", axis, " of ", name, " has extent ",
            t.extent[axis], "; allowed: ", out.extent[axis - first_axis], ", as out has");
}

}  // namespace

template <class ExecutionSpace>
void merge(const ExecutionSpace& exec, const MergeProblem& p) {
  check_shape("the first state's output", p.first_out, 0, p.out);
  check_shape("the first state's log-sum-exp", p.first_lse, 0, p.out);
  check_shape("the other states' outputs", p.rest_out, 1, p.out);
  check_shape("the other states' log-sum-exps", p.rest_lse, 1, p.out);
  if (p.lse.data) check_shape("lse", p.lse, 0, p.out);
  require_plain("pagoda::merge", "the first state's output holds", p.first_out.type);
  require_plain("pagoda::merge", "the other states' outputs hold", p.rest_out.type);
  require_plain("pagoda::merge", "out holds", p.out.type);

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

#define PAGODA_INSTANTIATE(Space) template PAGODA_EXPORT void merge<Space>(const Space&, const MergeProblem&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
