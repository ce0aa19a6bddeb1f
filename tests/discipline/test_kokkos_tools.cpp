// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

#include <optional>
#include <stdexcept>

namespace pagoda::test {
namespace {

using Strings = std::vector<std::string>;

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

/// Split rows and whole rows, several query tokens, and all score options.
Shape busy_shape() {
  return {.lengths        = {3000, 20, 0, 700},
          .num_q_heads    = 4,
          .num_kv_heads   = 2,
          .head_dim       = 16,
          .query_lens     = {2, 1, 3, 0},
          .window_left    = 2500,
          .logit_soft_cap = 5,
          .alibi          = true,
          .sinks          = true};
}

template <class Space, class T>
Plan<Space> plan_without_workspace(Scene<Space, T>& scene) {
  return std::visit([&](const auto& kv) { return pagoda::plan(scene.exec(), kv, scene.options()); }, scene.cache());
}

template <class Space>
void merge_two(const Space& exec) {
  using Memory = typename Space::memory_space;
  const Kokkos::View<float****, Memory> outs("outs", 2, 3, 4, 8);
  const Kokkos::View<float***, Memory> lses("lses", 2, 3, 4);
  const Kokkos::View<float***, Memory> out("out", 3, 4, 8);
  const Kokkos::View<float**, Memory> lse("lse", 3, 4);
  exec.fence();
  const Watch watch;
  pagoda::merge(exec, outs, lses, out, lse);
}

template <class Param>
struct KokkosTools : testing::Test {};
TYPED_TEST_SUITE(KokkosTools, SpacesAndTypes, Names);

TYPED_TEST(KokkosTools, EveryLabelIsOurs) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(busy_shape());
  Scene<Space, T> scene(sample, {.layout = Layout::paged});
  {
    const Watch watch;
    const auto plan = plan_without_workspace(scene);
    scene.decode(plan);
  }
  scene.exec().fence();
  Watch::Seen seen = Watch::seen();
  merge_two(scene.exec());
  const auto& merged = Watch::seen().kernels;
  EXPECT_FALSE(merged.empty());
  seen.kernels.insert(seen.kernels.end(), merged.begin(), merged.end());

  EXPECT_GE(seen.kernels.size(), 3u);
  EXPECT_FALSE(seen.allocations.empty()) << "the plan's workspace was not seen";
  for (const auto& name : seen.kernels) EXPECT_TRUE(starts_with(name, "Pagoda::")) << name;
  for (const auto& name : seen.allocations)  // except Kokkos' own allocations
    EXPECT_TRUE(starts_with(name, "Pagoda::") || starts_with(name, "Kokkos::")) << name;
}

// This includes the first decode after a plan, as the plan does all one-time work.
TYPED_TEST(KokkosTools, DecodeOnlyLaunches) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const bool busy : {false, true}) {
    const Sample<T> sample(busy ? busy_shape() : Shape{.lengths = {3000, 20, 0}, .head_dim = 128});
    Scene<Space, T> scene(sample, {.layout = Layout::paged}, instances<Space>()[0]);
    const auto plan = scene.plan();
    scene.exec().fence();
    {
      const Watch watch;
      scene.decode(plan);
      scene.decode(plan);
    }
    const Watch::Seen seen = Watch::seen();
    EXPECT_TRUE(scene.right());
    EXPECT_FALSE(seen.kernels.empty());
    EXPECT_EQ(seen.allocations, Strings());
    EXPECT_EQ(seen.copies, Strings());
    EXPECT_EQ(seen.fences, Strings());
  }
}

TYPED_TEST(KokkosTools, MergeOnlyLaunches) {
  using Space = typename TypeParam::space;
  // On a fresh instance, for whose launches Kokkos has allocated nothing, and without a plan that could have triggered
  // this.
  const Space whole;
  merge_two(whole.concurrency() < 2 ? whole : Kokkos::Experimental::partition_space(whole, 1, 1)[0]);
  const Watch::Seen seen = Watch::seen();
  EXPECT_EQ(seen.kernels.size(), 1u);
  EXPECT_EQ(seen.allocations, Strings());
  EXPECT_EQ(seen.copies, Strings());
  EXPECT_EQ(seen.fences, Strings());
}

// A plan reads no device memory, so it does not wait. With a given workspace it allocates only its own memory.
TYPED_TEST(KokkosTools, PlanInAGivenWorkspaceAllocatesItsOwnMemoryAlone) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(busy_shape());
  Scene<Space, T> scene(sample, {.layout = Layout::paged});
  scene.decode(scene.plan());  // one-time work
  scene.exec().fence();
  std::optional<Plan<Space>> plan;  // destroyed after the watch, because Kokkos fences when it frees memory
  std::visit(
      [&](const auto& kv) {
        const std::size_t bytes = workspace_bytes(scene.exec(), kv, scene.options());
        const typename Plan<Space>::Workspace workspace("workspace", bytes);
        const Watch watch;
        plan.emplace(pagoda::plan(scene.exec(), kv, scene.options(), workspace));
      },
      scene.cache());
  const Watch::Seen seen = Watch::seen();
  EXPECT_EQ(seen.allocations, Strings{"Pagoda::plan::persistent"});
  EXPECT_EQ(seen.copies, Strings());
  EXPECT_EQ(seen.fences, Strings());
}

TYPED_TEST(KokkosTools, KernelsRunWhereTheyAreTold) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(busy_shape());
  for (const Space& exec : instances<Space>()) {
    Scene<Space, T> scene(sample, {.layout = Layout::paged}, exec);
    {
      const Watch watch;
      const auto plan = plan_without_workspace(scene);
      scene.decode(plan);
      exec.fence();
    }
    auto devices = Watch::seen().devices;
    merge_two(exec);
    devices.insert(devices.end(), Watch::seen().devices.begin(), Watch::seen().devices.end());
    EXPECT_FALSE(devices.empty());
    for (const std::uint32_t device : devices) EXPECT_EQ(device, Kokkos::Tools::Experimental::device_id(exec));
    EXPECT_TRUE(scene.right());
  }
}

/// The regions of Kokkos Tools that are open, and all that were opened. Launches throw on request. One at a time.
class Regions {
 public:
  explicit Regions(bool launches_throw) : before_(Kokkos::Tools::Experimental::get_callbacks()) {
    namespace tools = Kokkos::Tools::Experimental;
    open            = 0, opened().clear();
    tools::set_push_region_callback([](const char* name) { ++open, opened().push_back(name); });
    tools::set_pop_region_callback([] { --open; });
    if (launches_throw)
      tools::set_begin_parallel_for_callback(
          [](const char*, std::uint32_t, std::uint64_t*) { throw std::runtime_error("the launch fails"); });
  }
  ~Regions() { Kokkos::Tools::Experimental::set_callbacks(before_); }
  Regions(const Regions&)            = delete;
  Regions& operator=(const Regions&) = delete;

  static Strings& opened() {
    static Strings names;
    return names;
  }
  static inline int open = 0;

 private:
  Kokkos::Tools::Experimental::EventSet before_;
};

TYPED_TEST(KokkosTools, DecodesAreRegions) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(busy_shape());
  Scene<Space, T> scene(sample, {.layout = Layout::paged});
  const auto plan        = scene.plan();
  const std::string name = detail::concat("Pagoda::decode[", plan.backend(), ",", name_of(dtype_v<T>), "]");
  for (const bool launches_throw : {false, true}) {
    {
      const Regions regions(launches_throw);
      if (launches_throw)
        EXPECT_THROW(scene.decode(plan), std::runtime_error);
      else
        scene.decode(plan);
    }
    EXPECT_EQ(Regions::opened(), Strings{name});
    EXPECT_EQ(Regions::open, 0) << "launches throw: " << launches_throw;
  }
}

}  // namespace
}  // namespace pagoda::test
