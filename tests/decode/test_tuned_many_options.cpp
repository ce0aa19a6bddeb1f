// SPDX-License-Identifier: Apache-2.0
// Score options in the hand-tuned kernels for many query rows to a kv head (test_tuned_options.cpp: for up to 8).
// Hidden tokens, the pages that have no visible token, and outputs before a decode are NaN (Scene).
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/tuned_suite.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace pagoda::test {
namespace {

template <class Param>
struct TunedManyOptions : TunedMany<Param> {
  using TunedMany<Param>::of_tokens;

  /// One and two warpgroups, both numbers of dims, one query token and several, and rows that do not fill eights.
  static std::vector<Shape> shapes(const std::vector<int>& lengths, bool causal = true) {
    return {{.lengths = lengths, .num_q_heads = 32, .num_kv_heads = 2, .head_dim = 128},
            {.lengths = lengths, .num_q_heads = 100, .num_kv_heads = 1, .head_dim = 64},
            of_tokens({.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128}, 4, causal),
            of_tokens({.lengths = lengths, .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 64}, 16, causal),
            of_tokens({.lengths = lengths, .num_q_heads = 7, .num_kv_heads = 1, .head_dim = 128}, 3, causal),
            of_tokens({.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 1, .head_dim = 64}, 16, causal),
            of_tokens({.lengths = lengths, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 128}, 128, causal),
            of_tokens({.lengths = lengths, .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 128}, 67, causal)};
  }
  /// Different numbers of query tokens (cu_seqlens_q): up to 4, 16 and 45 of groups of four, 0 and 1 among them.
  static std::vector<Shape> ragged(const std::vector<int>& lengths, bool causal = true) {
    std::mt19937 random(1);
    std::vector<Shape> shapes;
    for (const int most : {4, 16, 45}) {
      Shape shape{.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128, .causal = causal};
      const int fixed[] = {most, 0, 1};
      for (std::size_t b = 0; b < lengths.size(); ++b)
        shape.query_lens.push_back(b < 3 ? fixed[b] : static_cast<int>(random() % static_cast<unsigned>(most + 1)));
      shapes.push_back(shape);
    }
    return shapes;
  }
  /// change: sets options. Every shape, as a batch and ragged.
  template <class Change>
  static void expect_all_right(const std::vector<int>& lengths, const Placement& placement, const Change& change) {
    Placement with_counts = placement;
    with_counts.ragged    = true;
    for (const bool causal : {true, false}) {
      for (Shape shape : shapes(lengths, causal)) change(shape), TestFixtureOf::expect_right(shape, placement);
      for (Shape shape : ragged(lengths, causal)) change(shape), TestFixtureOf::expect_right(shape, with_counts);
    }
  }
  using TestFixtureOf = TunedMany<Param>;
  static constexpr Placement small_pages{.layout = Layout::paged, .page_size = 8};
};
TYPED_TEST_SUITE(TunedManyOptions, TunedTypes, Names);

/// Around the ends of tiles and windows, and shorter than their queries.
const std::vector<int> edges = {200, 63, 333, 0, 1, 3, 64, 65, 128, 129, 191};

TYPED_TEST(TunedManyOptions, Windows) {
  for (const int window : {0, 1, 63, 64, 100, std::numeric_limits<int>::max()})
    TestFixture::expect_all_right(edges, TestFixture::small_pages, [&](Shape& s) { s.window_left = window; });
}

// Tokens outside of windows may lie in pages that do not exist.
TYPED_TEST(TunedManyOptions, WindowsInPagesOfAnySize) {
  for (const auto& [page_size, window] : {std::pair(1, 0), {2, 64}, {5, 100}}) {
    const Placement pages{.layout = Layout::paged, .page_size = page_size};
    TestFixture::expect_all_right(edges, pages,
                                  [&, window = window](Shape& s) { s.window_left = window, s.num_initial_tokens = 3; });
  }
}

// The first token of a window lies in every place of a tile.
TYPED_TEST(TunedManyOptions, WindowsBeginAnywhere) {
  std::vector<int> lengths(70);
  std::iota(lengths.begin(), lengths.end(), 140);
  for (Shape shape : TestFixture::shapes(lengths)) {
    shape.window_left = 37;
    TestFixture::expect_right(shape, TestFixture::small_pages);
  }
}

// The initial tokens end in the window, in the tile before it, or far before it.
TYPED_TEST(TunedManyOptions, InitialTokensBesideAWindow) {
  for (const auto& [initial, window] :
       {std::pair(1, 0), {4, 64}, {64, 20}, {65, 66}, {130, 3}, {std::numeric_limits<int>::max(), 5}})
    TestFixture::expect_all_right(edges, TestFixture::small_pages, [&, initial = initial, window = window](Shape& s) {
      s.window_left = window, s.num_initial_tokens = initial;
    });
}

TYPED_TEST(TunedManyOptions, SoftCaps) {
  for (const double cap : {0.5, 5.0, 50.0, 1e6, 1e35})
    for (Shape shape : TestFixture::shapes({300, 0, 1, 33})) {
      shape.logit_soft_cap = cap, shape.key_size = 8;
      TestFixture::expect_right(shape, TestFixture::pages_of_64);
    }
}

TYPED_TEST(TunedManyOptions, Alibi) {
  TestFixture::expect_all_right({300, 0, 1, 40}, TestFixture::pages_of_64, [](Shape& s) { s.alibi = true; });
}

// Log-sum-exps near 0 show whether a bias is rounded in proportion to itself, or to that of the tile's first token. The
// newest token, which weighs most, is the last one of a tile, or of a half.
TYPED_TEST(TunedManyOptions, AlibiOfSteepSlopes) {
  using T = typename TypeParam::type;
  for (const float slope : {1.0f, 0.7f})
    for (Shape shape : TestFixture::shapes({64, 32, 128, 127, 192, 960})) {
      shape.alibi = true, shape.key_size = 0.01;
      Sample<T> sample(shape);
      for (float& s : sample.alibi_slopes()) s = slope;
      Scene<Kokkos::Cuda, T> scene(sample, TestFixture::pages_of_64);
      scene.options().backend = "tuned";
      scene.poison_outputs();
      scene.decode(scene.plan());
      EXPECT_TRUE(scene.right()) << describe(shape);
    }
}

// Also for rows that see nothing, and for batch heads that several blocks join.
TYPED_TEST(TunedManyOptions, Sinks) {
  for (const std::vector<int>& lengths : {std::vector<int>{300, 0, 1, 40}, {0, 0}, {5000}})
    TestFixture::expect_all_right(lengths, TestFixture::pages_of_64, [](Shape& s) { s.sinks = true; });
}

TYPED_TEST(TunedManyOptions, SinksThatAreNoNumbers) {
  using T = typename TypeParam::type;
  for (Shape shape : TestFixture::shapes({40, 0, 700})) {
    shape.sinks = true;
    Sample<T> sample(shape);
    sample.sinks()[0]                                               = std::numeric_limits<float>::quiet_NaN();
    sample.sinks()[static_cast<std::size_t>(shape.num_q_heads) / 2] = -std::numeric_limits<float>::infinity();
    Scene<Kokkos::Cuda, T> scene(sample, TestFixture::pages_of_64);
    scene.options().backend = "tuned";
    scene.decode(scene.plan());
    EXPECT_TRUE(scene.right()) << describe(shape);
  }
}

void set_all(Shape& s) {
  s.softmax_scale = 0.4, s.window_left = 900, s.num_initial_tokens = 20;
  s.logit_soft_cap = 7, s.alibi = true, s.sinks = true;
}

TYPED_TEST(TunedManyOptions, AllTogether) {
  for (const auto& lengths : {std::vector<int>{3000}, {0, 3000, 3, 64, 921, 922, 937}})
    for (const Placement& placement :
         {Placement{.layout = Layout::contiguous}, {.layout = Layout::csr, .page_size = 48, .indirect = true}})
      TestFixture::expect_all_right(lengths, placement, set_all);
}

// Batches in equal splits, in rounds and as one stream. Windows of one length make uneven sequences even.
TYPED_TEST(TunedManyOptions, DivisionsOfBatches) {
  std::vector<int> uneven(150, 20);
  uneven[0] = 0, uneven[7] = 6000, uneven[8] = 1, uneven[149] = 0;
  const std::vector<std::vector<int>> batches{{9000}, {9000, 1, 0, 17, 500}, std::vector<int>(70, 250), uneven};
  for (std::size_t i = 0; i < batches.size(); ++i)
    for (const int window : {200, 3000}) {
      auto shapes = TestFixture::shapes(batches[i]);
      for (std::size_t k = i % 2; k < 4; k += 2) {
        shapes[k].window_left = window, shapes[k].num_initial_tokens = window == 200 ? 70 : 0, shapes[k].sinks = true;
        TestFixture::expect_right(shapes[k], {.layout = Layout::csr});
      }
    }
}

TYPED_TEST(TunedManyOptions, RandomCombinations) {
  std::mt19937 random(12);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 60; ++i) {
    Shape shape{.num_kv_heads = 1 + below(3),
                .head_dim     = below(2) ? 128 : 64,
                .causal       = below(4) > 0,
                .seed         = static_cast<unsigned>(i)};
    const bool several = below(3) > 0;
    const int group    = several ? 1 + below(16) : 9 + below(40);
    shape.num_q_heads  = shape.num_kv_heads * group;
    const int batch = 1 + below(6), longest = below(4) ? 400 : 3000;
    const int most = several ? 2 + below(128 / group - 1) : 1;
    for (int b = 0; b < batch; ++b) shape.lengths.push_back(below(longest));
    const bool ragged = below(2);
    for (int b = 0; b < batch && several; ++b) shape.query_lens.push_back(ragged && b > 0 ? below(most + 1) : most);
    if (below(2)) shape.window_left = below(2) ? below(longest) : below(100);
    if (below(2)) shape.num_initial_tokens = below(200);
    if (below(2)) shape.logit_soft_cap = 1 + below(30);
    shape.alibi = below(2), shape.sinks = below(2);
    TestFixture::expect_right(shape, {.layout    = below(2) ? Layout::paged : Layout::contiguous,
                                      .page_size = 8 * (1 + below(9)),
                                      .order     = below(2) ? KVOrder::HND : KVOrder::NHD,
                                      .ragged    = ragged && several,
                                      .out_type  = below(2) ? DType::fp32 : DType::bf16,
                                      .lse_type  = below(2) ? DType::fp64 : DType::fp32});
  }
}

// NaNs, and infinities among values, in tokens that some query tokens see and others do not: at the ends of windows, of
// the initial tokens, and among the newest tokens. They reach the rows that see them, and no other row.
TYPED_TEST(TunedManyOptions, NaNsAtTheEdgesOfWindows) {
  using T = typename TypeParam::type;
  // With 16 query tokens and a window of 101 tokens: initial are 0 to 69; windows begin at 234 to 249; the newest
  // tokens are 334 to 349. The window of the last shape is shorter than its query tokens are many.
  const std::vector<int> at = {0, 63, 64, 69, 234, 235, 240, 248, 249, 255, 256, 333, 334, 340, 349};
  for (const float planted : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()})
    for (const int window : {100, 5})
      for (const bool in_value : {false, true})
        for (Shape shape : {TestFixture::of_tokens({.num_q_heads = 4, .num_kv_heads = 1, .head_dim = 128}, 16),
                            TestFixture::of_tokens({.num_q_heads = 8, .num_kv_heads = 1, .head_dim = 64}, 16)}) {
          shape.lengths.assign(at.size() + 1, 350), shape.query_lens.assign(at.size() + 1, 16);
          shape.window_left = window, shape.num_initial_tokens = 70, shape.logit_soft_cap = 5, shape.sinks = true;
          if (!in_value && !std::isnan(planted)) continue;
          Sample<T> sample(shape);
          for (std::size_t i = 0; i < at.size(); ++i) {
            const int b = static_cast<int>(i);
            if (!sample.visible(b, at[i])) continue;
            T* const row = in_value ? sample.value(b, at[i], 0) : sample.key(b, at[i], 0);
            if constexpr (!is_quantized_v<T>) row[at[i] % shape.head_dim] = to_element<T>(planted);
          }
          Scene<Kokkos::Cuda, T> scene(sample, {.layout = Layout::paged, .page_size = 16});
          scene.options().backend = "tuned";
          scene.decode(scene.plan());
          EXPECT_TRUE(scene.right()) << (in_value ? "in values: " : "in keys: ") << planted << ", " << describe(shape);
        }
}

TYPED_TEST(TunedManyOptions, LengthsChangeOnTheDevice) {
  for (Shape shape : TestFixture::shapes({3000, 40, 700})) {
    shape.window_left = 5000, shape.logit_soft_cap = 7, shape.alibi = true, shape.sinks = true;  // tokens stay visible
    TestFixture::expect_right_as_lengths_change(shape, TestFixture::pages_of_64);
  }
}

TYPED_TEST(TunedManyOptions, RepeatsBitForBit) {
  for (const std::vector<int>& lengths : {std::vector<int>{3000, 40, 0, 700, 17}, {900, 900}})
    for (Shape shape : TestFixture::shapes(lengths)) {
      set_all(shape);
      TestFixture::expect_same_bits(shape, TestFixture::pages_of_64);
    }
}

TYPED_TEST(TunedManyOptions, AreTheDefault) {
  using T = typename TypeParam::type;
  for (Shape shape : TestFixture::shapes({300, 20})) {
    set_all(shape);
    const Sample<T> sample(shape);
    Scene<Kokkos::Cuda, T> scene(sample);
    EXPECT_EQ(scene.plan().backend(), "tuned") << describe(shape);
  }
}

}  // namespace
}  // namespace pagoda::test

#endif
