// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

namespace pagoda::test {
namespace {

template <class Param>
struct Plans : testing::Test {};
TYPED_TEST_SUITE(Plans, SpacesAndTypes, Names);

TYPED_TEST(Plans, FewLongRowsAreCut) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {5000}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16});
  Scene<typename TypeParam::space, T> scene(sample);
  const auto plan = scene.plan();
  scene.decode(plan);
  EXPECT_EQ(scene.cuts(plan).merges, 1);
  EXPECT_GT(scene.cuts(plan).items, 1);
  EXPECT_TRUE(scene.right());
}

// No machine makes splits this short.
TYPED_TEST(Plans, ManyShortRowsAreWhole) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = std::vector<int>(200, 40), .num_q_heads = 16, .num_kv_heads = 8, .head_dim = 16});
  Scene<typename TypeParam::space, T> scene(sample);
  const auto plan = scene.plan();
  scene.decode(plan);
  EXPECT_EQ(scene.cuts(plan).merges, 0);
  EXPECT_EQ(scene.cuts(plan).items, 200 * 8);
  EXPECT_TRUE(scene.right());
}

// The contents that a decode leaves in the workspace must not change the next one, whatever its lengths. The host does
// not know the lengths.
TYPED_TEST(Plans, LengthsChangeOnTheDevice) {
  using T                                   = typename TypeParam::type;
  const std::vector<std::vector<int>> steps = {{3000, 40, 700}, {1, 0, 3}, {2900, 40, 699}, {0, 0, 0}, {64, 40, 700}};
  for (const Layout layout : {Layout::contiguous, Layout::paged}) {
    const Sample<T> longest({.lengths = steps[0], .head_dim = 16});
    Scene<typename TypeParam::space, T> scene(longest, {.layout = layout});
    const auto plan = scene.plan();
    for (const auto& lengths : steps) {
      SCOPED_TRACE(describe(Shape{.lengths = lengths}));
      scene.set_lengths(lengths);
      scene.poison_outputs();
      scene.decode(plan);
      EXPECT_TRUE(scene.right(Sample<T>({.lengths = lengths, .head_dim = 16})));
    }
  }
}

TYPED_TEST(Plans, TablesChangeOnTheDevice) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {300, 40, 0, 16}, .head_dim = 16});
  for (const Layout layout : {Layout::paged, Layout::csr}) {
    Scene<typename TypeParam::space, T> scene(sample, {.layout = layout});
    const auto plan = scene.plan();
    for (const unsigned seed : {1, 2, 3}) {
      scene.shuffle_pages(seed);
      scene.poison_outputs();
      scene.decode(plan);
      EXPECT_TRUE(scene.right());
    }
  }
}

TYPED_TEST(Plans, SmallerBatchesThanPlanned) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> large({.lengths = {30, 700, 0, 200, 5, 6, 7}, .head_dim = 32});
  Scene<Space, T> planned(large);
  const auto plan = planned.plan();
  for (const std::vector<int>& lengths : {std::vector<int>{5000}, {3, 2000}, {1, 1, 1, 0, 1, 1, 1}}) {
    const Sample<T> small({.lengths = lengths, .head_dim = 32});
    Scene<Space, T> scene(small);
    scene.decode(plan);
    EXPECT_TRUE(scene.right()) << describe(small.shape());
  }
  planned.decode(plan);
  EXPECT_TRUE(planned.right());
}

// A plan depends on the shape of a cache, not on its address: one plan serves all layers of a model, or another layout.
TYPED_TEST(Plans, OtherCachesOfTheSameShape) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {30, 700, 0}, .head_dim = 32});
  Scene<Space, T> planned(sample);
  const auto plan = planned.plan();
  for (const Placement& placement :
       {Placement{}, Placement{.layout = Layout::paged}, Placement{.layout = Layout::csr, .page_size = 5}}) {
    Scene<Space, T> scene(sample, placement);
    scene.decode(plan);
    EXPECT_TRUE(scene.right()) << describe(placement);
  }
}

// max_seq_len tunes, and never truncates: the workspace must be large enough for the splits of any lengths. (Coarse
// outputs: the longer splits of an untuned plan may round a little more.)
TYPED_TEST(Plans, LongerThanPlanned) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {17000, 40}, .num_q_heads = 16, .num_kv_heads = 16, .head_dim = 16});
  Scene<typename TypeParam::space, T> scene(sample, {.out_type = DType::bf16});
  scene.options().max_seq_len = 16;
  scene.decode(scene.plan());
  EXPECT_TRUE(scene.right());
}

// A small max_seq_len keeps rows whole (K2 of bench/study relies on it).
TYPED_TEST(Plans, RowsToldToBeShortStayWhole) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = std::vector<int>(4, 3000), .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16});
  Scene<typename TypeParam::space, T> scene(sample, {.out_type = DType::bf16});
  scene.options().max_seq_len = 1;
  const auto plan             = scene.plan();
  scene.decode(plan);
  EXPECT_EQ(scene.cuts(plan).merges, 0);
  EXPECT_EQ(scene.cuts(plan).items, 4);
  EXPECT_TRUE(scene.right());
}

// Same numbers in, same bits out: splits are joined in their order, whichever team processes them.
TYPED_TEST(Plans, RepeatsBitForBit) {
  using T = typename TypeParam::type;
  const Sample<T> sample(
      {.lengths = {3000, 40, 0, 700, 17}, .num_q_heads = 8, .head_dim = 32, .query_lens = {2, 2, 2, 2, 2}});
  Scene<typename TypeParam::space, T> scene(sample, {.layout = Layout::paged});
  const auto plan = scene.plan(), other = scene.plan();
  scene.decode(plan);
  EXPECT_TRUE(scene.right());
  const auto first = scene.results();
  for (int i = 0; i < 20; ++i) {
    scene.poison_outputs();
    scene.decode(i % 2 == 0 ? plan : other);
    ASSERT_EQ(scene.results(), first) << "call " << i;
  }
}

// A move of a plan is a copy: a plan is never without memory.
TYPED_TEST(Plans, DecodesAfterItWasMoved) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {100}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64});
  Scene<typename TypeParam::space, T> scene(sample);
  auto plan        = scene.plan();
  const auto other = std::move(plan);
  scene.decode(plan);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(scene.right());
  EXPECT_EQ(other.workspace().data(), plan.workspace().data());
}

TYPED_TEST(Plans, BringsItsOwnWorkspace) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {3000, 40}, .head_dim = 32});
  Scene<Space, T> scene(sample);
  const Plan<Space> plan =
      std::visit([&](const auto& kv) { return pagoda::plan(scene.exec(), kv, scene.options()); }, scene.cache());
  EXPECT_EQ(plan.workspace().extent(0), plan.workspace_bytes());
  const Plan<Space> copy = plan;
  EXPECT_EQ(copy.workspace().data(), plan.workspace().data());
  scene.decode(copy);
  EXPECT_TRUE(scene.right());
}

TYPED_TEST(Plans, SaysWhatItIs) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {40}, .num_q_heads = 6, .num_kv_heads = 3, .head_dim = 48});
  Scene<typename TypeParam::space, T> scene(sample);
  const auto plan = scene.plan();
  EXPECT_FALSE(plan.backend().empty());
  for (const std::string& part : {std::string(name_of(dtype_v<T>)), std::string("6/3"), std::string("48"),
                                  std::to_string(plan.workspace_bytes())})
    EXPECT_NE(plan.describe().find(part), std::string::npos) << plan.describe() << " lacks " << part;
}

}  // namespace
}  // namespace pagoda::test
