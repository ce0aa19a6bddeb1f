// SPDX-License-Identifier: Apache-2.0
#include "bench/baseline/three_kernels.hpp"

#include "tests/support/sample.hpp"
#include "tests/support/scene.hpp"
#include "tests/support/spaces.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "bench/baseline/cuda_three_kernels_of_views.hpp"
#endif

#include <pagoda/error.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <type_traits>
#include <variant>

namespace pagoda::bench {
namespace {

template <class On>
class Baseline : public testing::Test {
 public:
  using Space = typename On::space;
  using T     = typename On::type;

  /// f.operator()<Kernels>() for each baseline that there is for this space and type.
  template <class F>
  static void for_each_baseline(const F& f) {
    f.template operator()<ThreeKernels<Space, accumulator_t<T>>>();
#if defined(KOKKOS_ENABLE_CUDA)
    if constexpr (std::is_same_v<Space, Kokkos::Cuda> && std::is_same_v<T, float>)
      f.template operator()<CudaThreeKernels>();
#endif
  }

  /// Runs the sample through the three kernels, in every placement.
  static void expect_right(const test::Shape& shape) {
    for_each_baseline([&]<class Kernels>() { expect_right_by<Kernels>(shape); });
  }

 private:
  template <class Kernels>
  static void expect_right_by(const test::Shape& shape) {
    const test::Sample<T> sample(shape);
    for (const test::Placement& placement :
         {test::Placement{}, test::Placement{.strides = test::Strides::padded, .indirect = true},
          test::Placement{.layout = test::Layout::paged, .page_size = 4, .indirect = true},
          test::Placement{.layout = test::Layout::csr, .page_size = 16, .order = KVOrder::HND}}) {
      test::Placement without_lse = placement;
      without_lse.with_lse        = false;
      test::Scene<Space, T> scene(sample, without_lse);
      scene.poison_outputs();
      const auto q = scene.q().template view<T, 3>(), out = scene.out().template view<T, 3>();
      std::visit(
          [&](const auto& kv) {
            const Kernels baseline(scene.exec(), sample.batch() * shape.num_q_heads, kv.max_seq_len());
            baseline(q, kv, out);
          },
          scene.cache());
      scene.exec().fence();
      // These kernels sum all tokens in one chain, whose rounding error shows in fp64.
      EXPECT_TRUE(scene.right() || scene.worst() < 4) << test::describe(shape) << "; " << test::describe(without_lse);
    }
  }
};
TYPED_TEST_SUITE(Baseline, test::SpacesAndTypes, test::Names);

TYPED_TEST(Baseline, OneHeadOneSequence) {
  for (const int tokens : {1, 33, 1000})
    for (const int dim : {7, 64, 128})
      TestFixture::expect_right({.lengths = {tokens}, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = dim});
}

TYPED_TEST(Baseline, BatchesAndGroups) {
  TestFixture::expect_right(
      {.lengths = {300, 1, 17, 64}, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 64, .head_dim_v = 32});
}

TYPED_TEST(Baseline, RefusesWhatItHasNoScratchFor) {
  using Element = typename TypeParam::type;
  using On      = typename TypeParam::space;
  const test::Sample<Element> sample({.lengths = {20}});
  test::Scene<On, Element> scene(sample);
  const auto q = scene.q().template view<Element, 3>(), out = scene.out().template view<Element, 3>();
  TestFixture::for_each_baseline([&]<class Kernels>() {
    const Kernels small(scene.exec(), 4, 19);
    std::visit([&](const auto& kv) { EXPECT_THROW(small(q, kv, out), InvalidArgument); }, scene.cache());
  });
}

}  // namespace
}  // namespace pagoda::bench
