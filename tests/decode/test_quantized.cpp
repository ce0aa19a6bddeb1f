// SPDX-License-Identifier: Apache-2.0
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <pagoda/merge.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <type_traits>

/// Caches of fp8, int8 and int4 elements, against float64 attention over the numbers they stand for. Queries and
/// outputs are fp32, so that the tolerance is of fp32 arithmetic and shows what the storage would hide.
namespace pagoda::test {
namespace {

template <class Param>
struct Quantized : testing::Test {};
TYPED_TEST_SUITE(Quantized, SpacesAndQuantizedTypes, Names);

constexpr Scales all_scales[] = {Scales::none, Scales::per_tensor, Scales::per_head, Scales::per_token_and_head};

template <class T>
constexpr bool must_have_scales = facts_of(dtype_v<T>).scales == ScaleUse::required;

/// int4 rows are whole elements of two dims.
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

// A scale that no token uses may be NaN: rows that see no token are 0, with a sink too.
TYPED_TEST(Quantized, ScalesThatNoTokenUses) {
  using T = typename TypeParam::type;
  for (const Scales scales : {Scales::per_tensor, Scales::per_head})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {0, 0}, .head_dim = 32, .sinks = true, .k_scales = scales, .v_scales = scales},
        {{}, {.strides = Strides::left}});
}

TYPED_TEST(Quantized, EveryKindOfScales) {
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

// Keys, queries and values may be of any size as long as scores are not.
TYPED_TEST(Quantized, TinyAndLargeScales) {
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

// Rows that are cut: scales are applied to every piece, and once.
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

// ---- that what must not be missed is not missed

/// Decodes `given` and says how far its output is from the reference's for `wanted`, in tolerances.
template <class Space, class T>
double distance(const Sample<T>& given, const Sample<T>& wanted) {
  Scene<Space, T> scene(given, {.layout = Layout::paged});
  scene.decode(scene.plan());
  static_cast<void>(scene.right(wanted));
  return scene.worst();
}

/// GPUs may round probabilities to 16 bits: tolerances are wider there, and fewer tokens show what is missed.
template <class Space>
constexpr bool coarse = !Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible;

/// A shape of one row, and its token of median probability.
Shape one_row(int length) { return {.lengths = {length}, .num_q_heads = 1, .num_kv_heads = 1}; }

/// The token whose key(probability) is the median.
template <class T, class Key>
int median_token(const Sample<T>& sample, const Key& key) {
  const std::vector<double>& p = sample.rows()[0].probabilities;
  std::vector<int> tokens(p.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::nth_element(tokens.begin(), tokens.begin() + tokens.size() / 2, tokens.end(),
                   [&](int a, int b) { return key(p[a]) < key(p[b]); });
  return tokens[tokens.size() / 2];
}
template <class T>
int median_token(const Sample<T>& sample) {
  return median_token(sample, [](double p) { return p; });
}
/// A token whose score is neither large nor nearly 0: where it is 0, so it is with any scale.
template <class T>
int token_with_a_score(const Sample<T>& sample) {
  const auto tokens = static_cast<double>(sample.rows()[0].probabilities.size());
  return median_token(sample, [&](double p) { return std::abs(std::log(p * tokens)); });
}

/// The token whose scales are most unlike those of token t: one of like scales could stand in for it unseen.
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

TYPED_TEST(Quantized, OneForgottenOrSwappedScaleShows) {
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

TYPED_TEST(Quantized, AnotherHeadsScaleShows) {
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
    // The keys' scales matter less: probabilities are near each other.
    constexpr bool wide_tolerance = coarse<typename TypeParam::space>;
    EXPECT_GT((distance<typename TypeParam::space, T>(keys, right)), wide_tolerance ? 1 : 100);
    EXPECT_GT((distance<typename TypeParam::space, T>(values, right)), wide_tolerance ? 10 : 100);
  }
}

TYPED_TEST(Quantized, OneForgottenDimShows) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int dim : {50, 64}) {
    Shape shape    = one_row(coarse<Space> ? 32 : 1000);
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

// ---- what is refused

template <class Param>
struct QuantizedErrors : testing::Test {
  using Stored = typename Param::type;
  using Memory = typename Param::space::memory_space;
  using Cache  = Kokkos::View<Stored****, Kokkos::LayoutRight, Memory>;
  template <class E>
  using RowsOf = Kokkos::View<E***, Kokkos::LayoutRight, Memory>;

  static auto cache(int dims) {
    const auto bytes = [](const std::string& label) { return Kokkos::view_alloc(label, Kokkos::WithoutInitializing); };
    return ContiguousKV<Stored, Memory>(Cache(bytes("k"), 2, 20, 4, dims / dims_per_element_v<Stored>),
                                        Cache(bytes("v"), 2, 20, 4, dims / dims_per_element_v<Stored>), lengths());
  }
  static Kokkos::View<const int*, Memory> lengths() { return Kokkos::View<int*, Memory>("lengths", 2); }
  static Kokkos::View<float*, Memory> floats(int n) { return Kokkos::View<float*, Memory>("scales", n); }
  static auto floats(int pages, int tokens, int heads) {
    return Kokkos::View<float***, Kokkos::LayoutRight, Memory>("scales", pages, tokens, heads);
  }
  // Managed Views above are only referred to by the layouts: nothing below reads what they held.
  static auto scaled(int dims) { return cache(dims).with_scales(per_head_scales(floats(4), floats(4))); }
};
TYPED_TEST_SUITE(QuantizedErrors, SpacesAndQuantizedTypes, Names);

TYPED_TEST(QuantizedErrors, ScalesOfAnotherShape) {
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
  // One page of scales for all, one head's, one token's.
  for (const auto& some : {this->floats(1, 20, 4), this->floats(2, 20, 1), this->floats(2, 1, 4)})
    EXPECT_NO_THROW(static_cast<void>(kv.with_scales(per_token_and_head_scales(some, right))));
}

TYPED_TEST(QuantizedErrors, IntegersWithoutScales) {
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

// Scales of a cache that has no use for them, and strides beyond what a kernel carries: nothing that a View can say,
// but other callers of the erased boundary can.
TYPED_TEST(QuantizedErrors, AtTheErasedBoundary) {
  using Space       = typename TypeParam::space;
  const auto refuse = [&](const CacheRef& kv, std::initializer_list<const char*> words) {
    const DecodeOptions<typename Space::memory_space> options{.num_q_heads = 4};
    expect_refusal([&] { detail::make_plan_state(Space(), kv, options); }, words);
  };
  CacheRef kv          = this->scaled(32).ref();
  kv.v_scale.stride[1] = std::int64_t(1) << 32;
  refuse(kv, {"the scales of v", "stride of 4294967296", "2^32 - 1"});
  kv        = this->scaled(32).ref();
  kv.k.type = kv.v.type = dtype_v<AnyType>;
  refuse(kv, {"k has scales", name_of(dtype_v<AnyType>), "fp8_e4m3"});
}

}  // namespace
}  // namespace pagoda::test
