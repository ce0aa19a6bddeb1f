// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

namespace pagoda::test {
namespace {

template <class Param>
struct LongSequences : testing::Test {};
TYPED_TEST_SUITE(LongSequences, SpacesAndTypes, Names);

// The longest lengths of the A40 study. It had D = 128; 16 keep the reference affordable, and what grows with the
// length, the pieces and the rounding of their sums, is the same.
TYPED_TEST(LongSequences, AMillionTokens) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {1048576}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16});
}

TYPED_TEST(LongSequences, TwoMillionTokensInPages) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {2097152}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16}, {{.layout = Layout::paged}});
}

}  // namespace
}  // namespace pagoda::test
