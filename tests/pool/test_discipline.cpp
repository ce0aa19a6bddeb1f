// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_model.hpp"
#include "tests/support/watch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda::test {
namespace {

void expect_quiet(const Watch::Seen& seen) {
  EXPECT_EQ(seen.fences, std::vector<std::string>());
  EXPECT_EQ(seen.allocations, std::vector<std::string>());
  EXPECT_EQ(seen.copies, std::vector<std::string>());
}

/// Not the default instance, so that a kernel on the default one is found.
template <class Space>
Space another_instance() {
  const Space exec;
  return exec.concurrency() > 1 ? Kokkos::Experimental::partition_space(exec, 1, 1)[1] : exec;
}

template <class Pool>
struct PoolDiscipline : testing::Test {};
TYPED_TEST_SUITE(PoolDiscipline, Pools, PoolNames);

// A step (append a token to each sequence, then decode all, in changing order) only launches kernels, on the given
// instance. One kernel appends to all sequences.
TYPED_TEST(PoolDiscipline, StepsOnlyLaunch) {
  using Space     = typename TypeParam::execution_space;
  using T         = typename TypeParam::value_type;
  using Memory    = typename Space::memory_space;
  const int batch = 9;
  Driven<TypeParam> d(
      {.num_kv_heads = 2, .head_dim = 16, .max_seq_len = 64, .max_sequences = 12, .page_size = 4, .num_q_heads = 4},
      another_instance<Space>());
  std::vector<int> slots;
  for (int i = 0; i < batch; ++i) slots.push_back(d.admit(i));
  std::vector<int> reversed(slots.rbegin(), slots.rend());
  const auto tokens = d.fresh(batch);
  const auto k = keys(d.pool, d.exec, tokens), v = values(d.pool, d.exec, tokens);
  const auto q = make_rows<Space, T>(d.exec, tokens, 4, 16, false);
  Kokkos::View<T***, Memory> out("out", batch, 4, 16);
  Kokkos::View<float**, Memory> lse("lse", batch, 4);
  const auto step = [&](const std::vector<int>& order) {
    d.pool.append(d.exec, order, k, v);
    d.pool.decode(d.exec, order, q, out, lse);
  };
  d.exec.fence();

  {
    const Watch watch;
    for (int i = 0; i < 12; ++i) step(i % 4 < 2 ? slots : reversed);
  }
  const auto seen = Watch::seen();
  expect_quiet(seen);
  EXPECT_EQ(std::count(seen.kernels.begin(), seen.kernels.end(), "Pagoda::KVPool::write"), 12);
  EXPECT_EQ(std::count(seen.kernels.begin(), seen.kernels.end(), "Pagoda::KVPool::select"), 6);
  for (const auto& name : seen.kernels) EXPECT_EQ(name.find("Pagoda::"), 0u) << name;
  for (const auto device : seen.devices) EXPECT_EQ(device, Kokkos::Tools::Experimental::device_id(d.exec));
}

// The same holds for prompts, forks, copies on write and releases. A prompt of any length is one kernel.
TYPED_TEST(PoolDiscipline, SequencesComeAndGoWithoutWaiting) {
  Driven<TypeParam> d({.num_kv_heads = 2, .head_dim = 16, .max_seq_len = 64, .max_sequences = 12, .page_size = 4});
  const auto tokens = d.fresh(50);
  const auto k = keys(d.pool, d.exec, tokens), v = values(d.pool, d.exec, tokens);
  const auto one_k = keys(d.pool, d.exec, {7}), one_v = values(d.pool, d.exec, {7});
  d.exec.fence();
  {
    const Watch watch;
    const int a = d.pool.admit(d.exec, k, v);
    EXPECT_EQ(Watch::seen().kernels, std::vector<std::string>{"Pagoda::KVPool::write"});
    const int b = d.pool.fork(d.exec, a);
    const int c = d.pool.admit(d.exec, 10);
    d.pool.append(d.exec, std::vector<int>{b}, one_k, one_v);
    d.pool.release(a);
    d.pool.reserve(d.exec, std::vector<int>{c}, std::vector<int>{3});
    d.pool.kv(d.exec, std::vector<int>{c, b});
  }
  expect_quiet(Watch::seen());
}

// Lists that kernels still read are not overwritten: once in many steps the call waits for the instance.
TYPED_TEST(PoolDiscipline, WaitsOnlyWhenTheRingIsFull) {
  Driven<TypeParam> d({.num_kv_heads = 1, .head_dim = 2, .max_seq_len = 700, .max_sequences = 64, .page_size = 2});
  std::vector<int> slots;
  for (int i = 0; i < 64; ++i) slots.push_back(d.admit(0));
  const auto tokens = d.fresh(64);
  const auto k = keys(d.pool, d.exec, tokens), v = values(d.pool, d.exec, tokens);
  const int steps = 640;
  {
    const Watch watch;
    for (int i = 0; i < steps; ++i) d.pool.append(d.exec, slots, k, v);
  }
  const auto fences = static_cast<int>(Watch::seen().fences.size());
  EXPECT_GE(fences, 5);
  EXPECT_LE(fences, steps / 64);
  for (const auto& name : Watch::seen().fences) EXPECT_EQ(name, "Pagoda::KVPool: the staging ring is full");
}

// Labels of a pool's allocations begin with the library's name, and all allocations happen at construction.
TYPED_TEST(PoolDiscipline, Labels) {
  typename TypeParam::execution_space exec;
  const Watch watch;
  const TypeParam pool(exec, small_pool);
  EXPECT_GE(Watch::seen().allocations.size(), 4u);
  for (const auto& label : Watch::seen().allocations) {
    if (label.find("Kokkos::") == 0) continue;  // Kokkos' scratch, at the first team launch
    EXPECT_EQ(label.find("Pagoda::"), 0u) << label;
  }
}

}  // namespace
}  // namespace pagoda::test
