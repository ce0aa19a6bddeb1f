// SPDX-License-Identifier: Apache-2.0
// Caches that the library allocates, in any order and type, have the layout that decodes read fastest.
#include "tests/support/refusal.hpp"
#include "tests/support/spaces.hpp"
#include "tests/support/watch.hpp"

#include <pagoda/pagoda.hpp>

namespace pagoda::test {
namespace {

using AllTypes = lists::Join<SpacesAndTypes, SpacesAndQuantizedTypes>::type;

template <class Param>
struct Caches : testing::Test {};
TYPED_TEST_SUITE(Caches, AllTypes, Names);

template <class Rows>
void expect_aligned_zeros(const Rows& rows) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.data()) % 1024, 0u);
  const auto host        = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), rows);
  const auto* const data = reinterpret_cast<const unsigned char*>(host.data());
  for (std::size_t i = 0; i < host.span() * sizeof(typename Rows::value_type); ++i) ASSERT_EQ(data[i], 0);
}

TYPED_TEST(Caches, LieAsDecodesWantThem) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Space exec;
  for (const KVOrder order : {KVOrder::NHD, KVOrder::HND}) {
    const auto paged = make_paged_cache<T>(
        exec, {.num_pages = 7, .page_size = 5, .num_kv_heads = 3, .head_dim = 64, .head_dim_v = 32, .order = order});
    exec.fence();
    const std::size_t token = order == KVOrder::NHD ? 1 : 2;
    EXPECT_EQ(paged.k.extent(0), 7u);
    EXPECT_EQ(paged.k.extent(token), 5u);
    EXPECT_EQ(paged.k.extent(3 - token), 3u);
    EXPECT_EQ(paged.k.extent(3) * dims_per_element_v<T>, 64u);
    EXPECT_EQ(paged.v.extent(3) * dims_per_element_v<T>, 32u);
    expect_aligned_zeros(paged.k);
    expect_aligned_zeros(paged.v);

    const auto rows = make_contiguous_cache<T>(
        exec, {.num_sequences = 2, .max_seq_len = 100, .num_kv_heads = 3, .head_dim = 64, .order = order});
    exec.fence();
    EXPECT_EQ(rows.v.extent(token), 100u);
    expect_aligned_zeros(rows.v);

    const Kokkos::View<int*, typename Space::memory_space> seq_lens("test lengths", 2);
    ContiguousKV kv(rows.k, rows.v, seq_lens, rows.order);
    if constexpr (block_dims_v<T> > 0) {
      const Kokkos::View<block_scale_t<T>****, Kokkos::LayoutRight, typename Space::memory_space> blocks(
          Kokkos::view_alloc("test scales", Kokkos::WithoutInitializing), 2, 100, 3, blocks_of(dtype_v<T>, 64));
      const Kokkos::View<float, typename Space::memory_space> scale("test scale");
      auto scales = block_scales(blocks, blocks);
      if (facts_of(dtype_v<T>).scales == ScaleUse::required) scales.per_tensor = per_tensor_scales(scale, scale);
      const auto plan = pagoda::plan(exec, kv.with_scales(scales), {.num_q_heads = 6});
      EXPECT_EQ(plan.describe().find("slow"), std::string::npos) << plan.describe();
    } else if constexpr (is_quantized_v<T>) {
      const Kokkos::View<float, typename Space::memory_space> scale("test scale");
      const auto plan = pagoda::plan(exec, kv.with_scales(per_tensor_scales(scale, scale)), {.num_q_heads = 6});
      EXPECT_EQ(plan.describe().find("slow"), std::string::npos) << plan.describe();
    } else {
      const auto plan = pagoda::plan(exec, kv, {.num_q_heads = 6});
      EXPECT_EQ(plan.describe().find("slow"), std::string::npos) << plan.describe();
    }
  }
}

TYPED_TEST(Caches, StayWithTheirCopies) {
  using T         = typename TypeParam::type;
  using Space     = typename TypeParam::space;
  const auto copy = [] {
    const auto cache =
        make_paged_cache<T>(Space(), {.num_pages = 1, .page_size = 4, .num_kv_heads = 1, .head_dim = 16});
    return cache;
  }();
  Space().fence();
  expect_aligned_zeros(copy.k);
}

TEST(CacheShapes, WhatCannotBe) {
  const Host exec;
  expect_refusal([&] { make_paged_cache<float>(exec, {.page_size = 16, .num_kv_heads = 1, .head_dim = 8}); },
                 {"pagoda::make_paged_cache", "num_pages is 0", "1 or more"});
  expect_refusal([&] { make_contiguous_cache<float>(exec, {.num_sequences = 3, .num_kv_heads = 1, .head_dim = 8}); },
                 {"pagoda::make_contiguous_cache", "max_seq_len is 0"});
  expect_refusal(
      [&] { make_paged_cache<int4x2_t>(exec, {.num_pages = 1, .page_size = 1, .num_kv_heads = 1, .head_dim = 7}); },
      {"head_dim is 7", "multiples of 2"});
}

}  // namespace
}  // namespace pagoda::test
