// SPDX-License-Identifier: Apache-2.0
#include "tests/support/environment.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <numeric>
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/tuned/decode.hpp"
#include "tests/decode/late_writes.hpp"
#include "tests/decode/tuned_suite.hpp"

#include <random>
#endif

namespace pagoda::test {
namespace {

template <class Param>
struct Backends : testing::Test {};
TYPED_TEST_SUITE(Backends, Spaces, Names);

TYPED_TEST(Backends, UnknownNamesAreRefused) {
  const Sample<AnyType> sample({.lengths = {40}});
  Scene<TypeParam, AnyType> scene(sample);
  scene.options().backend = "fastest";
  expect_refusal([&] { scene.plan(); }, {"backend is \"fastest\"; allowed: \"tuned\", \"generic\""});
  scene.options().backend.clear();
  const Environment environment("PAGODA_BACKEND", "fastest");
  expect_refusal([&] { scene.plan(); }, {"PAGODA_BACKEND in the environment is \"fastest\""});
}

TYPED_TEST(Backends, GenericCanBeForced) {
  const Sample<AnyType> sample({.lengths = {40, 700}, .num_q_heads = 8, .head_dim = 128});
  Scene<TypeParam, AnyType> scene(sample);
  const auto expect_generic = [&] {
    const auto plan = scene.plan();
    EXPECT_EQ(plan.backend(), "generic");
    scene.poison_outputs();
    scene.decode(plan);
    EXPECT_TRUE(scene.right());
  };
  scene.options().backend = "generic";
  expect_generic();
  {
    const Environment environment("PAGODA_BACKEND", "tuned");  // the option has priority
    expect_generic();
  }
  scene.options().backend.clear();
  const Environment environment("PAGODA_BACKEND", "generic");
  expect_generic();
}

TYPED_TEST(Backends, WhatTunedCannotDoIsRefusedWithTheReason) {
  const Sample<AnyType> sample({.lengths = {40}, .head_dim = 48});
  Scene<TypeParam, AnyType> scene(sample);
  scene.options().backend = "tuned";
  expect_refusal([&] { scene.plan(); }, {"does not support this problem: "});
  const Sample<AnyType> with_sinks({.lengths = {40, 3}, .head_dim = 128, .sinks = true});
  Scene<TypeParam, AnyType> other(with_sinks);
  other.options().backend   = "tuned";
  other.options().exactness = Exactness::reproducible;
  expect_refusal([&] { other.plan(); }, {"does not support this problem: "});
}

#if defined(KOKKOS_ENABLE_CUDA)

TYPED_TEST_SUITE(Tuned, TunedTypes, Names);

TYPED_TEST(Tuned, Groups) {
  for (int group = 1; group <= 8; ++group)
    TestFixture::expect_right(
        {.lengths = {500, 33, 16}, .num_q_heads = 2 * group, .num_kv_heads = 2, .head_dim = group % 2 ? 128 : 64});
}

TYPED_TEST(Tuned, LengthsAroundTiles) {
  for (const int head_dim : {64, 128}) {
    std::vector<int> lengths(70);
    std::iota(lengths.begin(), lengths.end(), 0);
    TestFixture::expect_right({.lengths = lengths, .num_q_heads = 4, .head_dim = head_dim});
  }
  for (const int length : {1, 15, 16, 17, 127, 128, 129, 2047, 2049})
    TestFixture::expect_right({.lengths = {length}, .num_q_heads = 8, .num_kv_heads = 1, .head_dim = 128});
}

TYPED_TEST(Tuned, Layouts) {
  const Shape shape{.lengths = {700, 0, 33, 260}, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
    for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
      for (const int page_size : {16, 48, 128})
        for (const bool indirect : {false, true})
          TestFixture::expect_right(shape,
                                    {.layout = layout, .page_size = page_size, .order = order, .indirect = indirect});
}

// Several pages in a tile of 16 tokens, and pages that are no multiple of it. Table entries behind the last page of a
// sequence are no page ids (Scene).
TYPED_TEST(Tuned, SmallPages) {
  if (!TestFixture::takes_small_pages()) GTEST_SKIP() << "refused (TunedIntegers.Refusals)";
  for (const int page_size : {1, 2, 3, 4, 5, 8, 12, 24, 40})
    for (const Layout layout : {Layout::paged, Layout::csr})
      for (const KVOrder order : {KVOrder::NHD, KVOrder::HND}) {
        const Placement placement{
            .layout = layout, .page_size = page_size, .order = order, .indirect = order == KVOrder::HND};
        TestFixture::expect_right({.lengths = {700, 0, 1, 15, 16, 17, 33, 260}, .num_q_heads = 8, .head_dim = 128},
                                  placement);
        TestFixture::expect_right({.lengths = {2100}, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 64}, placement);
      }
  std::vector<int> uneven(150, 20);
  uneven[0] = 0, uneven[7] = 6000, uneven[8] = 1, uneven[149] = 0;
  for (const int page_size : {1, 8})
    TestFixture::expect_right({.lengths = uneven, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 128},
                              {.layout = Layout::csr, .page_size = page_size});
}

// One shape for each size of block, rows in rounds, and rows that are divided as one stream; for machines of up to 140
// multiprocessors.
TYPED_TEST(Tuned, NumbersOfRows) {
  for (const int batch : {1, 3, 17, 33, 60, 66, 100, 132, 140, 200, 300})
    TestFixture::expect_right({.lengths      = std::vector<int>(static_cast<std::size_t>(batch), 60),
                               .num_q_heads  = 8,
                               .num_kv_heads = 8,
                               .head_dim     = 128},
                              {.layout = Layout::paged});
}

// More heads than multiprocessors: divided as one stream (Tuning.OneSequenceMayBeStreamed), which needs the length.
TYPED_TEST(Tuned, OneSequenceOfManyHeads) {
  for (const int heads : {140, 270})
    TestFixture::expect_right({.lengths = {700}, .num_q_heads = heads, .num_kv_heads = heads, .head_dim = 128});
}

TYPED_TEST(Tuned, UnevenBatches) {
  TestFixture::expect_right({.lengths = {9000, 1, 0, 17, 500}, .num_q_heads = 8, .head_dim = 128},
                            {.layout = Layout::paged});
  std::vector<int> lengths(150, 20);
  lengths[0] = 0, lengths[7] = 6000, lengths[8] = 1, lengths[149] = 0;
  TestFixture::expect_right({.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 128},
                            {.layout = Layout::csr});
  TestFixture::expect_right({.lengths = {0, 0, 0}, .head_dim = 128});
}

TYPED_TEST(Tuned, LengthsChangeOnTheDevice) {
  TestFixture::expect_right_as_lengths_change(
      TestFixture::taken({.lengths = {3000, 40, 700}, .num_q_heads = 8, .head_dim = 128}), {.layout = Layout::paged});
}

TYPED_TEST(Tuned, RepeatsBitForBit) {
  for (const std::vector<int>& lengths : {std::vector<int>{3000, 40, 0, 700, 17}, {900, 900}})
    TestFixture::expect_same_bits(TestFixture::taken({.lengths = lengths, .num_q_heads = 8, .head_dim = 128}),
                                  {.layout = Layout::paged});
}

// The kernel before lets the decode start at once, and much later writes the queries and the newest 1 to 16 tokens of
// each sequence, which are NaNs until then. Lengths of every remainder by 16, the tokens of a tile.
TYPED_TEST(Tuned, ProgrammaticLaunchesReadNothingTooEarly) {
  const auto expect_right_after = [](const Shape& shape, const std::vector<int>& late_tokens) {
    expect_right_with_late_tokens<typename TypeParam::type>(TestFixture::taken(shape),
                                                            {.layout = Layout::paged, .page_size = 16}, late_tokens);
  };
  std::vector<int> counts(16);
  std::iota(counts.begin(), counts.end(), 1);
  // 16 lengths from `first` on with a given number of heads: rows in two splits, whole rows, and whole rows of small
  // blocks.
  for (const auto& [first, heads] : {std::pair(288, 4), {288, 6}, {0, 4}, {1, 6}, {33, 32}}) {
    std::vector<int> lengths(16);
    std::iota(lengths.begin(), lengths.end(), first);
    expect_right_after({.lengths = lengths, .num_q_heads = heads, .num_kv_heads = heads, .head_dim = 128}, counts);
  }
  // Rows in many splits; lengths that differ.
  for (const std::vector<int>& lengths :
       {std::vector<int>{3000}, {2993}, {17}, {5}, {900, 900, 897}, {700, 3000, 16, 0}})
    expect_right_after({.lengths = lengths, .num_q_heads = 8, .head_dim = 128}, {1, 2, 15, 16, 16});
}

// The same with more late tokens than the decode waits for: it reads NaNs. So it does start early, and the test above
// does see reads that come too early.
TYPED_TEST(Tuned, ProgrammaticLaunchesReadOlderTokensEarly) {
  using T = typename TypeParam::type;
  if (tuned::Device::current().sm < 90) GTEST_SKIP() << "needs sm_90";
  const Shape shape =
      TestFixture::taken({.lengths = std::vector<int>(16, 300), .num_q_heads = 4, .num_kv_heads = 4, .head_dim = 128});
  const Sample<T> sample(shape);
  Scene<Kokkos::Cuda, T> scene(sample, {.layout = Layout::paged, .page_size = 16});
  scene.options().backend             = "tuned";
  scene.options().programmatic_launch = true;
  const auto plan                     = scene.plan();
  LateWrites::decode(scene, plan, 64);
  EXPECT_FALSE(scene.right()) << describe(shape);
}

// A plan that chose the tuned kernels uses the generic kernel for a call that they do not support.
TYPED_TEST(Tuned, OtherQueriesTakeTheGenericKernel) {
  using T      = typename TypeParam::type;
  Shape shape  = TestFixture::taken({.lengths = {300, 7}, .num_q_heads = 8, .head_dim = 128});
  shape.q_type = DType::fp64;
  const Sample<T> sample(shape);
  Scene<Kokkos::Cuda, T> scene(sample);
  const Environment environment("PAGODA_BACKEND", "");
  const auto plan = scene.plan();
  EXPECT_EQ(plan.backend(), "tuned");
  scene.decode(plan);
  EXPECT_TRUE(scene.right());
  scene.options().backend = "tuned";
  const auto forced       = scene.plan();
  expect_refusal([&] { scene.decode(forced); }, {"does not support this problem: "});
}

/// The kernels for cards without tensor maps (A100, A40) run here too, through the kernels' own interface: the same
/// sums in the same order, to the last bit, whichever way the tiles come. T: of the cache, queries and outputs, `type`.
template <class T>
void expect_same_either_way(tuned::Type type, const tuned::ScoreOptions& options = {}) {
  constexpr int batch = 5, heads = 2, group = 4, head_dim = 128, page_size = 32, max_pages = 40;
  using Memory = Kokkos::CudaSpace;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto upload = [&](auto view, const auto& next) {
    auto host = Kokkos::create_mirror_view(view);
    for (std::size_t i = 0; i < host.extent(0); ++i) host(i) = next(i);
    Kokkos::deep_copy(view, host);
    return view;
  };
  constexpr std::size_t rows = std::size_t(batch) * max_pages * page_size * heads;
  const auto number          = [&](std::size_t) { return T(normal(random)); };
  const auto k               = upload(Kokkos::View<T*, Memory>("k", rows * head_dim), number);
  const auto v               = upload(Kokkos::View<T*, Memory>("v", rows * head_dim), number);
  const auto q               = upload(Kokkos::View<T*, Memory>("q", batch * heads * group * head_dim), number);
  const auto table           = upload(Kokkos::View<int*, Memory>("table", batch * max_pages), [](std::size_t i) {
    return static_cast<int>(i * 77 % (batch * max_pages));
  });  // 77 and 200: coprime
  for (const std::vector<int>& lengths : {std::vector<int>{1280, 1, 0, 333, 1000}, {1000, 1000, 990, 1000, 1000}}) {
    const auto seq_lens =
        upload(Kokkos::View<int*, Memory>("seq_lens", batch), [&](std::size_t i) { return lengths[i]; });
    std::vector<std::vector<T>> outs;
    for (const int sm : {90, 80}) {
      tuned::Device device = tuned::Device::current();
      device.sm            = std::min(device.sm, sm);
      const Kokkos::View<T*, Memory> out("out", q.extent(0));
      Kokkos::deep_copy(out, T(std::numeric_limits<float>::quiet_NaN()));
      tuned::Problem p{};
      p.type = type, p.num_q_heads = heads * group, p.num_kv_heads = heads;
      p.head_dim = p.head_dim_v = head_dim, p.num_q_tokens = p.max_q_tokens = 1;
      const Kokkos::View<std::byte*, Memory> workspace("workspace", tuned::workspace_bytes(p, device));
      constexpr std::int64_t row = head_dim * sizeof(T);
      p.batch                    = batch;
      p.page_size = page_size, p.max_seq_len = max_pages * page_size, p.num_pages = batch * max_pages;
      p.k           = {k.data(), page_size * heads * row, heads * row, row, nullptr, 0};
      p.v           = {v.data(), page_size * heads * row, heads * row, row, nullptr, 0};
      p.seq_lens    = seq_lens.data();
      p.block_table = table.data(), p.table_row = max_pages, p.table_page = 1, p.table_pages = max_pages;
      p.table_entries = batch * max_pages;
      p.q             = {q.data(), type, heads * group * head_dim, head_dim};
      p.out           = {out.data(), type, heads * group * head_dim, head_dim};
      p.softmax_scale = 0.1, p.options = options;
      ASSERT_EQ(tuned::why_not(p, device), nullptr);
      const Kokkos::Cuda exec;
      exec.fence();
      tuned::prepare(p, device, workspace.data(), exec.cuda_stream());
      tuned::decode(p, device, workspace.data(), exec.cuda_stream());
      tuned::decode(p, device, workspace.data(), exec.cuda_stream());
      exec.fence();
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
      outs.emplace_back(host.data(), host.data() + host.extent(0));
    }
    for (std::size_t i = 0; i < outs[0].size(); ++i) {
      ASSERT_TRUE(std::isfinite(static_cast<float>(outs[0][i]))) << i;
      ASSERT_EQ(static_cast<float>(outs[0][i]), static_cast<float>(outs[1][i])) << i;
    }
  }
}
TEST(TunedAlone, EitherWayOfCopying) {
  expect_same_either_way<half_t>(tuned::Type::fp16);
  expect_same_either_way<float>(tuned::Type::fp32);
  const tuned::ScoreOptions options{.window_left = 300, .num_initial_tokens = 20, .logit_soft_cap = 5};
  expect_same_either_way<half_t>(tuned::Type::fp16, options);
  expect_same_either_way<float>(tuned::Type::fp32, options);
}

#endif

}  // namespace
}  // namespace pagoda::test
