// SPDX-License-Identifier: Apache-2.0
#include "backends/host/isa.hpp"
#include "pagoda_enabled_isas.hpp"
#include "tests/host/isas.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// The instruction sets of host kernels: each forced by name, and what the environment may name.
namespace pagoda::test {
namespace {

const std::vector<HostIsa>& every_isa() {
  static const std::vector<HostIsa> all = [] {
    std::vector<HostIsa> v;
    for (int i = 0; i <= static_cast<int>(detail::last_host_isa); ++i) v.push_back(HostIsa(i));
    return v;
  }();
  return all;
}

TYPED_TEST_SUITE(Isa, IsaTypes, IsaNames);

TYPED_TEST(Isa, DimsAndGroups) {
  using T = typename TypeParam::type;
  for (const int group : {1, 4, 8})
    for (const int dim : {7, 34, 64, 100, 128})
      expect_right_in<TypeParam>({.lengths     = {300, 0, 5},
                                  .num_q_heads = 2 * group,
                                  .head_dim    = whole<T>(dim),
                                  .head_dim_v  = whole<T>(dim == 100 ? 34 : dim)},
                                 {.layout = Layout::paged});
}

TYPED_TEST(Isa, HiddenTokens) {
  using T = typename TypeParam::type;
  for (const int group : {1, 4})
    expect_right_in<TypeParam>({.lengths            = {200, 17, 64},
                                .num_q_heads        = 2 * group,
                                .head_dim           = whole<T>(50),
                                .query_lens         = {3, 1, 2},
                                .window_left        = 40,
                                .num_initial_tokens = 4},
                               {.layout = Layout::paged});
}

TYPED_TEST(Isa, QueriesOfAnyType) {
  for (const DType type : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
    for (const Strides io : {Strides::dense, Strides::left})
      expect_right_in<TypeParam>({.lengths = {90}, .num_q_heads = 8, .head_dim = 72, .q_type = type}, {.io = io});
}

TYPED_TEST(Isa, QueriesAndOutputsOf16Bits) {
  using T = typename TypeParam::type;
  for (const auto& [q, out] : {std::pair(DType::bf16, DType::bf16), std::pair(DType::fp16, DType::fp16)})
    for (const int group : {1, 2, 4, 8, 16})
      for (const int dim : {7, 34, 64, 100, 128, 200})
        expect_right_in<TypeParam>({.lengths     = {300, 0, 5, 33},
                                    .num_q_heads = 2 * group,
                                    .head_dim    = whole<T>(dim),
                                    .head_dim_v  = whole<T>(dim == 100 ? 34 : dim),
                                    .q_type      = q},
                                   {.layout = Layout::paged, .page_size = 16, .out_type = out});
}

TYPED_TEST(Isa, HiddenTokensAndOutputsOf16Bits) {
  using T = typename TypeParam::type;
  for (const int group : {1, 4})
    expect_right_in<TypeParam>({.lengths            = {200, 17, 64},
                                .num_q_heads        = 2 * group,
                                .head_dim           = whole<T>(64),
                                .query_lens         = {3, 1, 2},
                                .window_left        = 40,
                                .num_initial_tokens = 4,
                                .q_type             = DType::bf16},
                               {.layout = Layout::paged, .out_type = DType::fp16});
}

/// Heads have scales of their own, whatever an instruction set does with queries of the type.
TYPED_TEST(Isa, ScalesOfHeads) {
  using T = typename TypeParam::type;
  if constexpr (is_quantized_v<T> && block_dims_v<T> == 0)
    for (const auto q : {DType::fp32, DType::fp16, DType::bf16})
      for (const int group : {1, 2, 4, 8})
        for (const auto scales : {Scales::per_tensor, Scales::per_head})
          expect_right_in<TypeParam>({.lengths      = {71, 5},
                                      .num_q_heads  = 3 * group,
                                      .num_kv_heads = 3,
                                      .head_dim     = 64,
                                      .q_type       = q,
                                      .k_scales     = scales,
                                      .v_scales     = scales},
                                     {.layout = Layout::paged, .page_size = 16});
}

/// Scales of values that a probability in fixed point cannot hold: very small and large ones, negative ones, NaN.
TYPED_TEST(Isa, ScalesOfValues) {
  using T = typename TypeParam::type;
  if constexpr (is_quantized_v<T> && block_dims_v<T> == 0)
    for (const int group : {1, 4, 8})
      for (const float scale : {0.0f, -1.0f, 1e-3f, -1e-3f, 1e-35f, 40.0f, std::numeric_limits<float>::quiet_NaN()})
        for (const bool all : {false, true}) {
          const Shape shape{.lengths = {71, 40}, .num_q_heads = 2 * group, .head_dim = 64, .q_type = DType::bf16};
          Sample<T> sample(shape);
          for (int t = 0; t < 71; ++t)
            if (all || t == 37) sample.value_scale(0, t, 1) = scale;
          expect_right_in<TypeParam>(sample, {.layout = Layout::paged, .page_size = 16, .out_type = DType::bf16});
        }
}

/// Queries that integers of 24 bits cannot hold.
TYPED_TEST(Isa, QueriesOfAnySize) {
  using T = typename TypeParam::type;
  if constexpr (is_quantized_v<T>)
    for (const int group : {1, 4, 8})
      for (const float size :
           {1e-35f, 1e-3f, 1e30f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        for (const bool all : {false, true}) {
          Sample<T> sample({.lengths = {40, 20}, .num_q_heads = 2 * group, .head_dim = 64});
          for (int d = 0; d < 64; ++d)
            if (all ? std::isfinite(size) : d == 5)
              sample.query(0, group - 1)[d] = double(float(size * (d % 3 - 1.0f)));
          expect_right_in<TypeParam>(sample, {.layout = Layout::paged, .page_size = 16});
        }
}

/// Decodes the sample with tile registers and expects right results.
template <class T>
void expect_right_in_tiles(const Sample<T>& sample, const Placement& placement) {
  const Environment environment(isa_variable, "amx");
  Scene<Host, T> scene(sample, placement);
  const auto plan = scene.plan();
  EXPECT_NE(plan.describe().find("matrix products"), std::string::npos) << plan.describe();
  scene.decode(plan);
  EXPECT_TRUE(scene.right()) << describe(sample.shape()) << "; " << describe(placement);
}

template <class T>
void expect_right_in_tiles(const Shape& shape, const Placement& placement) {
  expect_right_in_tiles<T>(Sample<T>(shape), placement);
}

template <class Param>
struct Tiles : testing::Test {
  void SetUp() override {
    if (!detail::has_bf16_code<typename Param::type>) GTEST_SKIP() << "tile registers do not multiply this type";
    if (!has(HostIsa::amx)) GTEST_SKIP() << "this build or this processor lacks amx";
  }
};
using TileTypes = lists::Join<lists::Plain::of<Host>, lists::Quantized::of<Host>>::type;
TYPED_TEST_SUITE(Tiles, TileTypes, Names);

TYPED_TEST(Tiles, GroupsAndDims) {
  for (const int group : {1, 2, 3, 4, 5, 8, 11, 16, 20})
    for (const int dim : {32, 64, 96, 128, 256}) {
      if (is_quantized_v<typename TypeParam::type> && group <= 4) continue;
      expect_right_in_tiles<typename TypeParam::type>({.lengths      = {100, 0, 33, 16, 1},
                                                       .num_q_heads  = 3 * group,
                                                       .num_kv_heads = 3,
                                                       .head_dim     = dim,
                                                       .head_dim_v   = dim == 96 ? 160 : dim},
                                                      {.layout = Layout::paged, .page_size = 16});
    }
}

TYPED_TEST(Tiles, PagesOfAnySize) {
  for (const int page_size : {1, 3, 8, 16, 24, 64})
    for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
      expect_right_in_tiles<typename TypeParam::type>(
          {.lengths = {130, 64, 47}, .num_q_heads = 25, .num_kv_heads = 5, .head_dim = 64},
          {.layout = Layout::paged, .page_size = page_size, .order = order});
}

TYPED_TEST(Tiles, QueryTokensAndWindows) {
  for (const int tokens : {2, 5, 16})
    for (const int window : {-1, 20})
      expect_right_in_tiles<typename TypeParam::type>({.lengths            = {200, 31, 64},
                                                       .num_q_heads        = 8,
                                                       .head_dim           = 128,
                                                       .query_lens         = {tokens, 1, 3},
                                                       .window_left        = window,
                                                       .num_initial_tokens = window < 0 ? 0 : 4},
                                                      {.layout = Layout::paged});
}

TYPED_TEST(Tiles, QueriesOfWiderTypes) {
  for (const DType type : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
    expect_right_in_tiles<typename TypeParam::type>(
        {.lengths = {90, 300}, .num_q_heads = 16, .head_dim = 64, .q_type = type}, {});
}

TYPED_TEST(Tiles, ScalesOfAnyKind) {
  using T = typename TypeParam::type;
  if constexpr (is_quantized_v<T>)
    for (const Scales scales : {Scales::none, Scales::per_tensor, Scales::per_head, Scales::per_token})
      for (const int group : {5, 8, 16}) {
        if (scales == Scales::none && !facts_of(dtype_v<T>).has_nan) continue;  // integers need scales
        expect_right_in_tiles<T>({.lengths      = {90, 33, 7},
                                  .num_q_heads  = 5 * group,
                                  .num_kv_heads = 5,
                                  .head_dim     = 32,
                                  .k_scales     = scales,
                                  .v_scales     = scales},
                                 {.layout = Layout::paged, .page_size = 24});
      }
}

/// A NaN or an infinity in a key or a value, beside heads and rows that do not see it.
TYPED_TEST(Tiles, NaNAndInfinity) {
  using T = typename TypeParam::type;
  for (const int t : {0, 15, 16, 40, 68, 69, 70})
    for (const bool in_key : {true, false})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        const Shape shape{.lengths      = {71, 71},
                          .num_q_heads  = 20,
                          .num_kv_heads = 5,
                          .head_dim     = 64,
                          .query_lens   = {3, 1},
                          .q_type       = t % 2 == 0 ? DType::bf16 : DType::fp32};
        Sample<T> sample(shape);
        if constexpr (is_quantized_v<T>) {
          if (!std::isnan(bad)) continue;
          (in_key ? sample.key_scale(0, t, 1) : sample.value_scale(0, t, 1)) = bad;
        } else {
          (in_key ? sample.key(0, t, 1) : sample.value(0, t, 1))[t % 64] = to_element<T>(bad);
        }
        expect_right_in_tiles<T>(sample, {.layout = Layout::paged, .page_size = 16});
      }
}

TEST(IsaOfPlans, NamesThatAreNotThereAreRefusedAsErrors) {
  const Sample<AnyType> sample({.lengths = {40}});
  Scene<Host, AnyType> scene(sample);
  const std::string allowed = "allowed with this build and processor: " + detail::host_isas() + ", or nothing";
  for (const char* const name : {"avx1024", "AVX2", "plain,avx2", " "}) {
    const Environment environment(isa_variable, name);
    expect_refusal([&] { scene.plan(); },
                   {(std::string("PAGODA_HOST_ISA in the environment is \"") + name + "\"").c_str(), allowed.c_str()});
  }
  for (const HostIsa isa : every_isa()) {
    const Environment environment(isa_variable, name_of(isa));
    if (!has(isa)) expect_refusal([&] { scene.plan(); }, {name_of(isa), allowed.c_str()});
  }
}

TEST(IsaOfPlans, TheBestIsTakenWithoutAName) {
  const Environment environment(isa_variable, "");
  EXPECT_EQ(detail::host_isa(), detail::best_host_isa());
  EXPECT_TRUE(has(detail::best_host_isa()));
  EXPECT_TRUE(has(HostIsa::plain));
}

TEST(IsaOfPlans, APlanKeepsItsInstructions) {
  const Sample<AnyType> sample({.lengths = {40, 300}});
  Scene<Host, AnyType> scene(sample);
  const Environment environment(isa_variable, "plain");
  const auto plan          = scene.plan();
  const std::string before = plan.describe();
  const Environment other(isa_variable, "avx1024");  // read when a plan is made, and only then
  scene.decode(plan);
  EXPECT_TRUE(scene.right());
  EXPECT_EQ(plan.describe(), before);
}

#if defined(__linux__) && defined(__x86_64__)
TEST(IsaOfPlans, DetectionAgreesWithTheFlagsOfLinux) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line))
    if (line.starts_with("flags")) flags = line.substr(line.find(':') + 1) + " ";
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo names no flags";
  const auto all_of = [&](std::string_view names) {
    std::istringstream words{std::string(names)};
    for (std::string word; words >> word;)
      if (flags.find(" " + word + " ") == std::string::npos) return false;
    return true;
  };
  const auto flags_of = [](HostIsa isa) {
    std::string names;
    if (isa >= HostIsa::avx2) names += "avx2 fma f16c ";
    if (isa >= HostIsa::avx512) names += "avx512f avx512bw avx512vl avx512dq ";
    if (isa == HostIsa::avx512_bf16) names += "avx512_bf16 ";
    if (isa == HostIsa::amx) names += "amx_tile amx_bf16 ";
    return names;
  };
#define PAGODA_EXPECT(name) EXPECT_EQ(has(HostIsa::name), all_of(flags_of(HostIsa::name))) << #name << ":" << flags;
  PAGODA_FOR_EACH_HOST_ISA(PAGODA_EXPECT)
#undef PAGODA_EXPECT
}
#endif

}  // namespace
}  // namespace pagoda::test
