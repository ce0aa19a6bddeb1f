// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <string>
#include <type_traits>

namespace pagoda::test {
namespace {

template <class Param>
struct Shapes : testing::Test {};
TYPED_TEST_SUITE(Shapes, SpacesAndTypes, Names);

/// Every layout, in the smallest problems.
const std::vector<Placement> each_layout = {
    {.layout = Layout::contiguous}, {.layout = Layout::paged}, {.layout = Layout::csr}};

// The grids of the A40 study: its usual head dims, and odd ones at odd lengths.
TYPED_TEST(Shapes, StudyGrid) {
  using T = typename TypeParam::type;
  for (const int dim : {8, 64, 128})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {4, 32, 256, 1024}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim}, each_layout);
}

TYPED_TEST(Shapes, StudyGridOfOddNumbers) {
  using T = typename TypeParam::type;
  for (const int dim : {7, 33, 65, 129})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {3, 17, 255, 1000}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim}, each_layout);
}

// One sequence at a time; it is split differently in a batch.
TYPED_TEST(Shapes, StudyGridAlone) {
  using T = typename TypeParam::type;
  for (const int length : {4, 32, 256, 1024})
    expect_right<typename TypeParam::space, T>({.lengths = {length}, .num_q_heads = 1, .num_kv_heads = 1});
}

// Lengths at the edges of pages, empty sequences among them, in pages of any size.
TYPED_TEST(Shapes, LengthsAroundPageEdges) {
  using T = typename TypeParam::type;
  for (const int page : {1, 3, 16, 48, 1000}) {
    const Sample<T> sample({.lengths  = {0, 1, page - 1, page, page + 1, 0, 2 * page + 1, 3 * page},
                            .head_dim = 32,
                            .seed     = static_cast<unsigned>(page)});
    expect_right<typename TypeParam::space>(
        sample, {{.layout = Layout::paged, .page_size = page}, {.layout = Layout::csr, .page_size = page}});
  }
}

TYPED_TEST(Shapes, NothingButEmptySequences) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {0, 0, 0}}, each_layout);
}

TYPED_TEST(Shapes, Groups) {
  using T = typename TypeParam::type;
  for (const int group : {1, 3, 4, 7, 8, 16})
    expect_right<typename TypeParam::space, T>({.lengths = {300, 5}, .num_q_heads = 2 * group, .head_dim = 32},
                                               {{}, {.layout = Layout::paged}});
}

TYPED_TEST(Shapes, HeadDims) {
  using T = typename TypeParam::type;
  for (const int dim : {1, 7, 33, 64, 80, 96, 128, 129, 192, 256})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {130, 1}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = dim}, {{}, {.layout = Layout::paged}});
}

// Outputs of many wide rows may not fit the scratch memory of a team at once.
TYPED_TEST(Shapes, GroupsOfWideHeads) {
  using T = typename TypeParam::type;
  for (const int dim : {160, 256})
    for (const int group : {5, 8})
      expect_right<typename TypeParam::space, T>({.lengths = {200, 3}, .num_q_heads = 2 * group, .head_dim = dim},
                                                 {{}, {.layout = Layout::paged}});
}

TYPED_TEST(Shapes, ValuesWiderOrNarrowerThanKeys) {
  using T = typename TypeParam::type;
  for (const auto& [dim, dim_v] : {std::pair(16, 128), std::pair(192, 128), std::pair(33, 64), std::pair(64, 1)})
    expect_right<typename TypeParam::space, T>(
        {.lengths = {130, 17}, .num_kv_heads = 1, .head_dim = dim, .head_dim_v = dim_v},
        {{}, {.layout = Layout::paged}});
}

// Latent attention: one wide kv head for all queries, with values of their own or as a prefix of the keys.
TYPED_TEST(Shapes, LatentCache) {
  using T = typename TypeParam::type;
  for (const bool values_in_keys : {false, true})
    expect_right<typename TypeParam::space, T>({.lengths        = {150, 1, 64},
                                                .num_q_heads    = 16,
                                                .num_kv_heads   = 1,
                                                .head_dim       = 576,
                                                .head_dim_v     = 512,
                                                .values_in_keys = values_in_keys},
                                               {{.layout = Layout::paged, .page_size = 64}});
}

TYPED_TEST(Shapes, OrdersAndStrides) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {70, 0, 31}, .num_q_heads = 6, .num_kv_heads = 3, .head_dim = 32});
  std::vector<Placement> placements;
  for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
    for (const KVOrder order : {KVOrder::NHD, KVOrder::HND})
      for (const Strides strides : {Strides::dense, Strides::padded, Strides::left})
        placements.push_back({.layout = layout, .order = order, .strides = strides, .io = strides});
  // Queries and outputs may have other strides than the cache.
  placements.push_back({.strides = Strides::dense, .io = Strides::padded});
  placements.push_back({.strides = Strides::dense, .io = Strides::left});
  placements.push_back({.strides = Strides::padded, .io = Strides::dense});
  expect_right<typename TypeParam::space>(sample, placements);
}

// Rows of fewer dims than vectors have, and of more.
TYPED_TEST(Shapes, DimsAroundVectorWidths) {
  using T = typename TypeParam::type;
  for (const int dim : {15, 16, 17, 24, 40, 48})
    expect_right<typename TypeParam::space, T>({.lengths = {40}, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = dim});
}

// Rows of any length on any address are read in vectors where the machine has a fragment for them.
TYPED_TEST(Shapes, RowsOnAnyAddress) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int dim : {33, 40, 72, 100, 120, 128, 200, 256}) {
    const Sample<T> sample({.lengths = {130, 0, 17}, .num_q_heads = 8, .head_dim = dim, .query_lens = {2, 2, 2}});
    for (const Placement& placement :
         {Placement{}, Placement{.strides = Strides::padded}, Placement{.layout = Layout::paged, .page_size = 3},
          Placement{.layout = Layout::paged, .order = KVOrder::HND, .strides = Strides::padded}}) {
      Scene<Space, T> scene(sample, placement);
      scene.options().backend = "generic";
      const auto plan         = scene.plan();
      scene.decode(plan);
      EXPECT_TRUE(scene.right()) << describe(sample.shape()) << "; " << describe(placement);
#if defined(KOKKOS_ENABLE_CUDA)
      if (std::is_same_v<Space, Kokkos::Cuda> && sizeof(T) <= 4)
        EXPECT_EQ(plan.describe().find("element-wise"), std::string::npos) << plan.describe();
#endif
    }
  }
}

TYPED_TEST(Shapes, BatchEntriesOfALargerCache) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>({.lengths = {33, 0, 100, 1}, .head_dim = 32},
                                             {{.layout = Layout::contiguous, .indirect = true},
                                              {.layout = Layout::paged, .indirect = true},
                                              {.layout = Layout::csr, .indirect = true}});
}

// One long sequence beside short ones.
TYPED_TEST(Shapes, OneLongSequenceAmongShortOnes) {
  using T = typename TypeParam::type;
  std::vector<int> lengths(31, 17);
  lengths[13] = 20000;
  for (int b = 0; b < 31; b += 3) lengths[b] = b;
  const Sample<T> sample({.lengths = lengths, .num_q_heads = 4, .num_kv_heads = 1, .head_dim = 16});
  expect_right<typename TypeParam::space>(sample,
                                          {{.layout = Layout::paged}, {.layout = Layout::csr, .page_size = 48}});
}

// More rows than the machine has teams: whole rows, written without a merge.
TYPED_TEST(Shapes, ManyHeads) {
  using T = typename TypeParam::type;
  expect_right<typename TypeParam::space, T>(
      {.lengths = {40, 64, 20, 3}, .num_q_heads = 96, .num_kv_heads = 48, .head_dim = 16});
}

}  // namespace
}  // namespace pagoda::test
