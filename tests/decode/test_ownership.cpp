// SPDX-License-Identifier: Apache-2.0
// Ownership of plans and callers, and the instances on which a plan may be used.
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

#include <cstring>

namespace pagoda::test {
namespace {

template <class Space, class T>
Plan<Space> plan_on(const Space& exec, Scene<Space, T>& scene, const typename Plan<Space>::Workspace& workspace = {}) {
  return std::visit([&](const auto& kv) { return pagoda::plan(exec, kv, scene.options(), workspace); }, scene.cache());
}

template <class Param>
struct Ownership : testing::Test {};
TYPED_TEST_SUITE(Ownership, SpacesAndTypes, Names);

// Plans of different shapes share a workspace and decode in turn; between decodes other data is written into it.
TYPED_TEST(Ownership, WorkspacesAreScratch) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> long_rows({.lengths = {5000, 40, 3000}, .num_q_heads = 8, .head_dim = 64});
  const Sample<T> many_rows({.lengths      = std::vector<int>(20, 600),
                             .num_q_heads  = 16,
                             .num_kv_heads = 4,
                             .head_dim     = 128,
                             .query_lens   = std::vector<int>(20, 2)});
  Scene<Space, T> one(long_rows, {.layout = Layout::paged}), other(many_rows);
  const auto bytes = [](Scene<Space, T>& scene) {
    return std::visit([&](const auto& kv) { return workspace_bytes(scene.exec(), kv, scene.options()); },
                      scene.cache());
  };
  const typename Plan<Space>::Workspace workspace("test workspace", std::max(bytes(one), bytes(other)));
  const auto plan = plan_on(one.exec(), one, workspace), plan_of_other = plan_on(one.exec(), other, workspace);
  for (const int byte : {0xff, 0x00, 0x01, 0x7f}) {
    for (const bool first : {true, false}) {
      Scene<Space, T>& scene = first ? one : other;
      scene.poison_outputs();
      Kokkos::deep_copy(scene.exec(), workspace, static_cast<std::byte>(byte));
      scene.decode(first ? plan : plan_of_other);
      EXPECT_TRUE(scene.right()) << "workspace filled with " << byte;
    }
  }
}

// Views of the options may be destroyed after the plan; here their memory is reused at once.
TYPED_TEST(Ownership, PlansKeepTheirOptions) {
  using T      = typename TypeParam::type;
  using Space  = typename TypeParam::space;
  using Memory = typename Space::memory_space;
  const Sample<T> sample({.lengths     = {70, 0, 300},
                          .num_q_heads = 8,
                          .head_dim    = 32,
                          .query_lens  = {2, 1, 3},
                          .alibi       = true,
                          .sinks       = true});
  Scene<Space, T> scene(sample);
  const auto copy_of = [&](const auto& view) {
    using Element = typename std::decay_t<decltype(view)>::non_const_value_type;
    const Kokkos::View<Element*, Memory> copy("test copy", view.extent(0));
    Kokkos::deep_copy(copy, view);
    return copy;
  };
  const auto plan = [&] {
    auto options         = scene.options();
    options.alibi_slopes = copy_of(scene.options().alibi_slopes);
    options.sinks        = copy_of(scene.options().sinks);
    options.cu_seqlens_q = copy_of(scene.options().cu_seqlens_q);
    return std::visit([&](const auto& kv) { return pagoda::plan(scene.exec(), kv, options); }, scene.cache());
  }();
  std::vector<Kokkos::View<float*, Memory>> others;
  for (int i = 0; i < 16; ++i) {
    others.emplace_back("test others", i % 2 == 0 ? 8 : 4);
    Kokkos::deep_copy(others.back(), -77.0f);
  }
  scene.decode(plan);
  EXPECT_TRUE(scene.right());
}

/// Keeps an instance busy for some milliseconds, where kernels are asynchronous.
struct Busy {
  KOKKOS_FUNCTION void operator()(int) const {
#if defined(__CUDA_ARCH__)
    for (const long long start = clock64(); clock64() - start < 20'000'000;) {
    }
#endif
  }
};

// A plan made on one instance is used on another at once, while the first is still busy with earlier work.
TYPED_TEST(Ownership, DecodesOnOtherInstances) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {5000, 40}, .num_q_heads = 8, .head_dim = 64});
  const auto& two = instances<Space>();
  Scene<Space, T> scene(sample, {.layout = Layout::paged}, two[1]);
  for (int round = 0; round < 3; ++round) {
    scene.poison_outputs();
    two[0].fence();
    two[1].fence();
    Kokkos::parallel_for("Pagoda::test::busy", Kokkos::RangePolicy<Space>(two[0], 0, 1), Busy{});
    const auto plan = plan_on(two[0], scene);
    for (int call = 0; call < 2; ++call) scene.decode(two[1], plan);
    two[1].fence();
    EXPECT_TRUE(scene.right()) << "on the other instance";
    scene.poison_outputs();
    two[1].fence();
    scene.decode(two[0], plan);
    two[0].fence();
    EXPECT_TRUE(scene.right()) << "on the plan's instance";
  }
}

TYPED_TEST(Ownership, PlansSayWhatTheyOwn) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {300}, .num_q_heads = 8, .head_dim = 64});
  Scene<Space, T> scene(sample);
  const auto plan = scene.plan();
  EXPECT_EQ(plan.workspace().extent(0), plan.workspace_bytes());
  EXPECT_GT(plan.persistent_bytes(), 0u);
  EXPECT_EQ(plan.options().num_q_heads, 8);
}

}  // namespace
}  // namespace pagoda::test
