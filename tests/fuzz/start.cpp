// SPDX-License-Identifier: Apache-2.0
// What all fuzzers do first. Kokkos is not finalized, because libFuzzer ends with exit(), when instances of execution
// spaces are gone already. Failed assertions of GoogleTest abort.
#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  GTEST_FLAG_SET(break_on_failure, true);
  Kokkos::initialize();
  return 0;
}
