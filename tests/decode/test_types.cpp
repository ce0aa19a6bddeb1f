// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

namespace pagoda::test {
namespace {

template <class Param>
struct ElementTypes : testing::Test {};
TYPED_TEST_SUITE(ElementTypes, SpacesAndTypes, Names);

constexpr DType all_types[] = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};

// Queries and outputs of any type against each type of cache, of rows written whole and of rows that are merged.
TYPED_TEST(ElementTypes, QueriesAndOutputs) {
  using T = typename TypeParam::type;
  for (const DType q : all_types) {
    const Sample<T> sample(
        {.lengths = {1500, 20, 0}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 32, .q_type = q});
    std::vector<Placement> placements;
    for (const DType out : all_types)
      for (const DType lse : {DType::fp32, DType::fp64}) placements.push_back({.out_type = out, .lse_type = lse});
    expect_right<typename TypeParam::space>(sample, placements);
  }
}

TYPED_TEST(ElementTypes, WithoutLse) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {1500, 20, 0}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 32, .sinks = true},
      {{.with_lse = false}, {.layout = Layout::paged, .with_lse = false}});
}

}  // namespace
}  // namespace pagoda::test
