// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Two e4m3 numbers, in the upper bytes of the halves of a word, as two fp16 numbers divided by 2^8: exact for all 256
/// codes, NaN included. The lower bytes may hold anything.
///
/// An e4m3 code moved right by one bit, its sign left where it is, is an fp16 number of the same fraction whose
/// exponent counts from 15 instead of 7; subnormal numbers are subnormal in both. The code of NaN, all bits set, is the
/// only one to which a unit of the last place adds a carry into the upper bit of the exponent; that bit makes it a NaN.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t e4m3_pair_over_256(std::uint32_t codes) {
  const std::uint32_t halves = (codes & 0x80008000u) | ((codes >> 1) & 0x3f803f80u);
  return halves | ((halves + 0x00800080u) & 0x40004000u);
}

}  // namespace pagoda::detail
