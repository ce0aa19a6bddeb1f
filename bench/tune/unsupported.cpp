// SPDX-License-Identifier: Apache-2.0
#include "bench/common/machine.hpp"

#include <Kokkos_Core.hpp>

#include <cstdio>

/// pagoda-tune of a build without hand-tuned kernels.
int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  std::fprintf(stderr,
               "pagoda-tune: %s devices are not supported yet (%s): only CUDA has hand-tuned kernels to measure\n",
               Exec::name(), pagoda::bench::device_name(Exec()).c_str());
  return 3;
}
