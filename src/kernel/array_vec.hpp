// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/pack.hpp"

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

namespace pagoda::detail {

/// W numbers that one lane processes together, in plain code. A machine with vector registers has its own type with
/// this interface (backends/host/simd_vec.hpp). Sums: of a dot product, a power of two. More sums have shorter chains,
/// which round less, and take registers.
template <class Acc, int W, int Sums = 2>
struct ArrayVec {
  Acc at[W];

  KOKKOS_FUNCTION static ArrayVec all(Acc x) {
    ArrayVec v;
    for (int j = 0; j < W; ++j) v.at[j] = x;
    return v;
  }
  KOKKOS_FUNCTION Acc operator[](int j) const { return at[j]; }
  KOKKOS_FUNCTION void set(int j, Acc x) { at[j] = x; }

  /// W consecutive dims, aligned to the smaller of 16 bytes and their size, converted.
  template <class T>
  KOKKOS_FUNCTION static ArrayVec load(const T* from) {
    const auto pack = *reinterpret_cast<const Pack<T, W / dims_per_element_v<T>>*>(from);
    ArrayVec v;
    for (int j = 0; j < W; ++j) v.at[j] = static_cast<Acc>(stored_dim(pack.at, j, 1));
    return v;
  }
  /// Dims d .. d + W of a row with a format of its own, scaled. The row and d are as load requires.
  template <class T>
  KOKKOS_FUNCTION static ArrayVec load_from_row(const T* row, int d) {
    using Places      = RowPlaces<T>;
    const T* const at = row + Places::number(d);
    if (d >= Places::scaled_dims) return load(reinterpret_cast<const bfloat16_t*>(at));
    ArrayVec v = load(reinterpret_cast<const fp8_e4m3_t*>(at));
    v.multiply(all(*reinterpret_cast<const float*>(row + Places::scale(d))));
    return v;
  }
  KOKKOS_FUNCTION void store(Acc* to) const {
    for (int j = 0; j < W; ++j) to[j] = at[j];
  }

  KOKKOS_FUNCTION ArrayVec& operator+=(const ArrayVec& b) {
    for (int j = 0; j < W; ++j) at[j] += b.at[j];
    return *this;
  }
  /// *this += x * y
  KOKKOS_FUNCTION void add_product(const ArrayVec& x, const ArrayVec& y) {
    for (int j = 0; j < W; ++j) at[j] += x.at[j] * y.at[j];
  }
  KOKKOS_FUNCTION void add_product(Acc x, const ArrayVec& y) {
    for (int j = 0; j < W; ++j) at[j] += x * y.at[j];
  }
  KOKKOS_FUNCTION void multiply(const ArrayVec& x) {
    for (int j = 0; j < W; ++j) at[j] *= x.at[j];
  }
  KOKKOS_FUNCTION void raise_to(const ArrayVec& b) {
    for (int j = 0; j < W; ++j) at[j] = Kokkos::max(at[j], b.at[j]);
  }
  /// 2^(x - base)
  KOKKOS_FUNCTION static ArrayVec exp2_difference(const ArrayVec& x, const ArrayVec& base) {
    ArrayVec v;
    for (int j = 0; j < W; ++j) v.at[j] = Kokkos::exp2(x.at[j] - base.at[j]);
    return v;
  }

  /// Accumulates a dot product in several sums; one sum would be a single chain of dependent, rounded additions.
  struct Dot {
    Acc sums[Sums] = {};
    KOKKOS_FUNCTION void add_product(const ArrayVec& x, const ArrayVec& y) {
      for (int j = 0; j < W; ++j) sums[j % Sums] += x.at[j] * y.at[j];
    }
    KOKKOS_FUNCTION Acc total() const {
      Dot left = *this;
      for (int n = Sums / 2; n > 0; n /= 2)
        for (int j = 0; j < n; ++j) left.sums[j] += left.sums[j + n];
      return left.sums[0];
    }
  };
};

}  // namespace pagoda::detail
