// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <functional>

namespace pagoda::test {
namespace {

template <class Param>
struct Scores : testing::Test {};
TYPED_TEST_SUITE(Scores, SpacesAndTypes, Names);

const std::vector<Placement> layouts = {{.layout = Layout::contiguous}, {.layout = Layout::paged}};

// A window's tokens lie in [position - window_left, position]; pages before it need not exist.
TYPED_TEST(Scores, Windows) {
  using T = typename TypeParam::type;
  for (const int window : {0, 1, 15, 16, 63, 64, 300, 5000})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {0, 1, 16, 17, 64, 65, 300, 301, 700}, .head_dim = 16, .window_left = window}, layouts);
}

TYPED_TEST(Scores, WindowsOfSeveralQueryTokens) {
  using T = typename TypeParam::type;
  for (const bool causal : {true, false})
    for (const int window : {0, 1, 20, 300})
      expect_right<typename TypeParam::space, T>({.lengths     = {2, 21, 64, 600, 30},
                                                  .head_dim    = 16,
                                                  .query_lens  = {4, 1, 6, 3, 0},
                                                  .causal      = causal,
                                                  .window_left = window},
                                                 layouts);
}

// The first tokens stay visible, and tokens between them and the window are not read.
TYPED_TEST(Scores, InitialTokensBesideAWindow) {
  using T = typename TypeParam::type;
  for (const int initial : {1, 4, 20, 10000})
    for (const int window : {0, 7, 100})
      expect_right<typename TypeParam::space, T>({.lengths            = {0, 3, 8, 21, 28, 120, 700},
                                                  .head_dim           = 16,
                                                  .query_lens         = {2, 2, 2, 2, 2, 2, 2},
                                                  .window_left        = window,
                                                  .num_initial_tokens = initial},
                                                 layouts);
}

TYPED_TEST(Scores, InitialTokensWithoutAWindow) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {0, 3, 100}, .head_dim = 16, .num_initial_tokens = 4},
                                             layouts);
}

TYPED_TEST(Scores, SoftCaps) {
  using T = typename TypeParam::type;
  for (const double cap : {0.5, 5.0, 50.0})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {0, 1, 300}, .head_dim = 32, .logit_soft_cap = cap, .key_size = 8}, layouts);
}

TYPED_TEST(Scores, Alibi) {
  using T = typename TypeParam::type;
  for (const int heads : {2, 6, 8})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {0, 1, 300, 40}, .num_q_heads = heads, .head_dim = 32, .query_lens = {1, 2, 3, 0}, .alibi = true},
        layouts);
}

// Also for rows that see nothing: out 0, lse the sink.
TYPED_TEST(Scores, Sinks) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {0, 1, 300, 40}, .head_dim = 32, .sinks = true}, layouts);
  expect_right<typename TypeParam::space, T>(
      {.lengths = {0, 1, 300, 40}, .head_dim = 32, .query_lens = {3, 3, 3, 3}, .sinks = true}, layouts);
}

// The sink counts once, in whole and in split rows.
TYPED_TEST(Scores, SinksOfCutAndWholeRows) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {0, 5000, 3}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16, .sinks = true});
  Scene<typename TypeParam::space, T> scene(sample);
  const auto plan = scene.plan();
  scene.decode(plan);
  const Cuts cuts = scene.cuts(plan);
  EXPECT_EQ(cuts.merges, 1);
  EXPECT_GT(cuts.items, 3);
  EXPECT_TRUE(scene.right());
}

TYPED_TEST(Scores, Scales) {
  using T = typename TypeParam::type;
  for (const double scale : {0.0, -0.125, 1.0, 3.0})
    for (const double cap : {0.0, 20.0})
      expect_right<typename TypeParam::space, T>(
          {.lengths = {0, 1, 300}, .head_dim = 32, .softmax_scale = scale, .logit_soft_cap = cap}, layouts);
}

// exp of these overflows or underflows unless the maximum is subtracted first.
TYPED_TEST(Scores, TooLargeForANaiveSoftmax) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {1, 70, 3000}, .head_dim = 32, .key_size = 3000}, layouts);
  for (const double shift : {-1e4, -500., 500., 1e4})
    for (const bool scored : {false, true})
      expect_right<typename TypeParam::space, T>(
          {.lengths = {1, 70, 3000}, .head_dim = 32, .alibi = scored, .score_shift = shift}, layouts);
}

TYPED_TEST(Scores, OptionsInPairs) {
  using T                           = typename TypeParam::type;
  using Change                      = std::function<void(Shape&)>;
  const std::vector<Change> changes = {
      [](Shape& s) { s.window_left = 40; },   [](Shape& s) { s.window_left = 100, s.num_initial_tokens = 3; },
      [](Shape& s) { s.logit_soft_cap = 3; }, [](Shape& s) { s.alibi = true; },
      [](Shape& s) { s.sinks = true; },       [](Shape& s) { s.softmax_scale = -0.3; },
      [](Shape& s) { s.causal = false; },     [](Shape& s) { s.query_lens = {1, 0, 4, 2, 3}; },
      [](Shape& s) { s.head_dim = 33; },      [](Shape& s) { s.lengths[4] = 3000; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    for (std::size_t j = i + 1; j < changes.size(); ++j) {
      Shape shape{.lengths      = {0, 30, 3, 64, 150},
                  .num_q_heads  = 3,
                  .num_kv_heads = 1,
                  .head_dim     = 32,
                  .query_lens   = {2, 2, 2, 2, 2}};
      changes[i](shape), changes[j](shape);
      expect_right<typename TypeParam::space, T>(shape, {{.layout = Layout::paged}});
    }
  }
}

TYPED_TEST(Scores, AllOptionsTogether) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths            = {0, 3000, 3, 64},
       .num_q_heads        = 6,
       .head_dim           = 32,
       .query_lens         = {1, 5, 4, 0},
       .softmax_scale      = 0.4,
       .window_left        = 900,
       .num_initial_tokens = 5,
       .logit_soft_cap     = 7,
       .alibi              = true,
       .sinks              = true},
      {{}, {.layout = Layout::csr, .page_size = 7, .strides = Strides::padded, .indirect = true}});
}

}  // namespace
}  // namespace pagoda::test
