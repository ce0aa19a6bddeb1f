// SPDX-License-Identifier: Apache-2.0
// Integer caches in the hand-tuned kernels: scales of every kind, and two kv heads at once.
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/tuned_suite.hpp"
#include "tests/support/environment.hpp"

#include <cmath>
#include <limits>
#include <random>

namespace pagoda::test {
namespace {

template <class Param>
struct TunedIntegers : Tuned<Param> {
  using Stored = typename Param::type;

  void SetUp() override {
    Tuned<Param>::SetUp();
    if (!is_integer_v<Stored>) GTEST_SKIP() << "not an integer type";
    if (tuned::Device::current().sm < 90) GTEST_SKIP() << "needs sm_90";
  }
  static Shape shape_of(std::vector<int> lengths, int group, int kv_heads, Scales k = Scales::per_token_and_head,
                        Scales v = Scales::per_token_and_head) {
    return {.lengths      = std::move(lengths),
            .num_q_heads  = group * kv_heads,
            .num_kv_heads = kv_heads,
            .head_dim     = 128,
            .q_type       = DType::fp16,
            .k_scales     = k,
            .v_scales     = v};
  }
  static void expect_tuned_right(const Sample<Stored>& sample, const Placement& placement = {}) {
    Scene<Kokkos::Cuda, Stored> scene(sample, placement);
    scene.options().backend = "tuned";
    scene.poison_outputs();
    scene.decode(scene.plan());
    EXPECT_TRUE(scene.right()) << describe(sample.shape()) << "; " << describe(placement);
  }
};
TYPED_TEST_SUITE(TunedIntegers, TunedTypes, Names);

TYPED_TEST(TunedIntegers, EveryKindOfScales) {
  using T                = typename TypeParam::type;
  constexpr Scales all[] = {Scales::per_tensor, Scales::per_head, Scales::per_token, Scales::per_token_and_head};
  for (const Scales k : all)
    for (const Scales v : all)
      for (const int group : {4, 7})
        TestFixture::expect_tuned_right(Sample<T>(TestFixture::shape_of({700, 20, 0}, group, 2, k, v)),
                                        {.layout = Layout::paged});
}

TYPED_TEST(TunedIntegers, OrdersOfCachesAndScales) {
  using T = typename TypeParam::type;
  const Sample<T> sample(TestFixture::shape_of({300, 0, 33, 299}, 3, 3));
  for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
    for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
      for (const KVOrder scales : {KVOrder::NHD, KVOrder::HND})
        TestFixture::expect_tuned_right(
            sample, {.layout = layout, .page_size = 48, .order = order, .scale_order = scales, .indirect = true});
}

// Problems so large that a warp reads two kv heads at once, if their rows are adjacent.
TYPED_TEST(TunedIntegers, TwoHeadsAtOnce) {
  using T = typename TypeParam::type;
  for (const int group : {1, 3, 4, 5})
    for (const Scales scales : {Scales::per_head, Scales::per_token_and_head}) {
      const Sample<T> sample(TestFixture::shape_of({8200, 8191, 0}, group, 8, scales, scales));
      for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
        TestFixture::expect_tuned_right(sample, {.layout = Layout::paged, .order = order});
    }
  // Uneven lengths: stream-K.
  TestFixture::expect_tuned_right(Sample<T>(TestFixture::shape_of({15000, 1, 17, 600}, 2, 8)), {.layout = Layout::csr});
}

// The token with the largest weight need not be the most probable one.
TYPED_TEST(TunedIntegers, ScalesOfValuesThatDifferWidely) {
  using T = typename TypeParam::type;
  for (const int group : {4, 8}) {
    Sample<T> sample(TestFixture::shape_of({500, 90}, group, 2));
    std::mt19937 random(3);
    std::uniform_real_distribution<float> exponent(-30, 10);
    for (int b = 0; b < 2; ++b)
      for (int t = 0; t < sample.shape().lengths[b]; ++t)
        for (int head = 0; head < 2; ++head) sample.value_scale(b, t, head) *= std::exp2(exponent(random));
    TestFixture::expect_tuned_right(sample);
  }
}

TYPED_TEST(TunedIntegers, QueriesOfAnyMagnitude) {
  using T = typename TypeParam::type;
  for (const int group : {4, 8})
    for (const double size : {0x1p-18, 0x1p-6, 0x1p10}) {
      Shape shape         = TestFixture::shape_of({300, 40}, group, 2);
      shape.softmax_scale = 0.1 / size;
      Sample<T> sample(shape);
      for (int b = 0; b < 2; ++b)
        for (int head = 0; head < 2 * group; ++head)
          for (int d = 0; d < 128; ++d) {
            double& q = sample.query(b, head)[d];
            q         = head == 1 ? 0 : static_cast<double>(static_cast<float>(half_t(static_cast<float>(q * size))));
          }
      TestFixture::expect_tuned_right(sample);
    }
}

// An infinite scale of a value leaves no numbers in the output of its rows, and does not change their log-sum-exps.
TYPED_TEST(TunedIntegers, InfiniteScalesOfValues) {
  using T = typename TypeParam::type;
  for (const int group : {2, 8}) {
    Sample<T> sample(TestFixture::shape_of({100, 60}, group, 2));
    sample.value_scale(0, 70, 1) = std::numeric_limits<float>::infinity();
    Scene<Kokkos::Cuda, T> scene(sample);
    scene.options().backend = "tuned";
    scene.decode(scene.plan());
    scene.results();
    const Sample<T> clean(sample.shape());
    for (int b = 0; b < 2; ++b)
      for (int head = 0; head < 2 * group; ++head) {
        EXPECT_NEAR(scene.lse().get({b, head}), clean.rows()[clean.row_of(b, head)].lse, 1e-4) << b << ", " << head;
        EXPECT_EQ(std::isfinite(scene.out().get({b, head, 5})), b == 1 || head < group) << b << ", " << head;
      }
  }
}

// Each is a problem of the generic kernel.
TYPED_TEST(TunedIntegers, Refusals) {
  using T                   = typename TypeParam::type;
  const auto expect_refused = [](const Shape& shape, const Placement& placement, Exactness exactness,
                                 const char* reason) {
    const Sample<T> sample(shape);
    Scene<Kokkos::Cuda, T> scene(sample, placement);
    scene.options().exactness = exactness;
    const Environment environment("PAGODA_BACKEND", "");
    EXPECT_EQ(scene.plan().backend(), "generic");
    scene.options().backend = "tuned";
    expect_refusal([&] { scene.plan(); }, {"does not support this problem: ", reason});
  };
  const Shape shape = TestFixture::shape_of({300, 20}, 4, 2);
  Shape one_or_none = shape, with_sinks = shape;
  one_or_none.query_lens = {1, 0};
  with_sinks.sinks       = true;
  expect_refused(shape, {.layout = Layout::paged, .page_size = 8}, Exactness::fast,
                 "page_size is not a multiple of 16, with an integer type");
  expect_refused(one_or_none, {.layout = Layout::paged, .ragged = true}, Exactness::fast,
                 "cu_seqlens_q, with an integer type");
  for (const Shape& exact : {shape, with_sinks})
    expect_refused(exact, {.layout = Layout::paged}, Exactness::batch_invariant,
                   "an exactness other than fast, with an integer type");
}

}  // namespace
}  // namespace pagoda::test

#endif
