// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/e4m3_bits.hpp"

#include <cstdint>

/// Storage types of caches, as MatrixTile multiplies them. Elements of quantized types become fp16 in registers, all of
/// them exactly. The order of dims within a product is the same for keys and queries, and the order of outputs is
/// undone at the end, so no element moves between lanes.
///
/// type         of the operands
/// bits         of an element
/// per_half     elements in 16 bits
/// floating     there are elements that are not finite
/// expand(w, x) word e of x has element e of the lower half of w, and element e of its upper half
/// block_dims   dims of a block scale (scale_type); 0: there are none. Elements are multiplied by their scales after
///              expand() (matrix_block_scales.hpp)
namespace pagoda::detail::hip {

using Halves2 = _Float16 __attribute__((ext_vector_type(2)));

/// Types of block scales: fp8_e4m3_t, or powers of two (e8m0_t).
enum class BlockScaleType { e4m3, e8m0 };

template <MatrixType Type>
struct Plain16 {
  static constexpr MatrixType type = Type;
  static constexpr int bits = 16, per_half = 1, block_dims = 0;
  static constexpr bool floating = true;
  PAGODA_HIP_FUNCTION static void expand(std::uint32_t w, std::uint32_t (&x)[1]) { x[0] = w; }
};

/// Types whose elements become fp16.
template <int Bits, bool Floating>
struct ExpandedToFp16 {
  static constexpr MatrixType type = MatrixType::fp16;
  static constexpr int bits = Bits, per_half = 16 / Bits, block_dims = 0;
  static constexpr bool floating = Floating;
  /// Subtracts `offset` from both halves.
  PAGODA_HIP_FUNCTION static std::uint32_t subtract(std::uint32_t halves, std::uint32_t offset) {
    return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(Halves2, halves) - __builtin_bit_cast(Halves2, offset));
  }
};

struct StoredE4m3 : ExpandedToFp16<8, true> {
  PAGODA_HIP_FUNCTION static void expand(std::uint32_t w, std::uint32_t (&x)[2]) {
    x[0] = times_256(e4m3_pair_over_256(w << 8)), x[1] = times_256(e4m3_pair_over_256(w));
  }

 private:
  PAGODA_HIP_FUNCTION static std::uint32_t times_256(std::uint32_t halves) {
    return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(Halves2, halves) * static_cast<_Float16>(256));
  }
};

/// An e5m2 number is the upper half of an fp16 number.
struct StoredE5m2 : ExpandedToFp16<8, true> {
  PAGODA_HIP_FUNCTION static void expand(std::uint32_t w, std::uint32_t (&x)[2]) {
    x[0] = w << 8 & 0xff00ff00u, x[1] = w & 0xff00ff00u;
  }
};

/// Puts n + 128 into the mantissa of 1024, and subtracts 1024 + 128.
struct StoredInt8 : ExpandedToFp16<8, false> {
  PAGODA_HIP_FUNCTION static void expand(std::uint32_t w, std::uint32_t (&x)[2]) {
    constexpr std::uint32_t offset = 0x64806480u;
    x[0]                           = subtract((w & 0x00ff00ffu) ^ offset, offset);
    x[1]                           = subtract((w >> 8 & 0x00ff00ffu) ^ offset, offset);
  }
};

/// Puts n + 8 into the lowest bits of the mantissa of 1024, or four bits higher, and subtracts 1024 + 8, or divides by
/// 16 and subtracts 64 + 8.
struct StoredInt4 : ExpandedToFp16<4, false> {
  PAGODA_HIP_FUNCTION static void expand(std::uint32_t w, std::uint32_t (&x)[4]) {
    const std::uint32_t biased = opaque(w ^ 0x88888888u);  // or each pair would have an instruction more
    low_pairs(biased, x[0], x[1]);
    low_pairs(biased >> 8, x[2], x[3]);
  }

 private:
  PAGODA_HIP_FUNCTION static void low_pairs(std::uint32_t w, std::uint32_t& first, std::uint32_t& second) {
    const std::uint32_t mantissa_of_1024 = opaque(0x64006400u);  // in a vector register: one scalar per instruction
    first                                = subtract((w & 0x000f000fu) | mantissa_of_1024, 0x64086408u);
    second                               = __builtin_bit_cast(
        std::uint32_t,
        __builtin_elementwise_fma(__builtin_bit_cast(Halves2, (w & 0x00f000f0u) | mantissa_of_1024),
                                                                Halves2(static_cast<_Float16>(0.0625f)), Halves2(static_cast<_Float16>(-72.0f))));
  }
};

/// E2M1 numbers times 2^Exponent. The three lower bits of a code select the upper byte of its fp16 magnitude, whose
/// lower byte is 0. One instruction selects four.
template <int BlockDims, BlockScaleType ScaleType, int Exponent>
struct StoredE2m1 : ExpandedToFp16<4, true> {
  static constexpr int block_dims            = BlockDims;
  static constexpr BlockScaleType scale_type = ScaleType;

  PAGODA_HIP_FUNCTION static void expand(std::uint32_t w, std::uint32_t (&x)[4]) {
    const std::uint32_t even = upper_bytes(w, w << 4), odd = upper_bytes(w >> 4, w);
    x[0] = permute(even, even, 0x020c000cu), x[2] = even & 0xff00ff00u;
    x[1] = permute(odd, odd, 0x020c000cu), x[3] = odd & 0xff00ff00u;
  }

 private:
  /// Of the codes in the lower half of each byte, whose signs are in the upper bits of the bytes of `signs`.
  PAGODA_HIP_FUNCTION static std::uint32_t upper_bytes(std::uint32_t codes, std::uint32_t signs) {
    constexpr std::uint32_t exponent = Exponent * 0x04040404u;
    const std::uint32_t magnitudes =
        permute(0x46444240u + exponent, 0x3e3c3800u + (exponent & 0xffffff00u), codes & 0x07070707u);
    return (signs & 0x80808080u) | magnitudes;
  }
};

/// The units of these numbers are such that their products with scales are exact: those of e4m3_pair_over_256 and of
/// ScaleWindow.
using StoredNvfp4 = StoredE2m1<16, BlockScaleType::e4m3, 8>;
using StoredMxfp4 = StoredE2m1<32, BlockScaleType::e8m0, 1>;

/// Brings a query row, loaded in the order of its dims, in the order of expanded keys.
template <class Storage, int Loads>
PAGODA_HIP_FUNCTION void order_as_expanded(Words4 (&row)[Loads]) {
  constexpr int per_half = Storage::per_half;
  if constexpr (per_half > 1) {
    PAGODA_UNROLL_ALL
    for (int s = 0; s < Loads; s += per_half) {
      std::uint32_t from[4 * per_half];
      PAGODA_UNROLL_ALL
      for (int w = 0; w < 4 * per_half; ++w) from[w] = row[s + w / 4][w % 4];
      PAGODA_UNROLL_ALL
      for (int w = 0; w < 4 * per_half; ++w) {  // element w % per_half of the halves of word w / per_half of keys
        const int low = w - w % per_half + w % per_half / 2, high = low + per_half / 2;
        row[s + w / 4][w % 4] =
            w % 2 == 0 ? pair_halves<0>(from[low], from[high]) : pair_halves<1>(from[low], from[high]);
      }
    }
  }
}

}  // namespace pagoda::detail::hip
