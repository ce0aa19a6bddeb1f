// SPDX-License-Identifier: Apache-2.0
#include "tests/mpi/shards.hpp"

#include <array>
#include <functional>

namespace pagoda::test {
namespace {

using Space  = Device;
using T      = AnyType;
using Memory = Space::memory_space;

/// A step of two sequences, and what a rank can do wrong in it.
struct Errors : testing::Test {
  const int ranks = size_of_comm(world), rank = rank_of(world);
  const int bad = ranks - 1;  ///< the rank that fails
  Space exec;
  Sample<T> sample{Shape{.lengths = {30, 12}, .num_q_heads = 12, .num_kv_heads = 3}};
  Shard<Space, T> shard{sample, tokens_of_rank(sample.shape().lengths, ranks, rank, Deal::pages, 1)};
  Plan<Space> plan = pagoda::plan(exec, shard.kv(), plan_options(sample, shard));
  Results<Space, T> results{sample, 0, 12};

  mpi::ContextParallelOptions options(mpi::MergedHeads merged = mpi::MergedHeads::all) const {
    return {.num_q_heads = 12, .head_dim_v = sample.head_dim_v(), .max_query_tokens = 4, .merged_heads = merged};
  }
  Plan<Space> plan_with(const std::function<void(DecodeOptions<Memory>&)>& change) const {
    auto changed = plan_options(sample, shard);
    change(changed);
    return pagoda::plan(exec, shard.kv(), changed);
  }
  void decode(mpi::ContextParallel<Space>& parallel) const { decode(parallel, plan); }
  void decode(mpi::ContextParallel<Space>& parallel, const Plan<Space>& with) const {
    parallel.decode(exec, with, shard.q, shard.kv(), results.out, results.lse);
  }
  /// All ranks make a wrong call and get the same error.
  template <class Call>
  void refuses(const Call& call, std::initializer_list<std::string> words) {
    mpi::ContextParallel<Space> parallel(exec, world, options());
    expect_throw_with<InvalidArgument>([&] { call(parallel); }, words);
  }
  bool untouched() const {
    exec.fence();
    const auto out = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), results.out);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (!std::isnan(static_cast<float>(out.data()[i]))) return false;
    return true;
  }
};

TEST_F(Errors, OfOneRankReachAllRanks) {
  for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own}) {
    mpi::ContextParallel<Space> parallel(exec, world, options(merged));
    const int heads = merged == mpi::MergedHeads::own ? 12 / ranks : 12;
    const Kokkos::View<T***, Kokkos::LayoutRight, Memory> wrong_q("q", 2, 5, 64),
        out("out", 2, heads, sample.head_dim_v());
    const Kokkos::View<float**, Memory> lse("lse", 2, heads);
    for (int step = 0; step < 2; ++step) parallel.decode(exec, plan, shard.q, shard.kv(), out, lse);
    if (rank == bad) {
      expect_throw_with<InvalidArgument>([&] { parallel.decode(exec, plan, wrong_q, shard.kv(), out, lse); },
                                         {"pagoda::decode: q has (heads, head_dim) = (5, 64)"});
    } else {
      try {
        parallel.decode(exec, plan, shard.q, shard.kv(), out, lse);
        ADD_FAILURE() << "the failure of rank " << bad << " was not noticed";
      } catch (const mpi::PeerError& error) {
        EXPECT_EQ(error.rank(), bad);
        const std::string expected = "rank " + std::to_string(bad) + " failed: pagoda::decode: q has (heads, head_dim)";
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      }
    }
    if (ranks == 1) continue;  // nobody else: the object stays usable
    // From now on the object refuses without communication, here on rank 0 alone.
    if (rank == 0)
      expect_throw_with<mpi::PeerError>([&] { parallel.decode(exec, plan, shard.q, shard.kv(), out, lse); },
                                        {"unusable", "rank " + std::to_string(bad)});
  }
}

TEST_F(Errors, NoResultIsWrittenWhenARankFails) {
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  mpi::ContextParallel<Space> parallel(exec, world, options());
  if (rank == bad) {
    parallel.fail("its model has no weights");
    parallel.fail("and this is not said");
    expect_throw_with<mpi::PeerError>([&] { decode(parallel); }, {"unusable", "its model has no weights"});
  } else {
    expect_throw_with<mpi::PeerError>([&] { decode(parallel); },
                                      {"rank " + std::to_string(bad) + " failed: its model has no weights"});
  }
  EXPECT_TRUE(untouched());
}

// The same over NCCL, whose ranks send notices apart from the states.
TEST_F(Errors, ReachAllRanksOverNccl) {
  auto o      = options();
  o.transport = mpi::Transport::nccl;
  if (!mpi::has_nccl()) {
    expect_throw_with<InvalidArgument>(
        [&] { mpi::ContextParallel<Space> parallel(exec, world, o); },
        {"pagoda::mpi::ContextParallel: transport is nccl on ", "allowed: mpi, as this build has no NCCL"});
    return;
  }
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  if (const std::string reason = why_no_nccl<Space>(); !reason.empty()) GTEST_SKIP() << reason;
  {
    mpi::ContextParallel<Space> parallel(exec, world, o);
    decode(parallel);
    if (rank == bad) {
      parallel.fail("its model has no weights");
    } else {
      expect_throw_with<mpi::PeerError>([&] { decode(parallel); },
                                        {"rank " + std::to_string(bad) + " failed: its model has no weights"});
    }
  }
  mpi::ContextParallel<Space> parallel(exec, world, o);
  const Kokkos::View<T***, Kokkos::LayoutRight, Memory> wrong_q("q", 2, 5, 64);
  if (rank == bad) {
    expect_throw_with<InvalidArgument>(
        [&] { parallel.decode(exec, plan, wrong_q, shard.kv(), results.out, results.lse); },
        {"q has (heads, head_dim)"});
  } else {
    expect_throw_with<mpi::PeerError>([&] { decode(parallel); }, {"failed: pagoda::decode: q has (heads, head_dim)"});
  }
}

// The reason has no more room than the message.
TEST_F(Errors, LongReasonsAreCut) {
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  for (const auto merged : {mpi::MergedHeads::all, mpi::MergedHeads::own}) {
    auto o        = options(merged);
    o.num_q_heads = 12, o.head_dim_v = 1, o.max_query_tokens = 1;
    mpi::ContextParallel<Space> parallel(exec, world, o);
    const Sample<T> narrow({.lengths = {3}, .num_q_heads = 12, .num_kv_heads = 1, .head_dim = 8, .head_dim_v = 1});
    const Shard<Space, T> here(narrow, tokens_of_rank({3}, ranks, rank, Deal::pages, 1));
    const auto its_plan = pagoda::plan(exec, here.kv(), plan_options(narrow, here));
    const Results<Space, T> r(narrow, 0, merged == mpi::MergedHeads::own ? 12 / ranks : 12);
    if (rank == bad) {
      parallel.fail(std::string(100000, 'x'));
    } else {
      expect_throw_with<mpi::PeerError>([&] { parallel.decode(exec, its_plan, here.q, here.kv(), r.out, r.lse); },
                                        {"failed: xxxxxxxx"});
    }
  }
}

// An exception between two steps that destroys the object.
TEST_F(Errors, ARankThatLeavesIsNoticed) {
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  try {
    mpi::ContextParallel<Space> parallel(exec, world, options());
    decode(parallel);
    if (rank == bad) throw std::runtime_error("between two steps");
    expect_throw_with<mpi::PeerError>([&] { decode(parallel); },
                                      {"rank " + std::to_string(bad) + " has destroyed its ContextParallel"});
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "between two steps");
  }
}

TEST_F(Errors, ShapeOfLse) {
  mpi::ContextParallel<Space> parallel(exec, world, options());
  const Kokkos::View<float**, Memory> lse("lse", 2, 5);
  expect_throw_with<InvalidArgument>([&] { parallel.decode(exec, plan, shard.q, shard.kv(), results.out, lse); },
                                     {"pagoda::mpi::ContextParallel::decode: lse is (2, 5)", "(2, 12)"});
}

TEST_F(Errors, OfTheConstructorReachAllRanks) {
  const auto make = [&](const mpi::ContextParallelOptions& o) { mpi::ContextParallel<Space> parallel(exec, world, o); };
  auto o          = options();
  o.num_q_heads   = 0;
  expect_throw_with<InvalidArgument>([&] { make(o); }, {"pagoda::mpi::ContextParallel: num_q_heads is 0", "1 or more"});
  o = options(), o.head_dim_v = -1;
  expect_throw_with<InvalidArgument>([&] { make(o); }, {"head_dim_v is -1"});
  o = options(), o.max_query_tokens = 0;
  expect_throw_with<InvalidArgument>([&] { make(o); }, {"max_query_tokens is 0"});
  o = options(), o.state_type = DType::int8;
  expect_throw_with<InvalidArgument>([&] { make(o); }, {"state_type is int8", "allowed: fp64, fp32, fp16 or bf16"});
  o = options(), o.max_query_tokens = 1 << 30;
  expect_throw_with<InvalidArgument>([&] { make(o); }, {"a message has", "fewer than 2^31"});
  expect_throw_with<InvalidArgument>([&] { mpi::ContextParallel<Space> p(exec, MPI_COMM_NULL, options()); },
                                     {"comm is MPI_COMM_NULL"});
  if (ranks == 1) return;
  o = options(mpi::MergedHeads::own), o.num_q_heads = ranks + 1;
  expect_throw_with<InvalidArgument>(
      [&] { make(o); }, {"num_q_heads is " + std::to_string(ranks + 1), "a multiple of the number of ranks"});
  o = options(), o.max_query_tokens = rank == bad ? 5 : 4;
  expect_throw_with<InvalidArgument>(
      [&] { make(o); },
      {"max_query_tokens is 5 on rank " + std::to_string(bad) + " and 4 on rank 0", "the same options on all ranks"});
  if (mpi::has_nccl()) {
    o = options(), o.transport = rank == bad ? mpi::Transport::nccl : mpi::Transport::mpi;
    expect_throw_with<InvalidArgument>([&] { make(o); }, {"transport is 1 on rank " + std::to_string(bad)});
  }
  o = options();
  if (rank == bad) {
    o.head_dim_v = 0;
    expect_throw_with<InvalidArgument>([&] { make(o); }, {"head_dim_v is 0"});
  } else {
    expect_throw_with<mpi::PeerError>([&] { make(o); },
                                      {"rank " + std::to_string(bad) + " failed: ", "head_dim_v is 0; allowed"});
  }
}

TEST_F(Errors, Shapes) {
  using Out      = Kokkos::View<T***, Kokkos::LayoutRight, Memory>;
  const int dims = sample.head_dim_v();
  refuses([&](auto& p) { p.decode(exec, plan, shard.q, shard.kv(), Out("out", 2, 11, dims), results.lse); },
          {"pagoda::mpi::ContextParallel::decode: out is (2, 11, 64)", "allowed: (2, 12, 64)"});
  refuses([&](auto& p) { p.decode(exec, plan, shard.q, shard.kv(), Out(), results.lse); }, {"out is (0, 0, 0)"});
  refuses([&](auto& p) { p.decode(exec, plan, shard.q, shard.kv(), Out(nullptr, 2, 12, dims), results.lse); },
          {"out has a null pointer"});
  refuses(
      [&](auto& p) {
        p.decode(exec, plan, shard.q, shard.kv(), results.out, Kokkos::View<float**, Memory>("lse", 2, 3));
      },
      {"lse is (2, 3)", "allowed: (2, 12) or an empty View"});
  refuses([&](auto& p) { p.decode(exec, plan, Out("q", 6, 12, 64), shard.kv(), Out("out", 6, 12, dims)); },
          {"q has 6 query tokens", "up to 4, max_query_tokens"});
  const Sample<T> other({.lengths = {3, 3}, .num_q_heads = 6, .num_kv_heads = 3});
  const Shard<Space, T> six(other, tokens_of_rank({3, 3}, ranks, rank, Deal::pages, 1));
  const auto for_six = pagoda::plan(exec, six.kv(), plan_options(other, six));
  refuses([&](auto& p) { p.decode(exec, for_six, six.q, six.kv(), results.out, results.lse); },
          {"the plan has num_q_heads 6 and head_dim_v 64", "allowed: 12 and 64"});
}

TEST_F(Errors, OptionsThatNeedPositions) {
  if (ranks == 1) GTEST_SKIP() << "one rank knows all positions";
  const Kokkos::View<float*, Memory> slopes("slopes", 12);
  const auto window = plan_with([](auto& o) { o.window_left = 5; });
  const auto alibi  = plan_with([&](auto& o) { o.alibi_slopes = slopes; });
  refuses([&](auto& p) { decode(p, window); }, {"the plan has window_left = 5", "allowed: -1", "positions"});
  refuses([&](auto& p) { decode(p, alibi); }, {"the plan has alibi_slopes", "positions"});
}

TEST_F(Errors, OptionsThatCountOnce) {
  if (ranks == 1) GTEST_SKIP() << "one rank counts everything once";
  const Kokkos::View<float*, Memory> sinks("sinks", 12);
  const auto with_sinks = plan_with([&](auto& o) { o.sinks = sinks; });
  refuses([&](auto& p) { decode(p, with_sinks); }, {"the plans of ranks 0 and 1 have sinks", "shard_options"});
  EXPECT_TRUE(untouched());

  const auto two_tokens = plan_with([](auto& o) { o.max_query_len = 2; });
  const Kokkos::View<T***, Kokkos::LayoutRight, Memory> q("q", 4, 12, 64), out("out", 4, 12, 64);
  refuses([&](auto& p) { p.decode(exec, two_tokens, q, shard.kv(), out); },
          {"the plans of ranks 0 and 1 are causal with several query tokens", "shard_options"});
  // With one query token for each sequence such a plan is fine.
  mpi::ContextParallel<Space> parallel(exec, world, options());
  decode(parallel, two_tokens);
  exec.fence();
  EXPECT_TRUE(results.right(sample, MPI_COMM_SELF, two_tokens.schedule().kernel.probability_type));
}

TEST_F(Errors, DifferentNumbersOfQueryTokens) {
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  const auto more = plan_with([](auto& o) { o.max_query_len = 2, o.causal = false; });
  mpi::ContextParallel<Space> parallel(exec, world, options());
  const int tokens = rank == bad ? 4 : 2;
  const Kokkos::View<T***, Kokkos::LayoutRight, Memory> q("q", tokens, 12, 64), out("out", tokens, 12, 64);
  expect_throw_with<InvalidArgument>([&] { parallel.decode(exec, more, q, shard.kv(), out); },
                                     {"q has 4 query tokens on rank " + std::to_string(bad) + " and 2 on rank 0"});
}

TEST_F(Errors, AnIntercommunicatorIsRefused) {
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  MPI_Comm half, inter;
  MPI_Comm_split(world, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, world, 1 - rank % 2, 0, &inter);
  expect_throw_with<InvalidArgument>([&] { mpi::ContextParallel<Space> p(exec, inter, options()); },
                                     {"comm is an intercommunicator"});
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

// The caller's communicator is duplicated: its messages and the library's do not meet, and its error handler stays.
TEST_F(Errors, TheCallersCommunicatorIsLeftAlone) {
  MPI_Errhandler before, after;
  MPI_Comm_get_errhandler(world, &before);
  {
    MPI_Comm mine;
    MPI_Comm_dup(world, &mine);
    mpi::ContextParallel<Space> parallel(exec, mine, options());
    MPI_Comm_free(&mine);
    decode(parallel);
    exec.fence();
    EXPECT_TRUE(results.right(sample, MPI_COMM_SELF, plan.schedule().kernel.probability_type));
  }
  MPI_Comm_get_errhandler(world, &after);
  EXPECT_EQ(before, after);
  MPI_Errhandler_free(&before);
  MPI_Errhandler_free(&after);
}

}  // namespace
}  // namespace pagoda::test
