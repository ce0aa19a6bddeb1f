// SPDX-License-Identifier: Apache-2.0
#include "tests/host/isas.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

/// ManyRowsFragment: decodes of more than 8 query rows, in each instruction set.
namespace pagoda::test {
namespace {

template <class Param>
struct ManyRows : Isa<Param> {
  using T = typename Param::type;
  /// Other fragments multiply bfloat16 by tile registers, and integers as bytes.
  static constexpr bool has_fragment =
      !std::is_same_v<T, double> && !(detail::has_bf16_code<T> && Param::isa == HostIsa::amx) &&
      !((std::is_same_v<T, std::int8_t> || std::is_same_v<T, int4x2_t>) && Param::isa == HostIsa::avx512_bf16);

  void SetUp() override {
    if (!has_fragment) GTEST_SKIP() << "this type has other fragments in this instruction set";
    Isa<Param>::SetUp();
  }
  static void expect_right(const Sample<T>& sample, const Placement& placement) {
    expect_right_in<Param>(sample, placement, ": 128 query rows an item");
  }
  static void expect_right(const Shape& shape, const Placement& placement) {
    expect_right(Sample<T>(shape), placement);
  }
};
TYPED_TEST_SUITE(ManyRows, IsaTypes, IsaNames);

/// Blocks of 12, 6, 4 and 2 rows, and one row that has no partner; several tiles of rows.
TYPED_TEST(ManyRows, NumbersOfRows) {
  for (const int group : {9, 10, 11, 12, 13, 16, 23, 30, 64, 127, 128, 131})
    TestFixture::expect_right({.lengths = {130, 0, 5}, .num_q_heads = 2 * group, .head_dim = 32},
                              {.layout = Layout::paged, .page_size = 16});
}

/// Tiles of 64 tokens that are full, nearly full, or hold one token; several splits.
TYPED_TEST(ManyRows, NumbersOfTokens) {
  TestFixture::expect_right({.lengths = {1, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1100}, .num_q_heads = 26},
                            {.layout = Layout::paged});
}

TYPED_TEST(ManyRows, Dims) {
  using T = typename TypeParam::type;
  for (const int dim : {7, 34, 64, 100, 128, 200, 576})
    TestFixture::expect_right({.lengths     = {90, 33},
                               .num_q_heads = 36,
                               .head_dim    = whole<T>(dim),
                               .head_dim_v  = whole<T>(dim == 100  ? 34
                                                       : dim == 34 ? 100
                                                                   : dim)},
                              {.layout = Layout::paged, .order = dim % 8 == 0 ? KVOrder::NHD : KVOrder::HND});
}

TYPED_TEST(ManyRows, QueriesAndOutputsOfAnyType) {
  for (const DType type : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
    for (const Strides io : {Strides::dense, Strides::left})
      TestFixture::expect_right({.lengths = {90, 70}, .num_q_heads = 22, .head_dim = 72, .q_type = type},
                                {.io = io, .out_type = type});
}

/// Query tokens that do not see all tokens: causal masks, windows, and tokens that windows keep.
TYPED_TEST(ManyRows, HiddenTokens) {
  struct Hidden {
    int window;
    bool causal;
  };
  for (const auto& [window, causal] : {Hidden{-1, true}, {0, true}, {40, true}, {40, false}, {100, false}})
    TestFixture::expect_right({.lengths            = {200, 47, 64, 90},
                               .num_q_heads        = 8,
                               .head_dim           = 48,
                               .query_lens         = {40, 1, 17, 0},
                               .causal             = causal,
                               .window_left        = window,
                               .num_initial_tokens = window == 40 ? 4 : 0},
                              {.layout = Layout::paged});
}

TYPED_TEST(ManyRows, ScoreOptions) {
  for (const int option : {0, 1, 2, 3})
    TestFixture::expect_right({.lengths        = {170, 35},
                               .num_q_heads    = 24,
                               .query_lens     = {5, 2},
                               .logit_soft_cap = option == 0 || option == 3 ? 2.5 : 0,
                               .alibi          = option == 1 || option == 3,
                               .sinks          = option == 2 || option == 3},
                              {.layout = Layout::paged});
}

/// A score beyond the maximum so far makes the sums and outputs smaller; scores of any size.
TYPED_TEST(ManyRows, ScoresOfAnySize) {
  for (const double size : {0.01, 6.0})
    for (const double shift : {-40.0, 0.0, 40.0})
      TestFixture::expect_right({.lengths = {300, 65}, .num_q_heads = 30, .key_size = size, .score_shift = shift},
                                {.layout = Layout::paged});
}

TYPED_TEST(ManyRows, Scales) {
  using T = typename TypeParam::type;
  if constexpr (is_quantized_v<T> && block_dims_v<T> == 0)
    for (const auto scales : {Scales::per_tensor, Scales::per_head, Scales::per_token, Scales::per_token_and_head})
      TestFixture::expect_right(
          {.lengths = {71, 140}, .num_q_heads = 33, .num_kv_heads = 3, .k_scales = scales, .v_scales = scales},
          {.layout = Layout::paged, .page_size = 16});
}

/// NaN and infinities in keys and values, which some of the rows see and others do not.
TYPED_TEST(ManyRows, NaNAndInfinity) {
  using T                  = typename TypeParam::type;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const int t : {0, 40, 68, 69, 70})
    for (const bool in_key : {true, false})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        const Shape shape{.lengths = {71, 66}, .num_q_heads = 10, .num_kv_heads = 2, .query_lens = {5, 3}};
        Sample<T> sample(shape);
        if constexpr (is_quantized_v<T>) {
          if (!std::isnan(bad) || block_dims_v<T> > 0) continue;
          (in_key ? sample.key_scale(0, t, 1) : sample.value_scale(0, t, 1)) = bad;
        } else {
          (in_key ? sample.key(0, t, 1) : sample.value(0, t, 1))[t % 64] = to_element<T>(bad);
        }
        TestFixture::expect_right(sample, {.layout = Layout::paged, .page_size = 16});
      }
}

/// Values are the first dims of the keys: 128 query heads of a latent cache.
TYPED_TEST(ManyRows, ValuesInKeys) {
  using T = typename TypeParam::type;
  if constexpr (block_dims_v<T> == 0)
    TestFixture::expect_right({.lengths        = {140, 64},
                               .num_q_heads    = 128,
                               .num_kv_heads   = 1,
                               .head_dim       = 192,
                               .head_dim_v     = 128,
                               .values_in_keys = true},
                              {.layout = Layout::paged, .page_size = 64});
}

}  // namespace
}  // namespace pagoda::test
