// SPDX-License-Identifier: Apache-2.0
// The hand-tuned kernels for up to 8 query rows to a kv head where batch entries have one query token or none
// (cu_seqlens_q). Sequences without query tokens, their page ids, and outputs before a decode are poisoned (Scene).
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/late_writes.hpp"
#include "tests/decode/tuned_suite.hpp"

#include <numeric>
#include <random>
#include <vector>

namespace pagoda::test {
namespace {

template <class Param>
struct TunedOneOrNone : Tuned<Param> {
  void SetUp() override {
    Tuned<Param>::SetUp();
    if (is_integer_v<typename Param::type>) GTEST_SKIP() << "integers are refused (TunedIntegers.Refusals)";
  }
  /// Groups and dims, without and with score options.
  static std::vector<Shape> shapes(const std::vector<int>& lengths) {
    std::vector<Shape> all{
        {.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128},
        {.lengths = lengths, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 64},
        {.lengths = lengths, .num_q_heads = 14, .num_kv_heads = 2, .head_dim = 128, .sinks = true},
        {.lengths = lengths, .num_q_heads = 16, .num_kv_heads = 2, .head_dim = 64, .window_left = 37, .alibi = true},
        {.lengths            = lengths,
         .num_q_heads        = 4,
         .num_kv_heads       = 1,
         .head_dim           = 128,
         .window_left        = 100,
         .num_initial_tokens = 20,
         .logit_soft_cap     = 5,
         .sinks              = true}};
    for (Shape& shape : all) shape = Tuned<Param>::taken(shape);
    return all;
  }
  /// Random counts of query tokens, with one and none among them.
  static Shape ragged(Shape shape, unsigned seed) {
    std::mt19937 random(seed);
    shape.query_lens.clear();
    for (std::size_t b = 0; b < shape.lengths.size(); ++b)
      shape.query_lens.push_back(b < 2 ? static_cast<int>((b + seed) % 2) : static_cast<int>(random() % 2));
    return shape;
  }
  /// cu_seqlens_q even if all counts happen to be equal.
  static Placement given(Placement placement) {
    placement.ragged = true;
    return placement;
  }
  static constexpr Placement pages_of_16{.layout = Layout::paged, .page_size = 16};
};
TYPED_TEST_SUITE(TunedOneOrNone, TunedTypes, Names);

TYPED_TEST(TunedOneOrNone, Counts) {
  const std::vector<int> lengths{70, 1, 0, 333, 64, 3, 129, 260, 16, 17};
  for (const Shape& shape : TestFixture::shapes(lengths)) {
    for (unsigned seed = 0; seed < 3; ++seed)
      TestFixture::expect_right(TestFixture::ragged(shape, seed), TestFixture::given(TestFixture::pages_of_16));
    Shape all = shape, last = shape, first = shape;
    all.query_lens.assign(lengths.size(), 1);
    last.query_lens.assign(lengths.size(), 0), last.query_lens.back()    = 1;
    first.query_lens.assign(lengths.size(), 0), first.query_lens.front() = 1;
    for (const Shape& counts : {all, last, first})
      TestFixture::expect_right(counts, TestFixture::given(TestFixture::pages_of_16));
  }
}

TYPED_TEST(TunedOneOrNone, Groups) {
  for (int group = 1; group <= 8; ++group)
    TestFixture::expect_right(TestFixture::ragged({.lengths      = {500, 33, 16, 20, 0},
                                                   .num_q_heads  = 2 * group,
                                                   .num_kv_heads = 2,
                                                   .head_dim     = group % 2 ? 128 : 64},
                                                  static_cast<unsigned>(group)),
                              TestFixture::given(TestFixture::pages_of_16));
}

TYPED_TEST(TunedOneOrNone, Layouts) {
  for (const Shape& shape : TestFixture::shapes({700, 0, 33, 260, 5}))
    for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
      for (const bool indirect : {false, true})
        TestFixture::expect_right(TestFixture::ragged(shape, indirect),
                                  {.layout    = layout,
                                   .page_size = indirect ? 48 : 1,
                                   .order     = indirect ? KVOrder::HND : KVOrder::NHD,
                                   .indirect  = indirect,
                                   .ragged    = true,
                                   .lse_type  = indirect ? DType::fp64 : DType::fp32});
}

// Splits, whole rows in each size of block, rounds, and batches divided by stream-K, with more entries than a lane
// loads lengths of.
TYPED_TEST(TunedOneOrNone, DivisionsOfBatches) {
  std::vector<int> uneven(150, 20);
  uneven[0] = 0, uneven[7] = 6000, uneven[8] = 1, uneven[149] = 0;
  for (const std::vector<int>& lengths : {std::vector<int>{4000, 3900, 4100},
                                          {9000, 1, 0, 17, 500},
                                          std::vector<int>(60, 250),
                                          std::vector<int>(140, 60),
                                          std::vector<int>(300, 60),
                                          uneven})
    for (const int kv_heads : {1, 8})
      TestFixture::expect_right(
          TestFixture::ragged(
              {.lengths = lengths, .num_q_heads = 8, .num_kv_heads = kv_heads, .head_dim = 128, .sinks = kv_heads == 1},
              5),
          TestFixture::given(TestFixture::pages_of_16));
}

// Long sequences without query tokens, before, between and behind the others.
TYPED_TEST(TunedOneOrNone, EntriesWithoutQueriesAreSkipped) {
  for (const std::vector<int>& counts : {std::vector<int>{0, 1, 0, 1, 0, 0}, {0, 0, 0, 1, 0, 0}, {0, 0, 0, 0, 0, 0}})
    for (Shape shape : TestFixture::shapes({6000, 300, 3000, 70, 0, 6000})) {
      shape.query_lens = counts;
      TestFixture::expect_right(shape, TestFixture::given(TestFixture::pages_of_16));
    }
}

// One plan, while the counts change on the device.
TYPED_TEST(TunedOneOrNone, CountsChangeOnTheDevice) {
  using T = typename TypeParam::type;
  for (Shape most : TestFixture::shapes({3000, 40, 700, 0, 17})) {
    most.query_lens.assign(most.lengths.size(), 1);
    const Sample<T> sample_of_most(most);
    Scene<Kokkos::Cuda, T> planned(sample_of_most, TestFixture::given(TestFixture::pages_of_16));
    planned.options().backend = "tuned";
    const auto plan           = planned.plan();
    for (unsigned seed = 0; seed < 4; ++seed) {
      const Shape shape = TestFixture::ragged(most, seed);
      const Sample<T> sample(shape);
      Scene<Kokkos::Cuda, T> scene(sample, TestFixture::given(TestFixture::pages_of_16));
      planned.set_query_lens(shape.query_lens);
      scene.decode(plan);
      EXPECT_TRUE(scene.right()) << describe(shape);
    }
  }
}

TYPED_TEST(TunedOneOrNone, RepeatsBitForBit) {
  for (const std::vector<int>& lengths : {std::vector<int>{3000, 40, 0, 700, 17}, {900, 900, 900}})
    for (const Shape& shape : TestFixture::shapes(lengths))
      TestFixture::expect_same_bits(TestFixture::ragged(shape, 1), TestFixture::given(TestFixture::pages_of_16));
}

// As Tuned.ProgrammaticLaunchesReadNothingTooEarly.
TYPED_TEST(TunedOneOrNone, ProgrammaticLaunchesReadNothingTooEarly) {
  for (const int first : {1, 33, 288})
    for (const bool sinks : {false, true}) {
      std::vector<int> lengths(16);
      std::iota(lengths.begin(), lengths.end(), first);
      Shape shape = TestFixture::taken(
          {.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 128, .sinks = sinks});
      shape = TestFixture::ragged(shape, 1);
      expect_right_with_late_tokens<typename TypeParam::type>(shape, TestFixture::given(TestFixture::pages_of_16),
                                                              {1, 2, 15, 16});
    }
}

TYPED_TEST(TunedOneOrNone, AreTheDefault) {
  using T = typename TypeParam::type;
  const Shape shape =
      TestFixture::taken({.lengths = {300, 20}, .num_q_heads = 8, .head_dim = 128, .query_lens = {1, 0}});
  const Sample<T> sample(shape);
  Scene<Kokkos::Cuda, T> scene(sample, TestFixture::given(TestFixture::pages_of_16));
  EXPECT_EQ(scene.plan().backend(), "tuned");
}

TYPED_TEST(TunedOneOrNone, Refusals) {
  using T = typename TypeParam::type;
  if (tuned::Device::current().sm < 90) GTEST_SKIP() << "needs sm_90";
  const Shape shape =
      TestFixture::taken({.lengths = {300, 20}, .num_q_heads = 8, .head_dim = 128, .query_lens = {1, 0}});
  const Sample<T> sample(shape);
  Scene<Kokkos::Cuda, T> scene(sample, TestFixture::given(TestFixture::pages_of_16));
  scene.options().backend   = "tuned";
  scene.options().exactness = Exactness::batch_invariant;
  expect_refusal([&] { scene.plan(); }, {"cu_seqlens_q, with an exactness other than fast"});
}

}  // namespace
}  // namespace pagoda::test

#endif
