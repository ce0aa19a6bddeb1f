// SPDX-License-Identifier: Apache-2.0
// The hand-tuned kernels where batch entries have different numbers of query tokens (cu_seqlens_q). Those for up to 8
// query rows to a kv head: test_tuned_one_or_none.cpp.
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/tuned_suite.hpp"

#include <cmath>
#include <limits>
#include <random>

namespace pagoda::test {
namespace {

/// Rows of queries and outputs that start on 16 bytes, but are not adjacent.
Arrangement apart() {
  Arrangement a;
  a.gap = {64, 16, 0, 0};
  return a;
}

template <class Param>
struct TunedRagged : TunedMany<Param> {
  /// A kind of problem, and the most query tokens of an entry.
  struct Kind {
    Shape shape;
    int max_count;
  };
  /// Each kernel, with one and with two warpgroups or blocks to a kv head, and groups that do not fill eights.
  static std::vector<Kind> kinds(const std::vector<int>& lengths) {
    Shape two_kv_heads        = latent_shape(16, lengths);
    two_kv_heads.num_kv_heads = 2;
    return {{latent_shape(16, lengths), 4},
            {latent_shape(16, lengths), 8},
            {latent_shape(64, lengths), 2},
            {latent_shape(100, lengths), 1},
            {two_kv_heads, 3},
            {{.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64}, 16},
            {{.lengths = lengths, .num_q_heads = 14, .num_kv_heads = 2, .head_dim = 128}, 5},
            {{.lengths = lengths, .num_q_heads = 32, .num_kv_heads = 2, .head_dim = 128}, 8},
            {{.lengths = lengths, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 64}, 128},
            {{.lengths = lengths, .num_q_heads = 24, .num_kv_heads = 2, .head_dim = 128}, 1},
            // More than 128 rows, in several passes.
            {{.lengths = lengths, .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 128}, 70},
            {latent_shape(16, lengths), 9}};
  }
  /// Random counts of query tokens with 0, 1 and the most among them, wherever `turn` puts these.
  static Shape ragged(const Kind& kind, int turn, bool causal) {
    Shape shape  = kind.shape;
    shape.causal = causal;
    std::mt19937 random(static_cast<unsigned>(turn));
    const int batch = static_cast<int>(shape.lengths.size());
    for (int b = 0; b < batch; ++b) {
      const int fixed[] = {kind.max_count, 0, 1};
      const int drawn   = static_cast<int>(random() % static_cast<unsigned>(kind.max_count + 1));
      shape.query_lens.push_back((b + turn) % batch < 3 ? fixed[(b + turn) % batch] : drawn);
    }
    return shape;
  }
  /// cu_seqlens_q even if all counts happen to be equal.
  static Placement given(Placement placement) {
    placement.ragged = true;
    return placement;
  }
  static constexpr Placement pages_of_64 = TunedMany<Param>::pages_of_64;
};
TYPED_TEST_SUITE(TunedRagged, TunedTypes, Names);

// Sequences shorter than their queries too, and empty ones.
TYPED_TEST(TunedRagged, Counts) {
  const std::vector<int> lengths{70, 1, 0, 333, 64, 3, 129, 260};
  for (const bool causal : {true, false})
    for (int turn = 0; turn < 3; ++turn)
      for (const auto& kind : TestFixture::kinds(lengths))
        TestFixture::expect_right(TestFixture::ragged(kind, turn, causal),
                                  TestFixture::given(TestFixture::pages_of_64));
}

TYPED_TEST(TunedRagged, Layouts) {
  for (const auto& kind : TestFixture::kinds({700, 0, 33, 260, 5}))
    for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
      for (const int page_size : {8, 48})
        for (const bool indirect : {false, true})
          TestFixture::expect_right(TestFixture::ragged(kind, page_size + indirect, true),
                                    {.layout    = layout,
                                     .page_size = page_size,
                                     .order     = indirect ? KVOrder::HND : KVOrder::NHD,
                                     .io        = indirect ? apart() : Arrangement{},
                                     .indirect  = indirect,
                                     .ragged    = true,
                                     .out_type  = page_size == 8 ? DType::fp32 : DType::fp16,
                                     .lse_type  = indirect ? DType::fp64 : DType::fp32});
}

TYPED_TEST(TunedRagged, PagesOfAnySize) {
  for (const auto& kind : TestFixture::kinds({300, 0, 33, 5}))
    for (const int page_size : {1, 4, 36})
      TestFixture::expect_right(TestFixture::ragged(kind, page_size, page_size > 1),
                                {.layout = Layout::paged, .page_size = page_size, .ragged = true});
}

// Whole rows, rows in splits, and batches divided by stream-K. Every third kind for each batch: the float64 reference
// takes most of the time.
TYPED_TEST(TunedRagged, NumbersOfRows) {
  std::vector<int> uneven(150, 20);
  uneven[0] = 0, uneven[7] = 3000, uneven[8] = 1, uneven[149] = 0;
  const std::vector<std::vector<int>> batches{
      {4000, 3900, 4100}, std::vector<int>(70, 70), uneven, std::vector<int>(33, 300)};
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto kinds = TestFixture::kinds(batches[i]);
    for (std::size_t k = i; k < kinds.size(); k += 3)
      TestFixture::expect_right(TestFixture::ragged(kinds[k], 143, true), TestFixture::given(TestFixture::pages_of_64));
  }
}

// Few entries with many query tokens among long sequences: passes of 64 rows.
TYPED_TEST(TunedRagged, FewLongEntries) {
  const std::vector<int> lengths{2100, 300, 65, 7, 0, 130};
  for (const bool causal : {true, false})
    for (Shape shape :
         {Shape{.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128}, latent_shape(16, lengths)}) {
      shape.query_lens = {1, 40, 1, 33, 2, 0}, shape.causal = causal;
      if (shape.head_dim == 576) shape.query_lens[1] = 9, shape.query_lens[3] = 6;
      TestFixture::expect_right(shape, TestFixture::given(TestFixture::pages_of_64));
      shape.window_left = 50;
      if (shape.head_dim == 128) TestFixture::expect_right(shape, TestFixture::given(TestFixture::pages_of_64));
    }
}

// Long sequences without query tokens, before, between and behind the others. Nothing of theirs may be read: their
// tokens and page ids are poisoned.
TYPED_TEST(TunedRagged, EntriesWithoutQueriesAreSkipped) {
  for (const auto& kind : TestFixture::kinds({6000, 300, 3000, 70, 0, 6000}))
    for (const bool one_alone : {false, true}) {
      const int second = one_alone ? 0 : kind.max_count;
      Shape shape      = kind.shape;
      shape.query_lens = std::vector<int>{0, second, 0, 1, 0, 0};
      TestFixture::expect_right(shape, TestFixture::given(TestFixture::pages_of_64));
    }
}

// One plan, while the counts change on the device.
TYPED_TEST(TunedRagged, CountsChangeOnTheDevice) {
  using T = typename TypeParam::type;
  for (const auto& kind : TestFixture::kinds({3000, 40, 700, 0, 17})) {
    Shape most = kind.shape;
    most.query_lens.assign(most.lengths.size(), kind.max_count);
    const Sample<T> sample_of_most(most);
    Scene<Kokkos::Cuda, T> planned(sample_of_most, TestFixture::given(TestFixture::pages_of_64));
    planned.options().backend = "tuned";
    const auto plan           = planned.plan();
    for (int turn = 0; turn < 4; ++turn) {
      const Shape shape = TestFixture::ragged(kind, turn, true);
      const Sample<T> sample(shape);
      Scene<Kokkos::Cuda, T> scene(sample, TestFixture::given(TestFixture::pages_of_64));
      planned.set_query_lens(shape.query_lens);
      scene.decode(plan);
      EXPECT_TRUE(scene.right()) << describe(shape);
    }
  }
}

// Queries of one entry are NaN: the results of all others keep their bits.
TYPED_TEST(TunedRagged, EntriesDoNotSeeQueriesOfOthers) {
  using T = typename TypeParam::type;
  for (const auto& kind : TestFixture::kinds({3000, 40, 700, 333, 17})) {
    Shape shape         = TestFixture::ragged(kind, 3, true);
    shape.query_lens[2] = kind.max_count;
    const Sample<T> clean(shape);
    Sample<T> planted(shape);
    const int other = 2;
    for (int token = clean.query_begin(other); token < clean.query_begin(other + 1); ++token)
      for (int head = 0; head < shape.num_q_heads; ++head)
        planted.query(token, head)[5] = std::numeric_limits<double>::quiet_NaN();
    Scene<Kokkos::Cuda, T> scene(planted, TestFixture::given(TestFixture::pages_of_64));
    Scene<Kokkos::Cuda, T> without(clean, TestFixture::given(TestFixture::pages_of_64));
    scene.options().backend = without.options().backend = "tuned";
    const auto plan = scene.plan(), plan_without = without.plan();
    scene.decode(plan), without.decode(plan_without);
    ASSERT_TRUE(without.right()) << describe(shape);
    scene.results();
    for (int token = 0; token < clean.query_tokens(); ++token)
      for (int head = 0; head < shape.num_q_heads; ++head)
        for (int d = 0; d < clean.head_dim_v(); ++d) {
          const double got = scene.out().get({token, head, d}), right = without.out().get({token, head, d});
          if (clean.entry_of(token) == other) {
            ASSERT_TRUE(std::isnan(got)) << describe(shape) << ": token " << token << ", head " << head;
          } else {
            ASSERT_EQ(got, right) << describe(shape) << ": token " << token << ", head " << head << ", dim " << d;
          }
        }
  }
}

TYPED_TEST(TunedRagged, RepeatsBitForBit) {
  for (const auto& kind : TestFixture::kinds({3000, 40, 0, 700, 17}))
    TestFixture::expect_same_bits(TestFixture::ragged(kind, 1, true), TestFixture::given(TestFixture::pages_of_64));
}

// The maximum rises from tile to tile.
TYPED_TEST(TunedRagged, LargeScores) {
  for (const auto& kind : TestFixture::kinds({3000, 300, 100})) {
    Shape shape    = TestFixture::ragged(kind, 0, true);
    shape.key_size = 30;
    TestFixture::expect_right(shape, TestFixture::given(TestFixture::pages_of_64));
  }
}

TYPED_TEST(TunedRagged, Refusals) {
  const Shape many{.lengths = {40, 30}, .num_q_heads = 129, .num_kv_heads = 1, .head_dim = 128, .query_lens = {2, 1}};
  TestFixture::expect_tuned_refused(many, {}, "more than 128 query heads share a kv head");
}

}  // namespace
}  // namespace pagoda::test

#endif
