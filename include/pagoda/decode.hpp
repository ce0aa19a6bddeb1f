// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/problem.hpp>
#include <pagoda/export.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <type_traits>

namespace pagoda {

namespace detail {

/// Throws InvalidArgument if decode would.
template <class ExecutionSpace>
void check_decode(const Plan<ExecutionSpace>& plan, const Problem& problem);

/// Checks the problem against the plan and launches. Every interface calls this function.
template <class ExecutionSpace>
PAGODA_EXPORT void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem);

/// Requirements on the queries, outputs and log-sum-exps of a decode.
template <class ExecutionSpace, class Q, class Out, class Lse>
constexpr void check_decode_views() {
  static_assert(Q::rank() == 3, "q is a View of rank 3: (query token, q head, head_dim)");
  static_assert(Out::rank() == 3, "out is a View of rank 3: (query token, q head, head_dim_v)");
  static_assert(Lse::rank() == 2, "lse is a View of rank 2: (query token, q head)");
  static_assert(!std::is_const_v<typename Out::value_type>, "out is written: its elements cannot be const");
  static_assert(!std::is_const_v<typename Lse::value_type>, "lse is written: its elements cannot be const");
  static_assert(std::is_floating_point_v<typename Lse::value_type>, "lse is a View of float or double");
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename Q::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Out::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Lse::memory_space>::accessible,
                "q, out and lse must lie in memory that the execution space can reach");
}

}  // namespace detail

/// Computes exact attention of the newest query tokens of each sequence over its cached keys and values:
///   out = sum_t p_t v_t,  p_t = exp(score_t) / sum_t exp(score_t),  score_t = softmax_scale * q . k_t,
/// with the masks and score options of the plan (DecodeOptions).
///
/// Arguments:
///  - q: (query token, q head, head_dim), any strides. Tokens of one sequence are adjacent, sequences are in batch
///    order; with one token for each sequence this is (batch, num_q_heads, head_dim). Query head h reads kv head
///    h / (num_q_heads / num_kv_heads).
///  - out: (query token, q head, head_dim_v), any strides with which no two elements share memory.
///  - lse: (query token, q head) of float or double, or an empty View. Natural logarithm of the sum of exp(score),
///    the sink included.
///
/// A query row is a query token and a query head. For a query row that sees no token, out is 0, and lse is the sink's
/// logit, or -infinity without a sink.
///
/// Types: q and out are fp64, fp32, fp16 or bf16, each independent of the cache's type. The cache may also be quantized
/// (kv_scales.hpp). Sums are fp32, and fp64 for fp64 caches. Where matrix instructions are used (on NVIDIA GPUs: fp16,
/// bf16 and quantized caches), probabilities are rounded to the cache's type, or to fp16 if it is quantized, before
/// they are multiplied by the values, and a query of a wider type is split into two numbers of that type.
///
/// NaN and infinity: A NaN in a query, or in a key or key scale that a query row sees, makes the row's out and lse NaN.
/// A NaN in a value or value scale that the row sees makes out NaN in these dims and does not change lse. Query rows
/// that do not see the token do not change. A score of +infinity makes its row NaN, a score of -infinity gives its
/// token no weight, and an infinite value makes out infinite or NaN in its dim.
///
/// Execution: One kernel (three with the option checked), asynchronous on exec. Nothing is allocated, copied or fenced,
/// so a decode can be captured in a graph. seq_lens, page tables and the Views of the options are read when the kernel
/// runs; q, kv, out, lse and the plan must live until then. out and lse must not overlap each other or anything that is
/// read; this is not checked. Decodes of different plans may be called from different threads.
///
/// Throws InvalidArgument if an argument does not fit the plan. On NVIDIA and AMD GPUs, throws std::runtime_error with
/// the runtime's message if a CUDA or HIP call fails, and what Kokkos throws if it cannot launch. When an exception is
/// thrown, no decode has been launched. An error that the device meets later, such as an invalid address, is reported
/// by the next fence or CUDA call, as for any kernel.
///
/// Source: Dao et al., "Flash-Decoding for long-context inference"; Heidari et al., "Efficient Decode Attention:
/// Flash-Decoding with Paged KV Caches", section III, Algorithm 1; Milakov and Gimelshein, "Online normalizer
/// calculation for softmax", section 3.
template <class ExecutionSpace, class Q, KVLayout KV, class Out, class Lse>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv, const Out& out,
            const Lse& lse) {
  detail::check_decode_views<ExecutionSpace, Q, Out, Lse>();
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  detail::decode(exec, plan, detail::Problem{kv.ref(), tensor_ref(q), tensor_ref(out), tensor_ref(lse)});
}

/// The same decode without the log-sum-exp.
template <class ExecutionSpace, class Q, KVLayout KV, class Out>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv, const Out& out) {
  decode(exec, plan, q, kv, out, Kokkos::View<float**, typename ExecutionSpace::memory_space>{});
}

}  // namespace pagoda
