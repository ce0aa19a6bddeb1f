// SPDX-License-Identifier: Apache-2.0
// A program with Pagoda::mpi alone: a step on the ranks that it is run with.
#include <pagoda/mpi.hpp>

#include <mpi.h>
#include <Kokkos_Core.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  bool right = false;
  {
    const Kokkos::ScopeGuard kokkos(argc, argv);
    using Exec = Kokkos::DefaultHostExecutionSpace;
    const Exec exec;
    const Kokkos::View<float****, Kokkos::LayoutRight, Kokkos::HostSpace> k("k", 1, 4, 1, 16), v("v", 1, 4, 1, 16);
    const Kokkos::View<float***, Kokkos::LayoutRight, Kokkos::HostSpace> q("q", 1, 1, 16), out("out", 1, 1, 16);
    const Kokkos::View<int*, Kokkos::HostSpace> lengths("lengths", 1);
    Kokkos::deep_copy(v, 2.0f);
    Kokkos::deep_copy(lengths, 4);
    const pagoda::ContiguousKV kv{k, v, lengths};
    const auto plan = pagoda::plan(exec, kv, {.num_q_heads = 1});
    pagoda::mpi::ContextParallel<Exec> parallel(exec, MPI_COMM_WORLD,
                                                {.num_q_heads = 1, .head_dim_v = 16, .max_query_tokens = 1});
    parallel.decode(exec, plan, q, kv, out);
    exec.fence();
    right = out(0, 0, 0) > 1.9999f && out(0, 0, 15) < 2.0001f;
    if (parallel.rank() == 0) std::printf("Pagoda over %d ranks: %s\n", parallel.size(), right ? "right" : "wrong");
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
