// SPDX-License-Identifier: Apache-2.0
#include "tests/entries/forests.hpp"

/// Lists of entries and the merge of their partial states, over caches of any type.
namespace pagoda::test {
namespace {

using AllTypes = lists::Join<SpacesAndTypes, SpacesAndQuantizedTypes>::type;

template <class Param>
struct SmallLists : testing::Test {};
TYPED_TEST_SUITE(SmallLists, AllTypes, Names);

TYPED_TEST(SmallLists, SharedPages) {
  using T = typename TypeParam::type;
  PrefixBatch batch;
  batch.page_size = 16;
  batch.rows      = {{0, 1, 2}, {0, 1, 3, 4}, {0, 1, 3, 5}};
  batch.seq_lens  = {40, 50, 64};
  batch.query_len = 2;
  const Forest f  = forest_of(batch);
  EXPECT_GT(f.list.num_states(), 0);
  const Shape options{.num_q_heads = 4, .num_kv_heads = 1, .head_dim = 64};
  Sample<T> sample(f.sequences.shape(options, f.query_tokens()));
  sample.set_sight(f.sight(options.causal, f.sequences.lengths));
  expect_right<typename TypeParam::space, T>(sample, f.sequences, f.list);
}

}  // namespace
}  // namespace pagoda::test
