// SPDX-License-Identifier: Apache-2.0
#include "tests/mpi/shards.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
#include "tests/discipline/captured_graph.hpp"

#include <cstring>
#endif

namespace pagoda::test {
namespace {

std::string deal_name(Deal deal) {
  return std::array{"runs", "pages", "last_rank", "single_tokens"}[static_cast<std::size_t>(deal)];
}

/// How a test distributes a sample and asks for its results.
struct Way {
  Deal deal                     = Deal::runs;
  mpi::MergedHeads merged       = mpi::MergedHeads::all;
  std::optional<bool> gpu_aware = {};
  DType state_type              = DType::fp32;
  double leeway                 = 1;
  int steps                     = 1;
  mpi::Transport transport      = mpi::Transport::mpi;
};

template <class Param>
struct ContextParallel : testing::Test {
  using Exec  = typename Param::space;
  using Value = typename Param::type;

  /// Decodes over the ranks of comm, which hold shards of one part of the heads.
  static void expect_right(const Sample<Value>& sample, const Way& way, unsigned seed = 1) {
    const int ranks = size_of_comm(world), rank = rank_of(world);
    const bool own = way.merged == mpi::MergedHeads::own;
    int together   = 0;
    for (const int n : sample.shape().query_lens) together = std::max(together, n - 1);
    const Shard<Exec, Value> shard(sample, tokens_of_rank(sample.shape().lengths, ranks, rank, way.deal, seed,
                                                          sample.shape().causal ? together : 0));
    const Exec exec;
    auto options = plan_options(sample, shard);
    Kokkos::View<float*, typename Exec::memory_space> sinks("sinks", sample.shape().sinks ? shard.heads : 0);
    if (sample.shape().sinks) {
      Kokkos::deep_copy(sinks, Kokkos::View<const float*, Kokkos::HostSpace>(sample.sinks().data(), shard.heads));
      options.sinks = sinks;
    }
    const auto plan = pagoda::plan(exec, shard.kv(), mpi::shard_options(options, rank == ranks - 1));
    mpi::ContextParallel<Exec> parallel(exec, world,
                                        {.num_q_heads      = shard.heads,
                                         .head_dim_v       = sample.head_dim_v(),
                                         .max_query_tokens = sample.query_tokens() + 2,
                                         .merged_heads     = way.merged,
                                         .state_type = dtype_v<Value> == DType::fp64 ? DType::fp64 : way.state_type,
                                         .gpu_aware  = way.gpu_aware,
                                         .transport  = way.transport});
    const int heads = own ? shard.heads / ranks : shard.heads;
    for (int step = 0; step < way.steps; ++step) {
      const Results<Exec, Value> results(sample, own ? rank * heads : 0, heads);
      parallel.decode(exec, plan, shard.q, shard.kv(), results.out, results.lse);
      exec.fence();
      EXPECT_TRUE(
          results.right(sample, own ? world : MPI_COMM_SELF, plan.schedule().kernel.probability_type, way.leeway))
          << describe(sample.shape()) << "; dealt by " << deal_name(way.deal) << (own ? "; own heads" : "; all heads");
    }
  }
};
TYPED_TEST_SUITE(ContextParallel, SpacesAndTypes, Names);

TYPED_TEST(ContextParallel, AnyDistributionOfTokens) {
  using T = typename TypeParam::type;
  const Sample<T> sample({.lengths = {37, 0, 1, 200, 5, 64}, .num_q_heads = 12, .num_kv_heads = 3, .head_dim = 48});
  for (const Deal deal : {Deal::runs, Deal::pages, Deal::last_rank, Deal::single_tokens})
    for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own})
      this->expect_right(sample, {.deal = deal, .merged = merged});
}

// Messages and headers of one step do not show in the next.
TYPED_TEST(ContextParallel, ManySteps) {
  const Sample<typename TypeParam::type> sample({.lengths = {90, 33}, .num_q_heads = 12, .num_kv_heads = 12});
  this->expect_right(sample, {.steps = 5});
  this->expect_right(sample, {.merged = mpi::MergedHeads::own, .steps = 5});
}

TYPED_TEST(ContextParallel, SeveralQueryTokens) {
  using T = typename TypeParam::type;
  for (const bool causal : {true, false}) {
    const Sample<T> sample({.lengths      = {40, 3, 17, 8},
                            .num_q_heads  = 12,
                            .num_kv_heads = 4,
                            .head_dim     = 32,
                            .head_dim_v   = 20,
                            .query_lens   = {4, 3, 1, 2},
                            .causal       = causal});
    for (const Deal deal : {Deal::runs, Deal::pages, Deal::last_rank})
      for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own})
        this->expect_right(sample, {.deal = deal, .merged = merged});
  }
}

TYPED_TEST(ContextParallel, SinksAndSoftCap) {
  using T = typename TypeParam::type;
  const Sample<T> sample(
      {.lengths = {50, 0, 9}, .num_q_heads = 12, .num_kv_heads = 6, .logit_soft_cap = 3, .sinks = true});
  for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own})
    this->expect_right(sample, {.deal = Deal::pages, .merged = merged});
}

TYPED_TEST(ContextParallel, RandomShapes) {
  using T = typename TypeParam::type;
  std::mt19937 random(7);
  const auto draw = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  for (unsigned seed = 1; seed <= 8; ++seed) {
    Shape shape{.lengths      = {},
                .num_kv_heads = draw(1, 3),
                .head_dim     = 8 * draw(1, 20),
                .head_dim_v   = draw(1, 130),
                .seed         = seed};
    shape.num_q_heads = 12 * shape.num_kv_heads;
    for (int b = draw(1, 6); b > 0; --b) shape.lengths.push_back(draw(0, 120));
    const Sample<T> sample(shape);
    this->expect_right(
        sample,
        {.deal = static_cast<Deal>(draw(0, 3)), .merged = draw(0, 1) ? mpi::MergedHeads::all : mpi::MergedHeads::own},
        seed);
  }
}

// Both ways in which messages can lie in memory, where the space has memory of its own and MPI accepts it.
TYPED_TEST(ContextParallel, MessagesInHostMemory) {
  const Sample<typename TypeParam::type> sample({.lengths = {90, 33}, .num_q_heads = 12, .num_kv_heads = 3});
  for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own})
    this->expect_right(sample, {.merged = merged, .gpu_aware = false, .steps = 2});
}

// NCCL on the instance's stream: several steps with and without sinks, and several query tokens.
TYPED_TEST(ContextParallel, Nccl) {
  if (const std::string reason = why_no_nccl<typename TypeParam::space>(); !reason.empty()) GTEST_SKIP() << reason;
  using T = typename TypeParam::type;
  const Sample<T> plain({.lengths = {37, 0, 1, 200, 5, 64}, .num_q_heads = 12, .num_kv_heads = 3, .head_dim = 48});
  const Sample<T> several({.lengths      = {40, 3, 17},
                           .num_q_heads  = 12,
                           .num_kv_heads = 4,
                           .query_lens   = {4, 3, 1},
                           .causal       = true,
                           .sinks        = true});
  for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own})
    for (const Deal deal : {Deal::runs, Deal::last_rank}) {
      this->expect_right(plain, {.deal = deal, .merged = merged, .steps = 3, .transport = mpi::Transport::nccl});
      this->expect_right(several, {.deal = deal, .merged = merged, .steps = 2, .transport = mpi::Transport::nccl});
    }
}

#if defined(KOKKOS_ENABLE_CUDA)
/// A step of all ranks, on a stream that can capture.
template <class T>
struct CudaSteps {
  using Exec      = Kokkos::Cuda;
  const int ranks = size_of_comm(world), rank = rank_of(world);
  const Exec exec = Kokkos::Experimental::partition_space(Exec(), 1)[0];
  const Sample<T> sample{{.lengths = {37, 0, 1, 200, 5, 64}, .num_q_heads = 12, .num_kv_heads = 3, .head_dim = 48}};
  const Shard<Exec, T> shard{sample, tokens_of_rank(sample.shape().lengths, ranks, rank, Deal::pages, 1)};
  const Plan<Exec> plan = pagoda::plan(exec, shard.kv(), plan_options(sample, shard));
  mpi::ContextParallel<Exec> parallel;

  CudaSteps(mpi::MergedHeads merged, mpi::Transport transport)
      : parallel(exec, world,
                 {.num_q_heads      = shard.heads,
                  .head_dim_v       = sample.head_dim_v(),
                  .max_query_tokens = sample.query_tokens(),
                  .merged_heads     = merged,
                  .state_type       = dtype_v<T> == DType::fp64 ? DType::fp64 : DType::fp32,
                  .transport        = transport}) {}
  void step(const Results<Exec, T>& r) { parallel.decode(exec, plan, shard.q, shard.kv(), r.out, r.lse); }
};

template <class T>
bool same_bits(const Results<Kokkos::Cuda, T>& a, const Results<Kokkos::Cuda, T>& b) {
  const auto same = [](const auto& x, const auto& y) {
    const auto host_x = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
    const auto host_y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), y);
    return std::memcmp(host_x.data(), host_y.data(), host_x.size() * sizeof(*host_x.data())) == 0;
  };
  return same(a.out, b.out) && same(a.lse, b.lse);
}

// Two steps in a graph. Replays read the lengths of that time: first all, then those of the last rank alone.
TYPED_TEST(ContextParallel, NcclInACudaGraph) {
  if (!std::is_same_v<typename TypeParam::space, Kokkos::Cuda>) GTEST_SKIP() << "graphs of CUDA";
  if (const std::string reason = why_no_nccl<typename TypeParam::space>(); !reason.empty()) GTEST_SKIP() << reason;
  using T = typename TypeParam::type;
  for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own}) {
    CudaSteps<T> steps(merged, mpi::Transport::nccl);
    const bool own  = merged == mpi::MergedHeads::own;
    const int heads = own ? steps.shard.heads / steps.ranks : steps.shard.heads, first = own ? steps.rank * heads : 0;
    const Results<Kokkos::Cuda, T> one(steps.sample, first, heads), two(steps.sample, first, heads);
    steps.exec.fence();
    const Graph graph(steps.exec.cuda_stream(), cudaStreamCaptureModeThreadLocal, [&] {
      steps.step(one);
      steps.step(two);
    });
    EXPECT_TRUE(graph.ok());
    for (const bool all : {true, false}) {
      if (!all && steps.rank != steps.ranks - 1) Kokkos::deep_copy(steps.shard.lengths, 0);
      for (int replay = 0; replay < 3; ++replay) graph.launch();
      const Results<Kokkos::Cuda, T> eager(steps.sample, first, heads);
      steps.step(eager);
      steps.exec.fence();
      EXPECT_TRUE(same_bits(one, eager) && same_bits(two, eager)) << (own ? "own heads" : "all heads");
      if (!all) continue;
      EXPECT_TRUE(one.right(steps.sample, own ? world : MPI_COMM_SELF, steps.plan.schedule().kernel.probability_type));
    }
  }
}

TYPED_TEST(ContextParallel, MpiInACudaGraphIsRefused) {
  if (!std::is_same_v<typename TypeParam::space, Kokkos::Cuda>) GTEST_SKIP() << "graphs of CUDA";
  if (size_of_comm(world) == 1) GTEST_SKIP() << "one rank exchanges nothing";
  using T = typename TypeParam::type;
  CudaSteps<T> steps(mpi::MergedHeads::all, mpi::Transport::mpi);
  const Results<Kokkos::Cuda, T> results(steps.sample, 0, steps.shard.heads);
  steps.exec.fence();
  const Graph graph(steps.exec.cuda_stream(), cudaStreamCaptureModeThreadLocal, [&] {
    expect_throw_with<InvalidArgument>([&] { steps.step(results); }, {"exec is capturing a graph", "Transport::nccl"});
  });
  EXPECT_FALSE(graph.ok());
}
#endif

// A 16-bit type of states rounds once more, for each rank.
TYPED_TEST(ContextParallel, StatesOfFewerBits) {
  using T = typename TypeParam::type;
  if (dtype_v<T> != DType::fp16 && dtype_v<T> != DType::bf16) GTEST_SKIP() << "for outputs of 16 bits";
  const Sample<T> sample({.lengths = {90, 33}, .num_q_heads = 12, .num_kv_heads = 3});
  this->expect_right(sample, {.deal = Deal::pages, .state_type = dtype_v<T>, .leeway = 2});
}

// Tokens and heads are distributed: a grid of ranks, whose rows have the same heads.
TYPED_TEST(ContextParallel, GridOfTokensAndHeads) {
  using Space     = typename TypeParam::space;
  using T         = typename TypeParam::type;
  const int ranks = size_of_comm(world), rank = rank_of(world), parts = 2;
  if (ranks % parts != 0) GTEST_SKIP() << "needs an even number of ranks";
  const int part = rank % parts;
  MPI_Comm same_heads, other_heads;
  MPI_Comm_split(world, part, rank, &same_heads);
  MPI_Comm_split(world, rank / parts, rank, &other_heads);
  const Sample<T> sample({.lengths = {70, 0, 21}, .num_q_heads = 16, .num_kv_heads = 4});
  const Shard<Space, T> shard(
      sample, tokens_of_rank(sample.shape().lengths, ranks / parts, rank / parts, Deal::pages, 1), part, parts);
  const Space exec;
  const auto plan = pagoda::plan(exec, shard.kv(), plan_options(sample, shard));
  mpi::ContextParallel<Space> parallel(exec, same_heads,
                                       {.num_q_heads      = shard.heads,
                                        .head_dim_v       = sample.head_dim_v(),
                                        .max_query_tokens = sample.query_tokens(),
                                        .state_type       = dtype_v<T> == DType::fp64 ? DType::fp64 : DType::fp32});
  EXPECT_EQ(parallel.size(), ranks / parts);
  const Results<Space, T> results(sample, shard.first_head, shard.heads);
  parallel.decode(exec, plan, shard.q, shard.kv(), results.out, results.lse);
  exec.fence();
  EXPECT_TRUE(results.right(sample, other_heads, plan.schedule().kernel.probability_type));
  MPI_Comm_free(&same_heads);
  MPI_Comm_free(&other_heads);
}

// All ranks compute the same bits, and decode without lse the same outputs.
TYPED_TEST(ContextParallel, SameBitsOnAllRanks) {
  using Space = typename TypeParam::space;
  using T     = typename TypeParam::type;
  const Sample<T> sample({.lengths = {70, 30, 21}, .num_q_heads = 8, .num_kv_heads = 2});
  const Shard<Space, T> shard(
      sample, tokens_of_rank(sample.shape().lengths, size_of_comm(world), rank_of(world), Deal::runs, 3));
  const Space exec;
  const auto plan = pagoda::plan(exec, shard.kv(), plan_options(sample, shard));
  mpi::ContextParallel<Space> parallel(exec, world,
                                       {.num_q_heads = 8, .head_dim_v = sample.head_dim_v(), .max_query_tokens = 3});
  const Results<Space, T> with(sample, 0, 8), without(sample, 0, 8);
  parallel.decode(exec, plan, shard.q, shard.kv(), with.out, with.lse);
  parallel.decode(exec, plan, shard.q, shard.kv(), without.out);
  exec.fence();
  const auto bytes = [](const auto& view) {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    const auto* at  = reinterpret_cast<const std::byte*>(host.data());
    return std::vector<std::byte>(at, at + host.size() * sizeof(*host.data()));
  };
  auto first = bytes(with.out);
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_BYTE, 0, world);
  EXPECT_TRUE(bytes(with.out) == first);
  EXPECT_TRUE(bytes(without.out) == first);
}

TYPED_TEST(ContextParallel, MovesAndTellsItsNumbers) {
  using Space = typename TypeParam::space;
  const Space exec;
  mpi::ContextParallel<Space> a(exec, world, {.num_q_heads = 12, .head_dim_v = 16, .max_query_tokens = 2});
  mpi::ContextParallel<Space> b(
      exec, world, {.num_q_heads = 12, .head_dim_v = 16, .max_query_tokens = 2, .merged_heads = mpi::MergedHeads::own});
  EXPECT_EQ(a.size(), size_of_comm(world));
  EXPECT_EQ(a.rank(), rank_of(world));
  EXPECT_EQ(a.message_bytes(), 12u * (2 * 16 * 4 + 16 + 16));
  EXPECT_EQ(b.message_bytes() * a.size(), a.message_bytes());
  const auto bytes = b.message_bytes();
  a                = std::move(b);
  EXPECT_EQ(a.message_bytes(), bytes);
  EXPECT_TRUE(!a.gpu_aware() || !one_space);
}

}  // namespace
}  // namespace pagoda::test
