// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

namespace pagoda::test {
namespace {

template <class Param>
struct LongSequences : testing::Test {};
TYPED_TEST_SUITE(LongSequences, SpacesAndTypes, Names);

// The longest lengths of the A40 study. The study has D = 128; D = 16 keeps the reference fast, and the splits and the
// rounding of their sums are the same.
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
