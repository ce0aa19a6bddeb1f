// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/execution_space.hpp>
#include <pagoda/error.hpp>
#include <pagoda/export.hpp>

#include <Kokkos_Core.hpp>

#include <type_traits>

/// @file
/// A softmax state is the result of attention over a subset of the tokens: its output and its natural log-sum-exp.
/// States of disjoint subsets merge into the state of their union, in any order:
///   lse = log sum_i exp(lse_i),   out = sum_i exp(lse_i - lse) out_i.
/// lse = -infinity is the empty state; its output is not read. A NaN lse makes out and lse of its row NaN. A NaN in an
/// output makes that dim of its row NaN.
///
/// Source: Dao et al., "Flash-Decoding for long-context inference" (the final reduction over splits).
namespace pagoda {

namespace detail {

/// State 0 is `first`, states 1 .. n-1 are `rest`; `rest` and its log-sum-exp have the state as their first axis.
struct MergeProblem {
  TensorRef first_out, first_lse;  ///< (token, head, dim), (token, head)
  TensorRef rest_out, rest_lse;    ///< (state, token, head, dim), (state, token, head)
  TensorRef out, lse;
};

template <class ExecutionSpace>
PAGODA_EXPORT void merge(const ExecutionSpace& exec, const MergeProblem& problem);

/// State 0 of an array of states.
inline TensorRef first_state(const TensorRef& t) {
  TensorRef s = t;
  s.rank      = t.rank - 1;
  for (int axis = 0; axis < s.rank; ++axis) s.extent[axis] = t.extent[axis + 1], s.stride[axis] = t.stride[axis + 1];
  return s;
}

/// All states but the first.
inline TensorRef other_states(const TensorRef& t) {
  TensorRef s = t;
  if (t.data && t.extent[0] > 1) s.data = static_cast<char*>(t.data) + t.stride[0] * size_of(t.type);
  --s.extent[0];
  return s;
}

/// The same array with a first axis of length one in front.
inline TensorRef as_one_state(const TensorRef& t) {
  TensorRef s = t;
  s.rank      = t.rank + 1;
  for (int axis = 0; axis < t.rank; ++axis) s.extent[axis + 1] = t.extent[axis], s.stride[axis + 1] = t.stride[axis];
  s.extent[0] = 1, s.stride[0] = 0;
  return s;
}

/// Requirements on the outputs and log-sum-exps of the states, besides their ranks.
template <class ExecutionSpace, class Out, class Lse>
constexpr void check_state_views() {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename Out::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Lse::memory_space>::accessible,
                "outputs and log-sum-exps must lie in memory that the execution space can reach");
  static_assert(std::is_floating_point_v<typename Lse::value_type>, "log-sum-exps are Views of float or double");
}

/// Requirements on the Views that merge writes.
template <class ExecutionSpace, class Out, class Lse>
constexpr void check_merge_views() {
  check_execution_space<ExecutionSpace>();
  static_assert(Out::rank() == 3 && Lse::rank() == 2, "out is (token, head, dim), lse is (token, head)");
  static_assert(!std::is_const_v<typename Out::value_type> && !std::is_const_v<typename Lse::value_type>,
                "out and lse are written: their elements cannot be const");
  check_state_views<ExecutionSpace, Out, Lse>();
}

}  // namespace detail

/// Merges n >= 1 states: outs (state, token, head, dim) and lses (state, token, head) into out (token, head, dim) and
/// lse (token, head), which may be an empty View. All Views may have any strides. Outputs are fp64, fp32, fp16 or bf16,
/// log-sum-exps are float or double. out and lse may be the memory of state 0.
///
/// One kernel, asynchronous on exec. Allocates nothing, except what Kokkos itself allocates on the host to launch on a
/// GPU. Throws InvalidArgument if shapes do not agree or an array with elements has a null pointer, with nothing
/// launched, and what Kokkos throws if it cannot launch.
template <class ExecutionSpace, class Outs, class Lses, class Out, class Lse>
void merge(const ExecutionSpace& exec, const Outs& outs, const Lses& lses, const Out& out, const Lse& lse) {
  static_assert(Outs::rank() == 4 && Lses::rank() == 3,
                "outs is (state, token, head, dim), lses is (state, token, head)");
  detail::check_state_views<ExecutionSpace, Outs, Lses>();
  detail::check_merge_views<ExecutionSpace, Out, Lse>();
  const TensorRef o = tensor_ref(outs), l = tensor_ref(lses);
  detail::require(o.extent[0] >= 1 && o.extent[0] == l.extent[0], "pagoda::merge: outs has ", o.extent[0],
                  " states and lses has ", l.extent[0], "; allowed: the same number, 1 or more");
  detail::merge(exec, {detail::first_state(o), detail::first_state(l), detail::other_states(o), detail::other_states(l),
                       tensor_ref(out), tensor_ref(lse)});
}

/// Merges two states, (out_a, lse_a) and (out_b, lse_b), into (out, lse), which may be the memory of the first state.
/// Shapes, types and exceptions: see the merge of n states.
template <class ExecutionSpace, class OutA, class LseA, class OutB, class LseB, class Out, class Lse>
void merge(const ExecutionSpace& exec, const OutA& out_a, const LseA& lse_a, const OutB& out_b, const LseB& lse_b,
           const Out& out, const Lse& lse) {
  static_assert(OutA::rank() == 3 && OutB::rank() == 3 && LseA::rank() == 2 && LseB::rank() == 2,
                "outputs are (token, head, dim), log-sum-exps are (token, head)");
  detail::check_state_views<ExecutionSpace, OutA, LseA>();
  detail::check_state_views<ExecutionSpace, OutB, LseB>();
  detail::check_merge_views<ExecutionSpace, Out, Lse>();
  detail::merge(exec, {tensor_ref(out_a), tensor_ref(lse_a), detail::as_one_state(tensor_ref(out_b)),
                       detail::as_one_state(tensor_ref(lse_b)), tensor_ref(out), tensor_ref(lse)});
}

}  // namespace pagoda
