// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "src/base/unroll.hpp"

#include <cstdint>

namespace pagoda::detail::hip {

/// Converts the E8M0 scales of a tile, whose range is larger than that of fp16. Code c is 2^(c - 127), and 255 is NaN.
///
/// The codes low .. low + 26 of a window become 2^-14 .. 2^12, so that their products with the elements, 1 .. 12, are
/// normal fp16 numbers: MI200 takes subnormal ones as zero. Sums of products are multiplied by factor(). Code 0 below
/// the window counts as the scale 0. A tile with other codes beyond the window moves it. If the codes of a tile do not
/// fit any window, the tile is multiplied once for each of several windows, with the scales of other windows as 0.
///
/// Codes are pairs in the lower bytes of the halves of a word. All lanes have the same window. Lanes: of a wave.
template <int Lanes>
class ScaleWindow {
 public:
  /// What sums of products are multiplied by. Computed at each use, because clang 21 would load it as a member together
  /// with the members behind it, and keep these in scratch memory.
  PAGODA_HIP_FUNCTION float factor() const {
#if defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_ldexpf(1.0f, low_ - one);
#else
    return 0;
#endif
  }

  /// Converts codes. Returns whether all codes of all lanes are in the window; if not, move() must follow.
  template <int Words>
  PAGODA_HIP_FUNCTION bool convert(const std::uint32_t (&codes)[Words], std::uint32_t (&scales)[Words]) {
    Pair most = Pair(0);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) {
      const Pair above = pair(codes[i]) - number(low_);
      most             = i == 0 ? above : __builtin_elementwise_max(most, above);
      scales[i]        = word(scales_of(above));
    }
    lowest_ = low_;
    return !any_lane(word(__builtin_elementwise_max(most, number(last))) != word(number(last)));
  }
  /// Moves the window to the highest codes and converts the scales in it.
  template <int Words>
  PAGODA_HIP_FUNCTION void move(const std::uint32_t (&codes)[Words], std::uint32_t (&scales)[Words], int lane) {
    Pair above = Pair(0), below = Pair(0);  // maxima of codes + 1, where NaN is 0, and of 65536 - codes, where 0 is 0
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) {
      above = __builtin_elementwise_max(above, (pair(codes[i]) + number(1)) & number(255));
      below = __builtin_elementwise_max(below, -pair(codes[i]));
    }
    Pair both = __builtin_elementwise_max(pair(pair_halves<0>(word(above), word(below))),
                                          pair(pair_halves<1>(word(above), word(below))));
    PAGODA_UNROLL(1)
    for (int d = 1; d < Lanes; d *= 2) both = __builtin_elementwise_max(both, pair(from_lane(word(both), lane ^ d)));
    const int most = uniform(both[0]) - 1, room = most - 22;  // for larger scales in later tiles
    lowest_ = 65536 - uniform(both[1]);
    int low = lowest_ < room ? lowest_ : room;
    low     = low < most - last ? most - last : low;
    low_    = low < 254 - last ? low : 254 - last;
    convert_window(codes, scales);
  }
  /// There are scales below the window.
  PAGODA_HIP_FUNCTION bool has_more() const { return lowest_ < low_; }
  /// Moves the window below itself.
  template <int Words>
  PAGODA_HIP_FUNCTION void next(const std::uint32_t (&codes)[Words], std::uint32_t (&scales)[Words]) {
    low_ -= last + 1;
    convert_window(codes, scales);
  }

 private:
  using Pair                = std::uint16_t __attribute__((ext_vector_type(2)));
  static constexpr int last = 26;

  PAGODA_HIP_FUNCTION static Pair pair(std::uint32_t x) { return __builtin_bit_cast(Pair, x); }
  PAGODA_HIP_FUNCTION static std::uint32_t word(Pair x) { return __builtin_bit_cast(std::uint32_t, x); }
  PAGODA_HIP_FUNCTION static Pair number(int x) { return Pair(static_cast<std::uint16_t>(x)); }

  /// 2^(above - 14)
  PAGODA_HIP_FUNCTION static Pair scales_of(Pair above) { return above * number(1024) + number(1024); }
  /// Converts the codes in the window and NaN. Others become 0.
  template <int Words>
  PAGODA_HIP_FUNCTION void convert_window(const std::uint32_t (&codes)[Words], std::uint32_t (&scales)[Words]) const {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) {
      const Pair above   = __builtin_elementwise_min(pair(codes[i]) - number(low_), number(last + 1));
      const Pair outside = (above + number(31 - last)) >> number(5);
      const Pair nan     = (pair(codes[i]) + number(1)) >> number(8);
      scales[i]          = word(scales_of(above) * (number(1) - outside) + nan * number(0x7e00));
    }
  }
  static constexpr int one = 114;  ///< the lowest code of the window whose factor is 1
  int low_ = one, lowest_ = one;   ///< the lowest code of the window, and that of the tile that is not 0
};

}  // namespace pagoda::detail::hip
