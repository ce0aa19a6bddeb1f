// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <cmath>
#include <limits>

/// A NaN or an infinity in a key, a value or a scale reaches the rows that see its token, and no others. compare()
/// expects NaN where the reference has NaN, and right numbers everywhere else.
namespace pagoda::test {
namespace {

using AllTypes = lists::Join<SpacesAndTypes, SpacesAndQuantizedTypes>::type;

template <class Param>
struct NaN : testing::Test {};
TYPED_TEST_SUITE(NaN, AllTypes, Names);

template <class Param>
struct Infinity : testing::Test {};
TYPED_TEST_SUITE(Infinity, SpacesAndTypes, Names);

enum class In { key, value };

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Puts a NaN into one dim of the token or, if its type has no NaN, into its scale.
template <class T>
void plant(Sample<T>& sample, int b, int t, int head, In in) {
  if constexpr (block_dims_v<T> > 0) {
    const int i = t % sample.blocks(in == In::key ? sample.shape().head_dim : sample.head_dim_v());
    (in == In::key ? sample.key_blocks(b, t, head) : sample.value_blocks(b, t, head))[i] = block_scale_t<T>(nan);
  } else if constexpr (!facts_of(dtype_v<T>).has_nan) {
    (in == In::key ? sample.key_scale(b, t, head) : sample.value_scale(b, t, head)) = nan;
  } else if (in == In::key) {
    sample.key(b, t, head)[t % sample.shape().head_dim] = to_element<T>(nan);
  } else {
    sample.value(b, t, head)[t % sample.head_dim_v()] = to_element<T>(nan);
  }
}

/// Vector loads, element-wise loads, and pages.
const std::vector<Placement> placements = {{}, {.strides = Strides::left}, {.layout = Layout::paged, .page_size = 3}};

/// Decodes one sequence of the shape for each token of `at`: entry i has a NaN in token at[i] of kv head 0.
template <class Space, class T>
void expect_right_with(Shape shape, const std::vector<int>& at) {
  shape.lengths.assign(at.size(), shape.lengths[0]);
  if (!shape.query_lens.empty()) shape.query_lens.assign(at.size(), shape.query_lens[0]);
  for (const In in : {In::key, In::value}) {
    SCOPED_TRACE(in == In::key ? "NaN in a key" : "NaN in a value");
    Sample<T> sample(shape);
    for (std::size_t i = 0; i < at.size(); ++i) plant(sample, static_cast<int>(i), at[i], 0, in);
    expect_right<Space>(sample, placements);
  }
}

TYPED_TEST(NaN, InEveryPlaceOfATile) {
  using T = typename TypeParam::type;
  for (const int group : {1, 4, 7})
    expect_right_with<typename TypeParam::space, T>({.lengths = {71}, .num_q_heads = 2 * group, .head_dim = 16},
                                                    {0, 1, 8, 15, 16, 31, 32, 33, 63, 64, 69, 70});
}

// Several query tokens share a tile. The newest token is seen by the last of them alone.
TYPED_TEST(NaN, InTheNewestTokens) {
  using T = typename TypeParam::type;
  for (const int group : {1, 4, 7})
    expect_right_with<typename TypeParam::space, T>(
        {.lengths = {66}, .num_q_heads = 2 * group, .head_dim = 16, .query_lens = {4}}, {65, 64, 63, 62, 61});
}

TYPED_TEST(NaN, InTokensThatNoQueryTokenOfAShortSequenceSees) {
  using T = typename TypeParam::type;
  expect_right_with<typename TypeParam::space, T>({.lengths = {2}, .head_dim = 16, .query_lens = {5}}, {0, 1});
}

TYPED_TEST(NaN, AtTheEdgesOfWindows) {
  using T = typename TypeParam::type;
  expect_right_with<typename TypeParam::space, T>(
      {.lengths = {90}, .head_dim = 16, .query_lens = {3}, .window_left = 20, .num_initial_tokens = 4},
      {0, 3, 4, 66, 67, 68, 69, 70, 87, 88, 89});
  expect_right_with<typename TypeParam::space, T>(
      {.lengths = {90}, .head_dim = 16, .query_lens = {3}, .causal = false, .window_left = 20},
      {66, 67, 68, 69, 88, 89});
}

TYPED_TEST(NaN, BesideSinksCapsAndBiases) {
  using T = typename TypeParam::type;
  expect_right_with<typename TypeParam::space, T>(
      {.lengths = {40}, .head_dim = 16, .query_lens = {2}, .logit_soft_cap = 5, .alibi = true, .sinks = true},
      {0, 20, 38, 39});
}

// Most of its tokens have a probability of 0. A NaN value still reaches the output.
TYPED_TEST(NaN, InTokensOfNoWeight) {
  using T = typename TypeParam::type;
  expect_right_with<typename TypeParam::space, T>({.lengths = {71}, .head_dim = 16, .key_size = 300},
                                                  {0, 16, 31, 40, 50, 60, 70});
}

// Machines multiply rows of different lengths and numbers of query rows in different ways.
TYPED_TEST(NaN, InRowsOfAnyLength) {
  using T = typename TypeParam::type;
  for (const int dim : {34, 64, 100, 128, 256})
    for (const int group : {1, 8})
      expect_right_with<typename TypeParam::space, T>(
          {.lengths = {66}, .num_q_heads = 2 * group, .head_dim = dim, .query_lens = {2}}, {65, 64, 63, 50});
}

// A token's key is its value too.
TYPED_TEST(NaN, InALatentCache) {
  using T = typename TypeParam::type;
  for (const int q_heads : {4, 16})
    expect_right_with<typename TypeParam::space, T>({.lengths        = {66},
                                                     .num_q_heads    = q_heads,
                                                     .num_kv_heads   = 1,
                                                     .head_dim       = 576,
                                                     .head_dim_v     = 512,
                                                     .query_lens     = {2},
                                                     .values_in_keys = true},
                                                    {65, 64, 63, 50});
}

// States of splits are joined, and with many splits joined states are joined again.
TYPED_TEST(NaN, InRowsThatAreCut) {
  using T = typename TypeParam::type;
  expect_right_with<typename TypeParam::space, T>(
      {.lengths = {9000}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16}, {0, 4095, 8999});
  expect_right_with<typename TypeParam::space, T>(
      {.lengths = {130000}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16}, {70000});
}

TYPED_TEST(NaN, InEveryTokenOfARow) {
  using T = typename TypeParam::type;
  for (const In in : {In::key, In::value}) {
    Sample<T> sample({.lengths = {40, 40}, .head_dim = 16});
    for (int t = 0; t < 40; ++t) plant(sample, 1, t, 1, in);
    expect_right<typename TypeParam::space>(sample, placements);
  }
}

TYPED_TEST(NaN, InASink) {
  using T = typename TypeParam::type;
  Sample<T> sample({.lengths = {40, 0}, .head_dim = 16, .sinks = true});
  sample.sinks()[1] = nan;
  expect_right<typename TypeParam::space>(sample, placements);
}

TYPED_TEST(NaN, InAQuery) {
  using T = typename TypeParam::type;
  Sample<T> sample({.lengths = {40, 33}, .head_dim = 16, .query_lens = {3, 3}});
  sample.query(1, 2)[5] = nan;
  expect_right<typename TypeParam::space>(sample, placements);
}

// A score of +infinity makes its row NaN, one of -infinity hides its token; an infinite value leaves no number in its
// dim. Rows that do not see the token are as they would be without it.
TYPED_TEST(Infinity, InKeysAndValues) {
  using T = typename TypeParam::type;
  for (const In in : {In::key, In::value}) {
    SCOPED_TRACE(in == In::key ? "infinite keys" : "infinite values");
    const std::vector<int> at{0, 31, 62, 64, 65};
    Sample<T> sample({.lengths = std::vector<int>(at.size(), 66), .head_dim = 16, .query_lens = {2, 2, 2, 2, 2}});
    for (std::size_t i = 0; i < at.size(); ++i) {
      const int b = static_cast<int>(i);
      T* const to = in == In::key ? sample.key(b, at[i], 0) : sample.value(b, at[i], 0);
      to[3]       = to_element<T>(std::numeric_limits<float>::infinity());
    }
    expect_right<typename TypeParam::space>(sample, placements);
  }
}

}  // namespace
}  // namespace pagoda::test
