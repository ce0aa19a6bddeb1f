// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/anywhere.hpp"

#include <cstdint>

namespace pagoda::detail {

/// Converts two e4m3 numbers, in the upper bytes of the halves of a word, to two fp16 numbers divided by 2^8. The
/// result is exact for all 256 codes, NaN included. The lower bytes may hold anything.
///
/// An e4m3 code shifted right by one bit, except for its sign, is an fp16 number with the same fraction; the exponent
/// bias is 15 instead of 7. This also holds for subnormal numbers. NaN is the code with all bits set. It is the only
/// code for which adding one unit in the last place carries into the upper bit of the exponent; that bit makes the
/// result a NaN.
PAGODA_ANYWHERE constexpr std::uint32_t e4m3_pair_over_256(std::uint32_t codes) {
  const std::uint32_t halves = (codes & 0x80008000u) | ((codes >> 1) & 0x3f803f80u);
  return halves | ((halves + 0x00800080u) & 0x40004000u);
}

}  // namespace pagoda::detail
