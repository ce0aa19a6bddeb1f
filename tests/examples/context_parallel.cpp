// SPDX-License-Identifier: Apache-2.0
// A sequence whose tokens are distributed over the ranks of MPI: each rank decodes over its shard, and one collective
// gives all ranks the result. Run it with mpirun.
#include "support.hpp"

#include <pagoda/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 0;
  {
    const Kokkos::ScopeGuard kokkos(argc, argv);
    using pagoda::half_t;
    const Kokkos::DefaultExecutionSpace exec;
    constexpr int tokens = 1000, q_heads = 8, kv_heads = 2, dim = 64;
    using Cache = Kokkos::View<half_t****, Kokkos::LayoutRight>;

    // All tokens, so that the result can be checked; a real rank would hold its shard alone.
    const Cache k("k", 1, tokens, kv_heads, dim), v("v", 1, tokens, kv_heads, dim);
    const Kokkos::View<half_t***, Kokkos::LayoutRight> q("q", 1, q_heads, dim), out("out", 1, q_heads, dim);
    example::fill(k, 1), example::fill(v, 2), example::fill(q, 3);

    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const std::pair mine(tokens * rank / ranks, tokens * (rank + 1) / ranks);
    const auto shard_k = Kokkos::subview(k, Kokkos::ALL, mine, Kokkos::ALL, Kokkos::ALL);
    const auto shard_v = Kokkos::subview(v, Kokkos::ALL, mine, Kokkos::ALL, Kokkos::ALL);
    const pagoda::ContiguousKV shard{shard_k, shard_v, example::integers({mine.second - mine.first})};

    const auto plan = pagoda::plan(exec, shard, {.num_q_heads = q_heads});
    pagoda::mpi::ContextParallel<Kokkos::DefaultExecutionSpace> parallel(
        exec, MPI_COMM_WORLD, {.num_q_heads = q_heads, .head_dim_v = dim, .max_query_tokens = 1});
    parallel.decode(exec, plan, q, shard, out);  // every step, on all ranks
    exec.fence();

    const auto host_k = example::on_host(k), host_v = example::on_host(v);
    const auto lengths = example::on_host(example::integers({tokens}));
    status             = example::compare(pagoda::ContiguousKV{host_k, host_v, lengths}, q, out);
  }
  MPI_Finalize();
  return status;
}
