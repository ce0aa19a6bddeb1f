// SPDX-License-Identifier: Apache-2.0
// Score options in the hand-tuned kernels for up to 8 query rows to a kv head. Hidden tokens, the pages that have no
// visible token, and outputs before a decode are NaN (Scene).
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/late_writes.hpp"
#include "tests/decode/tuned_suite.hpp"

#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace pagoda::test {
namespace {

template <class Param>
struct TunedOptions : Tuned<Param> {};
TYPED_TEST_SUITE(TunedOptions, TunedTypes, Names);

/// Around the ends of tiles and windows.
const std::vector<int> edges = {0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 100, 101, 117, 700};

// The first token of a window lies in every place of a tile.
TYPED_TEST(TunedOptions, Windows) {
  for (const int window : {0, 1, 15, 16, 17, 31, 100, 5000, std::numeric_limits<int>::max()})
    for (const Layout layout : {Layout::contiguous, Layout::paged})
      TestFixture::expect_right({.lengths = edges, .num_q_heads = 8, .head_dim = 128, .window_left = window},
                                {.layout = layout, .page_size = 16});
  std::vector<int> lengths(70);
  std::iota(lengths.begin(), lengths.end(), 40);
  for (const int head_dim : {64, 128})
    TestFixture::expect_right({.lengths = lengths, .num_q_heads = 4, .head_dim = head_dim, .window_left = 37},
                              {.layout = Layout::paged, .page_size = 32});
}

// The initial tokens end in the window, in the tile before it, or far before it.
TYPED_TEST(TunedOptions, InitialTokensBesideAWindow) {
  for (const int initial : {1, 4, 15, 16, 17, 40, 10000, std::numeric_limits<int>::max()})
    for (const int window : {0, 15, 16, 66, 100})
      TestFixture::expect_right(
          {.lengths = edges, .num_q_heads = 8, .head_dim = 128, .window_left = window, .num_initial_tokens = initial},
          {.layout = Layout::paged, .page_size = 16});
  TestFixture::expect_right({.lengths = edges, .head_dim = 128, .num_initial_tokens = 4, .sinks = true});
}

// Of a tile that is read, only pages with visible tokens exist.
TYPED_TEST(TunedOptions, WindowsOverSmallPages) {
  if (!TestFixture::takes_small_pages()) GTEST_SKIP() << "refused (TunedIntegers.Refusals)";
  for (const int page_size : {1, 2, 4, 8, 24})
    for (const int window : {0, 1, 13, 16, 100})
      for (const int initial : {0, 3, 20})
        TestFixture::expect_right(
            {.lengths = edges, .num_q_heads = 8, .head_dim = 128, .window_left = window, .num_initial_tokens = initial},
            {.layout = Layout::paged, .page_size = page_size});
}

TYPED_TEST(TunedOptions, SoftCaps) {
  for (const double cap : {0.5, 5.0, 50.0, 1e6, 1e35})
    TestFixture::expect_right(
        {.lengths = {0, 1, 300, 33}, .num_q_heads = 8, .head_dim = 128, .logit_soft_cap = cap, .key_size = 8});
  for (const double scale : {0.0, -0.125, 3.0})
    TestFixture::expect_right(
        {.lengths = {0, 1, 300}, .num_q_heads = 4, .head_dim = 64, .softmax_scale = scale, .logit_soft_cap = 20});
}

TYPED_TEST(TunedOptions, Alibi) {
  for (int group = 1; group <= 8; ++group)
    TestFixture::expect_right({.lengths      = {0, 1, 300, 40},
                               .num_q_heads  = 2 * group,
                               .num_kv_heads = 2,
                               .head_dim     = group % 2 ? 128 : 64,
                               .alibi        = true});
}

// Also for rows that see nothing: out is 0, lse the sink.
TYPED_TEST(TunedOptions, Sinks) {
  for (int group = 1; group <= 8; ++group)
    TestFixture::expect_right({.lengths      = {0, 1, 300, 40},
                               .num_q_heads  = 2 * group,
                               .num_kv_heads = 2,
                               .head_dim     = group % 2 ? 64 : 128,
                               .sinks        = true});
  TestFixture::expect_right({.lengths = {0, 0}, .num_q_heads = 8, .head_dim = 128, .sinks = true});
  TestFixture::expect_right({.lengths = {5000}, .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 128, .sinks = true});
}

TYPED_TEST(TunedOptions, SinksThatAreNoNumbers) {
  using T = typename TypeParam::type;
  Sample<T> sample(TestFixture::taken({.lengths = {40, 0, 700}, .num_q_heads = 8, .head_dim = 128, .sinks = true}));
  sample.sinks()[1] = std::numeric_limits<float>::quiet_NaN();
  sample.sinks()[6] = -std::numeric_limits<float>::infinity();
  Scene<Kokkos::Cuda, T> scene(sample, {.layout = Layout::paged});
  scene.options().backend = "tuned";
  scene.decode(scene.plan());
  EXPECT_TRUE(scene.right());
}

/// All options, in a shape that has split batch heads.
Shape with_all(std::vector<int> lengths) {
  return {.lengths            = std::move(lengths),
          .num_q_heads        = 8,
          .head_dim           = 128,
          .softmax_scale      = 0.4,
          .window_left        = 900,
          .num_initial_tokens = 20,
          .logit_soft_cap     = 7,
          .alibi              = true,
          .sinks              = true};
}

TYPED_TEST(TunedOptions, AllTogether) {
  for (const auto& lengths : {std::vector<int>{3000}, {0, 3000, 3, 64, 921, 922, 937}, {900, 910, 905}})
    for (const Layout layout : {Layout::contiguous, Layout::csr})
      for (const bool indirect : {false, true})
        TestFixture::expect_right(with_all(lengths), {.layout = layout, .page_size = 48, .indirect = indirect});
}

// Batches in equal splits, in rounds and as one stream. Windows of one length make uneven sequences even.
TYPED_TEST(TunedOptions, DivisionsOfBatches) {
  for (const int window : {200, 3000})
    for (const int initial : {0, 20}) {
      const auto expect_right = [&](std::vector<int> lengths, int heads, const Placement& placement) {
        TestFixture::expect_right({.lengths            = std::move(lengths),
                                   .num_q_heads        = 8,
                                   .num_kv_heads       = heads,
                                   .head_dim           = 128,
                                   .window_left        = window,
                                   .num_initial_tokens = initial,
                                   .sinks              = true},
                                  placement);
      };
      expect_right({9000}, 1, {.layout = Layout::paged});
      expect_right({9000, 1, 0, 17, 500}, 2, {.layout = Layout::paged});
      expect_right(std::vector<int>(60, 250), 8, {.layout = Layout::paged});
      std::vector<int> lengths(150, 20);
      lengths[0] = 0, lengths[7] = 6000, lengths[8] = 1, lengths[149] = 0;
      expect_right(lengths, 4, {.layout = Layout::csr});
      expect_right({0, 0, 0}, 2, {});
    }
}

TYPED_TEST(TunedOptions, RandomCombinations) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 40; ++i) {
    Shape shape{.num_kv_heads = 1 + below(3), .head_dim = below(2) ? 128 : 64, .seed = static_cast<unsigned>(i)};
    shape.num_q_heads = shape.num_kv_heads * (1 + below(8));
    const int batch = 1 + below(6), longest = below(4) ? 400 : 3000;
    for (int b = 0; b < batch; ++b) shape.lengths.push_back(below(longest));
    if (below(2)) shape.window_left = below(longest);
    if (below(2)) shape.num_initial_tokens = below(80);
    if (below(2)) shape.logit_soft_cap = 1 + below(30);
    shape.alibi = below(2), shape.sinks = below(2);
    const Layout layout = below(2) ? Layout::paged : Layout::contiguous;
    int page_size       = below(2) ? 16 * (1 + below(4)) : 1 + below(40);
    if (!TestFixture::takes_small_pages()) page_size = (page_size + 15) / 16 * 16;
    TestFixture::expect_right(shape, {.layout = layout, .page_size = page_size});
  }
}

// NaNs in visible tokens at the ends of the window and of the initial tokens reach the rows that see them.
TYPED_TEST(TunedOptions, NaNsAtTheEdgesOfWindows) {
  using T             = typename TypeParam::type;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  // Visible are tokens 0 to 19 and 249 to 349.
  const std::vector<int> at = {0, 15, 16, 19, 249, 255, 256, 348, 349};
  for (const bool in_value : {false, true}) {
    Sample<T> sample(TestFixture::taken({.lengths            = std::vector<int>(at.size() + 1, 350),
                                         .num_q_heads        = 8,
                                         .head_dim           = 128,
                                         .window_left        = 100,
                                         .num_initial_tokens = 20,
                                         .logit_soft_cap     = 5,
                                         .sinks              = true}));
    for (std::size_t i = 0; i < at.size(); ++i) {
      const int b = static_cast<int>(i);
      if constexpr (facts_of(dtype_v<T>).has_nan) {
        T* const row     = in_value ? sample.value(b, at[i], 0) : sample.key(b, at[i], 0);
        row[at[i] % 128] = to_element<T>(nan);
      } else {
        (in_value ? sample.value_scale(b, at[i], 0) : sample.key_scale(b, at[i], 0)) = nan;
      }
    }
    Scene<Kokkos::Cuda, T> scene(sample, {.layout = Layout::paged, .page_size = 16});
    scene.options().backend = "tuned";
    scene.decode(scene.plan());
    EXPECT_TRUE(scene.right()) << (in_value ? "NaNs in values" : "NaNs in keys");
  }
}

TYPED_TEST(TunedOptions, LengthsChangeOnTheDevice) {
  TestFixture::expect_right_as_lengths_change(TestFixture::taken({.lengths        = {3000, 40, 700},
                                                                  .num_q_heads    = 8,
                                                                  .head_dim       = 128,
                                                                  .logit_soft_cap = 7,
                                                                  .alibi          = true,
                                                                  .sinks          = true}),
                                              {.layout = Layout::paged});
}

TYPED_TEST(TunedOptions, RepeatsBitForBit) {
  for (const std::vector<int>& lengths : {std::vector<int>{3000, 40, 0, 700, 17}, {900, 900}})
    TestFixture::expect_same_bits(TestFixture::taken(with_all(lengths)), {.layout = Layout::paged});
}

// As Tuned.ProgrammaticLaunchesReadNothingTooEarly.
TYPED_TEST(TunedOptions, ProgrammaticLaunchesReadNothingTooEarly) {
  for (const int first : {1, 33, 288})
    for (const int window : {0, 14, 15, 16, 40}) {
      std::vector<int> lengths(16);
      std::iota(lengths.begin(), lengths.end(), first);
      const Shape shape = TestFixture::taken({.lengths            = lengths,
                                              .num_q_heads        = 8,
                                              .num_kv_heads       = 4,
                                              .head_dim           = 128,
                                              .window_left        = window,
                                              .num_initial_tokens = 5,
                                              .alibi              = true});
      expect_right_with_late_tokens<typename TypeParam::type>(shape, {.layout = Layout::paged, .page_size = 16},
                                                              {1, 2, 15, 16});
    }
}

TYPED_TEST(TunedOptions, AreTheDefault) {
  using T = typename TypeParam::type;
  if (tuned::Device::current().sm < 90) GTEST_SKIP() << "needs sm_90";
  const Sample<T> sample(TestFixture::taken(with_all({300, 20})));
  Scene<Kokkos::Cuda, T> scene(sample);
  EXPECT_EQ(scene.plan().backend(), "tuned");
}

TYPED_TEST(TunedOptions, Refusals) {
  using T = typename TypeParam::type;
  if (tuned::Device::current().sm < 90) GTEST_SKIP() << "needs sm_90";
  if (is_integer_v<T>) GTEST_SKIP() << "integers have another reason (TunedIntegers.Refusals)";
  const Sample<T> sample(TestFixture::taken(with_all({300, 20})));
  Scene<Kokkos::Cuda, T> scene(sample);
  scene.options().backend   = "tuned";
  scene.options().exactness = Exactness::batch_invariant;
  expect_refusal([&] { scene.plan(); }, {"a score option, with an exactness other than fast"});
}

}  // namespace
}  // namespace pagoda::test

#endif
