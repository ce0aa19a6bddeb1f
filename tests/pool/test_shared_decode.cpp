// SPDX-License-Identifier: Apache-2.0
// Decodes of a pool that read shared pages once.
#include "tests/pool/pool_decode.hpp"
#include "tests/support/watch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

namespace pagoda::test {
namespace {

template <class Pool>
struct PoolSharedDecode : testing::Test {
  static inline const PoolOptions options{
      .num_kv_heads = 2, .head_dim = 16, .max_seq_len = 200, .max_sequences = 8, .page_size = 4, .num_q_heads = 4};
  /// Four sequences that share 15 pages, two of which share 20.
  static std::vector<int> four(Driven<Pool>& d) {
    const int a = d.admit(83), b = d.fork(a, 61), c = d.fork(b), e = d.fork(a);
    d.append({b, c, e}, {9, 1, 2});
    return {a, b, c, e};
  }
  /// Whether the last decode read a list. A contiguous pool, and one of fp64, never does.
  static bool packed(const Driven<Pool>& d) { return d.pool.prefix_report().plain_because == nullptr; }
  static constexpr bool can_pack = is_paged<Pool> && !std::is_same_v<typename Pool::value_type, double>;
  static std::string reason(const Driven<Pool>& d) {
    const char* const text = d.pool.prefix_report().plain_because;
    return text ? text : "";
  }
};
TYPED_TEST_SUITE(PoolSharedDecode, PoolsOfAllTypes, PoolNames);

TYPED_TEST(PoolSharedDecode, ListsServeUntilTheBatchChanges) {
  using Self = PoolSharedDecode<TypeParam>;
  Driven<TypeParam> d(Self::options);
  if (is_paged<TypeParam>) d.pool.set_rates(eager_rates());
  auto slots       = Self::four(d);
  const auto check = [&](bool new_plan, const char* what) {
    expect_decodes(d, slots);
    EXPECT_EQ(Self::packed(d), Self::can_pack) << what;
    if (!Self::can_pack) return;
    const PrefixReport& r = d.pool.prefix_report();
    EXPECT_EQ(r.new_plan, new_plan) << what;
    EXPECT_GT(r.entries, 0) << what;
    EXPECT_GT(r.states, 0) << what;
    EXPECT_LT(r.packed_us, r.plain_us) << what;
  };
  check(true, "first decode");
  check(false, "the same batch");
  for (int i = 0; i < 9; ++i) {
    d.append(slots, {1, 3, 1, 1});
    check(false, "growth");
  }
  std::swap(slots[0], slots[3]);
  check(true, "another order");
  d.release(slots[1]);
  ASSERT_EQ(d.fork(slots[0], 33), slots[1]);
  d.append({slots[1]}, {20});
  check(true, "another sequence in a slot");
  slots.push_back(slots[2]);
  check(true, "a sequence twice");
}

TYPED_TEST(PoolSharedDecode, QueryTokensAndScores) {
  using Self   = PoolSharedDecode<TypeParam>;
  using Memory = typename TypeParam::memory_space;
  Driven<TypeParam> d(Self::options);
  const auto slots = Self::four(d);
  d.pool.prepare(
      d.exec, DecodeOptions<Memory>{.num_q_heads = 6, .max_query_len = 4, .softmax_scale = 0.2, .logit_soft_cap = 3});
  if (is_paged<TypeParam>) d.pool.set_rates(eager_rates());
  for (const int query_len : {1, 4, 3}) {
    const PoolQueries<TypeParam> queries(d, static_cast<int>(slots.size()), query_len);
    queries.decode(d, slots);
    queries.expect_right(d, slots);
    EXPECT_EQ(Self::packed(d), Self::can_pack);
  }
}

TYPED_TEST(PoolSharedDecode, ReasonsOfPlainDecodes) {
  using Self    = PoolSharedDecode<TypeParam>;
  using Memory  = typename TypeParam::memory_space;
  auto o        = Self::options;
  o.num_q_heads = 0;
  Driven<TypeParam> d(o);
  const auto slots = Self::four(d);
  EXPECT_EQ(Self::reason(d), "there is no plan");
  const auto expect = [&](const DecodeOptions<Memory>& with, const std::string& reason) {
    d.pool.prepare(d.exec, with);
    expect_decodes(d, slots);
    EXPECT_EQ(Self::reason(d), is_paged<TypeParam> ? reason : "the cache is contiguous");
  };
  const std::string fp64 = "partial states have at most 32 bits, and the cache holds fp64";
  const bool is_fp64     = is_paged<TypeParam> && !Self::can_pack;
  expect({.num_q_heads = 2, .window_left = 9},
         is_fp64 ? fp64 : "a sliding window hides different tokens from different sequences");
  expect({.num_q_heads = 2, .checked = true}, "the plan is checked, and lists are not");
  for (const Exactness exactness : {Exactness::batch_invariant, Exactness::reproducible})
    expect({.num_q_heads = 2, .exactness = exactness}, "the plan's exactness is not fast, and that of lists is");
  const std::vector<int> offsets{0, 1, 2, 3, 4};
  expect({.num_q_heads = 2, .max_batch = 4, .cu_seqlens_q = on_device(d.exec, offsets)},
         "cu_seqlens_q is in device memory, and the pool plans on the host");
  expect({.num_q_heads = 2}, is_fp64 ? fp64 : "reading shared pages once is predicted to take longer");
  if (Self::can_pack) {
    expect_decodes(d, {slots[0]});
    EXPECT_EQ(Self::reason(d), "no page is shared");
  }

  o.share_prefixes = SharePrefixes::never;
  o.num_q_heads    = 2;
  Driven<TypeParam> never(o);
  const auto others = Self::four(never);
  expect_decodes(never, others);
  EXPECT_EQ(Self::reason(never),
            is_paged<TypeParam> ? "PoolOptions::share_prefixes is never" : "the cache is contiguous");
}

// The options of the decoder that prepare makes.
TYPED_TEST(PoolSharedDecode, BoundsStatesAndRatesOfTheOptions) {
  using Self           = PoolSharedDecode<TypeParam>;
  using T              = typename TypeParam::value_type;
  const auto decode_by = [](const PrefixOptions& prefix, const std::string& plain_because) {
    auto o   = Self::options;
    o.prefix = prefix;
    Driven<TypeParam> d(o);
    const auto slots = Self::four(d);
    const PoolQueries<TypeParam> queries(d, 4);
    queries.decode(d, slots);
    if (!prefix.state_type) queries.expect_right(d, slots);
    EXPECT_EQ(Self::packed(d), Self::can_pack && plain_because.empty());
    if (Self::can_pack) {
      EXPECT_EQ(Self::reason(d), plain_because);
    }
    d.exec.fence();
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), queries.out);
  };
  decode_by({.max_entries = 2, .rates = eager_rates()}, "the list has more than max_entries entries");
  decode_by({.max_states = 2, .rates = eager_rates()}, "the list has more than max_states partial states");
  const auto exact   = decode_by({.rates = eager_rates()}, "");
  const auto rounded = decode_by({.state_type = DType::fp16, .rates = eager_rates()}, "");
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(exact.data()[i])));
    most    = std::max(most, std::abs(static_cast<double>(exact.data()[i]) - static_cast<double>(rounded.data()[i])));
  }
  EXPECT_LT(most, 0.02 * largest);
  if (Self::can_pack && std::is_same_v<T, float>) {
    EXPECT_GT(most, 0) << "states of 16 bits were not rounded";
  }
}

// A step that reads a list only launches kernels; a new list is copied.
TYPED_TEST(PoolSharedDecode, StepsOnlyLaunchAndCopyNewLists) {
  using Self = PoolSharedDecode<TypeParam>;
  if (!Self::can_pack) return;
  Driven<TypeParam> d(Self::options);
  d.pool.set_rates(eager_rates());
  auto slots        = Self::four(d);
  const auto tokens = d.fresh(4);
  const auto k = keys(d.pool, d.exec, tokens), v = values(d.pool, d.exec, tokens);
  const PoolQueries<TypeParam> queries(d, 4);
  d.exec.fence();
  for (int lists = 1; lists < 4; ++lists) {
    {
      const Watch watch;
      for (int i = 0; i < 5; ++i) {
        d.pool.append(d.exec, slots, k, v);
        queries.decode(d, slots);
        ASSERT_TRUE(Self::packed(d));
      }
    }
    const auto seen = Watch::seen();
    EXPECT_EQ(seen.allocations, std::vector<std::string>());
    EXPECT_EQ(seen.copies.size(), 1u);
    for (const auto& name : seen.kernels) EXPECT_EQ(name.find("Pagoda::"), 0u) << name;
    std::rotate(slots.begin(), slots.begin() + 1, slots.end());
  }
}

TYPED_TEST(PoolSharedDecode, TablesForPlanners) {
  using Self = PoolSharedDecode<TypeParam>;
  Driven<TypeParam> d(Self::options);
  const auto all = Self::four(d);
  const std::vector<int> slots{all[2], all[0]};
  const BatchPages p = d.pool.batch_pages(slots, 3);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.num_sequences, Self::options.max_sequences);
  EXPECT_EQ(p.query_tokens(), 6);
  EXPECT_EQ(p.paged(), is_paged<TypeParam>);
  for (int b = 0; b < 2; ++b) {
    EXPECT_EQ(p.sequence(b), slots[b]);
    EXPECT_EQ(p.seq_len(b), d.pool.seq_len(slots[b]));
    if (!is_paged<TypeParam>) continue;
    EXPECT_EQ(p.page_size, 4);
    const auto pages = d.pool.block_table(slots[b]);
    for (std::size_t i = 0; i < pages.size(); ++i) EXPECT_EQ(p.row(b)[static_cast<int>(i)], pages[i]);
  }
}

}  // namespace
}  // namespace pagoda::test
