// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"
#include "src/kernel/machine.hpp"

#include <Kokkos_Core.hpp>

namespace pagoda::detail {

/// n-way merge of softmax states (normalised output, natural log-sum-exp) of disjoint sets of tokens:
///   lse = log sum_i exp(lse_i),  out = sum_i exp(lse_i - lse) out_i.
/// Associative and commutative up to rounding; a state with lse = -infinity is empty and its output is never read.
/// States are taken in index order, so the result does not depend on who computes it.
/// Source: Dao et al., "Flash-Decoding for long-context inference" (the final reduction).
///
/// One team per row. States tells, for row (team.league_rank()): bind(row) -> false if there is nothing to do; count();
/// lse(i); value(i, d); extra(); store(d, x); store_lse(x).
template <class ExecutionSpace, class States>
struct MergeKernel {
  using Machine = MachineOf<ExecutionSpace>;
  using Member  = typename Machine::Member;
  using Acc     = typename States::Acc;
  States states;
  int dims;

  static std::size_t scratch_bytes(int dims, int workers) { return sizeof(Acc) * dims * workers + 16; }
  static int workers_for(int dims) {
    int workers = Machine::max_workers;
    while (workers > 1 && scratch_bytes(dims, workers) > Machine::scratch_limit()) workers /= 2;
    return workers;
  }
  /// Asynchronous on exec; rows: how many rows `states` may be bound to.
  static void launch(const char* label, const ExecutionSpace& exec, std::int64_t rows, const States& states, int dims) {
    const int workers = workers_for(dims);
    Kokkos::parallel_for(label, Machine::policy(exec, static_cast<int>(rows), workers, scratch_bytes(dims, workers)),
                         MergeKernel{states, dims});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
    States s               = states;
    if (!s.bind(team.league_rank())) return;
    Acc most = -infinity;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, s.count()), [&](int i, Acc& m) { m = Kokkos::max(m, s.lse(i)); },
        Kokkos::Max<Acc>(most));
    most           = Kokkos::max(most, s.extra());
    const Acc base = most == -infinity ? Acc(0) : most;
    Acc sum        = Acc(0);
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, s.count()), [&](int i, Acc& m) { m += Kokkos::exp(s.lse(i) - base); }, sum);
    sum += Kokkos::exp(s.extra() - base);

    // Workers take states in turn, lanes take dims; their sums meet in scratch.
    const int workers = team.team_size();
    Acc* const sums   = static_cast<Acc*>(team.team_scratch(int(Machine::scratch_level))
                                              .get_shmem_aligned(static_cast<int>(sizeof(Acc)) * dims * workers, 16));
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, dims), [&](int d) {
      Acc value = Acc(0);
      for (int i = team.team_rank(); i < s.count(); i += workers) {
        const Acc lse = s.lse(i);
        if (lse > -infinity) value += Kokkos::exp(lse - base) * s.value(i, d);
      }
      sums[team.team_rank() * dims + d] = value;
    });
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, dims), [&](int d) {
      Acc value = Acc(0);
      for (int w = 0; w < workers; ++w) value += sums[w * dims + d];
      s.store(d, sum > Acc(0) ? value / sum : Acc(0));
      if (d == 0) s.store_lse(sum > Acc(0) ? base + Kokkos::log(sum) : -infinity);
    });
  }
};

/// States that a caller holds: row (token, head) of `count` arrays, the first apart from the rest (so that two separate
/// arrays are two states without a copy).
template <class AccType>
struct CallerStates {
  using Acc = AccType;
  DeviceArray first_out, rest_out, to_out;  ///< strides (token, head, dim)
  DeviceArray first_lse, rest_lse, to_lse;  ///< strides (token, head, -)
  std::int64_t out_state_stride, lse_state_stride;
  int num_states, num_heads;
  int token = 0, head = 0;

  KOKKOS_FUNCTION bool bind(int rank) {
    token = rank / num_heads;
    head  = rank % num_heads;
    return true;
  }
  KOKKOS_FUNCTION std::int64_t at(const DeviceArray& a) const { return token * a.stride0 + head * a.stride1; }
  KOKKOS_FUNCTION int count() const { return num_states; }
  KOKKOS_FUNCTION Acc lse(int i) const {
    if (i == 0) return load_element<Acc>(first_lse.data, first_lse.type, at(first_lse));
    return load_element<Acc>(rest_lse.data, rest_lse.type, at(rest_lse) + (i - 1) * lse_state_stride);
  }
  KOKKOS_FUNCTION Acc value(int i, int d) const {
    if (i == 0) return load_element<Acc>(first_out.data, first_out.type, at(first_out) + d * first_out.stride2);
    return load_element<Acc>(rest_out.data, rest_out.type,
                             at(rest_out) + (i - 1) * out_state_stride + d * rest_out.stride2);
  }
  KOKKOS_FUNCTION Acc extra() const { return -Kokkos::Experimental::infinity_v<Acc>; }
  KOKKOS_FUNCTION void store(int d, Acc x) const {
    store_element(to_out.data, to_out.type, at(to_out) + d * to_out.stride2, x);
  }
  KOKKOS_FUNCTION void store_lse(Acc x) const {
    if (to_lse.data) store_element(to_lse.data, to_lse.type, at(to_lse), x);
  }
};

}  // namespace pagoda::detail
