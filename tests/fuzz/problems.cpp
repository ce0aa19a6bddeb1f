// SPDX-License-Identifier: Apache-2.0
// Decode problems of tests/random, chosen by a fuzzer: all rows are compared with the float64 reference.
#include "pagoda_enabled_types.hpp"
#include "tests/fuzz/engine.hpp"
#include "tests/random/run.hpp"
#include "tests/support/spaces.hpp"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  using namespace pagoda::test;
  using pagoda::DType;
  fuzz::Engine engine(bytes, count);
#define PAGODA_FUZZ_TYPE(name) DType::name,
  static constexpr DType types[] = {PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_FUZZ_TYPE)};
#undef PAGODA_FUZZ_TYPE
  const random::Problem problem = random::draw(engine, types[engine() % std::size(types)]);
  random::Tally tally;
  const std::string wrong = random::run<Device>(problem, tally);
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s\n%s\n", random::describe(problem).c_str(), wrong.c_str());
  std::abort();
}
