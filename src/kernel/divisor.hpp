// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/anywhere.hpp"

#include <cstdint>

namespace pagoda::detail {

/// Division of a non-negative int by a constant that only the host knows, as a multiplication (Granlund and Montgomery,
/// "Division by invariant integers using multiplication").
struct Divisor {
  int value;
  std::uint32_t factor;
  int shift;

  static Divisor of(int d) {
    int bits = 0;
    while ((std::int64_t(1) << bits) < d) ++bits;
    return {d, static_cast<std::uint32_t>((std::uint64_t(1) << (31 + bits)) / d + 1), 31 + bits};
  }
  PAGODA_ANYWHERE int divide(int n) const {
    return static_cast<int>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * factor) >> shift);
  }
  PAGODA_ANYWHERE int rest(int n) const { return n - divide(n) * value; }
};

}  // namespace pagoda::detail
