// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <climits>

namespace pagoda::test {
namespace {

template <class Param>
struct Queries : testing::Test {};
TYPED_TEST_SUITE(Queries, SpacesAndTypes, Names);

const std::vector<Placement> layouts = {{.layout = Layout::contiguous},
                                        {.layout = Layout::paged},
                                        {.layout = Layout::csr, .ragged = true},
                                        {.strides = Strides::padded, .io = Strides::padded}};

TYPED_TEST(Queries, CausalTail) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {50, 4, 200}, .num_q_heads = 6, .head_dim = 32, .query_lens = {4, 4, 4}}, layouts);
}

TYPED_TEST(Queries, EveryTokenSeesAll) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {50, 4, 200}, .num_q_heads = 6, .head_dim = 32, .query_lens = {4, 4, 4}, .causal = false}, layouts);
}

// More query rows than a row tile holds.
TYPED_TEST(Queries, MoreThanATile) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {100, 17}, .num_q_heads = 6, .head_dim = 32, .query_lens = {17, 17}}, layouts);
}

TYPED_TEST(Queries, RaggedWithEmptyEntries) {
  using T = typename TypeParam::type;
  for (const bool causal : {true, false})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {50, 60, 1, 0, 129, 2, 33}, .head_dim = 32, .query_lens = {0, 3, 1, 0, 5, 2, 0}, .causal = causal},
        layouts);
}

TYPED_TEST(Queries, OneEachWithCuSeqlens) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {50, 0, 129}, .head_dim = 32, .query_lens = {1, 1, 1}},
                                             {{.ragged = true}});
}

// The first query tokens of a sequence shorter than its queries see nothing: out 0, lse -infinity.
TYPED_TEST(Queries, MoreQueryTokensThanTokens) {
  using T = typename TypeParam::type;
  for (const bool causal : {true, false})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {2, 0, 1, 70}, .head_dim = 32, .query_lens = {5, 5, 5, 5}, .causal = causal}, layouts);
}

// A window of any size up to INT_MAX, beside more query tokens than cached ones: positions are negative there.
TYPED_TEST(Queries, WidestWindows) {
  using T = typename TypeParam::type;
  for (const int window : {INT_MAX, INT_MAX - 1, 1 << 30})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {2, 0, 1, 70}, .head_dim = 32, .query_lens = {5, 5, 5, 5}, .window_left = window}, layouts);
}

TYPED_TEST(Queries, NoneAtAll) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {5, 9}, .query_lens = {0, 0}},
                                             {{.ragged = false}, {.ragged = true}});
}

// Split rows; a query token sees no token of some splits.
TYPED_TEST(Queries, CutRows) {
  using T = typename TypeParam::type;
  const Sample<T> sample(
      {.lengths = {5000, 3, 600}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 16, .query_lens = {4, 4, 4}});
  Scene<typename TypeParam::space, T> scene(sample, {.layout = Layout::paged});
  const auto plan = scene.plan();
  scene.decode(plan);
  EXPECT_GT(scene.cuts(plan).merges, 0);
  EXPECT_TRUE(scene.right());
}

}  // namespace
}  // namespace pagoda::test
