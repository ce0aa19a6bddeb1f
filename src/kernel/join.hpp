// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/arithmetic.hpp"
#include "src/base/divisor.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/pack.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Softmax state of one query row over some tokens: the maximum of the scores (base 2) and the sum of 2^(score -
/// maximum). The weighted values are stored in an array of their own. Without tokens the state is -infinity and 0, and
/// the values are finite. A NaN score makes the sum and the values NaN, but never the maximum, which ignores it.
template <class Acc>
struct alignas(2 * sizeof(Acc)) RowState {
  Acc most, sum;
};

/// The states of the rows of a tile, adjacent in memory, and their values.
template <class Acc>
struct StateArray {
  RowState<Acc>* states;
  Acc* values;
  int value_stride;                    ///< distance of the values of two rows, a multiple of 4
  int state_step, value_step;          ///< distances of two states of a row
  int state_head = 0, value_head = 0;  ///< distances of the rows of two kv heads

  /// The rows of the item's h-th kv head.
  KOKKOS_FUNCTION StateArray head(int h) const {
    return {
        states + h * state_head, values + h * value_head, value_stride, state_step, value_step, state_head, value_head};
  }

  KOKKOS_FUNCTION RowState<Acc>& state(int i, int r) const { return states[i * state_step + r]; }
  /// Dims d .. d + 4.
  KOKKOS_FUNCTION Pack<Acc, 4>& value(int i, int r, int d) const {
    return *reinterpret_cast<Pack<Acc, 4>*>(values + i * value_step + r * value_stride + d);
  }
};

/// The joined state of n states of row r, on a host. The weight of each replaces its maximum. The joined values are the
/// sum of the values, each times its weight.
template <class Machine, class Acc>
RowState<Acc> join_row_states(const StateArray<Acc>& from, int n, int r) {
  Acc most = -Kokkos::Experimental::infinity_v<Acc>;
  for (int j = 0; j < n; ++j) most = greatest(most, from.state(j, r).most);
  const Acc base = greatest(most, Kokkos::Experimental::finite_min_v<Acc>);  // finite, as in join_states
  Acc sum        = Acc(0);
  for (int j = 0; j < n; ++j) {
    RowState<Acc>& s = from.state(j, r);
    s.most           = Machine::exp2(s.most - base);
    sum += s.most * s.sum;
  }
  return {most, sum};
}

/// Joins n states of each of `rows` rows, in order, and calls emit(r, d, step, state, x) with dims d + step q ..
/// d + step q + 4 of each joined row, for all q of x[Quads][4]. Team-wide, lanes over dims: a row has quads.value
/// quads, of which a lane takes `Quads` at once. `Block` states are loaded before any is used, so that all loads are in
/// flight together. Source: Dao et al., "Flash-Decoding for long-context inference" (the final reduction).
template <class Machine, int Block, int Quads, class Acc, class Member, class RowQuads, class Emit>
KOKKOS_INLINE_FUNCTION void join_states(const Member& team, const StateArray<Acc>& from, int n, int rows,
                                        const RowQuads& quads, const Emit& emit) {
  constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>, lowest = Kokkos::Experimental::finite_min_v<Acc>;
  const int lanes = quads.value / Quads, step = 4 * lanes;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, rows * lanes), [&](int i) {
    const int r = quads.divide(i * Quads), d = 4 * (i - r * lanes);
    RowState<Acc> joined{-infinity, Acc(0)};
    Acc x[Quads][4] = {};
    PAGODA_UNROLL(1)
    for (int first = 0; first < n; first += Block) {
      // Loads are unconditional, so that they do not wait for each other. Behind the last state, it is loaded again.
      RowState<Acc> s[Block];
      Pack<Acc, 4> v[Block][Quads];
      PAGODA_UNROLL_ALL
      for (int j = 0; j < Block; ++j) s[j] = from.state(least(first + j, n - 1), r);
      PAGODA_UNROLL_ALL
      for (int j = 0; j < Block; ++j)
        for (int q = 0; q < Quads; ++q) v[j][q] = from.value(least(first + j, n - 1), r, d + step * q);
      PAGODA_UNROLL_ALL
      for (int j = 1; j < Block; ++j)
        if (first + j >= n) s[j].most = -infinity;
      Acc most = joined.most;
      PAGODA_UNROLL_ALL
      for (int j = 0; j < Block; ++j) most = greatest(most, s[j].most);
      const Acc base = greatest(most, lowest);  // finite, so that differences with it are not NaN
      const Acc kept = Machine::exp2(joined.most - base);
      joined         = {most, joined.sum * kept};
      for (auto& quad : x)
        for (Acc& e : quad) e *= kept;
      PAGODA_UNROLL_ALL
      for (int j = 0; j < Block; ++j) {
        const Acc weight = Machine::exp2(s[j].most - base);
        joined.sum += weight * s[j].sum;
        PAGODA_UNROLL_ALL
        for (int q = 0; q < Quads; ++q)
          for (int e = 0; e < 4; ++e) x[q][e] += weight * v[j][q].at[e];
      }
    }
    emit(r, d, step, joined, x);
  });
}

}  // namespace pagoda::detail
