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

/// The partial states of a list's query tokens: a row is a query token and a q head, its states follow each other.
template <class AccType>
struct ListedStates {
  using Acc = AccType;
  const int* state_begin;      ///< [query tokens + 1]
  const float* sinks;          ///< [q heads], or null
  DeviceArray from, from_lse;  ///< strides (state, q head, dim)
  DeviceArray to, to_lse;      ///< strides (query token, q head, dim)
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
  KOKKOS_FUNCTION void add(int i, int d, int n, Acc weight, Acc* values) const {
    add_elements(from, state(from, i) + d * from.stride2, n, weight, values);
  }
  KOKKOS_FUNCTION void store(int d, int n, const Acc* x) const { store_elements(to, row(to) + d * to.stride2, n, x); }
  KOKKOS_FUNCTION void store(int d, Acc x) const { store_element(to.data, to.type, row(to) + d * to.stride2, x); }
  KOKKOS_FUNCTION void store_lse(Acc x) const {
    if (to_lse.data) store_element(to_lse.data, to_lse.type, row(to_lse), x);
  }
};

/// MergeKernel of ListedStates on a GPU, for states of T in aligned rows of whole vectors of four dims.
///
/// A worker takes as many rows of a query token as its lanes suffice for, and each lane two times four dims of one row.
/// Lanes share nothing, so there is no scratch and no barrier. A block of states is loaded before the first of them is
/// used; the maximum is raised from block to block. bench/NOTES.md ("The merge of a list's states") has the times of
/// other numbers.
template <class ExecutionSpace, class T, class Acc>
struct MergeRowsKernel {
  using Machine              = MachineOf<ExecutionSpace>;
  using Member               = typename Machine::Member;
  using Plain                = MergeKernel<ExecutionSpace, ListedStates<Acc>>;
  static constexpr int block = 2, quads = 2;
  ListedStates<Acc> states;
  int tokens, lanes_of_row, heads_of_worker, workers_of_token;
  bool wide_to;  ///< rows of the output can be written in aligned vectors

  /// Asynchronous on exec.
  static void launch(const char* label, const ExecutionSpace& exec, int tokens, const ListedStates<Acc>& states,
                     bool wide_to) {
    const int lanes_of_row     = ceil_div(states.dims, 4 * quads);
    const int heads_of_worker  = greatest(Machine::lanes() / lanes_of_row, 1);
    const int workers_of_token = ceil_div(states.num_heads, heads_of_worker), workers = Machine::max_workers;
    Kokkos::parallel_for(label, Machine::policy(exec, ceil_div(tokens * workers_of_token, workers), workers, 0),
                         MergeRowsKernel{states, tokens, lanes_of_row, heads_of_worker, workers_of_token, wide_to});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int worker = team.league_rank() * team.team_size() + team.team_rank(), token = worker / workers_of_token;
    if (token >= tokens) return;
    const int first_head = (worker - token * workers_of_token) * heads_of_worker;
    const int first = states.state_begin[token], count = states.state_begin[token + 1] - first;
    if (count == 0) return;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, heads_of_worker * lanes_of_row), [&](int i) {
      const int h = i / lanes_of_row, head = first_head + h;
      if (head < states.num_heads) merge(token, head, first, count, i - h * lanes_of_row);
    });
  }

 private:
  /// A lane's dims of a row: those of quads `quad` and quad + lanes_of_row.
  KOKKOS_FUNCTION void merge(int token, int head, int first, int count, int quad) const {
    const ListedStates<Acc>& s = states;
    Acc most = s.sinks ? Acc(s.sinks[head]) : -Plain::infinity, sum = Plain::is_empty(most) ? Acc(0) : Acc(1);
    Acc x[quads][4] = {};
    const Acc* lse_of =
        static_cast<const Acc*>(s.from_lse.data) + first * s.from_lse.stride0 + head * s.from_lse.stride1;
    const T* value_of = static_cast<const T*>(s.from.data) + first * s.from.stride0 + head * s.from.stride1 + 4 * quad;
    PAGODA_UNROLL(1)
    for (int done = 0; done < count; done += block) {
      Acc lse[block];
      Pack<T, 4> v[block][quads];
      PAGODA_UNROLL_ALL
      for (int j = 0; j < block; ++j) {
        lse[j] = -Plain::infinity;
        if (done + j >= count) continue;
        lse[j] = *lse_of;
        PAGODA_UNROLL_ALL
        for (int q = 0; q < quads; ++q)
          if (4 * (quad + q * lanes_of_row) < s.dims)
            v[j][q] = *reinterpret_cast<const Pack<T, 4>*>(value_of + 4 * q * lanes_of_row);
        lse_of += s.from_lse.stride0, value_of += s.from.stride0;
      }
      const Acc before = most;
      PAGODA_UNROLL_ALL
      for (int j = 0; j < block; ++j) most = Kokkos::max(most, lse[j]);
      const Acc base = Plain::base_of(most), kept = exp(before - base);
      sum *= kept;
      for (Acc(&of)[4] : x)
        for (Acc& e : of) e *= kept;
      PAGODA_UNROLL_ALL
      for (int j = 0; j < block; ++j) {
        if (Plain::is_empty(lse[j])) continue;
        const Acc weight = exp(lse[j] - base);
        sum += weight;
        PAGODA_UNROLL_ALL
        for (int q = 0; q < quads; ++q)
          for (int e = 0; e < 4; ++e) x[q][e] += weight * static_cast<Acc>(v[j][q].at[e]);
      }
    }
    const Acc factor = sum == Acc(0) ? Acc(0) : 1 / sum;
    PAGODA_UNROLL_ALL
    for (int q = 0; q < quads; ++q) {
      for (Acc& e : x[q]) e *= factor;
      if (4 * (quad + q * lanes_of_row) < s.dims) store(token, head, 4 * (quad + q * lanes_of_row), x[q]);
    }
    if (quad == 0 && s.to_lse.data)
      store_element(s.to_lse.data, s.to_lse.type, token * s.to_lse.stride0 + head * s.to_lse.stride1,
                    Plain::lse_of(Plain::base_of(most), sum));
  }

  KOKKOS_FUNCTION static Acc exp(Acc x) { return Machine::exp2(x * Kokkos::numbers::log2e_v<Acc>); }

  KOKKOS_FUNCTION void store(int token, int head, int d, const Acc (&x)[4]) const {
    const DeviceArray& to = states.to;
    const std::int64_t at = token * to.stride0 + head * to.stride1 + d * to.stride2;
    if (wide_to && to.type == DType::fp32) return store_quad<float>(at, x);
    if (wide_to && to.type == DType::fp16) return store_quad<half_t>(at, x);
    if (wide_to && to.type == DType::bf16) return store_quad<bfloat16_t>(at, x);
    for (int e = 0; e < 4; ++e) store_element(to.data, to.type, at + e * to.stride2, x[e]);
  }
  template <class Out>
  KOKKOS_FUNCTION void store_quad(std::int64_t at, const Acc (&x)[4]) const {
    Pack<Out, 4> pack;
    for (int e = 0; e < 4; ++e) pack.at[e] = Out(x[e]);
    *reinterpret_cast<Pack<Out, 4>*>(static_cast<Out*>(states.to.data) + at) = pack;
  }
};

}  // namespace pagoda::detail
