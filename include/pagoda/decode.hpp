// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/export.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

namespace pagoda {

namespace detail {

/// Throws InvalidArgument where decode would.
template <class ExecutionSpace>
void check_decode(const Plan<ExecutionSpace>& plan, const Problem& problem);

/// Checks the problem against the plan and launches. The one entry behind every binding.
template <class ExecutionSpace>
PAGODA_EXPORT void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem);

}  // namespace detail

/// Exact attention of the newest query tokens of each sequence over its cached keys and values.
///
/// q:   (query token, q head, head_dim), any strides; tokens of one sequence are adjacent, sequences in batch order.
///      With one token per sequence that is (batch, num_q_heads, head_dim). Query head h reads kv head h / group.
/// out: (query token, q head, head_dim_v), any strides by which no two elements share memory.
/// lse: optional, (query token, q head) of float or double: natural logarithm of the sum of exp(score), the sink
///      included. Where a row sees no token, out is 0, and lse is the sink's logit, or -infinity without a sink.
/// Element types of q and out may differ from the cache's and from each other: fp64, fp32, fp16 or bf16. The cache's
/// may be quantized too (kv_scales.hpp). Sums are fp32 (fp64 for fp64 caches). Where matrix instructions are used (on
/// NVIDIA: fp16, bf16 and quantized caches), probabilities are rounded to the cache's type, or fp16 if it is quantized,
/// before they meet the values, and a query of a wider type is carried as two numbers of it.
///
/// A NaN in a query, or in a key or key scale that a query row sees, makes the row's out and lse NaN. A NaN in a value
/// or value scale that the row sees makes out NaN in the dims concerned and leaves lse as it is. Rows that do not see
/// the token do not change. A score of +infinity makes its row NaN, a score of -infinity gives its token no weight, and
/// an infinite value makes out infinite or NaN in its dim.
///
/// One kernel. Asynchronous on exec: nothing is allocated, copied or fenced, so it can be captured in a graph;
/// seq_lens, block tables and the options' Views are read when it runs. q, kv, out, lse and the plan must live until
/// then. out and lse must not overlap each other or anything that is read, which is not checked. Throws
/// InvalidArgument, with nothing launched, where an argument does not fit the plan. Thread-safe for different plans.
///
/// Source: Dao et al., "Flash-Decoding for long-context inference"; Heidari et al., section III, Algorithm 1.
template <class ExecutionSpace, class Q, KVLayout KV, class Out, class Lse>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv, const Out& out,
            const Lse& lse) {
  static_assert(Q::rank() == 3, "q is a View of rank 3: (query token, q head, head_dim)");
  static_assert(Out::rank() == 3, "out is a View of rank 3: (query token, q head, head_dim_v)");
  static_assert(Lse::rank() == 2, "lse is a View of rank 2: (query token, q head)");
  static_assert(!std::is_const_v<typename Out::value_type>, "out is written: its elements cannot be const");
  static_assert(!std::is_const_v<typename Lse::value_type>, "lse is written: its elements cannot be const");
  static_assert(std::is_floating_point_v<typename Lse::value_type>, "lse is a View of float or double");
  using Accessible = Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>;
  static_assert(Accessible::accessible, "the cache must lie in memory that the execution space can read");
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename Q::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Out::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Lse::memory_space>::accessible,
                "q, out and lse must lie in memory that the execution space can reach");
  detail::decode(exec, plan, Problem{kv.ref(), tensor_ref(q), tensor_ref(out), tensor_ref(lse)});
}

/// The same without the log-sum-exp.
template <class ExecutionSpace, class Q, KVLayout KV, class Out>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv, const Out& out) {
  decode(exec, plan, q, kv, out, Kokkos::View<float**, typename ExecutionSpace::memory_space>{});
}

}  // namespace pagoda
