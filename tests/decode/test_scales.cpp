// SPDX-License-Identifier: Apache-2.0
#include "tests/decode/distance.hpp"
#include "tests/decode/quantized_caches.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <cmath>
#include <string>
#include <utility>

/// Float scales of fp8, int8 and int4 caches: per tensor, per head, and per token and head.
namespace pagoda::test {
namespace {

template <class Param>
struct FloatScales : testing::Test {};
TYPED_TEST_SUITE(FloatScales, SpacesAndFloatScaledTypes, Names);

constexpr Scales all_scales[] = {Scales::none, Scales::per_tensor, Scales::per_head, Scales::per_token_and_head};

template <class T>
constexpr bool must_have_scales = facts_of(dtype_v<T>).scales == ScaleUse::required;

// A scale that no token uses may be NaN: rows that see no token are 0, with a sink too.
TYPED_TEST(FloatScales, ScalesThatNoTokenUses) {
  using T = typename TypeParam::type;
  for (const Scales scales : {Scales::per_tensor, Scales::per_head})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {0, 0}, .head_dim = 32, .sinks = true, .k_scales = scales, .v_scales = scales},
        {{}, {.strides = Strides::left}});
}

TYPED_TEST(FloatScales, EveryKindOfScales) {
  using T = typename TypeParam::type;
  for (const Scales k : all_scales) {
    for (const Scales v : all_scales) {
      if (must_have_scales<T> && (k == Scales::none || v == Scales::none)) continue;
      for (const int dim : {50, 64})
        expect_right<typename TypeParam::space, T>(
            {.lengths = {700, 20, 0}, .num_q_heads = 8, .head_dim = dim, .k_scales = k, .v_scales = v},
            {{}, {.layout = Layout::paged, .strides = Strides::padded}});
    }
  }
}

// Keys, queries and values may have any magnitude if scores are moderate.
TYPED_TEST(FloatScales, TinyAndLargeScales) {
  using T = typename TypeParam::type;
  for (const Scales scales : {Scales::per_tensor, Scales::per_head, Scales::per_token_and_head})
    for (const double keys : {1e-6, 1e4})
      for (const double values : {1e-6, 1e4})
        expect_right<typename TypeParam::space, T>({.lengths       = {600, 33},
                                                    .num_q_heads   = 8,
                                                    .softmax_scale = 1 / (8 * keys),
                                                    .key_size      = keys,
                                                    .k_scales      = scales,
                                                    .v_scales      = scales,
                                                    .value_size    = values});
}

// ---- sensitivity: the tests find a lost scale

/// A token whose score is neither large nor nearly 0, as a score of 0 does not depend on the scale.
template <class T>
int token_with_a_score(const Sample<T>& sample) {
  const auto tokens = static_cast<double>(sample.rows()[0].probabilities.size());
  return median_token(sample, [&](double p) { return std::abs(std::log(p * tokens)); });
}

/// The token whose scales differ most from those of token t. A swap with similar scales would not be found.
template <class T>
int unlike_token(const Sample<T>& sample, int length, int t) {
  int found   = t;
  double most = 0;
  for (int u = 0; u < length; ++u) {
    const double keys   = std::abs(std::log(sample.key_scale(0, u, 0) / sample.key_scale(0, t, 0)));
    const double values = std::abs(std::log(sample.value_scale(0, u, 0) / sample.value_scale(0, t, 0)));
    if (std::min(keys, values) > most) most = std::min(keys, values), found = u;
  }
  return found;
}

TYPED_TEST(FloatScales, OneForgottenOrSwappedScaleShows) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int length : {4, 32, 256, 1024}) {
    if (coarse<Space> && length > 4) continue;
    const Sample<T> right(one_row(length));
    EXPECT_LE((distance<Space, T>(right, right)), 1) << length << " tokens";
    const int t = token_with_a_score(right), other = unlike_token(right, length, t);
    ASSERT_NE(other, t);
    const auto shows = [&](const char* what, const auto& change) {
      Sample<T> wrong(one_row(length));
      change(wrong);
      EXPECT_GT((distance<Space, T>(wrong, right)), 2) << what << " of " << length << " tokens";
    };
    shows("a key's scale forgotten", [&](auto& s) { s.key_scale(0, t, 0) = s.key_scale(0, other, 0); });
    shows("a value's scale forgotten", [&](auto& s) { s.value_scale(0, t, 0) = s.value_scale(0, other, 0); });
    shows("two keys' scales swapped", [&](auto& s) { std::swap(s.key_scale(0, t, 0), s.key_scale(0, other, 0)); });
    shows("two values' scales swapped",
          [&](auto& s) { std::swap(s.value_scale(0, t, 0), s.value_scale(0, other, 0)); });
    shows("keys' scales off by a token", [&](auto& s) {
      for (int u = 0; u < length; ++u) s.key_scale(0, u, 0) = right.key_scale(0, (u + 1) % length, 0);
    });
    shows("a token dropped", [&](auto& s) { s.key_scale(0, t, 0) = 0, s.value_scale(0, t, 0) = 0; });
  }
}

TYPED_TEST(FloatScales, AnotherHeadsScaleShows) {
  using T = typename TypeParam::type;
  Shape shape{.lengths = {300}, .num_q_heads = 6, .num_kv_heads = 3};
  for (const Scales scales : {Scales::per_head, Scales::per_token_and_head}) {
    shape.k_scales = shape.v_scales = scales;
    const Sample<T> right(shape);
    Sample<T> keys(shape), values(shape);
    for (int t = 0; t < (scales == Scales::per_head ? 1 : 300); ++t) {
      std::swap(keys.key_scale(0, t, 0), keys.key_scale(0, t, 2));
      std::swap(values.value_scale(0, t, 0), values.value_scale(0, t, 2));
    }
    // The keys' scales matter less, as probabilities are similar.
    constexpr bool wide_tolerance = coarse<typename TypeParam::space>;
    EXPECT_GT((distance<typename TypeParam::space, T>(keys, right)), wide_tolerance ? 1 : 100);
    EXPECT_GT((distance<typename TypeParam::space, T>(values, right)), wide_tolerance ? 10 : 100);
  }
}

// ---- refused arguments

template <class Param>
struct FloatScalesErrors : QuantizedCaches<Param> {};
TYPED_TEST_SUITE(FloatScalesErrors, SpacesAndFloatScaledTypes, Names);

TYPED_TEST(FloatScalesErrors, ScalesOfAnotherShape) {
  const auto kv      = this->cache(32);
  const auto refuses = [&](const auto& k, const auto& v, std::initializer_list<const char*> words) {
    expect_refusal([&] { static_cast<void>(kv.with_scales({detail::as_scale_view(k), detail::as_scale_view(v)})); },
                   words);
  };
  const auto right = this->floats(2, 20, 4);
  EXPECT_NO_THROW(static_cast<void>(kv.with_scales(per_token_and_head_scales(right, right))));
  refuses(this->floats(3), right, {"pagoda::ContiguousKV::with_scales", "axis 2 of scales.k", "extent 3", "1", "4"});
  refuses(right, this->floats(5), {"axis 2 of scales.v", "extent 5", "4"});
  refuses(this->floats(2, 19, 4), right, {"axis 1 of scales.k", "extent 19", "20"});
  refuses(right, this->floats(3, 20, 4), {"axis 0 of scales.v", "extent 3", "2"});
  // One page of scales for all; one head; one token.
  for (const auto& some : {this->floats(1, 20, 4), this->floats(2, 20, 1), this->floats(2, 1, 4)})
    EXPECT_NO_THROW(static_cast<void>(kv.with_scales(per_token_and_head_scales(some, right))));
}

TYPED_TEST(FloatScalesErrors, IntegersWithoutScales) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const DecodeOptions<typename Space::memory_space> options{.num_q_heads = 4};
  const auto bare = this->cache(32), only_keys = bare.with_scales({detail::as_scale_view(this->floats(4)), {}});
  if constexpr (must_have_scales<T>) {
    expect_refusal([&] { pagoda::plan(Space(), bare, options); },
                   {"pagoda::plan", "k has elements of", name_of(dtype_v<T>), "no scales", "with_scales"});
    expect_refusal([&] { pagoda::plan(Space(), only_keys, options); },
                   {"pagoda::plan", "v has elements of", "no scales"});
    const auto plan = pagoda::plan(Space(), this->scaled(32), options);
    const typename TestFixture::template RowsOf<float> q("q", 2, 4, 32), out("out", 2, 4, 32);
    expect_refusal([&] { pagoda::decode(Space(), plan, q, bare, out); }, {"pagoda::decode", "k has", "no scales"});
  } else {
    EXPECT_NO_THROW(pagoda::plan(Space(), bare, options));
    EXPECT_NO_THROW(pagoda::plan(Space(), only_keys, options));
  }
}

// Scales of a cache whose type has none, and strides beyond a kernel's limit. Views cannot express this, but other
// callers of the type-erased interface can.
TYPED_TEST(FloatScalesErrors, AtTheErasedBoundary) {
  CacheRef kv          = this->scaled(32).ref();
  kv.v_scale.stride[1] = std::int64_t(1) << 32;
  this->expect_plan_refused(kv, {"the scales of v", "stride of 4294967296", "2^32 - 1"});
  kv        = this->scaled(32).ref();
  kv.k.type = kv.v.type = dtype_v<AnyType>;
  this->expect_plan_refused(kv, {"k has scales", name_of(dtype_v<AnyType>), "fp8_e4m3"});
}

}  // namespace
}  // namespace pagoda::test
