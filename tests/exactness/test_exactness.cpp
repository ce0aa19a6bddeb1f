// SPDX-License-Identifier: Apache-2.0
// Plans with an exactness other than fast: the bits of a sequence's results depend on nothing but the sequence.
#include "src/dispatch/plan_memory.hpp"
#include "tests/exactness/sequences.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#if defined(KOKKOS_ENABLE_CUDA)
#include <cuda_runtime.h>
#endif

namespace pagoda::test {
namespace {

template <class Param>
struct Exact : testing::Test {};
TYPED_TEST_SUITE(Exact, SpacesAndTypes, Names);

constexpr Exactness exact[] = {Exactness::batch_invariant, Exactness::reproducible};

/// Shorter than a split, around ends of splits, and of many splits: more than the eight, of up to 2048 tokens, that the
/// hand-tuned kernels add one after another (fixed_run_shift).
const std::vector<int> lengths{17000, 1, 0, 17, 255, 256, 257, 1023, 1024, 1025, 2047, 2049, 4097, 700, 6144, 40};

const HeadShape shapes[] = {{.num_q_heads = 4, .num_kv_heads = 1, .head_dim = 128},
                            {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64},
                            {.num_q_heads = 8, .num_kv_heads = 1, .head_dim = 128},
                            {.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 40},
                            {.num_q_heads = 16, .num_kv_heads = 1, .head_dim = 128},
                            {.num_q_heads = 4, .num_kv_heads = 1, .head_dim = 128, .query_len = 3}};

/// The backends that support a plan with these options.
template <class Space, class Cache>
std::vector<std::string> backends_for(const Cache& kv, DecodeOptions<typename Space::memory_space> options) {
  std::vector<std::string> names{"generic"};
  try {
    options.backend = "tuned";
    (void)workspace_bytes(Space(), kv, options);
    names.emplace_back("tuned");
  } catch (const InvalidArgument&) {
  }
  return names;
}

/// Calls body(sequences, options) for every shape, exactness and backend.
template <class Space, class T, class Body>
void for_each_plan(const Body& body) {
  unsigned seed = 1;
  for (const HeadShape& shape : shapes) {
    Sequences<Space, T> all(shape, lengths, seed++);
    const auto one = all.batch({0});
    for (const Exactness exactness : exact) {
      auto options      = all.options();
      options.exactness = exactness;
      for (const std::string& backend : backends_for<Space>(all.cache(one), options)) {
        SCOPED_TRACE(detail::concat(name_of(exactness), " ", backend, " ", shape.num_q_heads, "/", shape.num_kv_heads,
                                    " x ", shape.head_dim, ", ", shape.query_len, " query tokens"));
        options.backend = backend;
        body(all, options);
      }
    }
  }
}

/// The results of each sequence, decoded alone with bounds that it just fits.
template <class Space, class T>
std::vector<RowBytes> alone(const Sequences<Space, T>& all, DecodeOptions<typename Space::memory_space> options) {
  const Space exec;
  std::vector<RowBytes> rows;
  for (int s = 0; s < static_cast<int>(all.lengths().size()); ++s) {
    const auto b        = all.batch({s});
    options.max_batch   = 1;
    options.max_seq_len = std::max(all.lengths()[s], 1);
    all.clear(exec, b);
    all.decode(exec, plan(exec, all.cache(b), options), b);
    rows.push_back(all.results(exec, b)[0]);
  }
  return rows;
}

template <class Space, class T>
void expect_same(const Sequences<Space, T>& all, const typename Sequences<Space, T>::Batch& b,
                 const std::vector<RowBytes>& expected, const std::string& what) {
  const auto rows = all.results(Space(), b);
  for (std::size_t i = 0; i < b.ids.size(); ++i)
    ASSERT_EQ(rows[i] == expected[b.ids[i]], true)
        << what << ": entry " << i << " of " << b.ids.size() << ", " << all.lengths()[b.ids[i]] << " tokens";
}

TYPED_TEST(Exact, BitsDependOnTheSequenceAlone) {
  using Space = typename TypeParam::space;
  using T     = typename TypeParam::type;
  const Space exec;
  for_each_plan<Space, T>([&](auto& all, auto options) {
    const auto expected = alone(all, options);
    for (int round = 0; round < 6; ++round) {
      std::vector<int> ids = all.random_ids(round % 2 == 0 ? 4 : 40);
      if (round == 4) ids.assign(1 + all.random_below(40), ids[0]);  // even batches are distributed in another way
      const auto b        = all.batch(ids);
      const int size      = static_cast<int>(b.ids.size());
      options.max_batch   = size + all.random_below(50);
      options.max_seq_len = all.longest() + all.random_below(3000);
      const auto with     = plan(exec, all.cache(b), options);
      if (round == 3) all.shuffle_pages();
      all.clear(exec, b);
      all.decode(exec, with, b);
      expect_same(all, b, expected, detail::concat("round ", round));
    }
  });
}

// The same plan on a machine of fewer multiprocessors or threads.
TYPED_TEST(Exact, BitsDoNotDependOnTheSizeOfTheMachine) {
  using Space = typename TypeParam::space;
  using T     = typename TypeParam::type;
  const Space exec;
  for_each_plan<Space, T>([&](auto& all, const auto& options) {
    std::vector<int> ids(lengths.size());
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
    const auto b     = all.batch(ids);
    const auto whole = plan(exec, all.cache(b), options);
    all.clear(exec, b);
    all.decode(exec, whole, b);
    const auto expected = all.results(exec, b);
    for (const int divisor : {2, 3, 7, 1000}) {
      detail::Schedule s = whole.schedule();
      s.multiprocessors  = std::max(s.multiprocessors / divisor, std::min(s.multiprocessors, 1));
      s.split.num_teams  = std::max(s.split.num_teams / divisor, 1);
      const std::shared_ptr<detail::PlanMemory<Space>> memory(&whole.memory(), [](auto*) {});
      all.clear(exec, b);
      all.decode(exec, Plan<Space>(s, options, whole.workspace(), memory), b);
      expect_same(all, b, expected, detail::concat("a machine ", divisor, " times smaller"));
    }
    all.clear(instances<Space>()[0], b);
    instances<Space>()[0].fence();
    all.decode(instances<Space>()[0], whole, b);
    instances<Space>()[0].fence();
    expect_same(all, b, expected, "another instance");
  });
}

// Sequences longer than max_seq_len are outside of the promise, but their results are right, and nothing is written
// outside of the workspace.
TYPED_TEST(Exact, RightWhateverTheLengths) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const int max_seq_len : {0, 1, 2000, 1 << 20})
    for (const Exactness exactness : exact) {
      const Sample<T> sample(
          {.lengths = {5000, 40, 0, 1024, 1025}, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128});
      Scene<Space, T> scene(sample, {.layout = Layout::paged, .out_type = DType::bf16});
      scene.options().exactness   = exactness;
      scene.options().max_seq_len = max_seq_len;
      scene.decode(scene.plan());
      EXPECT_TRUE(scene.right()) << "max_seq_len " << max_seq_len;
    }
}

TYPED_TEST(Exact, RightWithAllOptions) {
  using T                = typename TypeParam::type;
  using Space            = typename TypeParam::space;
  const Shape problems[] = {
      {.lengths = {3000, 40, 7, 0}, .head_dim = 64, .query_lens = {3, 1, 5, 0}, .window_left = 1500, .sinks = true},
      {.lengths        = {2500, 33},
       .num_q_heads    = 16,
       .num_kv_heads   = 1,
       .head_dim       = 64,
       .logit_soft_cap = 20,
       .alibi          = true},
      {.lengths        = {4000, 100},
       .num_q_heads    = 16,
       .num_kv_heads   = 1,
       .head_dim       = 576,
       .head_dim_v     = 512,
       .values_in_keys = true}};
  for (const Shape& problem : problems) {
    const Sample<T> sample(problem);
    Scene<Space, T> scene(sample, {.layout = Layout::paged});
    scene.options().exactness = Exactness::batch_invariant;
    scene.decode(scene.plan());
    EXPECT_TRUE(scene.right()) << describe(problem);
  }
}

TEST(ExactErrors, RefusedByName) {
  using Space = Device;
  using T     = AnyType;
  const Sample<T> sample({.lengths = {40}, .head_dim = 64});
  Scene<Space, T> scene(sample, {.layout = Layout::paged});
  scene.options().exactness           = Exactness::batch_invariant;
  scene.options().entries.max_entries = 4;
  expect_refusal([&] { scene.plan(); }, {"pagoda::plan", "exactness is batch_invariant", "lists of entries", "fast"});
  scene.options().entries.max_entries = 0;
  scene.options().exactness           = Exactness(3);
  expect_refusal([&] { scene.plan(); }, {"pagoda::plan", "exactness is 3", "fast (0), batch_invariant (1)"});
  scene.options().exactness = Exactness::reproducible;
  std::visit(
      [&]<class KV>(const KV& kv) {
        expect_refusal([&] { PrefixDecoder<Space>(scene.exec(), kv, scene.options()); },
                       {"pagoda::PrefixDecoder", "exactness is reproducible", "allowed: fast"});
      },
      scene.cache());
}

#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA)

template <class Param>
struct ExactGraph : testing::Test {};
TYPED_TEST_SUITE(ExactGraph, lists::Plain::of<Kokkos::Cuda>, Names);

// With many heads long sequences have longer splits than short ones.
TYPED_TEST(ExactGraph, LongSequencesOfManyHeads) {
  using Space = Kokkos::Cuda;
  using T     = typename TypeParam::type;
  const Space exec;
  const Sequences<Space, T> all({.num_q_heads = 32, .num_kv_heads = 32, .head_dim = 64}, lengths, 9);
  auto options           = all.options();
  options.exactness      = Exactness::batch_invariant;
  const auto expected    = alone(all, options);
  options.max_seq_len    = all.longest();
  const auto expect_bits = [&](const std::vector<int>& ids) {
    const auto b      = all.batch(ids);
    options.max_batch = static_cast<int>(ids.size());
    all.clear(exec, b);
    all.decode(exec, plan(exec, all.cache(b), options), b);
    expect_same(all, b, expected, detail::concat(ids.size(), " sequences"));
  };
  expect_bits({0, 0, 0, 0, 0, 0, 0, 0, 0});
  expect_bits({3, 0, 12, 4, 0, 14});
  expect_bits({12, 12, 14, 12, 14, 12, 12, 12, 14, 12});
}

// Splits of very long rows may be longer, too.
TYPED_TEST(ExactGraph, VeryLongSequences) {
  using Space = Kokkos::Cuda;
  using T     = typename TypeParam::type;
  const Space exec;
  const Sequences<Space, T> all({.num_q_heads = 8, .num_kv_heads = 1, .head_dim = 128},
                                {40000, 1, 33000, 700, 31648, 132000}, 10);
  auto options        = all.options();
  options.exactness   = Exactness::batch_invariant;
  const auto expected = alone(all, options);
  options.max_seq_len = all.longest();
  for (const std::vector<int>& ids : {std::vector{2, 0, 4, 3, 5, 1}, std::vector{4, 4, 4, 4, 4, 4, 4, 4, 4}}) {
    const auto b      = all.batch(ids);
    options.max_batch = static_cast<int>(ids.size());
    all.clear(exec, b);
    all.decode(exec, plan(exec, all.cache(b), options), b);
    expect_same(all, b, expected, detail::concat(ids.size(), " sequences"));
  }

  const Sample<T> sample({.lengths = {40000, 900}, .num_q_heads = 8, .num_kv_heads = 1, .head_dim = 128});
  Scene<Space, T> scene(sample, {.layout = Layout::paged});
  scene.options().exactness = Exactness::batch_invariant;
  scene.decode(scene.plan());
  EXPECT_TRUE(scene.right());
}

// A captured decode, replayed for other sequences and pages.
TYPED_TEST(ExactGraph, ReplaysGiveTheSameBits) {
  using Space = Kokkos::Cuda;
  using T     = typename TypeParam::type;
  for_each_plan<Space, T>([&](auto& all, auto options) {
    const auto expected = alone(all, options);
    const Space exec    = instances<Space>()[0];
    auto b              = all.batch({0, 3, 12, 4, 8});
    const auto with     = plan(exec, all.cache(b), options);
    exec.fence();
    cudaGraph_t graph{};
    cudaGraphExec_t executable{};
    ASSERT_EQ(cudaStreamBeginCapture(exec.cuda_stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    all.decode(exec, with, b);
    ASSERT_EQ(cudaStreamEndCapture(exec.cuda_stream(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
    for (int round = 0; round < 3; ++round) {
      if (round > 0) {
        std::vector<int> ids;
        for (std::size_t i = 0; i < b.ids.size(); ++i)
          ids.push_back(all.random_below(static_cast<int>(lengths.size())));
        const auto other = all.batch(ids);
        Kokkos::deep_copy(b.device_ids, other.device_ids);
        Kokkos::deep_copy(b.q, other.q);
        b.ids = ids;
      }
      if (round == 2) all.shuffle_pages();
      all.clear(exec, b);
      ASSERT_EQ(cudaGraphLaunch(executable, exec.cuda_stream()), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(exec.cuda_stream()), cudaSuccess);
      expect_same(all, b, expected, detail::concat("replay ", round));
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
}

#endif

}  // namespace
}  // namespace pagoda::test
