// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

/// Sensitivity of the tolerance: errors of one token are found.
namespace pagoda::test {
namespace {

template <class Param>
struct Sensitivity : testing::Test {};
TYPED_TEST_SUITE(Sensitivity, SpacesAndTypes, Names);

Shape one_row(int length) {
  return {
      .lengths = {length}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16, .seed = static_cast<unsigned>(length)};
}

/// Token t of one sample becomes token u of another.
template <class T>
void copy_token(Sample<T>& from, int t, Sample<T>& to, int u) {
  std::copy_n(from.key(0, t, 0), to.shape().head_dim, to.key(0, u, 0));
  std::copy_n(from.value(0, t, 0), to.head_dim_v(), to.value(0, u, 0));
}

/// One sequence without its token `gone`.
template <class T>
Sample<T> without(Sample<T>& full, int gone) {
  const int length = full.shape().lengths[0] - 1;
  Sample<T> less(one_row(length));
  std::copy_n(full.query(0, 0), full.shape().head_dim, less.query(0, 0));
  for (int t = 0; t < length; ++t) copy_token(full, t < gone ? t : t + 1, less, t);
  return less;
}

/// One sequence with an additional token, at `place`, whose key draws a probability of 0.1.
template <class T>
Sample<T> with_planted(Sample<T>& base, int place) {
  const Shape& shape = base.shape();
  Sample<T> more(one_row(shape.lengths[0] + 1));
  std::copy_n(base.query(0, 0), shape.head_dim, more.query(0, 0));
  for (int t = 0; t < shape.lengths[0]; ++t) copy_token(base, t, more, t < place ? t : t + 1);
  const double* const q = base.query(0, 0);
  const double score    = (base.rows()[0].lse + std::log(0.1 / 0.9)) / base.softmax_scale();
  const double along    = score / std::inner_product(q, q + shape.head_dim, q, 0.0);
  for (int d = 0; d < shape.head_dim; ++d) {
    more.key(0, place, 0)[d]   = to_element<T>(along * q[d]);
    more.value(0, place, 0)[d] = to_element<T>(d % 2 == 0 ? 1 : -1);
  }
  return more;
}

/// Decodes `given` and says how far its output is from the reference's for `wanted`, in tolerances.
template <class Space, class T>
double distance(const Sample<T>& given, const Sample<T>& wanted, const Placement& placement = {}) {
  Scene<Space, T> scene(given, placement);
  scene.decode(scene.plan());
  static_cast<void>(scene.right(wanted));
  return scene.worst();
}

// With N(0, 1) data the median token changes the output by 1 / (e sqrt(length)) of its norm.
TYPED_TEST(Sensitivity, LosingTheMedianTokenShows) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  int shown   = 0;
  DType probability{};
  for (const int length : {4, 32, 256, 1024, 16384}) {
    Sample<T> full(one_row(length));
    const reference::Row& row = full.rows()[0];
    std::vector<int> tokens(length);
    std::iota(tokens.begin(), tokens.end(), 0);
    std::nth_element(tokens.begin(), tokens.begin() + length / 2, tokens.end(),
                     [&](int a, int b) { return row.probabilities[a] < row.probabilities[b]; });
    const Sample<T> less = without(full, tokens[length / 2]);

    double effect = 0;
    for (int d = 0; d < full.head_dim_v(); ++d) effect += std::pow(less.rows()[0].out[d] - row.out[d], 2);
    const DType arithmetic = dtype_v<accumulator_t<T>>;
    Scene<Space, T> scene(full);
    scene.decode(scene.plan());
    probability       = scene.probability_type();
    effect            = std::sqrt(effect) / row.norm / reference::tolerance(row, probability, dtype_v<T>, arithmetic);
    const double seen = distance<Space>(less, full);
    EXPECT_NEAR(seen, effect, 1) << length << " tokens: the decode without the token is not what it should be";
    if (effect > 2) {
      EXPECT_GT(seen, 1) << length << " tokens";
      ++shown;
    }
    EXPECT_LE(distance<Space>(full, full), 1) << length << " tokens";
  }
  // Coarser types of outputs and probabilities hide the effect sooner.
  const int coarse = probability == dtype_v<accumulator_t<T>> ? 0 : 1;
  EXPECT_GE(shown, dtype_v<T> == DType::bf16 ? 1 : dtype_v<T> == DType::fp16 ? 4 - coarse : 5);
}

// At the first and last token and on both sides of each edge of pages, tiles and splits. The order of tokens does not
// matter to a query that sees all of them, so one decode without the planted key represents its loss anywhere.
TYPED_TEST(Sensitivity, LosingAPlantedKeyShowsAnywhere) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int length : {2, 17, 65, 1000, 5000}) {
    const int page = length == 1000 ? 48 : 16;
    const Placement placement{.layout = Layout::paged, .page_size = page};
    Sample<T> base(one_row(length - 1));
    std::set<int> places{0, length - 1};
    for (const int step : {page, 32, 64}) {
      const int stride = length > 1000 ? 256 : step;  // for long sequences, the edges of splits
      for (int edge = stride; edge < length; edge += stride) places.insert({edge - 1, edge});
    }
    for (const int place : places) {
      const Sample<T> planted = with_planted(base, place);
      EXPECT_NEAR(planted.rows()[0].probabilities[place], 0.1, 0.03);
      if (place == 0) {
        EXPECT_GT(distance<Space>(base, planted, placement), 4) << length << " tokens";
      }
      EXPECT_LE(distance<Space>(planted, planted, placement), 1) << "key " << place << " of " << length;
    }
  }
}

// A length that is off by one loses the newest token.
TYPED_TEST(Sensitivity, LosingTheNewestTokenShows) {
  using T = typename TypeParam::type;
  for (const int length : {2, 17, 65, 1000}) {
    Sample<T> base(one_row(length - 1));
    const Sample<T> planted = with_planted(base, length - 1);
    Scene<typename TypeParam::space, T> scene(planted);
    const auto plan = scene.plan();
    scene.set_lengths({length - 1});
    scene.decode(plan);
    EXPECT_FALSE(scene.right());
    EXPECT_GT(scene.worst(), 4);
  }
}

}  // namespace
}  // namespace pagoda::test
