// SPDX-License-Identifier: Apache-2.0
// The hand-tuned kernels for many query rows per KV head: latent caches, large groups, several query tokens.
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/tuned_suite.hpp"

#include <numeric>

namespace pagoda::test {
namespace {

TYPED_TEST_SUITE(TunedMany, TunedTypes, Names);

TYPED_TEST(TunedMany, Heads) {
  for (const DType out : {DType::fp16, DType::bf16, DType::fp32}) {
    const Placement placement{.layout = Layout::paged, .page_size = 64, .out_type = out};
    for (const int heads : {1, 9, 16, 32, 64, 65, 100, 128})
      TestFixture::expect_right(latent_shape(heads, {70, 1, 0, 333}), placement);
    for (const int group : {9, 16, 17, 33, 64, 65, 100, 128})
      TestFixture::expect_right(
          {.lengths = {70, 1, 0, 333}, .num_q_heads = 2 * group, .num_kv_heads = 2, .head_dim = group % 2 ? 128 : 64},
          placement);
  }
}

// Sequences of fewer tokens than queries too: the first of those see nothing.
TYPED_TEST(TunedMany, QueryTokens) {
  const std::vector<int> lengths{70, 1, 0, 333, 64, 3};
  for (const bool causal : {true, false})
    for (const int count : {1, 2, 3, 4, 8, 16}) {
      for (const int group : {1, 4, 7})
        for (const int head_dim : {64, 128})
          TestFixture::expect_right(
              TestFixture::of_tokens(
                  {.lengths = lengths, .num_q_heads = 2 * group, .num_kv_heads = 2, .head_dim = head_dim}, count,
                  causal),
              {.layout = Layout::paged, .page_size = 16});
      for (const int heads : {8, 16, 64})
        if (heads * count <= 128)
          TestFixture::expect_right(TestFixture::of_tokens(latent_shape(heads, lengths), count, causal),
                                    TestFixture::pages_of_64);
    }
}

// More than 128 query rows share a kv head: they take several passes over the cache.
TYPED_TEST(TunedMany, QueryTokensInPasses) {
  const std::vector<int> lengths{70, 1, 0, 333, 64, 3};
  for (const bool causal : {true, false}) {
    for (const auto& [group, count] : {std::pair(4, 33), {4, 64}, {7, 37}, {1, 300}, {100, 2}})
      for (const int head_dim : {64, 128})
        TestFixture::expect_right(
            TestFixture::of_tokens({.lengths = lengths, .num_q_heads = group, .num_kv_heads = 1, .head_dim = head_dim},
                                   count, causal),
            {.layout = Layout::paged, .page_size = 16});
    for (const auto& [heads, count] : {std::pair(16, 17), {128, 2}})
      TestFixture::expect_right(TestFixture::of_tokens(latent_shape(heads, lengths), count, causal),
                                TestFixture::pages_of_64);
  }
}

// A plan for several query tokens accepts fewer.
TYPED_TEST(TunedMany, FewerQueryTokensThanPlanned) {
  using T = typename TypeParam::type;
  for (const int count : {1, 2, 40}) {
    for (const Shape& shape :
         {TestFixture::of_tokens({.lengths = {500, 3, 70}, .num_q_heads = 16, .head_dim = 128}, count),
          TestFixture::of_tokens(latent_shape(32, {500, 3, 70}), count)}) {
      const Sample<T> sample(shape);
      Scene<Kokkos::Cuda, T> scene(sample, TestFixture::pages_of_64);
      scene.options().backend       = "tuned";
      scene.options().max_query_len = count < 40 ? 4 : 130;
      const auto plan               = scene.plan();
      for (int call = 0; call < 2; ++call) {
        scene.poison_outputs();
        scene.decode(plan);
        EXPECT_TRUE(scene.right()) << describe(shape) << ", call " << call;
      }
    }
  }
}

TYPED_TEST(TunedMany, LengthsAroundTiles) {
  std::vector<int> lengths(131);
  std::iota(lengths.begin(), lengths.end(), 0);
  for (const Shape& shape : TestFixture::shapes(lengths)) TestFixture::expect_right(shape, TestFixture::pages_of_64);
  for (const int length : {1, 63, 64, 65, 2047, 2049, 9000})
    for (const Shape& shape : TestFixture::shapes({length})) TestFixture::expect_right(shape, TestFixture::pages_of_64);
}

TYPED_TEST(TunedMany, Layouts) {
  std::vector<Shape> shapes = TestFixture::shapes({700, 0, 33, 260});
  shapes.push_back(shapes[0]);
  shapes.back().num_kv_heads = 2;
  for (const Shape& shape : shapes)
    for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
      for (const int page_size : {8, 16, 48, 64, 128})
        for (const bool indirect : {false, true})
          TestFixture::expect_right(shape, {.layout    = layout,
                                            .page_size = page_size,
                                            .order     = indirect ? KVOrder::HND : KVOrder::NHD,
                                            .indirect  = indirect,
                                            .lse_type  = indirect ? DType::fp64 : DType::fp32});
}

// Pages that are no multiples of 8 tokens are copied by lanes.
TYPED_TEST(TunedMany, PagesOfAnySize) {
  for (const int page_size : {1, 2, 3, 4, 12, 100})
    for (const int head_dim : {64, 128})
      for (const auto& [heads, count] : {std::pair(16, 1), {100, 1}, {4, 4}, {4, 40}})
        TestFixture::expect_right(TestFixture::of_tokens({.lengths      = {700, 0, 33, 64, 1, 129},
                                                          .num_q_heads  = 2 * heads,
                                                          .num_kv_heads = 2,
                                                          .head_dim     = head_dim},
                                                         count, page_size != 2),
                                  {.layout    = page_size == 3 ? Layout::csr : Layout::paged,
                                   .page_size = page_size,
                                   .order     = page_size == 4 ? KVOrder::HND : KVOrder::NHD,
                                   .indirect  = page_size == 12});
}

// The same of latent caches, with one block to a kv head and two, in one pass and in several.
TYPED_TEST(TunedMany, LatentPagesOfAnySize) {
  Shape two_kv_heads        = latent_shape(16, {130, 0, 7});
  two_kv_heads.num_kv_heads = 2;
  for (const int page_size : {1, 2, 3, 4, 12, 100}) {
    const Placement placement{.layout    = page_size == 3 ? Layout::csr : Layout::paged,
                              .page_size = page_size,
                              .order     = page_size == 4 ? KVOrder::HND : KVOrder::NHD,
                              .indirect  = page_size == 12};
    for (const auto& [heads, count] : {std::pair(16, 1), {100, 1}, {16, 4}, {32, 10}})
      TestFixture::expect_right(
          TestFixture::of_tokens(latent_shape(heads, {300, 0, 33, 64, 1, 129}), count, page_size != 2), placement);
    TestFixture::expect_right(two_kv_heads, placement);
    TestFixture::expect_right(latent_shape(16, {9000}), placement);
    TestFixture::expect_same_bits(latent_shape(16, {400, 31, 200}), placement);
  }
}

// Whole rows in rounds; split rows; batches that are divided as one stream. Latent caches have fewer teams, and their
// reference is slow.
TYPED_TEST(TunedMany, NumbersOfRows) {
  for (const int batch : {3, 60, 66, 100, 150, 300})
    for (const Shape& shape : TestFixture::shapes(std::vector<int>(static_cast<std::size_t>(batch), 70)))
      if (batch < 300 || shape.head_dim == shape.head_dim_v || shape.head_dim_v == 0)
        TestFixture::expect_right(shape, TestFixture::pages_of_64);
}

TYPED_TEST(TunedMany, UnevenBatches) {
  std::vector<int> lengths(150, 20);
  lengths[0] = 0, lengths[7] = 6000, lengths[8] = 1, lengths[149] = 0;
  for (const Shape& shape : TestFixture::shapes({9000, 1, 0, 17, 500}))
    TestFixture::expect_right(shape, TestFixture::pages_of_64);
  for (const Shape& shape : TestFixture::shapes(lengths))
    TestFixture::expect_right(shape, {.layout = Layout::csr, .page_size = 64});
  for (const Shape& shape : TestFixture::shapes({0, 0, 0})) TestFixture::expect_right(shape, {.layout = Layout::paged});
}

// Latent caches with an even number of equal splits: pairs of blocks join their splits, if each block has one. On 132
// multiprocessors the counts below give 2, 4, 8 and 132 splits, and half as many with 128 heads.
TYPED_TEST(TunedMany, LatentSplitsInPairs) {
  const auto lengths = [](int batch, int longest) {
    std::vector<int> all(static_cast<std::size_t>(batch), longest);
    for (int b = 0; b < batch; ++b) all[static_cast<std::size_t>(b)] -= 5 * (b % 13);
    return all;
  };
  std::vector<int> with_empty = lengths(64, 200);
  with_empty.front() = with_empty[9] = with_empty.back() = 0;
  for (const int heads : {16, 20, 64, 100})
    for (const auto& all : {lengths(64, 200), with_empty, lengths(33, 300), lengths(16, 600)})
      for (const DType out : {DType::bf16, DType::fp32})
        TestFixture::expect_right(latent_shape(heads, all),
                                  {.layout = Layout::paged, .page_size = 64, .out_type = out});
  for (const int heads : {16, 128}) {
    TestFixture::expect_right(latent_shape(heads, {8500}), TestFixture::pages_of_64);
    TestFixture::expect_same_bits(latent_shape(heads, lengths(64, 200)), TestFixture::pages_of_64);
    // Some entries have fewer tiles than splits, so that single blocks join them.
    TestFixture::expect_right(latent_shape(heads, lengths(64, 70)), TestFixture::pages_of_64);
    TestFixture::expect_right(latent_shape(heads, lengths(16, 480)), TestFixture::pages_of_64);
  }
  for (Shape shape : {latent_shape(16, lengths(32, 300)), latent_shape(32, lengths(16, 600))}) {
    TestFixture::expect_right(TestFixture::of_tokens(shape, 2), TestFixture::pages_of_64);
    shape.key_size = 30;
    TestFixture::expect_right(shape, TestFixture::pages_of_64);
  }
}

// The maximum rises from tile to tile, by more than the rescale threshold.
TYPED_TEST(TunedMany, LargeScores) {
  for (Shape shape : TestFixture::shapes({3000, 300})) {
    shape.key_size = 30;
    TestFixture::expect_right(shape, TestFixture::pages_of_64);
  }
}

TYPED_TEST(TunedMany, LengthsChangeOnTheDevice) {
  for (const Shape& shape : TestFixture::shapes({3000, 40, 700}))
    TestFixture::expect_right_as_lengths_change(shape, TestFixture::pages_of_64);
}

TYPED_TEST(TunedMany, RepeatsBitForBit) {
  for (const Shape& shape : TestFixture::shapes({3000, 40, 0, 700, 17}))
    TestFixture::expect_same_bits(shape, TestFixture::pages_of_64);
}

// Cooperative launches that each use the whole machine.
TYPED_TEST(TunedMany, TwoInstances) {
  using T         = typename TypeParam::type;
  const auto both = Kokkos::Experimental::partition_space(Kokkos::Cuda(), 1, 1);
  for (const Shape& shape : TestFixture::shapes({9000, 17, 500})) {
    const Sample<T> sample(shape);
    Scene<Kokkos::Cuda, T> one(sample, TestFixture::pages_of_64, both[0]);
    Scene<Kokkos::Cuda, T> other(sample, TestFixture::pages_of_64, both[1]);
    one.options().backend = other.options().backend = "tuned";
    const auto plan = one.plan(), plan_of_other = other.plan();
    for (int repeat = 0; repeat < 200; ++repeat) one.decode(plan), other.decode(plan_of_other);
    EXPECT_TRUE(one.right()) << describe(shape);
    EXPECT_TRUE(other.right()) << describe(shape);
    EXPECT_EQ(one.results(), other.results()) << describe(shape);
  }
}

// Blocks of query rows that a call does not have, because its plan allows for more query tokens. In clusters of two,
// one of them must not reach for the other one, which may have ended: the last split of 700 tokens has a tile less.
TYPED_TEST(TunedMany, LatentPlansForMoreQueryTokens) {
  using T = typename TypeParam::type;
  for (const auto& [heads, batch] : {std::pair(32, 33), {24, 16}, {64, 1}}) {
    const Shape shape = latent_shape(heads, std::vector<int>(static_cast<std::size_t>(batch), 700));
    const Sample<T> sample(shape);
    Scene<Kokkos::Cuda, T> scene(sample, TestFixture::pages_of_64);
    scene.options().backend       = "tuned";
    scene.options().max_query_len = 3;
    const auto plan               = scene.plan();
    scene.poison_outputs();
    for (int repeat = 0; repeat < 200; ++repeat) scene.decode(plan);
    EXPECT_TRUE(scene.right()) << describe(shape);
  }
}

TYPED_TEST(TunedMany, Refusals) {
  constexpr const char* too_many = "more than 128 query heads share a kv head";
  TestFixture::expect_tuned_refused(latent_shape(129, {40}), {}, too_many);
  Shape apart          = latent_shape(16, {40});
  apart.values_in_keys = false;
  TestFixture::expect_tuned_refused(apart, {}, "not the first dims of its keys");
  TestFixture::expect_tuned_refused(TestFixture::of_tokens(latent_shape(12, {40}), 2), {}, "no multiple of 8");
  TestFixture::expect_tuned_refused({.lengths = {40}, .num_q_heads = 129, .num_kv_heads = 1, .head_dim = 128}, {},
                                    too_many);
  Shape windowed       = latent_shape(16, {40});
  windowed.window_left = 5;
  TestFixture::expect_tuned_refused(windowed, {}, "a score option, with a latent cache");
}

}  // namespace
}  // namespace pagoda::test

#endif
