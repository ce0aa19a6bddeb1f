// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"
#include "src/kernel/machine.hpp"

#include <Kokkos_Core.hpp>

namespace pagoda::detail {

/// Calls f(pointer to element `at`) with the type of the array's elements, so that a loop checks it only once.
template <class F>
KOKKOS_INLINE_FUNCTION void with_elements(const DeviceArray& a, std::int64_t at, const F& f) {
  switch (a.type) {
    case DType::fp64:
      return f(static_cast<double*>(a.data) + at);
    case DType::fp32:
      return f(static_cast<float*>(a.data) + at);
    case DType::fp16:
      return f(static_cast<half_t*>(a.data) + at);
    default:
      return f(static_cast<bfloat16_t*>(a.data) + at);
  }
}

/// Adds weight times elements at, at + stride2 ... of an array to n numbers. On a host.
template <class Acc>
KOKKOS_INLINE_FUNCTION void add_elements(const DeviceArray& a, std::int64_t at, int n, Acc weight, Acc* to) {
  with_elements(a, at, [&](const auto* from) {
    if (a.stride2 == 1) {  // a loop for vectors
      for (int d = 0; d < n; ++d) to[d] += weight * static_cast<Acc>(from[d]);
    } else {
      for (int d = 0; d < n; ++d) to[d] += weight * static_cast<Acc>(from[d * a.stride2]);
    }
  });
}

/// Stores n numbers as elements at, at + stride2 ... of an array, each rounded once. On a host.
template <class Acc>
KOKKOS_INLINE_FUNCTION void store_elements(const DeviceArray& a, std::int64_t at, int n, const Acc* from) {
  with_elements(a, at, [&]<class T>(T* to) {
    if (a.stride2 == 1) {
      for (int d = 0; d < n; ++d) to[d] = static_cast<T>(from[d]);
    } else {
      for (int d = 0; d < n; ++d) to[d * a.stride2] = static_cast<T>(from[d]);
    }
  });
}

/// n-way merge of softmax states (normalised output, natural log-sum-exp) of disjoint sets of tokens:
///   lse = log sum_i exp(lse_i),  out = sum_i exp(lse_i - lse) out_i.
/// Associative and commutative up to rounding; a state with lse = -infinity is empty and its output is never read. A
/// log-sum-exp that is NaN makes the merged row NaN (the maximum ignores it, the sum does not); an output that is NaN
/// makes its dim NaN.
/// States are taken in index order, so the result does not depend on who computes it.
/// Source: Dao et al., "Flash-Decoding for long-context inference" (the final reduction).
///
/// A GPU uses a team for each row, a host a thread. Host threads use no team, because Kokkos allocates scratch for
/// teams at the first launch on an instance, and again when a launch needs more. Interface of States, for a row:
/// bind(row) -> false if there is nothing to do; count(); lse(i); value(i, d); extra(); store(d, x); store_lse(x). On a
/// host, for dims d .. d + n: add(i, d, n, weight, to) adds weight times the values of state i, store(d, n, values).
template <class ExecutionSpace, class States>
struct MergeKernel {
  using Machine                  = MachineOf<ExecutionSpace>;
  using Member                   = typename Machine::Member;
  using Acc                      = typename States::Acc;
  static constexpr bool in_teams = Machine::max_workers > 1;
  States states;
  int dims;

  static std::size_t scratch_bytes(int dims, int workers) { return sizeof(Acc) * dims * workers + 16; }
  static int workers_for(int dims) {
    int workers = Machine::max_workers;
    while (workers > 1 && scratch_bytes(dims, workers) > Machine::scratch_limit()) workers /= 2;
    return workers;
  }
  /// Asynchronous on exec. rows: number of rows to which `states` may be bound.
  static void launch(const char* label, const ExecutionSpace& exec, std::int64_t rows, const States& states, int dims) {
    if constexpr (in_teams) {
      const int workers = workers_for(dims);
      Kokkos::parallel_for(label, Machine::policy(exec, static_cast<int>(rows), workers, scratch_bytes(dims, workers)),
                           MergeKernel{states, dims});
    } else {
      // The chunk size is given: to choose one, Kokkos 4 makes an execution space, which allocates.
      const Kokkos::RangePolicy<ExecutionSpace> policy(exec, 0, static_cast<int>(rows), Kokkos::ChunkSize(1));
      Kokkos::parallel_for(label, policy, MergeKernel{states, dims});
    }
  }

  static constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;

  /// NaN is not empty.
  KOKKOS_FUNCTION static bool is_empty(Acc lse) { return lse == -infinity; }
  /// The largest log-sum-exp, or 0 if it is -infinity, so that it can be subtracted from others.
  KOKKOS_FUNCTION static Acc base_of(Acc most) { return is_empty(most) ? Acc(0) : most; }
  /// Output of a row whose weights sum to `sum`: 0 if all states are empty, NaN if one of them is NaN.
  KOKKOS_FUNCTION static Acc normalised(Acc value, Acc sum) { return sum == Acc(0) ? Acc(0) : value / sum; }
  KOKKOS_FUNCTION static Acc lse_of(Acc base, Acc sum) { return sum == Acc(0) ? -infinity : base + Kokkos::log(sum); }

  KOKKOS_FUNCTION void operator()(int row) const {
    States s = states;
    if (!s.bind(row)) return;
    Acc most = s.extra();
    for (int i = 0; i < s.count(); ++i) most = Kokkos::max(most, s.lse(i));
    const Acc base = base_of(most);
    Acc sum        = Kokkos::exp(s.extra() - base);
    for (int i = 0; i < s.count(); ++i) sum += Kokkos::exp(s.lse(i) - base);

    // All states of a dim are read before it is stored, and log-sum-exps are stored last: `out` may be a state.
    constexpr int block = 64;
    for (int first = 0; first < dims; first += block) {
      const int n       = Kokkos::min(block, dims - first);
      Acc values[block] = {};
      for (int i = 0; i < s.count(); ++i) {
        const Acc lse = s.lse(i);
        if (is_empty(lse)) continue;
        const Acc weight = Kokkos::exp(lse - base);
        s.add(i, first, n, weight, values);
      }
      for (Acc& value : values) value = normalised(value, sum);
      s.store(first, n, values);
    }
    s.store_lse(lse_of(base, sum));
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    States s = states;
    if (!s.bind(team.league_rank())) return;
    Acc most = -infinity;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, s.count()), [&](int i, Acc& m) { m = Kokkos::max(m, s.lse(i)); },
        Kokkos::Max<Acc>(most));
    most           = Kokkos::max(most, s.extra());
    const Acc base = base_of(most);
    Acc sum        = Acc(0);
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, s.count()), [&](int i, Acc& m) { m += Kokkos::exp(s.lse(i) - base); }, sum);
    sum += Kokkos::exp(s.extra() - base);

    // Workers take states in turn, lanes take dims; partial sums are added in scratch.
    const int workers = team.team_size();
    Acc* const sums   = static_cast<Acc*>(team.team_scratch(int(Machine::scratch_level))
                                              .get_shmem_aligned(static_cast<int>(sizeof(Acc)) * dims * workers, 16));
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, dims), [&](int d) {
      Acc value = Acc(0);
      for (int i = team.team_rank(); i < s.count(); i += workers) {
        const Acc lse = s.lse(i);
        if (!is_empty(lse)) value += Kokkos::exp(lse - base) * s.value(i, d);
      }
      sums[team.team_rank() * dims + d] = value;
    });
    team.team_barrier();  // the sums of all workers are written, before they are added
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, dims), [&](int d) {
      Acc value = Acc(0);
      for (int w = 0; w < workers; ++w) value += sums[w * dims + d];
      s.store(d, normalised(value, sum));
      if (d == 0) s.store_lse(lse_of(base, sum));
    });
  }
};

/// States in arrays of the caller: row (token, head) of `count` arrays. The first array is separate from the rest, so
/// that two separate arrays are two states without a copy.
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
  KOKKOS_FUNCTION void add(int i, int d, int n, Acc weight, Acc* to) const {
    const DeviceArray& from     = i == 0 ? first_out : rest_out;
    const std::int64_t of_state = i == 0 ? 0 : (i - 1) * out_state_stride;
    add_elements(from, at(from) + of_state + d * from.stride2, n, weight, to);
  }
  KOKKOS_FUNCTION Acc extra() const { return -Kokkos::Experimental::infinity_v<Acc>; }
  KOKKOS_FUNCTION void store(int d, int n, const Acc* x) const {
    store_elements(to_out, at(to_out) + d * to_out.stride2, n, x);
  }
  KOKKOS_FUNCTION void store(int d, Acc x) const {
    store_element(to_out.data, to_out.type, at(to_out) + d * to_out.stride2, x);
  }
  KOKKOS_FUNCTION void store_lse(Acc x) const {
    if (to_lse.data) store_element(to_lse.data, to_lse.type, at(to_lse), x);
  }
};

}  // namespace pagoda::detail
