// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/divisor.hpp"
#include "src/kernel/pack.hpp"
#include "src/kernel/unroll.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Softmax state of one query row over some tokens: the maximum of the scores (base 2) and the sum of 2^(score -
/// maximum); its weighted values lie beside it. Empty: -infinity and 0, and its values are never read as a number.
template <class Acc>
struct alignas(2 * sizeof(Acc)) RowState {
  Acc most, sum;
};

/// States of the rows of a tile, one after another in memory, and their values.
template <class Acc>
struct StateArray {
  RowState<Acc>* states;
  Acc* values;
  int value_stride;                             ///< between the values of two rows, a multiple of 4
  std::int64_t state_step, value_step;          ///< from one state of a row to the next
  std::int64_t state_head = 0, value_head = 0;  ///< from one kv head's rows to the next's

  /// The rows of the item's h-th kv head.
  KOKKOS_FUNCTION StateArray head(int h) const {
    return {
        states + h * state_head, values + h * value_head, value_stride, state_step, value_step, state_head, value_head};
  }

  KOKKOS_FUNCTION RowState<Acc>& state(int i, int r) const { return states[i * state_step + r]; }
  /// Dims d .. d + 4.
  KOKKOS_FUNCTION Pack<Acc, 4>& value(int i, int r, int d) const {
    return *reinterpret_cast<Pack<Acc, 4>*>(values + i * value_step + static_cast<std::int64_t>(r) * value_stride + d);
  }
};

/// Joins n states of each of `rows` rows, in their order, and hands emit(r, d, state, x[4]) dims d .. d + 4 of each
/// joined row. Team-wide, lanes over dims. `Block` states are loaded before any is used, and of each `Quads` (of which
/// a row's quads are a multiple) for a lane, so that one wait does for all.
/// Source: Dao et al., "Flash-Decoding for long-context inference" (the final reduction).
template <class Machine, int Block, int Quads = 1, class Acc, class Member, class Emit>
KOKKOS_INLINE_FUNCTION void join_states(const Member& team, const StateArray<Acc>& from, int n, int rows,
                                        const Divisor& quads, const Emit& emit) {
  constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
  const int step         = quads.value / Quads;  // between a lane's quads
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, rows * step), [&](int i) {
    const int r = quads.divide(i * Quads), d = 4 * (i - r * step);
    RowState<Acc> joined{-infinity, Acc(0)};
    Acc x[Quads][4] = {};
    // Stepped, not worked out for each load: a load is then one predicated instruction.
    const RowState<Acc>* state = &from.state(0, r);
    const Acc* value           = from.value(0, r, d).at;
    PAGODA_UNROLL(1)
    for (int first = 0; first < n; first += Block) {
      RowState<Acc> s[Block];
      Pack<Acc, 4> v[Block][Quads] = {};
      Acc most                     = joined.most;
      PAGODA_UNROLL_ALL
      for (int j = 0; j < Block; ++j) {
        s[j] = {-infinity, Acc(0)};
        if (first + j < n) {
          s[j] = *state;
          PAGODA_UNROLL_ALL
          for (int q = 0; q < Quads; ++q) v[j][q] = *reinterpret_cast<const Pack<Acc, 4>*>(value + 4 * step * q);
        }
        state += from.state_step, value += from.value_step;
        most = Kokkos::max(most, s[j].most);
      }
      if (most == -infinity) continue;
      const Acc kept = Machine::exp2(joined.most - most);
      joined         = {most, joined.sum * kept};
      for (auto& quad : x)
        for (Acc& e : quad) e *= kept;
      PAGODA_UNROLL_ALL
      for (int j = 0; j < Block; ++j) {
        // The values of an empty state were never written: they must not be multiplied, not even with 0.
        const bool empty = s[j].most == -infinity;
        const Acc weight = empty ? Acc(0) : Machine::exp2(s[j].most - most);
        joined.sum += weight * s[j].sum;
        PAGODA_UNROLL_ALL
        for (int q = 0; q < Quads; ++q)
          for (int e = 0; e < 4; ++e) x[q][e] += weight * (empty ? Acc(0) : v[j][q].at[e]);
      }
    }
    PAGODA_UNROLL_ALL
    for (int q = 0; q < Quads; ++q) emit(r, d + 4 * step * q, joined, x[q]);
  });
}

}  // namespace pagoda::detail
