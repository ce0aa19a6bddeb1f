// SPDX-License-Identifier: Apache-2.0
#include "tests/support/latent.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <string_view>

/// Latent caches (multi-head latent attention): one kv head of 576 dims, of which the first 512 are the value.
namespace pagoda::test {
namespace {

template <class Param>
struct Latent : testing::Test {
  using Space = typename Param::space;
  using T     = typename Param::type;

  /// Whether rows are read once for both products.
  static bool read_once() { return std::string_view(Space::name()) == "Cuda" && sizeof(T) == 2; }
};
TYPED_TEST_SUITE(Latent, SpacesAndTypes, Names);

TYPED_TEST(Latent, Heads) {
  for (const int heads : {1, 16, 20, 32, 64, 128}) {
    const Sample<typename TestFixture::T> sample(latent_shape(heads, {70, 1, 0, 33}));
    Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, {.layout = Layout::paged});
    const auto plan = scene.plan();
    EXPECT_EQ(plan.schedule().kernel.values_in_keys, TestFixture::read_once()) << plan.describe();
    scene.decode(plan);
    EXPECT_TRUE(scene.right()) << heads << " heads";
  }
}

// NaNs follow each sequence.
TYPED_TEST(Latent, LengthsAroundTilesAndPages) {
  const Sample<typename TestFixture::T> sample(
      latent_shape(16, {15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129}));
  std::vector<Placement> placements{{.layout = Layout::contiguous}, {.layout = Layout::csr, .page_size = 5}};
  for (const int page : {1, 16, 48, 64}) placements.push_back({.layout = Layout::paged, .page_size = page});
  expect_right<typename TestFixture::Space>(sample, placements);
}

// Split and joined; the long sequence joins groups of splits.
TYPED_TEST(Latent, UnevenBatches) {
  for (const int heads : {16, 40}) {
    const Sample<typename TestFixture::T> sample(latent_shape(heads, {3000, 40, 700, 0, 1}));
    Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, {.layout = Layout::paged});
    const auto plan = scene.plan();
    scene.decode(plan);
    EXPECT_GT(scene.cuts(plan).items, 5);
    EXPECT_TRUE(scene.right()) << heads << " heads";
  }
}

// More rows than teams: rows stay whole, and each team processes several.
TYPED_TEST(Latent, MoreRowsThanTeams) {
  const int batch = more_than_teams<typename TestFixture::Space>;
  for (const int heads : {1, 20})
    expect_right<typename TestFixture::Space, typename TestFixture::T>(latent_shape(heads, std::vector<int>(batch, 18)),
                                                                       {{.layout = Layout::paged}});
}

TYPED_TEST(Latent, SeveralQueryTokens) {
  for (const int heads : {6, 16}) {
    Shape shape      = latent_shape(heads, {90, 17, 3, 300});
    shape.query_lens = {4, 4, 4, 4};
    expect_right<typename TestFixture::Space, typename TestFixture::T>(
        shape, {{.layout = Layout::paged, .page_size = 64}, {.layout = Layout::contiguous, .ragged = true}});
    shape.query_lens = {5, 0, 2, 1};
    expect_right<typename TestFixture::Space, typename TestFixture::T>(shape, {{.layout = Layout::paged}});
  }
}

TYPED_TEST(Latent, ScoreOptions) {
  for (const int heads : {16, 24}) {
    Shape shape              = latent_shape(heads, {0, 400, 3, 64});
    shape.query_lens         = {1, 3, 2, 0};
    shape.window_left        = 90;
    shape.num_initial_tokens = 5;
    shape.logit_soft_cap     = 7;
    shape.alibi = shape.sinks = true;
    expect_right<typename TestFixture::Space, typename TestFixture::T>(
        shape, {{.layout = Layout::paged}, {.layout = Layout::csr, .page_size = 7, .indirect = true}});
  }
}

// A query of a wider type than the cache's keeps what rounding would lose.
TYPED_TEST(Latent, QueriesOfOtherTypes) {
  for (const int heads : {16, 20}) {
    for (const DType q : {DType::fp64, DType::fp32, DType::bf16}) {
      Shape shape  = latent_shape(heads, {100, 1});
      shape.q_type = q;
      expect_right<typename TestFixture::Space, typename TestFixture::T>(
          shape,
          {{.layout = Layout::paged, .out_type = DType::fp32}, {.layout = Layout::paged, .io = Strides::padded}});
    }
  }
}

TYPED_TEST(Latent, LargeScores) {
  Shape shape    = latent_shape(16, {300});
  shape.key_size = 30;
  expect_right<typename TestFixture::Space, typename TestFixture::T>(shape, {{.layout = Layout::paged}});
}

// Rows that cannot be read in vectors, and several latent heads.
TYPED_TEST(Latent, OtherLayouts) {
  Shape shape = latent_shape(32, {70, 33});
  expect_right<typename TestFixture::Space, typename TestFixture::T>(shape, {{.strides = Strides::padded}});
  shape.num_kv_heads = 2;
  expect_right<typename TestFixture::Space, typename TestFixture::T>(
      shape, {{.order = KVOrder::NHD}, {.layout = Layout::paged, .order = KVOrder::HND}});
}

// A plan that reads values from the keys must not be used for a cache with separate values.
TYPED_TEST(Latent, ValuesOfTheirOwn) {
  using Element      = typename TypeParam::type;
  using Where        = typename TypeParam::space;
  const Shape one    = latent_shape(16, {70, 33});
  Shape two          = one;
  two.values_in_keys = false;
  const Sample<Element> in_keys(one), apart(two);
  Scene<Where, Element> planned(in_keys, {.layout = Layout::paged}), other(apart, {.layout = Layout::paged});
  const auto plan = planned.plan(), right_plan = other.plan();
  EXPECT_FALSE(right_plan.schedule().kernel.values_in_keys);
  other.decode(right_plan);
  EXPECT_TRUE(other.right());
  if (TestFixture::read_once()) {
    expect_refusal([&] { other.decode(plan); }, {"pagoda::decode", "prefix of the keys", "plan"});
  } else {
    other.poison_outputs();
    other.decode(plan);
    EXPECT_TRUE(other.right());
  }
  // The reverse is allowed.
  planned.decode(right_plan);
  EXPECT_TRUE(planned.right());
}

}  // namespace
}  // namespace pagoda::test
