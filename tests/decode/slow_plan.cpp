// SPDX-License-Identifier: Apache-2.0
// Makes two plans over caches whose dims are not adjacent. ctest checks the text on standard error.
#include "src/base/by_type.hpp"

#include <pagoda/pagoda.hpp>

#include <iostream>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  using Rows = Kokkos::View<PAGODA_TEST_TYPE****, Kokkos::LayoutLeft, Exec::memory_space>;
  const Rows k("k", 4, 16, 2, 64), v("v", 4, 16, 2, 64);
  const Kokkos::View<int*, Exec::memory_space> seq_lens("seq_lens", 4);
  const pagoda::ContiguousKV kv{k, v, seq_lens};
  for (int i = 0; i < 2; ++i) std::cout << pagoda::plan(Exec(), kv, {.num_q_heads = 2}).describe() << "\n";
}
