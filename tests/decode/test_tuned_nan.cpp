// SPDX-License-Identifier: Apache-2.0
// NaNs in visible keys and values: the rows that see them are NaN, and all others do not change.
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/decode/tuned_suite.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

namespace pagoda::test {
namespace {

/// A NaN of every kind: quiet and signalling, of both signs, with all mantissa bits set and with one.
template <class T>
auto nan_patterns() {
  using Bits                  = std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                                   std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>;
  constexpr DType type        = dtype_v<T>;
  constexpr int mantissa      = type == DType::fp32       ? 23
                                : type == DType::fp16     ? 10
                                : type == DType::bf16     ? 7
                                : type == DType::fp8_e5m2 ? 2
                                                          : 3;
  constexpr std::uint32_t all = (1u << mantissa) - 1, sign = 1u << (8 * sizeof(T) - 1), exponent = sign - 1 - all;
  std::vector<Bits> patterns;
  for (const std::uint32_t s : {0u, sign})
    for (const std::uint32_t m : {all, 1u << (mantissa - 1), 1u})
      if (type != DType::fp8_e4m3 || m == all)  // e4m3 has no other NaNs
        patterns.push_back(static_cast<Bits>(s | exponent | m));
  return patterns;
}

/// A NaN in dim `dim` of a token's key or value; in its scale, and so in all dims, if the type has no NaN.
struct Plant {
  int b, t, head, dim;
  bool in_value;
};

/// NaNs in three of four sequences, alternately in keys and values: at the first and last tokens, in the middle, and
/// where the last tile begins. round: selects the positions, and the head that begins with a value.
std::vector<Plant> plants_of(const Shape& shape, int round) {
  std::vector<Plant> plants;
  const int dims = shape.head_dim_v > 0 ? shape.head_dim_v : shape.head_dim;
  for (int b = 0, i = round; b < static_cast<int>(shape.lengths.size()); ++b) {
    const int len = shape.lengths[b];
    if (len == 0 || b % 4 == 3) continue;
    for (int head = 0; head < shape.num_kv_heads; ++head, ++i) {
      const std::array tokens{len - 1, 0, len / 2, (len - 1) / 64 * 64, std::max(len - 2, 0), std::max(len - 3, 0)};
      const std::array dim{0, dims - 1, 37, 6};
      plants.push_back({b, tokens[i % tokens.size()], head, dim[i % dim.size()],
                        !shape.values_in_keys && (b + head + round) % 2 == 0});
    }
  }
  return plants;
}

template <class T>
constexpr bool has_nan = facts_of(dtype_v<T>).has_nan;

template <class T>
void plant(Sample<T>& sample, const std::vector<Plant>& plants) {
  for (std::size_t i = 0; i < plants.size(); ++i) {
    const Plant& p = plants[i];
    if constexpr (has_nan<T>) {
      const auto patterns = nan_patterns<T>();
      T* const row        = p.in_value ? sample.value(p.b, p.t, p.head) : sample.key(p.b, p.t, p.head);
      std::memcpy(row + p.dim, &patterns[i % patterns.size()], sizeof(T));
    } else {
      auto& scale = p.in_value ? sample.value_scale(p.b, p.t, p.head) : sample.key_scale(p.b, p.t, p.head);
      scale       = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

/// Decodes a sample with planted NaNs, and the same sample without. Rows that see a NaN key are NaN, log-sum-exps too;
/// rows that see a NaN value are NaN in its dim. Everything else is as in the other sample: to the last bit, unless
/// another row of the same kv head is NaN, which may change when maxima are raised.
template <class T>
void expect_nans_where_seen(const Shape& shape, const Placement& placement, const std::vector<Plant>& plants) {
  const Sample<T> clean(shape);
  Sample<T> planted(shape);
  plant(planted, plants);
  Scene<Kokkos::Cuda, T> scene(planted, placement), other(clean, placement);
  scene.options().backend = other.options().backend = "tuned";
  const auto plan = scene.plan(), plan_of_other = other.plan();
  scene.decode(plan), other.decode(plan_of_other);
  ASSERT_TRUE(other.right()) << describe(shape) << "; " << describe(placement);
  scene.results();

  int wrong = 0;
  std::ostringstream report;
  const auto expect = [&](bool ok, int b, int token, int head, const auto&... text) {
    if (ok || ++wrong > 5) return;
    report << "\n  batch entry " << b << " (" << shape.lengths[b] << " tokens), query token " << token << ", head "
           << head << ": ";
    (report << ... << text);
  };
  const double rounding = unit_roundoff(is_quantized_v<T> ? DType::fp16 : dtype_v<T>);
  for (int token = 0; token < clean.query_tokens(); ++token) {
    for (int head = 0; head < shape.num_q_heads; ++head) {
      const int b = clean.entry_of(token), i = token - clean.query_begin(b);
      const int newest = shape.causal ? shape.lengths[b] - clean.query_len(b) + i : shape.lengths[b] - 1;
      bool nan_row = false, near = false;
      std::vector<bool> nan_dim(clean.head_dim_v(), false);
      for (const Plant& p : plants) {
        if (p.b != b || p.head != head / clean.group()) continue;
        near |= !p.in_value || !has_nan<T>;  // scales of values change maxima, too
        if (p.t > newest) continue;
        if (p.in_value) {
          if (has_nan<T>) nan_dim[p.dim] = true;
          if (!has_nan<T>) nan_dim.assign(nan_dim.size(), true);
        } else {
          nan_row = true;
        }
      }
      double largest = 0;
      for (int d = 0; d < clean.head_dim_v(); ++d)
        largest = std::max(largest, std::abs(other.out().get({token, head, d})));
      const double allowed = near ? 16 * rounding * largest : 0;
      for (int d = 0; d < clean.head_dim_v(); ++d) {
        const double got = scene.out().get({token, head, d}), right = other.out().get({token, head, d});
        const bool ok = nan_row || nan_dim[d] ? std::isnan(got) : std::abs(got - right) <= allowed;
        expect(ok, b, i, head, "out(", d, ") is ", got, ", ", right, " without NaNs");
      }
      const double got = scene.lse().get({token, head}), right = other.lse().get({token, head});
      const bool same = got == right || (near && std::abs(got - right) <= 1e-5 * std::max(1.0, std::abs(right)));
      expect(nan_row ? std::isnan(got) : same, b, i, head, "lse is ", got, ", ", right, " without NaNs");
    }
  }
  EXPECT_EQ(wrong, 0) << describe(shape) << "; " << describe(placement) << report.str();
}

/// All plants of a shape, in both rounds.
template <class T>
void expect_nans_where_seen(const Shape& shape, const Placement& placement) {
  for (int round = 0; round < 2; ++round) expect_nans_where_seen<T>(shape, placement, plants_of(shape, round));
}

/// Split rows, whole rows, and a batch that is divided as one stream.
const std::vector<std::vector<int>>& lengths_of_all_kinds() {
  static const std::vector<std::vector<int>> all{
      {700, 690, 700, 690, 0, 700, 660}, std::vector<int>(70, 70), {3000, 40, 0, 1, 700, 17, 300, 2, 64, 65}};
  return all;
}

template <class Param>
struct TunedNaN : Tuned<Param> {};
TYPED_TEST_SUITE(TunedNaN, TunedTypes, Names);

TYPED_TEST(TunedNaN, ComesOutWhereItIsSeen) {
  using T = typename TypeParam::type;
  for (const std::vector<int>& lengths : lengths_of_all_kinds())
    for (const int head_dim : {64, 128})
      for (const int group : {1, 4, 7})
        expect_nans_where_seen<T>(
            TestFixture::taken({.lengths = lengths, .num_q_heads = 2 * group, .num_kv_heads = 2, .head_dim = head_dim}),
            {.layout = Layout::paged});
}

// Maxima rise from tile to tile, before and after the NaN.
TYPED_TEST(TunedNaN, LargeScores) {
  using T        = typename TypeParam::type;
  Shape shape    = TestFixture::taken({.lengths = {3000, 300}, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 128});
  shape.key_size = 30;
  expect_nans_where_seen<T>(shape, {.layout = Layout::paged});
}

// The scale of a head is NaN: rows of that head that see tokens are NaN.
TYPED_TEST(TunedNaN, Scales) {
  using T = typename TypeParam::type;
  if constexpr (is_quantized_v<T>) {
    Shape shape    = TestFixture::taken({.lengths = {300, 0, 40}, .num_q_heads = 8, .head_dim = 128});
    shape.k_scales = shape.v_scales = Scales::per_head;
    const Sample<T> clean(shape);
    for (const bool of_values : {false, true}) {
      Sample<T> sample(shape);
      (of_values ? sample.value_scale(0, 0, 1) : sample.key_scale(0, 0, 1)) = std::numeric_limits<float>::quiet_NaN();
      Scene<Kokkos::Cuda, T> scene(sample);
      scene.options().backend = "tuned";
      scene.decode(scene.plan());
      scene.results();
      for (int b = 0; b < 3; ++b)
        for (int head = 0; head < 8; ++head) {
          const bool nan   = head >= 4 && shape.lengths[b] > 0;
          const double lse = scene.lse().get({b, head}), right = clean.rows()[clean.row_of(b, head)].lse;
          if (nan && !of_values) {
            EXPECT_TRUE(std::isnan(lse)) << b << ", " << head << ": " << lse;
          } else {
            EXPECT_TRUE(lse == right || std::abs(lse - right) < 1e-3) << b << ", " << head << ": " << lse;
          }
          const double out = scene.out().get({b, head, 5});
          EXPECT_EQ(std::isnan(out), nan) << b << ", " << head;
          if (shape.lengths[b] == 0) EXPECT_EQ(out, 0) << head;
        }
    }
  }
}

template <class Param>
struct TunedManyNaN : TunedMany<Param> {};
TYPED_TEST_SUITE(TunedManyNaN, TunedTypes, Names);

TYPED_TEST(TunedManyNaN, ComesOutWhereItIsSeen) {
  using T = typename TypeParam::type;
  for (const std::vector<int>& lengths : lengths_of_all_kinds())
    for (const Shape& shape : TestFixture::shapes(lengths)) expect_nans_where_seen<T>(shape, TestFixture::pages_of_64);
}

TYPED_TEST(TunedManyNaN, LargeScores) {
  using T = typename TypeParam::type;
  for (Shape shape : TestFixture::shapes({3000, 300})) {
    shape.key_size = 30;
    expect_nans_where_seen<T>(shape, TestFixture::pages_of_64);
  }
}

/// A NaN in every KV head of each sequence that has `back` tokens or more, in token `back` from its end (1: the
/// newest).
std::vector<Plant> plants_from_the_end(const Shape& shape, int back) {
  std::vector<Plant> plants;
  for (int b = 0; b < static_cast<int>(shape.lengths.size()); ++b)
    for (int head = 0; head < shape.num_kv_heads; ++head)
      if (shape.lengths[b] >= back)
        plants.push_back({b, shape.lengths[b] - back, head, (17 * b + 8 * head) % shape.head_dim,
                          !shape.values_in_keys && head == 0});
  return plants;
}

// With several query tokens, the earlier ones do not see the newest tokens, in the last tile or in the last two: the
// NaN is at each of these tokens in turn, in every layout.
TYPED_TEST(TunedManyNaN, NewerTokensDoNotReachEarlierQueries) {
  using T = typename TypeParam::type;
  for (const bool causal : {true, false})
    for (const int count : {2, 4, 16, 50})  // 50: in several passes
      for (const std::vector<int>& lengths : {std::vector<int>{300, 64, 65, 67, 130, 3, 129}, {700}}) {
        const Shape grouped{.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
        Shape small    = grouped;
        small.head_dim = 64;
        for (const Shape& of_one : {grouped, small, latent_shape(8, lengths)}) {
          const Shape shape = TestFixture::of_tokens(of_one, count, causal);
          for (const int back : {1, 2, count, count + 1}) {
            const int page_size = count == 2 ? 8 : count == 4 ? 1 : 64;
            expect_nans_where_seen<T>(shape,
                                      {.layout = back % 2 ? Layout::paged : Layout::contiguous, .page_size = page_size},
                                      plants_from_the_end(shape, back));
          }
        }
      }
}

// The same where entries have different numbers of query tokens: which tokens are hidden is a matter of each entry.
TYPED_TEST(TunedManyNaN, NewerTokensDoNotReachEarlierQueriesOfRaggedEntries) {
  using T = typename TypeParam::type;
  const std::vector<int> lengths{300, 64, 65, 67, 130, 3, 129};
  const Shape grouped{.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  Shape small    = grouped;
  small.head_dim = 64;
  for (const Shape& of_one : {grouped, small, latent_shape(8, lengths)})
    for (const bool causal : {true, false})
      for (const int back : {1, 2, 3, 8, 9}) {
        Shape shape      = of_one;
        shape.query_lens = {1, 8, 2, back == 9 ? 60 : 16, 0, 4, 9}, shape.causal = causal;
        expect_nans_where_seen<T>(shape, {.layout = back % 2 ? Layout::paged : Layout::contiguous, .page_size = 64},
                                  plants_from_the_end(shape, back));
      }
}

}  // namespace
}  // namespace pagoda::test

#endif
