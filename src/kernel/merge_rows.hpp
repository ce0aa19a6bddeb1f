// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/machine.hpp"
#include "src/kernel/merge.hpp"
#include "src/kernel/pack.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The merge of many rows of a few states each; otherwise as MergeKernel.
///
/// On a GPU a worker takes a row, and each of its lanes takes four dims of all states. Lanes share nothing, so there is
/// no scratch and no barrier. A block of states is loaded before the first of them is used; the maximum is raised from
/// block to block. Interface of States besides that of MergeKernel: load(i, d, lse, x), which loads the
/// log-sum-exps of states i, i + 1 ... and their dims d .. d + 4, and the last state instead of those behind it; and
/// store4(d, x).
template <class ExecutionSpace, class States>
struct MergeRowsKernel {
  using Machine              = MachineOf<ExecutionSpace>;
  using Member               = typename Machine::Member;
  using Acc                  = typename States::Acc;
  using Plain                = MergeKernel<ExecutionSpace, States>;
  static constexpr int block = 4;
  States states;
  int rows, dims;

  /// Asynchronous on exec. rows: number of rows to which `states` may be bound.
  static void launch(const char* label, const ExecutionSpace& exec, std::int64_t rows, const States& states, int dims) {
    if constexpr (Plain::in_teams) {
      const int n = static_cast<int>(rows), workers = Machine::max_workers;
      Kokkos::parallel_for(label, Machine::policy(exec, ceil_div(n, workers), workers, 0),
                           MergeRowsKernel{states, n, dims});
    } else {
      Plain::launch(label, exec, rows, states, dims);
    }
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int row = team.league_rank() * team.team_size() + team.team_rank();
    States s      = states;
    if (row >= rows || !s.bind(row)) return;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, ceil_div(dims, 4)), [&](int quad) {
      Acc most = s.extra(), sum = Plain::is_empty(most) ? Acc(0) : Acc(1), x[4] = {};
      PAGODA_UNROLL(1)
      for (int first = 0; first < s.count(); first += block) {
        Acc lse[block], v[block][4];
        s.load(first, 4 * quad, lse, v);
        PAGODA_UNROLL_ALL
        for (int j = 1; j < block; ++j)
          if (first + j >= s.count()) lse[j] = -Plain::infinity;
        const Acc before = most;
        PAGODA_UNROLL_ALL
        for (int j = 0; j < block; ++j) most = Kokkos::max(most, lse[j]);
        const Acc base = Plain::base_of(most), kept = Kokkos::exp(before - base);
        sum *= kept;
        for (Acc& e : x) e *= kept;
        PAGODA_UNROLL_ALL
        for (int j = 0; j < block; ++j) {
          if (Plain::is_empty(lse[j])) continue;
          const Acc weight = Kokkos::exp(lse[j] - base);
          sum += weight;
          for (int e = 0; e < 4; ++e) x[e] += weight * v[j][e];
        }
      }
      const Acc factor = sum == Acc(0) ? Acc(0) : 1 / sum;
      for (Acc& e : x) e *= factor;
      s.store4(4 * quad, x);
      if (quad == 0) s.store_lse(Plain::lse_of(Plain::base_of(most), sum));
    });
  }
};

/// The partial states of a list's query tokens: a row is a query token and a q head, its states follow each other.
template <class AccType>
struct ListedStates {
  using Acc = AccType;
  const int* state_begin;      ///< [query tokens + 1]
  const float* sinks;          ///< [q heads], or null
  DeviceArray from, from_lse;  ///< strides (state, q head, dim)
  DeviceArray to, to_lse;      ///< strides (query token, q head, dim)
  bool wide_from, wide_to;     ///< rows can be read or written in aligned vectors
  int num_heads, dims;
  int token = 0, head = 0, first = 0, num_states = 0;

  KOKKOS_FUNCTION bool bind(int row) {
    token      = row / num_heads;
    head       = row - token * num_heads;
    first      = state_begin[token];
    num_states = state_begin[token + 1] - first;
    return num_states > 0;
  }
  KOKKOS_FUNCTION int count() const { return num_states; }
  KOKKOS_FUNCTION std::int64_t state(const DeviceArray& a, int i) const {
    return (first + i) * a.stride0 + head * a.stride1;
  }
  KOKKOS_FUNCTION std::int64_t row(const DeviceArray& a) const { return token * a.stride0 + head * a.stride1; }
  KOKKOS_FUNCTION Acc lse(int i) const { return load_element<Acc>(from_lse.data, from_lse.type, state(from_lse, i)); }
  KOKKOS_FUNCTION Acc value(int i, int d) const {
    return load_element<Acc>(from.data, from.type, state(from, i) + d * from.stride2);
  }
  KOKKOS_FUNCTION Acc extra() const { return sinks ? Acc(sinks[head]) : -Kokkos::Experimental::infinity_v<Acc>; }
  KOKKOS_FUNCTION void store(int d, Acc x) const { store_element(to.data, to.type, row(to) + d * to.stride2, x); }
  KOKKOS_FUNCTION void store_lse(Acc x) const {
    if (to_lse.data) store_element(to_lse.data, to_lse.type, row(to_lse), x);
  }

  /// Types are tested once for a block, so that its loads do not wait for each other.
  template <int Block>
  KOKKOS_FUNCTION void load(int i, int d, Acc (&lse)[Block], Acc (&x)[Block][4]) const {
    if (from_lse.type == DType::fp64) {
      load_lses<double>(i, lse);
    } else {
      load_lses<float>(i, lse);
    }
    if (!wide_from) {
      for (int j = 0; j < Block; ++j)
        for (int e = 0; e < 4; ++e) x[j][e] = d + e < dims ? value(last(i + j), d + e) : Acc(0);
    } else if (from.type == DType::fp32) {
      load_quads<float>(i, d, x);
    } else if (from.type == DType::fp16) {
      load_quads<half_t>(i, d, x);
    } else if (from.type == DType::bf16) {
      load_quads<bfloat16_t>(i, d, x);
    } else {
      load_quads<double>(i, d, x);
    }
  }
  KOKKOS_FUNCTION void store4(int d, const Acc (&x)[4]) const {
    if (wide_to && to.type == DType::fp32) return store_quad<float>(d, x);
    if (wide_to && to.type == DType::fp16) return store_quad<half_t>(d, x);
    if (wide_to && to.type == DType::bf16) return store_quad<bfloat16_t>(d, x);
    for (int e = 0; e < 4; ++e)
      if (d + e < dims) store(d + e, x[e]);
  }

 private:
  KOKKOS_FUNCTION int last(int i) const { return least(i, num_states - 1); }
  template <class T, int Block>
  KOKKOS_FUNCTION void load_lses(int i, Acc (&lse)[Block]) const {
    T loaded[Block];
    PAGODA_UNROLL_ALL
    for (int j = 0; j < Block; ++j) loaded[j] = static_cast<const T*>(from_lse.data)[state(from_lse, last(i + j))];
    PAGODA_UNROLL_ALL
    for (int j = 0; j < Block; ++j) lse[j] = static_cast<Acc>(loaded[j]);
  }
  template <class T, int Block>
  KOKKOS_FUNCTION void load_quads(int i, int d, Acc (&x)[Block][4]) const {
    Pack<T, 4> loaded[Block];
    PAGODA_UNROLL_ALL
    for (int j = 0; j < Block; ++j)
      loaded[j] = *reinterpret_cast<const Pack<T, 4>*>(static_cast<const T*>(from.data) + state(from, last(i + j)) + d);
    PAGODA_UNROLL_ALL
    for (int j = 0; j < Block; ++j)
      for (int e = 0; e < 4; ++e) x[j][e] = static_cast<Acc>(loaded[j].at[e]);
  }
  template <class T>
  KOKKOS_FUNCTION void store_quad(int d, const Acc (&x)[4]) const {
    Pack<T, 4> pack;
    for (int e = 0; e < 4; ++e) pack.at[e] = T(x[e]);
    *reinterpret_cast<Pack<T, 4>*>(static_cast<T*>(to.data) + row(to) + d) = pack;
  }
};

}  // namespace pagoda::detail
