// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

namespace pagoda::test {
namespace {

template <class Param>
struct MergedSequences : testing::Test {};
TYPED_TEST_SUITE(MergedSequences, SpacesAndTypes, Names);

// Decodes of ranges of a sequence (one is empty), merged, equal a decode of the whole sequence.
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

  // States stay in the accumulator type, as in a split sequence of a user.
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
  const Comparison difference = compare<Space>(whole, out, &lse, plan.schedule().kernel.probability_type);
  EXPECT_EQ(difference.wrong, 0) << difference.report;
}

// A shared prefix is read once: one batch entry has a query token of each sequence, without the causal mask. Merged
// with the rest of each sequence, it equals the whole.
TYPED_TEST(MergedSequences, APrefixSharedByManySequences) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  using Acc   = accumulator_t<T>;
  const std::vector<int> own{70, 1, 0, 33, 129, 64, 5, 2, 0, 17, 300, 16};
  const int shared = 210, heads = 8, kv_heads = 2, dims = 64, n = static_cast<int>(own.size());
  std::vector<int> lengths = own;
  for (int& length : lengths) length += shared;
  Sample<T> whole({.lengths = lengths, .num_q_heads = heads, .num_kv_heads = kv_heads, .head_dim = dims});
  Sample<T> prefix({.lengths      = {shared},
                    .num_q_heads  = heads,
                    .num_kv_heads = kv_heads,
                    .head_dim     = dims,
                    .query_lens   = {n},
                    .causal       = false});
  Sample<T> rest({.lengths = own, .num_q_heads = heads, .num_kv_heads = kv_heads, .head_dim = dims});
  const auto copy_token = [&](Sample<T>& from, int b, int t, Sample<T>& to, int to_b, int to_t) {
    for (int h = 0; h < kv_heads; ++h) {
      std::copy_n(from.key(b, t, h), dims, to.key(to_b, to_t, h));
      std::copy_n(from.value(b, t, h), dims, to.value(to_b, to_t, h));
    }
  };
  for (int b = 0; b < n; ++b) {
    for (int t = 0; t < shared; ++t) copy_token(prefix, 0, t, whole, b, t);
    for (int t = 0; t < own[b]; ++t) copy_token(rest, b, t, whole, b, shared + t);
    for (int h = 0; h < heads; ++h) {
      std::copy_n(whole.query(b, h), dims, prefix.query(b, h));
      std::copy_n(whole.query(b, h), dims, rest.query(b, h));
    }
  }

  const DType acc = dtype_v<Acc>;
  const Placement placement{.layout = Layout::paged, .out_type = acc, .lse_type = acc};
  Scene<Space, T> first(prefix, placement), second(rest, placement);
  const auto plan = first.plan(), plan_of_rest = second.plan();
  first.decode(plan), second.decode(plan_of_rest);
  ASSERT_TRUE(first.right());
  ASSERT_TRUE(second.right());
  Array<Space> out(dtype_v<T>, {n, heads, dims}, Strides::dense), lse(acc, {n, heads}, Strides::dense);
  pagoda::merge(first.exec(), first.out().template view<const Acc, 3>(), first.lse().template view<const Acc, 2>(),
                second.out().template view<const Acc, 3>(), second.lse().template view<const Acc, 2>(),
                out.template view<T, 3>(), lse.template view<Acc, 2>());
  out.download(first.exec()), lse.download(first.exec());
  const Comparison difference = compare<Space>(whole, out, &lse, plan.schedule().kernel.probability_type, dims / 16);
  EXPECT_EQ(difference.wrong, 0) << difference.report;
}

}  // namespace
}  // namespace pagoda::test
