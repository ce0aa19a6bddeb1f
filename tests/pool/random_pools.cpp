// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/random_pool.hpp"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <type_traits>

/// Random pools and random calls of them, each compared with a model; some calls are invalid, and in some an allocation
/// or a launch fails. Decodes are compared with the reference.
///
///   pagoda_test_random_pools [--seed S] [--pools N | --seconds T] [--gtest_filter=...]
///
/// Seed S + i determines pool i of a test; a failure prints it. --seconds: duration of each test, instead of a number
/// of pools.
namespace pagoda::test {
namespace {

struct Settings {
  unsigned long seed = 1;
  int pools          = 6;
  double seconds     = 0;
} settings;

template <class Pool>
struct RandomPools : testing::Test {};
TYPED_TEST_SUITE(RandomPools, Pools, PoolNames);

TYPED_TEST(RandomPools, AgainstTheModel) {
  using Clock      = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto late  = [&] { return std::chrono::duration<double>(Clock::now() - start).count() >= settings.seconds; };
  long calls = 0, refused = 0, failed = 0, decodes = 0, packed = 0, shared = 0, evicted = 0;
  int pools = 0;
  for (; settings.seconds > 0 ? !late() : pools < settings.pools; ++pools) {
    const unsigned long seed = settings.seed + static_cast<unsigned long>(pools);
    RandomPool<TypeParam> pool{std::mt19937_64(seed)};
    for (int i = 0; i < 80; ++i) {
      pool.step();
      pool.check();
      ASSERT_FALSE(testing::Test::HasFailure())
          << "step " << i << " (" << pool.last << ") of the pool of this seed; to see it again: --pools 1 --seed "
          << seed;
    }
    calls += pool.attempts.calls, refused += pool.attempts.refused, failed += pool.attempts.failed;
    decodes += pool.decodes, packed += pool.packed;
    shared += pool.prefix_stats().hit_pages, evicted += pool.prefix_stats().evicted_pages;
  }
  std::cout << pools << " pools, " << calls << " calls, " << refused << " that did not fit, " << failed
            << " in which something failed, " << decodes << " decodes, " << packed << " of lists, " << shared
            << " pages shared through the index, " << evicted << " evicted\n";
  if (pools < 6) return;  // a replay
  EXPECT_GT(refused, 0);
  EXPECT_GT(failed, 0);
  EXPECT_GT(decodes, 0);
  if constexpr (is_paged<TypeParam>) {
    EXPECT_GT(shared, 0);
    EXPECT_GT(evicted, 0);
    if (!std::is_same_v<typename TypeParam::value_type, double>) {  // fp64 has no lists
      EXPECT_GT(packed, 0);
    }
  }
}

/// Reads --seed, --pools and --seconds; false for anything else.
bool read_settings(int argc, char** argv) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) return false;
    const char* const value = argv[i + 1];
    if (name == "--seed") {
      settings.seed = std::strtoul(value, nullptr, 10);
    } else if (name == "--pools") {
      settings.pools = std::atoi(value);
    } else if (name == "--seconds") {
      settings.seconds = std::atof(value);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace pagoda::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();  // needs no device
  const Kokkos::ScopeGuard kokkos(argc, argv);
  if (!pagoda::test::read_settings(argc, argv)) {
    std::cerr << "usage: " << argv[0] << " [--seed S] [--pools N | --seconds T] [options of GoogleTest and Kokkos]\n";
    return 1;
  }
  return RUN_ALL_TESTS();
}
