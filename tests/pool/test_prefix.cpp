// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/failing_launches.hpp"
#include "tests/pool/pool_failures.hpp"
#include "tests/pool/prompt_numbers.hpp"

#include <numeric>

/// Pools whose sequences share prefixes through the index.
namespace pagoda::test {
namespace {

/// A pool with 4 tokens in a page, whose prompts have names.
template <class Pool>
struct Prompted : Failing<Pool> {
  PromptNumbers numbers{};
  using Failing<Pool>::Failing;

  static PoolOptions options(int num_pages = 12) {
    auto o        = small_pool;
    o.num_pages   = num_pages;
    o.num_q_heads = 4;
    return o;
  }
  std::vector<int> tokens(const std::vector<int>& ids, std::uint64_t salt = 0) {
    return numbers.numbers(salt, ids, [&] { return this->next++; });
  }
  /// Admits a prompt with the rows that match says are missing.
  int admit_prompt(const std::vector<int>& ids, std::uint64_t salt = 0) {
    const Prompt prompt{.token_ids = ids, .salt = salt};
    const auto all    = tokens(ids, salt);
    const auto rest   = std::vector<int>(all.begin() + this->pool.match(prompt), all.end());
    const int slot    = this->pool.admit(this->exec, prompt, this->k(rest), this->v(rest));
    this->model[slot] = all;
    return slot;
  }
  int match(const std::vector<int>& ids, std::uint64_t salt = 0) const {
    return this->pool.match({.token_ids = ids, .salt = salt});
  }
};

std::vector<int> ids_from(int first, int count) {
  std::vector<int> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

template <class Pool>
struct Prefixes : testing::Test {};
TYPED_TEST_SUITE(Prefixes, PagedPools, PoolNames);

TYPED_TEST(Prefixes, SharedCachedAndCounted) {
  Prompted<TypeParam> d(Prompted<TypeParam>::options());
  const auto ids = ids_from(10, 11);
  EXPECT_EQ(d.match(ids), 0);
  const int a = d.admit_prompt(ids);
  EXPECT_EQ(d.match(ids), 8);
  EXPECT_EQ(d.match(ids_from(10, 8)), 4);  // never the last token
  EXPECT_EQ(d.match(ids_from(10, 9)), 8);
  EXPECT_EQ(d.match(ids_from(11, 9)), 0);
  EXPECT_EQ(d.match(ids, 1), 0);  // another salt
  auto other = ids;
  other[6]   = 99;
  EXPECT_EQ(d.match(other), 4);
  const int b = d.admit_prompt(other), c = d.admit_prompt(ids), e = d.admit_prompt(ids, 1);
  EXPECT_EQ(d.pool.block_table(a)[0], d.pool.block_table(b)[0]);
  EXPECT_EQ(d.pool.block_table(a)[1], d.pool.block_table(c)[1]);
  EXPECT_NE(d.pool.block_table(a)[2], d.pool.block_table(c)[2]);
  EXPECT_EQ(d.pool.page_ref_count(d.pool.block_table(a)[0]), 3);
  EXPECT_EQ(d.pool.named_tokens(c), 11);
  d.check();
  expect_decodes(d, {c, a, e, b});
  d.append({c, a}, {3, 1});
  d.check();

  auto stats = d.pool.prefix_stats();
  EXPECT_EQ(stats.prompts, 4);
  EXPECT_EQ(stats.hit_tokens, 12);
  EXPECT_EQ(stats.miss_tokens, 32);
  EXPECT_EQ(stats.hit_pages, 3);
  EXPECT_EQ(stats.miss_pages, 5);
  EXPECT_EQ(stats.saved_bytes, 12 * d.pool.bytes_per_token());
  EXPECT_EQ(stats.evicted_pages, 0);
  EXPECT_EQ(stats.indexed_pages, 5);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 12.0 / 44.0);

  for (const int slot : {a, b, c, e}) d.release(slot);
  d.check();
  EXPECT_EQ(d.pool.evictable_pages(), 5);
  EXPECT_EQ(d.pool.free_pages(), 12);
  EXPECT_EQ(d.pool.bytes_reserved(), 0);
  d.pool.reset_prefix_stats();
  const int again = d.admit_prompt(ids);
  EXPECT_EQ(d.pool.prefix_stats().hit_rate(), 8.0 / 11.0);
  EXPECT_EQ(d.pool.prefix_stats().indexed_pages, 5);
  d.check();
  expect_decodes(d, {again});
  // Sequences without names take the cached pages when they need them.
  const int filler = d.admit(24);
  EXPECT_EQ(d.pool.prefix_stats().evicted_pages, 0);
  d.admit(12);
  EXPECT_EQ(d.pool.free_pages(), 0);
  EXPECT_EQ(d.pool.prefix_stats().evicted_pages, 3);
  EXPECT_EQ(d.pool.prefix_stats().indexed_pages, 2);
  d.check();
  d.release(filler);
  EXPECT_EQ(d.pool.evict(100), 0);
  d.release(again);
  EXPECT_EQ(d.pool.evict(1), 1);
  EXPECT_EQ(d.match(ids), 4);
  EXPECT_EQ(d.pool.evict(100), 1);
  EXPECT_EQ(d.match(ids), 0);
}

// A prompt in chunks: the pages found first, the others appended and named. Generated tokens are named too, and found
// by the prompt of the next turn.
TYPED_TEST(Prefixes, ChunksAndGeneratedTokens) {
  Prompted<TypeParam> d(Prompted<TypeParam>::options());
  const auto ids = ids_from(30, 14), all = d.tokens(ids);
  d.release(d.admit_prompt(ids_from(30, 5)));
  const Prompt prompt{.token_ids = ids};
  const int slot = d.pool.admit(d.exec, prompt);
  d.model[slot].assign(all.begin(), all.begin() + 4);
  EXPECT_EQ(d.pool.named_tokens(slot), 4);
  d.check();
  const auto chunk = [&](int first, int count) {
    const std::vector<int> rows(all.begin() + first, all.begin() + first + count);
    d.pool.append(d.exec, std::vector<int>{slot}, std::vector<int>{count}, d.k(rows), d.v(rows));
    d.pool.name(slot, std::span(ids).subspan(first, count));
    d.model[slot].insert(d.model[slot].end(), rows.begin(), rows.end());
    d.check();
  };
  EXPECT_EQ(d.match(ids), 4);
  chunk(4, 3), chunk(7, 3), chunk(10, 1), chunk(11, 1);
  EXPECT_EQ(d.match(ids), 12);
  chunk(12, 2);
  const int next_turn = d.admit_prompt(ids);
  EXPECT_EQ(d.pool.block_table(next_turn)[2], d.pool.block_table(slot)[2]);
  d.check();
  expect_decodes(d, {slot, next_turn});
}

TYPED_TEST(Prefixes, Hashes) {
  Prompted<TypeParam> d(Prompted<TypeParam>::options());
  const auto all = d.fresh(10);
  const std::vector<std::uint64_t> hashes{11, 22}, others{11, 23};
  const Prompt prompt{.page_hashes = hashes, .num_tokens = 10};
  const int a = d.pool.admit(d.exec, prompt, d.k(all), d.v(all));
  d.model[a]  = all;
  EXPECT_EQ(d.pool.match(prompt), 8);
  EXPECT_EQ(d.pool.match({.page_hashes = others, .num_tokens = 10}), 4);
  EXPECT_EQ(d.pool.match({.page_hashes = hashes, .num_tokens = 8}), 4);
  // Rows of shared tokens may be given; they are not read.
  auto rows = d.fresh(7);
  std::copy(all.begin() + 8, all.end(), rows.begin() + 5);
  const int b = d.pool.admit(d.exec, prompt, d.k(rows), d.v(rows));
  d.model[b]  = all;
  d.check();
  d.append(b, 3);
  d.pool.name(b, std::vector<std::uint64_t>{33});
  EXPECT_EQ(d.pool.named_tokens(b), 12);
  const std::vector<std::uint64_t> longer{11, 22, 33};
  EXPECT_EQ(d.pool.match({.page_hashes = longer, .num_tokens = 13}), 12);
  d.check();
}

// A fork that ends within a cached page gets a copy when it grows, although no other sequence holds the page.
TYPED_TEST(Prefixes, CachedPagesAreNotWritten) {
  Prompted<TypeParam> d(Prompted<TypeParam>::options());
  const auto ids = ids_from(50, 9);
  const int a = d.admit_prompt(ids), b = d.fork(a, 6);
  d.release(a);
  d.append(b, 5);
  d.check();
  EXPECT_EQ(d.match(ids), 8);
  const int again = d.admit_prompt(ids);
  d.check();
  expect_decodes(d, {again, b});
}

// A failed launch returns evicted pages to the index.
TYPED_TEST(Prefixes, EvictionIsReverted) {
  Prompted<TypeParam> d(Prompted<TypeParam>::options());
  const auto ids = ids_from(70, 13), more = ids_from(90, 21);
  d.release(d.admit_prompt(ids));
  d.release(d.admit_prompt(ids_from(200, 21)));
  const int held = d.admit(5);
  d.look();
  EXPECT_EQ(d.pool.evictable_pages(), 8);
  const Prompt prompt{.token_ids = ids}, other{.token_ids = more};
  const auto all = d.tokens(ids), more_tokens = d.tokens(more);
  const auto k = d.k(more_tokens), v = d.v(more_tokens);
  const auto tail   = std::vector<int>(all.begin() + 12, all.end());
  const auto tail_k = d.k(tail), tail_v = d.v(tail);
  int slot = -1;
  EXPECT_EQ(d.template fail_everywhere<FailingLaunches>(
                "admit", [&] { slot = d.pool.admit(d.exec, prompt, tail_k, tail_v); }, [] {}),
            1);
  d.model[slot] = all;
  d.look();
  EXPECT_EQ(d.template fail_everywhere<FailingLaunches>(
                "admit", [&] { slot = d.pool.admit(d.exec, other, k, v); }, [&] { EXPECT_EQ(d.match(ids), 12); }),
            1);
  d.model[slot] = more_tokens;
  EXPECT_GT(d.pool.prefix_stats().evicted_pages, 0);
  d.check();
  expect_decodes(d, slots_of(d.model));
  d.release(held);
}

// Pages that an earlier launch of a failed call has overwritten leave the index.
TYPED_TEST(Prefixes, OverwrittenPagesLeaveTheIndex) {
  Prompted<TypeParam> d(
      {.num_kv_heads = 1, .head_dim = 1, .max_seq_len = 9000, .max_sequences = 3, .page_size = 1, .num_pages = 9000});
  const auto ids = ids_from(0, 6000);
  const int a    = d.admit_prompt(ids);
  d.release(a);
  const auto all = d.fresh(8000);
  const auto k = d.k(all), v = d.v(all);
  EXPECT_EQ(d.pool.evictable_pages(), 6000);
  const auto fails_at = [&](int n) {
    const FailingLaunches failing(n);
    EXPECT_THROW(d.pool.admit(d.exec, k, v), FailingLaunches::LaunchFailed);
  };
  fails_at(0);
  EXPECT_EQ(d.match(ids), 5999);
  fails_at(1);
  EXPECT_EQ(d.pool.evictable_pages(), 1000);
  EXPECT_EQ(d.pool.free_pages(), 9000);
  EXPECT_EQ(d.match(ids), 1000);
  const int b = d.admit_prompt(ids);
  d.check();
  EXPECT_EQ(d.pool.seq_len(b), 6000);
}

// Contiguous pools keep no names.
TEST(Prefix, ContiguousPoolsFindNothing) {
  using Pool = ContiguousPool<AnyType, Host>;
  Driven<Pool> d(small_pool);
  const auto ids = ids_from(1, 9), tokens = d.fresh(9);
  const Prompt prompt{.token_ids = ids};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(d.pool.match(prompt), 0);
    EXPECT_TRUE(d.pool.can_admit(prompt));
    const int slot = d.pool.admit(d.exec, prompt, keys(d.pool, d.exec, tokens), values(d.pool, d.exec, tokens));
    d.model[slot]  = tokens;
    d.append(slot, 2);
    d.pool.name(slot, ids_from(1, 2));
    EXPECT_EQ(d.pool.named_tokens(slot), 0);
    EXPECT_FALSE(d.pool.is_indexed(slot));
  }
  d.check();
  EXPECT_EQ(d.pool.prefix_stats().miss_tokens, 18);
  EXPECT_EQ(d.pool.evict(3), 0);
}

}  // namespace
}  // namespace pagoda::test
