// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_failures.hpp"
#include "tests/support/failing_allocations.hpp"
#include "tests/support/launch_requests.hpp"

#include <memory>

namespace pagoda::test {
namespace {

template <class Pool>
struct PoolAllocations : testing::Test {};
TYPED_TEST_SUITE(PoolAllocations, Pools, PoolNames);

// The n-th allocation of a call fails, for every n, once or permanently. Each call leaves the pool, its copy on the
// device and earlier caches unchanged.
TYPED_TEST(PoolAllocations, MayFailAnywhere) {
  for (const bool lasting : {false, true}) {
    const int failures = fail_every_call<FailingAllocations, TypeParam>(failing_options, lasting);
    EXPECT_GT(failures, 8) << "the calls asked for less memory than they must";
  }
  EXPECT_GT((fail_prepare<FailingAllocations, TypeParam>(false)), 0);
}

// A failed construction leaks nothing, and the next one succeeds.
TYPED_TEST(PoolAllocations, OfAPoolThatCannotBeMade) {
  const typename TypeParam::execution_space exec;
  TypeParam(exec, failing_options);  // what Kokkos allocates once for teams; where that fails, Kokkos is broken
  std::unique_ptr<TypeParam> pool;
  int n = 0;
  for (; !pool; ++n) {
    const FailingAllocations failing(n);
    try {
      pool = std::make_unique<TypeParam>(exec, failing_options);
    } catch (const std::exception&) {
    }
    ASSERT_EQ(pool != nullptr, FailingAllocations::count() <= n);
  }
  EXPECT_GT(n, 10);
}

// Calls allocate nothing once the pool's lists have grown, including labels, messages and scratch.
TYPED_TEST(PoolAllocations, NoneInASteadyStep) {
  using Space = typename TypeParam::execution_space;
  Failing<TypeParam> d(failing_options);
  std::vector<int> slots;
  for (int i = 0; i < 6; ++i) slots.push_back(d.admit(100));
  for (const int slot : slots) d.release(slot);
  for (int i = 0; i < 6; ++i) slots[i] = d.admit(i + 1);
  const auto tokens = d.fresh(6);
  const auto k = d.k(tokens), v = d.v(tokens);
  const auto mapping = on_device(d.exec, d.pool.slot_mapping(slots[3], 0, 1));
  const auto one_k = d.k({1}), one_v = d.v({1});
  // One-time work of the process is done after the first round.
  const auto of_a_range = [&] {
    return requests_of_a_launch(Kokkos::RangePolicy<Space>(d.exec, 0, 1, Kokkos::ChunkSize(64)));
  };
  requests_of_a_team_launch(d.exec), of_a_range();
  const long team = requests_of_a_team_launch(d.exec), range = of_a_range();
  for (int i = -1; i < 16; ++i) {  // Kokkos::Cuda allocates when it launches a kernel for the first time
    const FailingAllocations counting;
    d.pool.append(d.exec, slots, k, v);
    d.pool.write(d.exec, mapping, one_k, one_v);
    d.pool.kv(d.exec, slots);
    if (i >= 0) {
      EXPECT_EQ(FailingAllocations::count(), 2 * team + range) << "step " << i;
    }
    std::rotate(slots.begin(), slots.begin() + 1, slots.end());
  }
}

// Names allocate when the first is given, and then nothing. A prompt whose slot has held a longer one allocates nothing
// either, so only its launch does.
TYPED_TEST(PoolAllocations, NoneForNames) {
  Failing<TypeParam> d(failing_options);
  const auto ids = d.fresh(30), tail = std::vector<int>(ids.end() - (is_paged<TypeParam> ? 2 : 30), ids.end());
  const Prompt prompt{.token_ids = ids};
  const auto k = d.k(tail), v = d.v(tail), all_k = d.k(ids), all_v = d.v(ids), one_k = d.k({1}), one_v = d.v({1});
  d.pool.release(d.pool.admit(d.exec, prompt, all_k, all_v));
  requests_of_a_team_launch(d.exec);
  const long team = requests_of_a_team_launch(d.exec);
  for (int i = 0; i < 8; ++i) {
    const FailingAllocations counting;
    const int slot = d.pool.admit(d.exec, prompt, k, v);
    EXPECT_EQ(FailingAllocations::count(), team) << "prompt " << i;
    d.pool.append(d.exec, std::span(&slot, 1), one_k, one_v);
    d.pool.name(slot, std::span(&i, 1));
    d.pool.match(prompt);
    d.pool.release(slot);
    EXPECT_EQ(FailingAllocations::count(), 2 * team) << "prompt " << i;
  }
}

}  // namespace
}  // namespace pagoda::test
