// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/simd_vec.hpp"

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The trees that add up partial sums into scores. Each level halves the number of vectors. The tree of one unit
/// has all levels except the one that joins two units.
template <class Acc, int Width, int Units, int UnitRows, int VectorRows, bool Pairs>
struct ScoreTrees {
  using Vec                 = SimdVec<Acc, Width>;
  static constexpr int unit = Width / Units;
  Vec scale;
  Vec sum[unit];  ///< vectors of the unit whose tree is in progress
  Vec first;      ///< result of a vector's first unit
  Acc* to;        ///< destination of the vector's scores

  static constexpr int joining = Units == 1 ? 0 : UnitRows < VectorRows ? VectorRows : Width;
  static constexpr int level(int lanes) { return lanes == joining ? lanes / 2 : lanes; }

  /// Steps First .. End of the tree of a vector's unit number Unit.
  template <int Unit, int First, int End>
  void step() {
    if constexpr (First < End) {
      if constexpr (First < unit - 1) {
        halve<First, unit, level(Width)>();
      } else if constexpr (Unit < Units - 1) {
        first = sum[0];
      } else {
        if constexpr (Units > 1) sum[0] = Vec::template halves_added<joining>(first, sum[0]);
        if constexpr (Pairs) sum[0].multiply(scale);
        sum[0].store(to);
      }
      step<Unit, First + 1, End>();
    }
  }

 private:
  template <int Step, int Count, int Lanes>
  void halve() {
    if constexpr (Step < Count / 2) {
      sum[Step] = Vec::template halves_added<Lanes>(sum[Step], sum[Step + Count / 2]);
      sum[Step].keep();
    } else {
      halve<Step - Count / 2, Count / 2, level(Lanes / 2)>();
    }
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
