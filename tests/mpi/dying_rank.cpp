// SPDX-License-Identifier: Apache-2.0
#include <pagoda/mpi.hpp>
#include <pagoda/pagoda.hpp>

#include "tests/support/spaces.hpp"

#include <mpi.h>
#include <Kokkos_Core.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

/// pagoda_test_mpi_death exit|throw: rank 1 dies between step 1 and step 2, without a word to the others.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::string way = argc > 1 ? argv[1] : "";
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  using T    = pagoda::test::AnyType;
  const Exec exec;
  const Kokkos::View<T****, Kokkos::LayoutRight> k("k", 1, 8, 1, 16), v("v", 1, 8, 1, 16);
  const Kokkos::View<int*> lengths("lengths", 1);
  Kokkos::deep_copy(lengths, 8);
  const Kokkos::View<T***, Kokkos::LayoutRight> q("q", 1, 1, 16), out("out", 1, 1, 16);
  const pagoda::ContiguousKV kv{k, v, lengths};
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = 1});
  pagoda::mpi::ContextParallel<Exec> parallel(exec, MPI_COMM_WORLD,
                                              {.num_q_heads = 1, .head_dim_v = 16, .max_query_tokens = 1});
  for (int step = 1; step <= 2; ++step) {
    if (step == 2 && parallel.rank() == 1) {
      if (way == "exit") std::_Exit(3);
      [] { throw std::runtime_error("rank 1 dies"); }();
    }
    parallel.decode(exec, plan, q, kv, out);
    exec.fence();
    std::printf("step %d is done\n", step);
    std::fflush(stdout);
    if (step == 1) MPI_Barrier(MPI_COMM_WORLD);  // all ranks have printed this
  }
  MPI_Finalize();
  return 0;
}
