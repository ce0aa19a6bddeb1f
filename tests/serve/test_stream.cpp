// SPDX-License-Identifier: Apache-2.0
#include "bench/stream/stream_read.hpp"

#include "tests/support/spaces.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace pagoda::bench {
namespace {

template <class Space>
class Stream : public testing::Test {};
TYPED_TEST_SUITE(Stream, test::Spaces, test::Names);

TYPED_TEST(Stream, GivesATimeForExactlyTheBytesAsked) {
  StreamReader<TypeParam> reader(TypeParam(), std::size_t(1) << 20);
  for (const std::size_t bytes : {std::size_t(0), std::size_t(1), std::size_t(1000016), std::size_t(1) << 20}) {
    const Reading r = reader.read(bytes, 2);
    EXPECT_EQ(r.bytes, bytes == 0 ? 16 : (bytes + 15) / 16 * 16);
    EXPECT_TRUE(std::isfinite(r.seconds) && r.seconds > 0);
    EXPECT_TRUE(std::isfinite(r.gb_per_s()) && r.gb_per_s() > 0);
    EXPECT_FALSE(r.shape.empty());
  }
}

TYPED_TEST(Stream, LongerReadsThanTheBufferTakeProportionallyLonger) {
  StreamReader<TypeParam> reader(TypeParam(), 0);
  const std::size_t bytes = std::size_t(1) << 40;  // far more memory than there is
  EXPECT_EQ(reader.read(bytes, 1).bytes, bytes);
}

/// The fold of a host read is the exclusive or of all words, so it shows if each word was read exactly once.
TEST(HostRead, ReadsEveryWordOnce) {
  for (const std::size_t n : {0, 1, 7, 8, 9, 16, 33, 64, 65, 1000, 1024}) {
    std::vector<std::uint64_t> words(n);
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < n; ++i) all ^= words[i] = std::uint64_t(1) << (i % 64) ^ i * 0x9e3779b97f4a7c15u;
    EXPECT_EQ(portable::fold_piece<1>(words.data(), n), all) << n;
    EXPECT_EQ(portable::fold_piece<2>(words.data(), n), all) << n;
    EXPECT_EQ(portable::fold_piece<4>(words.data(), n), all) << n;
  }
}

}  // namespace
}  // namespace pagoda::bench
