// SPDX-License-Identifier: Apache-2.0
#include "tests/support/latent.hpp"
#include "tests/support/scene.hpp"

#include <utility>

/// Plain caches. Lengths lie around the edges of tiles, and each problem has few of them.
namespace pagoda::test {
namespace {

template <class Param>
struct Small : testing::Test {};
TYPED_TEST_SUITE(Small, SpacesAndTypes, Names);

TYPED_TEST(Small, HeadDims) {
  for (const int dim : {64, 72, 128, 256})
    expect_right<typename TypeParam::space, typename TypeParam::type>(
        {.lengths = {0, 1, 33, 65}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = dim}, {{.layout = Layout::paged}});
}

/// Rows that no matrix instructions multiply: too many dims, or not aligned.
TYPED_TEST(Small, PortableFragments) {
  for (const auto& [dim, strides] : {std::pair(592, Strides::dense), std::pair(36, Strides::padded)})
    for (const int group : {1, 4, 8})
      for (const double cap : {0.0, 7.0})
        expect_right<typename TypeParam::space, typename TypeParam::type>(
            {.lengths = {0, 1, 33}, .num_q_heads = group, .num_kv_heads = 1, .head_dim = dim, .logit_soft_cap = cap},
            {{.layout = Layout::paged, .strides = strides}});
}

TYPED_TEST(Small, PlacesOfRows) {
  const Sample<typename TypeParam::type> sample({.lengths = {17, 64}, .head_dim = 64});
  expect_right<typename TypeParam::space>(sample, {{},
                                                   {.layout = Layout::csr, .page_size = 5},
                                                   {.layout = Layout::paged, .page_size = 64, .order = KVOrder::HND},
                                                   {.layout = Layout::paged, .page_size = 1, .indirect = true}});
}

TYPED_TEST(Small, ManyRows) {
  for (const int group : {8, 16, 24, 32})
    expect_right<typename TypeParam::space, typename TypeParam::type>(
        {.lengths = {40, 5}, .num_q_heads = group, .num_kv_heads = 1, .head_dim = 128}, {{.layout = Layout::paged}});
}

TYPED_TEST(Small, QueryTokensAndOptions) {
  expect_right<typename TypeParam::space, typename TypeParam::type>(
      {.lengths = {50, 7}, .head_dim = 64, .query_lens = {3, 2}}, {{.layout = Layout::paged}});
  expect_right<typename TypeParam::space, typename TypeParam::type>({.lengths            = {90},
                                                                     .head_dim           = 128,
                                                                     .query_lens         = {2},
                                                                     .window_left        = 30,
                                                                     .num_initial_tokens = 4,
                                                                     .logit_soft_cap     = 7,
                                                                     .alibi              = true,
                                                                     .sinks              = true},
                                                                    {{.layout = Layout::paged}});
}

TYPED_TEST(Small, WiderQueries) {
  expect_right<typename TypeParam::space, typename TypeParam::type>(
      {.lengths = {35}, .head_dim = 128, .q_type = DType::fp32}, {{.layout = Layout::paged}});
}

TYPED_TEST(Small, Splits) {
  expect_right<typename TypeParam::space, typename TypeParam::type>(
      {.lengths = {1100, 3}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64}, {{.layout = Layout::paged}});
}

TYPED_TEST(Small, LatentCaches) {
  for (const int heads : {16, 20})
    expect_right<typename TypeParam::space, typename TypeParam::type>(latent_shape(heads, {33, 16}),
                                                                      {{.layout = Layout::paged}});
}

}  // namespace
}  // namespace pagoda::test
