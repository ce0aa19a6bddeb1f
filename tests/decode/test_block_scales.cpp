// SPDX-License-Identifier: Apache-2.0
#include "tests/decode/distance.hpp"
#include "tests/decode/quantized_caches.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <cmath>
#include <limits>
#include <utility>

/// Caches whose rows have a scale for each block of dims, against float64. Scales of tokens that no query sees are NaN
/// in every scene.
namespace pagoda::test {
namespace {

template <class Param>
struct BlockScales : testing::Test {};
TYPED_TEST_SUITE(BlockScales, SpacesAndBlockScaledTypes, Names);

// The last block of a row may be shorter than the others.
TYPED_TEST(BlockScales, RowsOfWholeBlocksAndOthers) {
  using T = typename TypeParam::type;
  for (const int dim : {2, 16, 30, 32, 34, 48, 62, 64, 66, 100, 128, 160, 250, 256, 300})
    for (const int heads : {2, 8, 20})
      expect_right<typename TypeParam::space, T>(
          {.lengths = {90, 1, 0, 33}, .num_q_heads = heads, .head_dim = dim, .head_dim_v = dim % 8 == 2 ? 64 : 0},
          {{},
           {.layout = Layout::paged, .scale_order = KVOrder::HND},
           {.layout = Layout::csr, .page_size = 3, .strides = Strides::padded},
           {.layout = Layout::paged, .scale_strides = Strides::left},
           {.layout = Layout::paged, .page_size = 5, .order = KVOrder::HND, .strides = Strides::left}});
}

TYPED_TEST(BlockScales, TinyAndLarge) {
  using T = typename TypeParam::type;
  for (const double keys : {1e-6, 1e4})
    for (const double values : {1e-6, 1e4})
      expect_right<typename TypeParam::space, T>({.lengths       = {600, 33},
                                                  .num_q_heads   = 8,
                                                  .softmax_scale = 1 / (8 * keys),
                                                  .key_size      = keys,
                                                  .value_size    = values},
                                                 {{.layout = Layout::paged}});
}

// The block scales of one token differ as far as their type allows. Small ones keep their precision in their dims.
TYPED_TEST(BlockScales, FarApartInARow) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int dim : {64, 128}) {
    Sample<T> sample({.lengths = {200}, .num_q_heads = 4, .num_kv_heads = 1, .head_dim = dim});
    constexpr int block = block_dims_v<T>;
    // Values of the first block are tiny; zeros in the other blocks make their error visible.
    for (int t = 0; t < 200; ++t) {
      sample.value_blocks(0, t, 0)[0] = block_scale_t<T>(static_cast<float>(t % 2 == 0 ? 0x1p-9 : 0x1p-8));
      for (int d = block; d < dim; ++d) store_dim(sample.value(0, t, 0), d, 0);
      for (int i = 1; i < dim / block; ++i) sample.value_blocks(0, t, 0)[i] = block_scale_t<T>(256.0f);
    }
    expect_right<Space>(sample, {{.layout = Layout::paged}, {}});
  }
}

TYPED_TEST(BlockScales, OneForgottenOrSwappedScaleShows) {
  using T             = typename TypeParam::type;
  using Space         = typename TypeParam::space;
  using S             = block_scale_t<T>;
  constexpr int block = block_dims_v<T>;
  // A softmax_scale so small that no token has all of the weight, and so large that a scale of few dims shows where
  // probabilities are rounded to fp16.
  const Shape shape{.lengths       = {8},
                    .num_q_heads   = 1,
                    .num_kv_heads  = 1,
                    .head_dim      = 4 * block,
                    .softmax_scale = 10.0 / (block * block)};
  // A scale that differs from all others, in one block of one token.
  const auto sample_with = [&](int token, int i, bool key) {
    Sample<T> sample(shape);
    for (int t = 0; t < 8; ++t)
      for (int b = 0; b < 4; ++b) {
        const bool here                 = t == token && b == i;
        sample.key_blocks(0, t, 0)[b]   = S(here && key ? 16.0f : 1.0f);
        sample.value_blocks(0, t, 0)[b] = S(here && !key ? 16.0f : 1.0f);
      }
    return sample;
  };
  for (const bool key : {true, false}) {
    for (const int t : {0, 3, 7}) {
      for (int i = 0; i < 4; ++i) {
        const Sample<T> right = sample_with(t, i, key);
        EXPECT_LE((distance<Space, T>(right, right)), 1) << "token " << t << ", block " << i;
        const auto shows = [&](const char* what, const Sample<T>& wrong) {
          EXPECT_GT((distance<Space, T>(wrong, right)), 2) << what << " of token " << t << ", block " << i;
        };
        shows("a scale forgotten", sample_with(-1, -1, key));
        shows("the scale of another block", sample_with(t, (i + 1) % 4, key));
        shows("the scale of another token", sample_with((t + 1) % 8, i, key));
      }
    }
  }
}

// ---- refused arguments

template <class Param>
struct BlockScalesErrors : QuantizedCaches<Param> {};
TYPED_TEST_SUITE(BlockScalesErrors, SpacesAndBlockScaledTypes, Names);

TYPED_TEST(BlockScalesErrors, OfAnotherShape) {
  using T            = typename TypeParam::type;
  constexpr int dims = 2 * block_dims_v<T> + 2;  // two blocks and a part of one
  const auto kv      = this->cache(dims);
  const auto right   = this->blocks(2, 20, 4, 3);
  const auto refuses = [&](const auto& k, const auto& v, std::initializer_list<const char*> words) {
    expect_refusal([&] { static_cast<void>(kv.with_scales(block_scales(k, v))); }, words);
  };
  EXPECT_NO_THROW(static_cast<void>(kv.with_scales(block_scales(right, right))));
  refuses(this->blocks(3, 20, 4, 3), right,
          {"pagoda::ContiguousKV::with_scales", "axis 0 of block scales k", "3", "2"});
  refuses(right, this->blocks(2, 19, 4, 3), {"axis 1 of block scales v", "extent 19", "20"});
  refuses(this->blocks(2, 20, 1, 3), right, {"axis 2 of block scales k", "extent 1", "4"});
  refuses(right, this->blocks(2, 20, 4, 2),
          {"axis 3 of block scales v", "extent 2", "allowed: 3", std::to_string(block_dims_v<T>).c_str()});
}

TYPED_TEST(BlockScalesErrors, MissingScales) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const DecodeOptions<typename Space::memory_space> options{.num_q_heads = 4};
  const auto bare   = this->cache(32);
  const auto blocks = this->blocks(2, 20, 4, blocks_of(dtype_v<T>, 32));
  expect_refusal([&] { pagoda::plan(Space(), bare, options); }, {"pagoda::plan", "k has", name_of(dtype_v<T>), "no "});
  CacheRef kv       = this->scaled(32).ref();
  kv.v_scale.blocks = nullptr;
  expect_refusal([&] { detail::make_schedule(Space(), kv, options); }, {"v has elements of", "no block scales"});

  const auto with_blocks = bare.with_scales(block_scales(blocks, blocks));
  const auto one         = this->one_float();
  const auto with_both   = bare.with_scales(block_scales(blocks, blocks, one, one));
  if (facts_of(dtype_v<T>).scales == ScaleUse::required) {
    expect_refusal([&] { pagoda::plan(Space(), with_blocks, options); },
                   {"pagoda::plan", "k has elements", "no scales"});
    EXPECT_NO_THROW(pagoda::plan(Space(), with_both, options));
  } else {
    EXPECT_NO_THROW(pagoda::plan(Space(), with_blocks, options));
    expect_refusal([&] { pagoda::plan(Space(), with_both, options); },
                   {"pagoda::plan", "k has scales and elements of"});
  }
}

// Views cannot express this, but other callers of the type-erased interface can.
TYPED_TEST(BlockScalesErrors, AtTheErasedBoundary) {
  CacheRef kv                = this->scaled(32).ref();
  kv.v_scale.block_stride[0] = std::int64_t(1) << 32;
  this->expect_plan_refused(kv, {"the block scales of v", "stride of 4294967296", "2^32 - 1"});
  kv                   = this->scaled(32).ref();
  kv.k_scale.stride[2] = 1;
  this->expect_plan_refused(kv, {"the float of k", "one for the tensor"});
  kv        = this->scaled(32).ref();
  kv.k.type = kv.v.type = dtype_v<AnyType>;
  kv.k_scale.data = kv.v_scale.data = nullptr;
  this->expect_plan_refused(kv, {"k has block scales and elements of", name_of(dtype_v<AnyType>)});
}

}  // namespace
}  // namespace pagoda::test
