// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/decode.hpp"

/// Numbers of 8 bits in registers as fp16. All of them are exact.
namespace pagoda::tuned {

/// The lower (Half 0) or upper two bytes of a word as two numbers of fp16.
template <Type T, int Half>
PAGODA_DEVICE std::uint32_t fp16_of_bytes(std::uint32_t word) {
  if constexpr (T == Type::fp8_e5m2) {  // the upper byte of fp16
    return __byte_perm(word, 0, Half ? 0x3424 : 0x1404);
  } else if constexpr (T == Type::int8) {
    // 0x6400 | b is 1024 + b, for b from 0 to 255.
    const std::uint32_t sum = __byte_perm(word ^ 0x80808080u, 0x64646464u, Half ? 0x4342 : 0x4140);
    const __half2 x = __hsub2(reinterpret_cast<const __half2&>(sum), __half2half2(__ushort_as_half(0x6480)));  // 1152
    return reinterpret_cast<const std::uint32_t&>(x);
  } else {
    return ptx::widen(Half ? word >> 16 : word);
  }
}

}  // namespace pagoda::tuned
