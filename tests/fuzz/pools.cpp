// SPDX-License-Identifier: Apache-2.0
// Calls of pools, chosen by a fuzzer; after each, the pool is compared with a model. In some calls an allocation or a
// launch fails.
#include "tests/fuzz/engine.hpp"
#include "tests/pool/random_pool.hpp"

namespace pagoda::test {
namespace {

template <class Pool>
void drive(fuzz::Engine& engine) {
  RandomPool<Pool, fuzz::Engine&> pool(engine);
  for (int i = 0; i < 60 && !engine.at_end(); ++i) {
    pool.step();
    pool.check();
  }
}

}  // namespace
}  // namespace pagoda::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  using namespace pagoda::test;
  fuzz::Engine engine(bytes, count);
  if (engine() % 4 == 0) {
    drive<pagoda::ContiguousPool<AnyType, Device>>(engine);
  } else {
    drive<pagoda::PagedPool<AnyType, Device>>(engine);
  }
  return 0;
}
