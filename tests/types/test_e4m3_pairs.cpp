// SPDX-License-Identifier: Apache-2.0
// e4m3 numbers converted for matrix instructions, all codes, against the type's own conversion.
#include "src/kernel/e4m3_bits.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/mma_storage.hpp"
#endif

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace pagoda::test {
namespace {

float number_of(std::uint32_t code) {
  fp8_e4m3_t x;
  x.bits = static_cast<std::uint8_t>(code);
  return static_cast<float>(x);
}
float half_of(std::uint32_t word, int half) {
  half_t x;
  x.bits = static_cast<std::uint16_t>(word >> (16 * half));
  return static_cast<float>(x);
}
bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

// Both halves, each beside every code in the other one.
TEST(E4m3Pairs, ByBitsOnTheHost) {
  for (std::uint32_t low = 0; low < 256; ++low)
    for (std::uint32_t high = 0; high < 256; ++high) {
      const std::uint32_t word = detail::e4m3_pair_over_256(high << 24 | 0xff0000u | low << 8 | 0xffu);
      ASSERT_TRUE(same(256 * half_of(word, 0), number_of(low))) << low << " beside " << high;
      ASSERT_TRUE(same(256 * half_of(word, 1), number_of(high))) << high << " beside " << low;
    }
}

#if defined(KOKKOS_ENABLE_CUDA)
/// Words of four codes, as two words of two halves.
template <class Pairs>
struct Convert {
  Kokkos::View<std::uint32_t* [2], Kokkos::CudaSpace> halves;
  KOKKOS_FUNCTION static std::uint32_t codes(int i) {
    const auto n = static_cast<std::uint32_t>(i);
    return (n & 255) | ((n + 1) & 255) << 8 | ((n + 127) & 255) << 16 | (255 - (n & 255)) << 24;
  }
  KOKKOS_FUNCTION void operator()(int i) const {
    std::uint32_t x[2];
    Pairs::pairs(codes(i), x);
    halves(i, 0) = x[0], halves(i, 1) = x[1];
  }
};

template <class Pairs>
void expect_all_codes() {
  const Kokkos::View<std::uint32_t* [2], Kokkos::CudaSpace> there("halves", 256);
  Kokkos::parallel_for("e4m3 pairs", Kokkos::RangePolicy<Kokkos::Cuda>(0, 256), Convert<Pairs>{there});
  const auto halves = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), there);
  for (int i = 0; i < 256; ++i)
    for (int byte = 0; byte < 4; ++byte) {
      const std::uint32_t code = Convert<Pairs>::codes(i) >> (8 * byte) & 255;
      EXPECT_TRUE(same(half_of(halves(i, byte / 2), byte % 2), number_of(code)))
          << "code " << code << ", byte " << byte;
    }
}

TEST(E4m3Pairs, OnTheDevice) { expect_all_codes<detail::E4m3Pairs>(); }
TEST(E4m3Pairs, ByBitsOnTheDevice) { expect_all_codes<detail::E4m3PairsByBits>(); }
#endif

}  // namespace
}  // namespace pagoda::test
