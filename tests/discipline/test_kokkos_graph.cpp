// SPDX-License-Identifier: Apache-2.0
// Decodes as nodes of a Kokkos::Experimental::Graph, which is submitted while the sequences grow.
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

#include <Kokkos_Graph.hpp>

#include <climits>
#include <type_traits>

namespace pagoda::test {
namespace {

/// Lengthens each sequence by a token. Those that no batch entry names have INT_MAX.
struct Grow {
  int* seq_lens;
  KOKKOS_FUNCTION void operator()(int s) const { seq_lens[s] += seq_lens[s] < INT_MAX; }
};

/// Adds a node behind `node` that makes a call of the host which launches on the instance it is given. A GPU's graph
/// captures the launches; a graph of the host makes the call when it is submitted. Returns whether this Kokkos has such
/// nodes. `then` is another thing: its functor runs in a kernel.
template <class Space, class Node, class Call>
bool add_call(const Node& node, const Space& exec, const Call& call) {
  if constexpr (std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>) {
    const auto call_here = [=] { call(exec); };
    if constexpr (requires { node.then_host("Pagoda::test::call", call_here); }) {
      node.then_host("Pagoda::test::call", call_here);
      return true;
    }
  } else if constexpr (requires { node.cuda_capture(exec, call); }) {
    node.cuda_capture(exec, call);
    return true;
  } else if constexpr (requires { node.hip_capture(exec, call); }) {
    node.hip_capture(exec, call);
    return true;
  }
  return false;
}

template <class Param>
struct KokkosGraph : testing::Test {};
TYPED_TEST_SUITE(KokkosGraph, SpacesAndTypes, Names);

TYPED_TEST(KokkosGraph, DecodesOfGrowingSequencesAreThoseOfEagerCalls) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Shape cut{.lengths = {2000, 40, 17}, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  const Shape drafts{.lengths = {300, 40}, .head_dim = 64, .query_lens = {3, 3}, .alibi = true, .sinks = true};
  for (const Shape& shape : {cut, drafts})
    for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr})
      for (const bool checked : {false, true}) {
        const Sample<T> sample(shape);
        Scene<Space, T> scene(sample, {.layout = layout}, instances<Space>()[0]);
        const Space& exec       = scene.exec();
        scene.options().checked = checked;
        const auto plan = scene.plan(), eager = scene.plan();
        const int steps = 4;
        Shape now       = shape;
        for (int& length : now.lengths) length -= steps;
        scene.set_lengths(now.lengths);
        exec.fence();
        const CacheRef kv = std::visit([](const auto& cache) { return cache.ref(); }, scene.cache());
        bool has_calls    = false;
        auto graph        = Kokkos::Experimental::create_graph<Space>([&](const auto& root) {
          const auto grown =
              root.then_parallel_for("Pagoda::test::grow", Kokkos::RangePolicy<Space>(exec, 0, kv.num_sequences),
                                            Grow{const_cast<int*>(kv.seq_lens)});
          has_calls = add_call(grown, exec, [&](const Space& on) { scene.decode(on, plan); });
        });
        if (!has_calls)
          GTEST_SKIP() << "this Kokkos has no graph nodes for calls of the host on " << Space::name()
                       << " (then_host); decode between the submissions of two graphs";
        graph.instantiate();
        for (int step = 1; step <= steps; ++step) {
          for (int& length : now.lengths) ++length;
          scene.poison_outputs();
          scene.poison_workspaces();
          graph.submit(exec);
          exec.fence();
          const auto submitted = scene.results();
          scene.set_lengths(now.lengths);  // those that the graph has written: right() compares them
          EXPECT_TRUE(scene.right(Sample<T>(now))) << "step " << step;
          scene.poison_outputs();
          scene.decode(eager);
          EXPECT_EQ(scene.results(), submitted) << "step " << step;
        }
      }
}

}  // namespace
}  // namespace pagoda::test
