// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <utility>

/// Quantized caches with each kind of scales.
namespace pagoda::test {
namespace {

template <class Param>
struct SmallQuantized : testing::Test {};
TYPED_TEST_SUITE(SmallQuantized, SpacesAndQuantizedTypes, Names);

TYPED_TEST(SmallQuantized, HeadDims) {
  for (const int dim : {64, 128, 256})
    for (const Scales scales : {Scales::per_head, Scales::per_token_and_head})
      expect_right<typename TypeParam::space, typename TypeParam::type>(
          {.lengths = {0, 1, 33, 65}, .num_q_heads = 4, .head_dim = dim, .k_scales = scales, .v_scales = scales},
          {{.layout = Layout::paged}});
}

/// Rows that no matrix instructions multiply: too many dims, or not aligned.
TYPED_TEST(SmallQuantized, PortableFragments) {
  for (const auto& [dim, strides] : {std::pair(288, Strides::dense), std::pair(96, Strides::padded)})
    for (const int group : {1, 4, 8})
      for (const double cap : {0.0, 7.0})
        expect_right<typename TypeParam::space, typename TypeParam::type>(
            {.lengths = {0, 1, 33}, .num_q_heads = group, .num_kv_heads = 1, .head_dim = dim, .logit_soft_cap = cap},
            {{.layout = Layout::paged, .strides = strides}});
}

TYPED_TEST(SmallQuantized, ManyRows) {
  for (const DType q : {DType::fp16, DType::fp32})
    expect_right<typename TypeParam::space, typename TypeParam::type>(
        {.lengths = {40, 5}, .num_q_heads = 24, .num_kv_heads = 1, .head_dim = 128, .q_type = q},
        {{.layout = Layout::paged}});
}

TYPED_TEST(SmallQuantized, QueryTokensAndOptions) {
  expect_right<typename TypeParam::space, typename TypeParam::type>(
      {.lengths = {50, 7}, .head_dim = 128, .query_lens = {3, 2}, .window_left = 20, .logit_soft_cap = 7},
      {{.layout = Layout::paged, .page_size = 5}});
}

}  // namespace
}  // namespace pagoda::test
