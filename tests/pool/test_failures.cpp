// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/failing_launches.hpp"
#include "tests/pool/pool_failures.hpp"

namespace pagoda::test {
namespace {

template <class Pool>
struct PoolFailures : testing::Test {};
TYPED_TEST_SUITE(PoolFailures, Pools, PoolNames);

// Failing launches and fences, like device errors: whichever launch fails, the call leaves the pool, its copy on the
// device and earlier caches unchanged.
TYPED_TEST(PoolFailures, OfLaunches) { EXPECT_GT((fail_every_call<FailingLaunches, TypeParam>(failing_options)), 12); }

// Lists that exceed the staging ring take several launches; only the last one changes tables.
TYPED_TEST(PoolFailures, OfTheLastOfManyLaunches) {
  Failing<TypeParam> d({.num_kv_heads = 1, .head_dim = 1, .max_seq_len = 9000, .max_sequences = 3, .page_size = 1});
  const int a = d.admit(8000), b = d.admit(5);
  d.look();
  const auto tokens = d.fresh(8990);
  const auto k = d.k(tokens), v = d.v(tokens);
  const auto one_k = d.k({tokens[0]}), one_v = d.v({tokens[0]});
  int c = -1;
  EXPECT_GE(d.template fail_everywhere<FailingLaunches>(
                "admit", [&] { c = d.pool.admit(d.exec, k, v); }, [] {}),
            is_paged<TypeParam> ? 3 : 1);
  d.model[c] = tokens;
  d.check();
  d.release(a);  // the next call clears its 8000 columns
  d.look();
  d.template fail_everywhere<FailingLaunches>(
      "append", [&] { d.pool.append(d.exec, std::vector<int>{b}, one_k, one_v); }, [] {});
  d.model[b].push_back(tokens[0]);
  d.check();
}

// A selection that exceeds one launch is staged; only the last launch changes it.
TYPED_TEST(PoolFailures, OfTheLastOfManySelections) {
  const int n = 1300;
  Failing<TypeParam> d(
      {.num_kv_heads = 1, .head_dim = 1, .max_seq_len = 4, .max_sequences = n, .page_size = 2, .num_pages = 2 * n});
  for (int slot = 0; slot < n; ++slot) {
    const int tokens                      = slot % 4;
    d.model[d.pool.admit(d.exec, tokens)] = std::vector<int>(tokens, unwritten);
  }
  d.look();
  const auto slots = slots_of(d.model);
  EXPECT_EQ(d.template fail_everywhere<FailingLaunches>("kv", [&] { d.pool.kv(d.exec, slots); }, [] {}), 3);
  d.check();
  // Only what differs is sent.
  auto swapped = slots;
  std::swap(swapped[700], swapped[701]);
  d.look();
  d.pool.kv(d.exec, slots);
  EXPECT_EQ(d.template fail_everywhere<FailingLaunches>("kv", [&] { d.pool.kv(d.exec, swapped); }, [] {}), 1);
  EXPECT_EQ(d.seen().contents.lengths[700], d.pool.seq_len(swapped[700]));
  EXPECT_EQ(d.seen().contents.lengths[701], d.pool.seq_len(swapped[701]));
}

// The fence of a full ring fails: lists that kernels still read are kept.
TYPED_TEST(PoolFailures, OfTheRingsFence) {
  Failing<TypeParam> d({.num_kv_heads = 1, .head_dim = 2, .max_seq_len = 3000, .max_sequences = 2, .page_size = 2});
  const int a = d.admit(1), b = d.admit(2);
  d.look();
  const auto tokens = d.fresh(2);
  const auto k = d.k(tokens), v = d.v(tokens);
  const std::vector<int> slots{a, b};
  int fences = 0;
  for (int i = 0; i < 2500; ++i) {
    const auto length = d.pool.seq_len(a);
    try {
      const FailingLaunches failing(1);  // the second event: in an append that fences, the launch after it
      d.pool.append(d.exec, slots, k, v);
    } catch (const FailingLaunches::LaunchFailed&) {
      ++fences;
      ASSERT_EQ(d.pool.seq_len(a), length);
      try {
        const FailingLaunches failing(0);
        d.pool.append(d.exec, slots, k, v);
        ADD_FAILURE() << "nothing failed";
      } catch (const FailingLaunches::LaunchFailed&) {
      }
      ASSERT_EQ(d.pool.seq_len(a), length);
      d.pool.append(d.exec, slots, k, v);
    }
    d.model[a].push_back(tokens[0]), d.model[b].push_back(tokens[1]);
  }
  EXPECT_GT(fences, 1);
  d.check();
}

}  // namespace
}  // namespace pagoda::test
