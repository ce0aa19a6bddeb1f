// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/anywhere.hpp"

#include <bit>
#include <cstdint>

namespace pagoda::detail {

/// Division of a non-negative int by a constant known only on the host, as a multiplication (Granlund and Montgomery,
/// "Division by invariant integers using multiplication", 1994). It has only two words, because kernel arguments are
/// loaded one line after another; the shift follows from the value.
struct Divisor {
  int value;
  std::uint32_t factor;

  static Divisor of(int d) { return {d, static_cast<std::uint32_t>((std::uint64_t(1) << (31 + bits(d))) / d + 1)}; }
  PAGODA_ANYWHERE int divide(int n) const {
    const std::uint64_t product = std::uint64_t(2 * static_cast<std::uint32_t>(n)) * factor;
    return static_cast<int>(static_cast<std::uint32_t>(product >> 32) >> bits(value));
  }
  PAGODA_ANYWHERE int rest(int n) const { return n - divide(n) * value; }

 private:
  /// Number of bits of d - 1.
  PAGODA_ANYWHERE static int bits(int d) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
    return 32 - __clz(d - 1);
#else
    return static_cast<int>(std::bit_width(static_cast<std::uint32_t>(d - 1)));
#endif
  }
};

}  // namespace pagoda::detail
