// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

namespace pagoda::test {
namespace {

template <class Param>
struct MergedSequences : testing::Test {};
TYPED_TEST_SUITE(MergedSequences, SpacesAndTypes, Names);

// A sequence cut in ranges that are decoded on their own, an empty one among them, and merged, is the whole sequence.
TYPED_TEST(MergedSequences, RangesMakeTheWhole) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  using Acc   = accumulator_t<T>;
  const std::vector<int> lengths{250, 1, 0, 449, 64};
  const int length = 764, heads = 4, dims = 32;
  Sample<T> whole({.lengths = {length}, .num_q_heads = heads, .head_dim = dims});
  Sample<T> ranges({.lengths = lengths, .num_q_heads = heads, .head_dim = dims});
  for (int b = 0, first = 0; b < ranges.batch(); first += lengths[b++]) {
    for (int t = 0; t < lengths[b]; ++t) {
      for (int h = 0; h < whole.shape().num_kv_heads; ++h) {
        std::copy_n(whole.key(0, first + t, h), dims, ranges.key(b, t, h));
        std::copy_n(whole.value(0, first + t, h), dims, ranges.value(b, t, h));
      }
    }
    for (int h = 0; h < heads; ++h) std::copy_n(whole.query(0, h), dims, ranges.query(b, h));
  }

  // States are kept in the type they are accumulated in, as whoever splits a sequence would.
  const DType acc = dtype_v<Acc>;
  Scene<Space, T> scene(ranges, {.layout = Layout::paged, .out_type = acc, .lse_type = acc});
  const auto plan = scene.plan();
  scene.decode(plan);
  ASSERT_TRUE(scene.right());
  const int n       = ranges.batch();
  const auto states = scene.out().template view<const Acc, 3>();
  const auto lses   = scene.lse().template view<const Acc, 2>();
  // (range, head, dim) as (state, one token, head, dim)
  const Kokkos::View<const Acc****, Kokkos::LayoutStride, typename Space::memory_space> outs(
      states.data(), Kokkos::LayoutStride(n, states.stride(0), 1, 1, heads, states.stride(1), dims, states.stride(2)));
  const Kokkos::View<const Acc***, Kokkos::LayoutStride, typename Space::memory_space> all_lses(
      lses.data(), Kokkos::LayoutStride(n, lses.stride(0), 1, 1, heads, lses.stride(1)));
  Array<Space> out(dtype_v<T>, {1, heads, dims}, Strides::dense), lse(acc, {1, heads}, Strides::dense);
  pagoda::merge(scene.exec(), outs, all_lses, out.template view<T, 3>(), lse.template view<Acc, 2>());
  out.download(scene.exec()), lse.download(scene.exec());
  const Comparison difference = compare<Space>(whole, out, &lse, plan.state().probability_type);
  EXPECT_EQ(difference.wrong, 0) << difference.report;
}

}  // namespace
}  // namespace pagoda::test
