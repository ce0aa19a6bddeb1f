// SPDX-License-Identifier: Apache-2.0
#include "tests/entries/list_scene.hpp"
#include "tests/support/latent.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/tuned/decode.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// Caches whose rows have a format of their own (fp8_ds_mla), against float64. Samples give each token and block
/// another scale. Rows that no query sees are NaN in every scene: their numbers and their scales.
namespace pagoda::test {
namespace {

static_assert(sizeof(fp8_ds_mla_t) == 1 && sizeof(fp8_ds_mla_row) == 656);
static_assert(offsetof(fp8_ds_mla_row, scale) == 512 && offsetof(fp8_ds_mla_row, rope) == 528);
static_assert(has_row_format_v<fp8_ds_mla_t> && is_quantized_v<fp8_ds_mla_t> && block_dims_v<fp8_ds_mla_t> == 0);
static_assert(!has_row_format_v<fp8_e4m3_t> && !has_row_format_v<mxfp4x2_t> && !has_row_format_v<half_t>);
static_assert(row_format_of(DType::fp8_e4m3).bytes == 0);
static_assert(latent_bytes_per_token(512, 64, DType::fp8_ds_mla) == 656);

constexpr float nan      = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Whether the hand-tuned kernels take a sample's rows on this device.
template <class Space, class T>
bool tuned_takes([[maybe_unused]] const Sample<T>& sample, [[maybe_unused]] const Placement& placement) {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (std::is_same_v<Space, Kokkos::Cuda>) {
    const Shape& s   = sample.shape();
    const int tokens = s.query_lens.empty() ? 1 : *std::max_element(s.query_lens.begin(), s.query_lens.end());
    return tuned::Device::current().sm90a && sample.q_type() == DType::bf16 && s.num_q_heads * tokens <= 128 &&
           (tokens == 1 || s.num_q_heads % 8 == 0) && s.window_left < 0 && s.logit_soft_cap == 0 && !s.alibi &&
           !s.sinks && placement.io == Arrangement();
  }
#endif
  return false;
}

/// As expect_right, by each backend that takes the sample.
template <class Space, class T>
void expect_right_by_each(const Sample<T>& sample, const std::vector<Placement>& placements) {
  for (const Placement& placement : placements) {
    Scene<Space, T> scene(sample, placement);
    for (const std::string backend : {"generic", "tuned"}) {
      if (backend == "tuned" && !tuned_takes<Space>(sample, placement)) continue;
      scene.options().backend = backend;
      scene.poison_outputs();
      scene.decode(scene.plan());
      EXPECT_TRUE(scene.right()) << backend << ": " << describe(sample.shape()) << "; " << describe(placement);
    }
  }
}
template <class Space, class T>
void expect_right_by_each(const Shape& shape, const std::vector<Placement>& placements) {
  expect_right_by_each<Space>(Sample<T>(shape), placements);
}

template <class Param>
struct RowFormats : testing::Test {
  using Space = typename Param::space;
  using T     = typename Param::type;

  /// Whether rows are read once for both products, by matrix instructions.
  static bool read_once() { return std::string_view(Space::name()) == "Cuda"; }
  /// The shape with queries of the default type and with those of bf16, for which kernels have instances of their own.
  static std::vector<Shape> with_query_types(const Shape& shape) {
    Shape bf16  = shape;
    bf16.q_type = DType::bf16;
    return {shape, bf16};
  }
};
TYPED_TEST_SUITE(RowFormats, SpacesAndRowFormatTypes, Names);

/// Gaps behind rows, tokens and pages, and a first row that is aligned to 16 bytes alone.
Arrangement spread_out() {
  Arrangement a;
  a.gap = {48, 16, 32, 0}, a.first = 16;
  return a;
}

TYPED_TEST(RowFormats, Heads) {
  for (const int heads : {1, 3, 4, 7, 16, 20, 32, 33, 64, 128})
    for (const Shape& shape : TestFixture::with_query_types(latent_shape(heads, {70, 1, 0, 33}))) {
      const Sample<typename TestFixture::T> sample(shape);
      Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, {.layout = Layout::paged});
      scene.options().backend = "generic";
      const auto plan         = scene.plan();
      EXPECT_EQ(plan.schedule().shape.head_dim, 576);
      EXPECT_EQ(plan.schedule().shape.head_dim_v, 512);
      EXPECT_NE(plan.schedule().kernel.row_alignment, 0) << "rows are read in vectors";
      EXPECT_EQ(plan.schedule().kernel.values_in_keys, TestFixture::read_once());
      EXPECT_EQ(plan.schedule().kernel.slow_because == nullptr,
                TestFixture::read_once() || (std::is_same_v<typename TestFixture::Space, Host>))
          << plan.describe();
      scene.decode(plan);
      EXPECT_TRUE(scene.right()) << heads << " heads";
      expect_right_by_each<typename TestFixture::Space>(sample, {{.layout = Layout::paged}});
    }
}

TYPED_TEST(RowFormats, LengthsAroundTilesAndPages) {
  std::vector<Placement> placements{{.layout = Layout::contiguous}, {.layout = Layout::csr, .page_size = 5}};
  for (const int page : {1, 8, 16, 48, 64}) placements.push_back({.layout = Layout::paged, .page_size = page});
  for (const Shape& shape :
       TestFixture::with_query_types(latent_shape(8, {15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129})))
    expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(shape, placements);
}

TYPED_TEST(RowFormats, LayoutsOfRows) {
  std::vector<Placement> placements;
  for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
    for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
      for (const int page : {7, 32})
        placements.push_back({.layout        = layout,
                              .page_size     = page,
                              .order         = order,
                              .strides       = spread_out(),
                              .table_strides = Strides::padded});
  placements.push_back({.layout = Layout::paged, .io = Strides::padded, .indirect = true});
  placements.push_back({.layout = Layout::paged, .with_lse = false});
  for (const Shape& shape : TestFixture::with_query_types(latent_shape(5, {70, 0, 33, 1})))
    expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(shape, placements);
}

// Split and joined.
TYPED_TEST(RowFormats, UnevenBatches) {
  for (const int heads : {1, 16, 40})
    for (const Shape& shape : TestFixture::with_query_types(latent_shape(heads, {3000, 40, 700, 0, 1}))) {
      const Sample<typename TestFixture::T> sample(shape);
      Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample,
                                                                        {.layout = Layout::paged, .page_size = 64});
      scene.options().backend = "generic";
      const auto plan         = scene.plan();
      scene.decode(plan);
      EXPECT_GT(scene.cuts(plan).items, 5);
      EXPECT_TRUE(scene.right()) << heads << " heads";
      expect_right_by_each<typename TestFixture::Space>(sample, {{.layout = Layout::paged, .page_size = 64}});
    }
}

// Splits of equal lengths, which the hand-tuned kernel joins in pairs; with two of them, with more, with one block of
// 64 query rows and with two. A host has no such kernel, and shorter sequences.
TYPED_TEST(RowFormats, EvenBatches) {
  const int part = std::is_same_v<typename TestFixture::Space, Host> ? 5 : 1;
  for (const int heads : {16, 64, 65, 128})
    for (const auto& [batch, length] : {std::pair(1, 5000 / part), {6, 700 / part}, {64, 140 / part}}) {
      if (batch * length * heads > 600000) continue;  // the reference takes its time
      Shape shape  = latent_shape(heads, std::vector<int>(batch, length));
      shape.q_type = DType::bf16;
      expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(
          shape, {{.layout = Layout::paged, .page_size = 64}});
    }
}

// A plan for more query tokens than the call has: of the two blocks to a KV head one has no query rows. The second
// split has a third of a tile, so blocks of a pair end at different times.
TYPED_TEST(RowFormats, PlansForMoreQueryTokens) {
  Shape shape  = latent_shape(32, {86});
  shape.q_type = DType::bf16;
  const Sample<typename TestFixture::T> sample(shape);
  const Placement placement{.layout = Layout::paged, .page_size = 16};
  Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, placement);
  for (const std::string backend : {"generic", "tuned"}) {
    if (backend == "tuned" && !tuned_takes<typename TestFixture::Space>(sample, placement)) continue;
    scene.options().backend       = backend;
    scene.options().max_query_len = 3, scene.options().max_seq_len = 1376;
    const auto plan = scene.plan();
    scene.poison_outputs();
    for (int repeat = 0; repeat < 20; ++repeat) scene.decode(plan);
    EXPECT_TRUE(scene.right()) << backend;
  }
}

// More rows than teams: rows stay whole, and each team processes several.
TYPED_TEST(RowFormats, MoreRowsThanTeams) {
  const int batch = more_than_teams<typename TestFixture::Space>;
  for (const int heads : {1, 20})
    for (const Shape& shape : TestFixture::with_query_types(latent_shape(heads, std::vector<int>(batch, 18))))
      expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(shape, {{.layout = Layout::paged}});
}

TYPED_TEST(RowFormats, ExactPlans) {
  for (const Exactness exactness : {Exactness::batch_invariant, Exactness::reproducible})
    for (const int heads : {16, 64})
      for (const Shape& shape : TestFixture::with_query_types(latent_shape(heads, {900, 40}))) {
        const Sample<typename TestFixture::T> sample(shape);
        Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, {.layout = Layout::paged});
        scene.options().exactness = exactness;
        scene.decode(scene.plan());
        EXPECT_TRUE(scene.right());
      }
}

TYPED_TEST(RowFormats, SeveralQueryTokens) {
  for (const int heads : {6, 16, 32})
    for (Shape shape : TestFixture::with_query_types(latent_shape(heads, {90, 17, 3, 300}))) {
      shape.query_lens = {4, 4, 4, 4};
      expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(
          shape, {{.layout = Layout::paged, .page_size = 64}, {.layout = Layout::contiguous, .ragged = true}});
      shape.query_lens = {5, 0, 2, 1};
      expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(shape, {{.layout = Layout::paged}});
      shape.causal = false;
      expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(shape, {{.layout = Layout::paged}});
    }
}

TYPED_TEST(RowFormats, ScoreOptions) {
  for (const int heads : {2, 16}) {
    Shape shape              = latent_shape(heads, {0, 400, 3, 64});
    shape.query_lens         = {1, 3, 2, 0};
    shape.softmax_scale      = 1 / std::sqrt(192.0);
    shape.window_left        = 90;
    shape.num_initial_tokens = 5;
    shape.logit_soft_cap     = 7;
    shape.alibi = shape.sinks = true;
    expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(
        shape, {{.layout = Layout::paged}, {.layout = Layout::csr, .page_size = 7, .indirect = true}});
  }
}

TYPED_TEST(RowFormats, TypesOfQueriesAndOutputs) {
  for (const DType q : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
    for (const DType out : {DType::fp32, DType::fp16, DType::bf16})
      for (const int heads : {16, 20}) {
        Shape shape  = latent_shape(heads, {70, 33});
        shape.q_type = q;
        expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(
            shape, {{.layout = Layout::paged, .out_type = out, .lse_type = DType::fp64},
                    {.layout = Layout::paged, .io = Strides::padded, .out_type = out}});
      }
}

TYPED_TEST(RowFormats, LargeAndSmallNumbers) {
  for (const double size : {1e-6, 30.0, 1e4}) {
    Shape shape         = latent_shape(16, {300, 20});
    shape.softmax_scale = 1 / (24 * std::max(size / 4, 1e-6));
    shape.key_size      = size;
    for (const Shape& each : TestFixture::with_query_types(shape))
      expect_right_by_each<typename TestFixture::Space, typename TestFixture::T>(each, {{.layout = Layout::paged}});
  }
}

// Queries beyond the largest and below the smallest number of fp16. Rows have different sizes.
TYPED_TEST(RowFormats, LargeAndSmallQueries) {
  for (const double size : {0x1p-40, 0x1p20, 0x1p90})
    for (Shape shape : TestFixture::with_query_types(latent_shape(20, {100, 33}))) {
      shape.softmax_scale = 1 / (24 * size);
      Sample<typename TestFixture::T> sample(shape);
      for (int token = 0; token < 2; ++token)
        for (int h = 0; h < 20; ++h)
          for (int d = 0; d < 576; ++d) sample.query(token, h)[d] *= size * std::exp2(h % 7 - 6);
      expect_right_by_each<typename TestFixture::Space>(sample, {{.layout = Layout::paged}, {}});
    }
}

// Scales of the tokens of a tile that are far from each other. The tokens whose scales are large have so little weight
// that the others make the output: each must have as many bits as if it were alone.
TYPED_TEST(RowFormats, ScalesFarFromEachOther) {
  for (const int heads : {4, 20})
    for (Shape shape : TestFixture::with_query_types(latent_shape(heads, {150, 40}))) {
      shape.softmax_scale = 1;
      Sample<typename TestFixture::T> sample(shape);
      for (int token = 0; token < 2; ++token)
        for (int h = 0; h < heads; ++h)
          for (int d = 0; d < 576; ++d) sample.query(token, h)[d] = d == 512 ? 1 + h % 3 : 0;
      std::mt19937 random(heads);
      std::normal_distribution<float> normal;
      for (int b = 0; b < 2; ++b)
        for (int t = 0; t < shape.lengths[b]; ++t) {
          auto* const row = sample.key(b, t, 0);
          const int kind  = static_cast<int>(random() % 8);
          for (int i = 0; i < 4; ++i) {
            const float size = kind == 0 && i < 3 ? 0x1p6f : 0x1p-24f;  // the last block has no large scales
            DsMlaRow::set_scale(row, i, kind == 1 ? 0 : kind == 2 ? 0x1p-126f : kind == 3 ? -size : size);
          }
          for (int d = 0; d < 512; ++d) row[d].bits = fp8_e4m3_t(kind == 2 ? 0.0f : 16 * normal(random)).bits;
          for (int d = 512; d < 576; ++d) store_dim(row, d, d == 512 && kind == 0 ? -70 : normal(random));
        }
      expect_right_by_each<typename TestFixture::Space>(sample,
                                                        {{.layout = Layout::paged}, {.layout = Layout::contiguous}});
    }
}

// One block has all of the numbers, and the other blocks have zeros and scales that are far from its own: the scale of
// another block would show.
TYPED_TEST(RowFormats, EachBlockHasItsScale) {
  for (int i = 0; i < 8; ++i)
    for (const float scale : {0x1p-20f, 1.7f, 0x1p20f}) {
      const int block     = i / 2;
      Shape shape         = latent_shape(4, {100});
      shape.softmax_scale = 0.1 / scale;
      if (i % 2 == 1) shape.q_type = DType::bf16;
      Sample<typename TestFixture::T> sample(shape);
      std::mt19937 random(block);
      std::normal_distribution<float> normal;
      for (int t = 0; t < 100; ++t) {
        auto* const row = sample.key(0, t, 0);
        for (int b = 0; b < 4; ++b) DsMlaRow::set_scale(row, b, b == block ? scale * (1 + t % 7) : 0x1p10f / scale);
        for (int d = 0; d < 576; ++d) store_dim(row, d, d / 128 == block ? 16 * scale * normal(random) : 0);
      }
      expect_right_by_each<typename TestFixture::Space>(sample, {{.layout = Layout::paged}, {}});
    }
}

// Queries see the rotary part alone: scores of another row, or none, would show.
TYPED_TEST(RowFormats, KeysOfTheRotaryPartAlone) {
  for (const Shape& shape : TestFixture::with_query_types(latent_shape(4, {100, 7}))) {
    Sample<typename TestFixture::T> sample(shape);
    for (int token = 0; token < 2; ++token)
      for (int h = 0; h < 4; ++h)
        for (int d = 0; d < 512; ++d) sample.query(token, h)[d] = 0;
    expect_right_by_each<typename TestFixture::Space>(sample, {{.layout = Layout::paged}, {}});
  }
}

// The tolerance is so narrow that one token of 3000 which is missing shows, and one number that is another. Where
// probabilities are rounded to 16 bits, a number must differ by more.
TYPED_TEST(RowFormats, ToleranceFindsOneTokenAndOneNumber) {
  Sample<typename TestFixture::T> sample(latent_shape(2, {3000}));
  Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, {.layout = Layout::paged});
  const auto plan = scene.plan();
  scene.decode(plan);
  EXPECT_TRUE(scene.right());
  scene.set_lengths({2999});
  scene.decode(plan);
  EXPECT_FALSE(scene.right());

  for (const int d : {0, 130, 511, 512, 575}) {
    Sample<typename TestFixture::T> other(sample.shape());
    store_dim(other.key(0, 1234, 0), d, load_dim(sample.key(0, 1234, 0), d) + (TestFixture::read_once() ? 8 : 1));
    Scene<typename TestFixture::Space, typename TestFixture::T> changed(other, {.layout = Layout::paged});
    changed.decode(changed.plan());
    EXPECT_TRUE(changed.right());
    EXPECT_FALSE(changed.right(sample)) << "dim " << d;
  }
}

// The same where the hand-tuned kernels round numbers to bf16: the tolerance finds one token of 3000, and the scale of
// one block of one token.
TYPED_TEST(RowFormats, ToleranceFindsOneTokenAndOneScale) {
  const Placement placement{.layout = Layout::paged, .page_size = 64};
  for (Shape shape : TestFixture::with_query_types(latent_shape(16, {3000}))) {
    Sample<typename TestFixture::T> sample(shape);
    const bool tuned = tuned_takes<typename TestFixture::Space>(sample, placement);
    Scene<typename TestFixture::Space, typename TestFixture::T> scene(sample, placement);
    scene.options().backend = tuned ? "tuned" : "generic";
    const auto plan         = scene.plan();
    scene.set_lengths({2999});
    scene.decode(plan);
    EXPECT_FALSE(scene.right());
    for (int block = 0; block < 4; ++block) {
      Sample<typename TestFixture::T> other(shape);
      auto* const row = other.key(0, 1234, 0);
      DsMlaRow::set_scale(row, block, 4 * DsMlaRow::scale(row, 128 * block));
      Scene<typename TestFixture::Space, typename TestFixture::T> changed(other, placement);
      changed.options().backend = tuned ? "tuned" : "generic";
      changed.decode(changed.plan());
      EXPECT_TRUE(changed.right());
      EXPECT_FALSE(changed.right(sample)) << "block " << block;
    }
  }
}

// A NaN or an infinity in a number or a scale reaches the query tokens that see its token, and no others.
TYPED_TEST(RowFormats, NaNs) {
  const auto in_number = [](auto* row, int d) {
    const float x = nan;
    const bfloat16_t b(x);
    d < 512 ? static_cast<void>(row[d].bits = 0x7f) : static_cast<void>(std::memcpy(row + 528 + 2 * (d - 512), &b, 2));
  };
  for (const int heads : {1, 5, 16, 32})
    for (Shape shape : TestFixture::with_query_types(latent_shape(heads, std::vector<int>(9, 71)))) {
      shape.query_lens = std::vector<int>(9, 3);
      Sample<typename TestFixture::T> sample(shape);
      for (int b = 0; b < 9; ++b) {
        auto* const row = sample.key(b, b < 4 ? 69 : 8 * b, 0);  // of the first entries, not all query tokens see it
        if (b == 0) in_number(row, 0);
        if (b == 1) in_number(row, 511);
        if (b == 2) in_number(row, 512);
        if (b == 3) DsMlaRow::set_scale(row, 3, nan);
        if (b == 4) DsMlaRow::set_scale(row, 0, nan);
        if (b == 5) DsMlaRow::set_scale(row, 2, infinity);
        if (b == 6) in_number(row, 575);
      }
      expect_right_by_each<typename TestFixture::Space>(sample, {{.layout = Layout::paged, .page_size = 3},
                                                                 {.layout = Layout::paged, .page_size = 8},
                                                                 {.layout = Layout::contiguous}});
    }
}

// Lists of entries: an entry for each sequence, and a shared prefix that is read once for the query tokens of all.
TYPED_TEST(RowFormats, ListsOfEntries) {
  using T             = typename TestFixture::T;
  constexpr int page  = 16;
  constexpr int first = 3 * page;  // token behind the prefix
  const Sequences sequences{page, {{0, 1, 2, 3}, {0, 1, 2, 4, 5}, {0, 1, 2, 6}}, {60, 78, 49}};
  Sample<T> sample(sequences.shape(latent_shape(6, {}), 4));
  sample.set_sight([&](int token, int) {
    const int s = token == 0 ? 0 : token == 3 ? 2 : 1, last = sequences.lengths[s] - (token == 1 ? 1 : 0);
    return std::optional(sequences.sight(s, last, last - 1));
  });
  EntryList shared;
  shared.queries     = {{0, 0, 1}, {1, 1, 2}, {2, 1, 1}, {3, 2, 1}};
  shared.max_queries = 4;
  shared.state_begin = {0, 2, 4, 6, 8};
  shared.entries = {{0, 0, first, 0, 4, 0}, {0, first, -1, 0, 1, 1}, {1, first, -1, 1, 2, 1}, {2, first, -1, 3, 1, 1}};
  for (const EntryList& list : {sequences.plain_list({1, 2, 1}), shared})
    for (const Layout layout : {Layout::paged, Layout::csr})
      expect_right<typename TestFixture::Space>(sample, sequences, list, {.layout = layout});
}

// key() and value() of the layouts give the numbers that decodes compute with.
TEST(RowFormatLayouts, Numbers) {
  using Rows = Kokkos::View<fp8_ds_mla_t****, Kokkos::LayoutRight, Kokkos::HostSpace>;
  const Rows rows("rows", 3, 2, 1, 656);
  const Kokkos::View<int*, Kokkos::HostSpace> lengths("lengths", 3);
  for (int page = 0; page < 3; ++page)
    for (int token = 0; token < 2; ++token) {
      auto& row = *reinterpret_cast<fp8_ds_mla_row*>(&rows(page, token, 0, 0));
      for (int i = 0; i < 4; ++i) row.scale[i] = static_cast<float>(1 + 4 * i + page) / 3;
      for (int d = 0; d < 512; ++d) row.latent[d].bits = static_cast<std::uint8_t>((d + 17 * token) % 127);
      for (int d = 0; d < 64; ++d) row.rope[d] = bfloat16_t(static_cast<float>(d + page) / 7);
    }
  const ContiguousKV kv{rows, rows, lengths};
  EXPECT_EQ(kv.ref().head_dim(), 576);
  EXPECT_EQ(kv.ref().head_dim_v(), 512);
  for (int page = 0; page < 3; ++page)
    for (int d = 0; d < 576; ++d) {
      const auto right = static_cast<float>(DsMlaRow::load(&rows(page, 1, 0, 0), d));
      EXPECT_EQ(kv.key(page, 1, 0, d), right) << d;
      EXPECT_EQ(kv.value(page, 1, 0, std::min(d, 511)),
                static_cast<float>(DsMlaRow::load(&rows(page, 1, 0, 0), std::min(d, 511))));
    }
}

TEST(RowFormatLayouts, MadeCaches) {
  const auto cache = make_paged_cache<fp8_ds_mla_t>(
      Host(), {.num_pages = 3, .page_size = 64, .num_kv_heads = 1, .head_dim = 576, .head_dim_v = 512});
  EXPECT_EQ(cache.k.extent(0), 3u);
  EXPECT_EQ(cache.k.extent(1), 64u);
  EXPECT_EQ(cache.k.extent(3), 656u);
  EXPECT_EQ(cache.v.data(), cache.k.data());
  const Kokkos::View<int**, Kokkos::LayoutRight, Kokkos::HostSpace> table("table", 1, 3);
  const Kokkos::View<int*, Kokkos::HostSpace> lengths("lengths", 1);
  EXPECT_EQ((PagedKV{cache.k, cache.v, table, lengths}.ref().head_dim_v()), 512);
}

TEST(RowFormatErrors, Caches) {
  using Rows = Kokkos::View<fp8_ds_mla_t****, Kokkos::LayoutStride, Kokkos::HostSpace>;
  alignas(16) static fp8_ds_mla_t memory[1 << 15];
  const Kokkos::View<int*, Kokkos::HostSpace> lengths("lengths", 2);
  const auto rows = [&](int heads, int bytes, int page, int token, int byte, int first = 0) {
    return Rows(memory + first, Kokkos::LayoutStride(2, page, 4, token, heads, bytes * byte, bytes, byte));
  };
  const auto make = [&](const Rows& k, const Rows& v) {
    return [&lengths, k, v] { static_cast<void>(ContiguousKV{k, v, lengths}); };
  };
  const Rows good = rows(1, 656, 4 * 656, 656, 1);
  make(good, good)();
  const auto wrong = [&](const Rows& k, std::initializer_list<const char*> words) {
    expect_refusal(make(k, k), words);
  };
  wrong(rows(1, 576, 4 * 576, 576, 1), {"pagoda::ContiguousKV", "axis 3 of k has extent 576; allowed: 656",
                                        "fp8_ds_mla (head_dim 576, head_dim_v 512)"});
  wrong(rows(2, 656, 8 * 656, 2 * 656, 1), {"k has 2 kv heads; allowed: 1", "fp8_ds_mla"});
  wrong(rows(1, 656, 8 * 656, 2 * 656, 2), {"axis 3 of k has stride 2; allowed: 1", "fp8_ds_mla"});
  wrong(rows(1, 656, 4 * 664, 664, 1), {"axis 1 of k (page or sequence", "has stride 664; allowed: multiples of 16"});
  wrong(rows(1, 656, 4 * 656 + 4, 656, 1),
        {"axis 0 of k (page or sequence", "has stride 2628; allowed: multiples of 16"});
  wrong(rows(1, 656, 4 * 656, 656, 1, 4), {"k begins 4 bytes after a multiple of 16; allowed: multiples of 16"});
  const char* const same = "v is not the rows of k; allowed: the same View for both, as a row of fp8_ds_mla holds key";
  expect_refusal(make(good, rows(1, 656, 4 * 656, 656, 1, 656)), {same});
  expect_refusal(make(good, rows(1, 512, 4 * 656, 656, 1)), {same});
  expect_refusal(make(good, rows(1, 656, 4 * 672, 672, 1)), {same});
}

TEST(RowFormatErrors, SizesAndWrites) {
  expect_refusal(
      [] { make_paged_cache<fp8_ds_mla_t>(Host(), {1, 16, 1, 512, 512}); },
      {"pagoda::make_paged_cache", "head_dim is 512, head_dim_v 512 and num_kv_heads 1; allowed: 576, 512 and 1"});
  expect_refusal([] { make_contiguous_cache<fp8_ds_mla_t>(Host(), {1, 16, 2, 576, 512}); },
                 {"pagoda::make_contiguous_cache", "num_kv_heads 2; allowed: 576, 512 and 1 for rows of fp8_ds_mla"});
  expect_refusal([] { latent_bytes_per_token(512, 128, DType::fp8_ds_mla); },
                 {"pagoda::latent_bytes_per_token", "rope_dim 128; allowed: 512 and 64 for fp8_ds_mla"});
  expect_refusal([] { bytes_per_token(1, 576, DType::fp8_ds_mla, 512); },
                 {"pagoda::bytes_per_token", "type is fp8_ds_mla; allowed: types of caches with values apart"});
  using Rows = Kokkos::View<fp8_ds_mla_t****, Kokkos::LayoutRight, Kokkos::HostSpace>;
  const Rows cache("cache", 1, 16, 1, 656);
  const Kokkos::View<std::int64_t*, Kokkos::HostSpace> slots("slots", 1);
  const Kokkos::View<float***, Kokkos::LayoutRight, Kokkos::HostSpace> k("k", 1, 1, 576), v("v", 1, 1, 512);
  expect_refusal([&] { write_kv(Host(), cache, cache, slots, k, v); },
                 {"pagoda::write_kv", "k_cache and v_cache hold fp8_ds_mla; allowed: fp64, fp32, fp16 or bf16"});
}

}  // namespace
}  // namespace pagoda::test
