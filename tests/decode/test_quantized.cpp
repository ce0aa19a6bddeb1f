// SPDX-License-Identifier: Apache-2.0
#include "tests/decode/distance.hpp"
#include "tests/decode/quantized_caches.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <pagoda/merge.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <type_traits>

/// Caches of all quantized elements, against float64 attention over their scaled numbers. Queries and outputs are fp32,
/// so that the tolerance is that of fp32 arithmetic.
namespace pagoda::test {
namespace {

template <class Param>
struct Quantized : testing::Test {};
TYPED_TEST_SUITE(Quantized, SpacesAndQuantizedTypes, Names);

/// Rows consist of whole elements, which may hold two dims.
template <class T>
int whole(int dims) {
  return dims / dims_per_element_v<T> * dims_per_element_v<T>;
}

TYPED_TEST(Quantized, HeadDims) {
  using T = typename TypeParam::type;
  for (const int dim : {2, 33, 64, 80, 96, 112, 128, 192, 256})
    expect_right<typename TypeParam::space, T>({.lengths = {130, 1, 0}, .num_q_heads = 4, .head_dim = whole<T>(dim)},
                                               {{}, {.layout = Layout::paged}});
}

TYPED_TEST(Quantized, ValuesWiderOrNarrowerThanKeys) {
  using T = typename TypeParam::type;
  for (const auto& [dim, dim_v] : {std::pair(32, 128), std::pair(192, 128), std::pair(34, 64)})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {70}, .num_kv_heads = 1, .head_dim = dim, .head_dim_v = dim_v});
}

TYPED_TEST(Quantized, Groups) {
  using T = typename TypeParam::type;
  for (const int group : {1, 3, 4, 8, 16})
    for (const int dim : {48, 64})  // the latter in vectors, of every type
      expect_right<typename TypeParam::space, T>({.lengths = {300, 5}, .num_q_heads = 2 * group, .head_dim = dim},
                                                 {{}, {.layout = Layout::paged, .order = KVOrder::HND}});
}

TYPED_TEST(Quantized, LengthsAroundPageEdges) {
  using T = typename TypeParam::type;
  for (const int page : {1, 16, 48}) {
    const Sample<T> sample({.lengths  = {0, 1, page - 1, page, page + 1, 0, 2 * page + 1, 3 * page},
                            .head_dim = 64,
                            .seed     = static_cast<unsigned>(page)});
    expect_right<typename TypeParam::space>(
        sample, {{.layout = Layout::paged, .page_size = page}, {.layout = Layout::csr, .page_size = page}});
  }
}

TYPED_TEST(Quantized, RowsOnAnyAddress) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int dim : {34, 72, 100, 128, 200, 254}) {
    const Sample<T> sample({.lengths = {130, 0, 17}, .num_q_heads = 8, .head_dim = dim, .query_lens = {2, 2, 2}});
    for (const Placement& placement :
         {Placement{}, Placement{.layout = Layout::paged, .page_size = 3, .strides = Strides::padded}}) {
      Scene<Space, T> scene(sample, placement);
      scene.options().backend = "generic";
      const auto plan         = scene.plan();
      scene.decode(plan);
      EXPECT_TRUE(scene.right()) << describe(sample.shape()) << "; " << describe(placement);
#if defined(KOKKOS_ENABLE_CUDA)
      if (std::is_same_v<Space, Kokkos::Cuda>)
        EXPECT_EQ(plan.describe().find("element-wise"), std::string::npos) << plan.describe();
#endif
    }
  }
}

// Scales lie as the cache does, in their own order.
TYPED_TEST(Quantized, OrdersAndStrides) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {70, 0, 31}, .num_q_heads = 6, .num_kv_heads = 3, .head_dim = 32});
  std::vector<Placement> placements;
  for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
    for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
      for (const KVOrder scales : {KVOrder::NHD, KVOrder::HND})
        for (const Strides strides : {Strides::dense, Strides::padded, Strides::left})
          placements.push_back(
              {.layout = layout, .order = order, .scale_order = scales, .strides = strides, .indirect = true});
  expect_right<typename TypeParam::space>(sample, placements);
}

// Scores are changed behind their scale.
TYPED_TEST(Quantized, ScoreOptionsAndSeveralQueries) {
  using T = typename TypeParam::type;
  for (const Scales scales : {Scales::per_head, Scales::per_token_and_head}) {
    for (const int dim : {50, 64}) {
      Shape shape{.lengths = {200, 17, 64}, .num_q_heads = 4, .head_dim = dim, .k_scales = scales, .v_scales = scales};
      shape.logit_soft_cap = 2, shape.alibi = shape.sinks = true;
      expect_right<typename TypeParam::space, T>(shape, {{.layout = Layout::paged}});
      shape.query_lens  = {3, 1, 2};
      shape.window_left = 40, shape.num_initial_tokens = 4;
      expect_right<typename TypeParam::space, T>(shape, {{.layout = Layout::paged}, {}});
    }
  }
}

TYPED_TEST(Quantized, LatentCache) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths        = {150, 1, 64},
                                              .num_q_heads    = 16,
                                              .num_kv_heads   = 1,
                                              .head_dim       = 576,
                                              .head_dim_v     = 512,
                                              .values_in_keys = true},
                                             {{.layout = Layout::paged, .page_size = 64}});
}

// Split rows: scales are applied to every split exactly once.
TYPED_TEST(Quantized, LongSequences) {
  using T = typename TypeParam::type;
  for (const Scales scales : {Scales::per_head, Scales::per_token_and_head})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {9000, 3, 2500}, .num_q_heads = 8, .head_dim = 32, .k_scales = scales, .v_scales = scales},
        {{.layout = Layout::paged}});
}

TYPED_TEST(Quantized, QueriesAndOutputsOfAnyPlainType) {
  using T = typename TypeParam::type;
  for (const DType io : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
    expect_right<typename TypeParam::space, T>({.lengths = {500, 20, 0}, .num_q_heads = 8, .q_type = io},
                                               {{.out_type = io, .lse_type = DType::fp64}});
}

// ---- sensitivity: the tests find a lost scale

TYPED_TEST(Quantized, OneForgottenDimShows) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int dim : {50, 64}) {
    // Block scales spread the numbers of a row, so one dim counts less.
    const int few  = block_dims_v<T> > 0 ? 16 : 32;
    Shape shape    = one_row(coarse<Space> ? few : 1000);
    shape.head_dim = dim;
    const Sample<T> right(shape);
    const int t = median_token(right);
    for (const int d : {0, 1, dim - 2, dim - 1}) {
      Sample<T> keys(shape), values(shape);
      store_dim(keys.key(0, t, 0), d, load_dim(keys.key(0, t, 0), d) > 0 ? -64 : 64);
      store_dim(values.value(0, t, 0), d, load_dim(values.value(0, t, 0), d) > 0 ? -64 : 64);
      EXPECT_GT((distance<Space, T>(keys, right)), 2) << "dim " << d << " of " << dim;
      EXPECT_GT((distance<Space, T>(values, right)), 2) << "dim " << d << " of " << dim;
    }
  }
}

// ---- refused arguments

template <class Param>
struct QuantizedErrors : QuantizedCaches<Param> {};
TYPED_TEST_SUITE(QuantizedErrors, SpacesAndQuantizedTypes, Names);

TYPED_TEST(QuantizedErrors, QuantizedQueriesAndOutputs) {
  using T         = typename TypeParam::type;
  using Space     = typename TypeParam::space;
  const auto kv   = this->scaled(32);
  const auto plan = pagoda::plan(Space(), kv, {.num_q_heads = 4});
  const typename TestFixture::template RowsOf<float> rows("rows", 2, 4, 32);
  const typename TestFixture::template RowsOf<T> quantized(Kokkos::view_alloc("rows", Kokkos::WithoutInitializing), 2,
                                                           4, 32);
  expect_refusal([&] { pagoda::decode(Space(), plan, quantized, kv, rows); },
                 {"pagoda::decode", "q holds", name_of(dtype_v<T>), "fp64, fp32, fp16 or bf16"});
  expect_refusal([&] { pagoda::decode(Space(), plan, rows, kv, quantized); },
                 {"pagoda::decode", "out holds", name_of(dtype_v<T>), "fp64, fp32, fp16 or bf16"});
  const Kokkos::View<float**, typename Space::memory_space> lse("lse", 2, 4);
  expect_refusal([&] { pagoda::merge(Space(), rows, lse, quantized, lse, rows, lse); },
                 {"pagoda::merge", "the other states' outputs hold", name_of(dtype_v<T>)});
  expect_refusal([&] { pagoda::merge(Space(), rows, lse, rows, lse, quantized, lse); },
                 {"pagoda::merge", "out holds", name_of(dtype_v<T>)});
}

TYPED_TEST(QuantizedErrors, WritesIntoQuantizedCaches) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const typename TestFixture::Cache k(Kokkos::view_alloc("k", Kokkos::WithoutInitializing), 2, 20, 4, 32);
  const Kokkos::View<float****, Kokkos::LayoutRight, typename Space::memory_space> plain("k", 2, 20, 4, 32);
  const Kokkos::View<std::int64_t*, typename Space::memory_space> mapping("mapping", 1);
  const typename TestFixture::template RowsOf<float> rows("rows", 1, 4, 32);
  const typename TestFixture::template RowsOf<T> quantized(Kokkos::view_alloc("rows", Kokkos::WithoutInitializing), 1,
                                                           4, 32);
  expect_refusal([&] { pagoda::write_kv(Space(), k, k, mapping, rows, rows); },
                 {"pagoda::write_kv", "k_cache and v_cache hold", name_of(dtype_v<T>)});
  expect_refusal([&] { pagoda::write_kv(Space(), plain, plain, mapping, quantized, rows); },
                 {"pagoda::write_kv", "k holds", name_of(dtype_v<T>)});
}

}  // namespace
}  // namespace pagoda::test
