// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_model.hpp"

#include <algorithm>

namespace pagoda::test {
namespace {

template <class Pool>
struct Sequences : testing::Test {};
TYPED_TEST_SUITE(Sequences, Pools, PoolNames);

template <class Pool>
struct PagedSequences : testing::Test {};
TYPED_TEST_SUITE(PagedSequences, PagedPools, PoolNames);

// ---- the pool tests of the A40 study: full, recycled, a token across a page edge, two sequences side by side

TYPED_TEST(Sequences, Full) {
  auto options      = small_pool;
  options.num_pages = 6;  // one of 4 tokens for each sequence
  Driven<TypeParam> d(options);
  for (int i = 0; i < options.max_sequences; ++i) {
    EXPECT_TRUE(d.pool.can_admit(4));
    d.admit(4);
  }
  d.check();
  EXPECT_FALSE(d.pool.can_admit(0));
  EXPECT_FALSE(d.pool.can_admit(4));
  EXPECT_THROW(d.pool.admit(d.exec, 4), OutOfCapacity);
  d.check();
}

TYPED_TEST(Sequences, Recycled) {
  Driven<TypeParam> d(small_pool);
  std::vector<int> slots;
  for (const int n : {9, 4, 1, 5}) slots.push_back(d.admit(n));
  const auto before = d.pool.free_pages();
  d.release(slots[0]);
  EXPECT_GT(d.pool.free_pages(), before);
  d.check();
  // The same memory is reused by a shorter sequence, which reads only its own rows.
  const std::vector<int> pages_before(d.pool.block_table(slots[1]).begin(), d.pool.block_table(slots[1]).end());
  EXPECT_EQ(d.admit(2), slots[0]);
  d.check();
  d.append(slots[0], 9);
  d.check();
  for (const int slot : {slots[2], slots[0], slots[3], slots[1]}) {
    d.release(slot);
    d.check();
  }
  EXPECT_EQ(d.pool.free_pages(), d.pool.num_pages());
  EXPECT_EQ(d.pool.bytes_reserved(), 0);
  EXPECT_EQ(d.pool.waste(), 0.0);
  d.admit(24);
  d.check();
}

TYPED_TEST(Sequences, AppendAcrossAPageEdge) {
  Driven<TypeParam> d(small_pool);
  const int slot = d.admit(3);
  for (int length = 4; length <= 13; ++length) {
    d.append(slot, 1);
    d.check();
  }
  d.append(slot, 11);  // many at once, over several page edges, to the end
  d.check();
  EXPECT_EQ(d.pool.seq_len(slot), 24);
}

TYPED_TEST(Sequences, TwoSequencesDoNotTouchEachOther) {
  Driven<TypeParam> d(small_pool);
  const int a = d.admit(5), b = d.admit(6);
  for (int i = 0; i < 8; ++i) {
    d.append(i % 3 == 0 ? b : a, 1);
    d.check();
  }
  d.release(a);
  d.append(b, 2);
  d.check();
}

// ---- growth

TYPED_TEST(Sequences, ManyInOneAppend) {
  auto options          = small_pool;
  options.num_pages     = 0;
  options.max_sequences = 40;
  Driven<TypeParam> d(options);
  std::vector<int> slots, counts;
  for (int i = 0; i < 40; ++i) slots.push_back(d.admit(i % 7));
  for (int i = 0; i < 40; ++i) counts.push_back(i % 5);  // 0 among them
  std::reverse(slots.begin(), slots.end());
  d.append(slots, counts);
  d.check();
  // One each, without counts.
  const auto tokens = d.fresh(40);
  d.pool.append(d.exec, slots, keys(d.pool, d.exec, tokens), values(d.pool, d.exec, tokens));
  for (int i = 0; i < 40; ++i) d.model[slots[i]].push_back(tokens[i]);
  d.check();
  d.append(std::vector<int>{}, {});  // no sequence
  d.check();
}

TYPED_TEST(Sequences, EmptySequencesGrow) {
  Driven<TypeParam> d(small_pool);
  const int a = d.admit(0), b = d.pool.admit(d.exec, 0);
  d.model[b] = {};
  d.check();
  d.append({b, a}, {1, 9});
  d.check();
}

// A list that exceeds one launch takes several.
TYPED_TEST(Sequences, PromptOfManyPages) {
  PoolOptions options{.num_kv_heads = 1, .head_dim = 1, .max_seq_len = 5000, .max_sequences = 3, .page_size = 1};
  Driven<TypeParam> d(options);
  const int a = d.admit(4000), b = d.admit(5000);
  d.release(a);
  const int c = d.admit(4990);
  d.append({c, b}, {10, 0});
  d.check();
}

// A decode loop that wraps around the ring of staged lists.
TYPED_TEST(Sequences, ManySteps) {
  PoolOptions options{.num_kv_heads = 1, .head_dim = 2, .max_seq_len = 3000, .max_sequences = 2, .page_size = 2};
  Driven<TypeParam> d(options);
  const std::vector<int> slots{d.admit(1), d.admit(2)};
  const auto tokens = d.fresh(2);
  const auto k      = keys(d.pool, d.exec, tokens);
  const auto v      = values(d.pool, d.exec, tokens);
  for (int i = 0; i < 2500; ++i) {
    d.pool.append(d.exec, slots, k, v);
    for (int b = 0; b < 2; ++b) d.model[slots[b]].push_back(tokens[b]);
  }
  d.check();
}

// Rows in any layout and of any type: those of a transposed, padded array of float.
TYPED_TEST(Sequences, RowsOfOtherLayoutAndType) {
  using Memory = typename TypeParam::memory_space;
  for (const auto order : {KVOrder::NHD, KVOrder::HND}) {
    auto options  = small_pool;
    options.order = order;
    Driven<TypeParam> d(options);
    const auto tokens = d.fresh(7);
    const auto k      = keys<TypeParam, float>(d.pool, d.exec, tokens);
    const auto v      = values<TypeParam, double>(d.pool, d.exec, tokens);
    Kokkos::View<float***, Kokkos::LayoutLeft, Memory> k_left("k", 9, 2, 6);
    const auto k_part = Kokkos::subview(k_left, Kokkos::pair(1, 8), Kokkos::ALL, Kokkos::pair(2, 6));
    const auto host   = Kokkos::create_mirror_view(k_left);
    const auto k_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), k);
    for (int t = 0; t < 7; ++t)
      for (int h = 0; h < 2; ++h)
        for (int dim = 0; dim < 4; ++dim) host(1 + t, h, 2 + dim) = k_host(t, h, dim);
    Kokkos::deep_copy(k_left, host);
    const int slot = d.pool.admit(d.exec, k_part, v);
    d.model[slot]  = tokens;
    d.check();
  }
}

// Rows that can be copied in vectors of 16 bytes, in both orders.
TYPED_TEST(Sequences, WideRows) {
  for (const auto order : {KVOrder::NHD, KVOrder::HND}) {
    Driven<TypeParam> d({.num_kv_heads  = 3,
                         .head_dim      = 128,
                         .head_dim_v    = 64,
                         .max_seq_len   = 100,
                         .max_sequences = 3,
                         .page_size     = 16,
                         .order         = order});
    const int a = d.admit(37), b = d.admit(1);
    d.append({a, b}, {2, 30});
    const int c = d.fork(a);
    d.append({c, a, b}, {1, 1, 1});
    d.check();
  }
}

// Rows that seem copyable in vectors, but whose heads are not aligned to 16 bytes.
TYPED_TEST(Sequences, RowsWhoseHeadsAreNotAligned) {
  using T          = typename TypeParam::value_type;
  using Memory     = typename TypeParam::memory_space;
  const int tokens = 5, heads = 3, dim = 128, head_stride = dim + 1, token_stride = 392;
  const auto in_gaps = [&](const auto& rows) {
    const Kokkos::View<T*, Memory> memory("rows with gaps", tokens * token_stride);
    const Kokkos::LayoutStride gaps(tokens, token_stride, heads, head_stride, dim, 1);
    const Kokkos::View<T***, Kokkos::LayoutStride, Memory> there(memory.data(), gaps);
    const auto host       = Kokkos::create_mirror_view(memory);
    const auto dense_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), rows);
    for (int t = 0; t < tokens; ++t)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < dim; ++d) host(t * token_stride + h * head_stride + d) = dense_host(t, h, d);
    Kokkos::deep_copy(memory, host);
    return std::pair(memory, there);
  };
  Driven<TypeParam> d({.num_kv_heads = heads, .head_dim = dim, .max_seq_len = 9, .max_sequences = 1, .page_size = 2});
  const auto list = d.fresh(tokens);
  const auto k = in_gaps(keys(d.pool, d.exec, list)), v = in_gaps(values(d.pool, d.exec, list));
  d.model[d.pool.admit(d.exec, k.second, v.second)] = list;
  d.check();
}

// ---- reserve, then write where slot_mapping says

TYPED_TEST(Sequences, ReserveThenWrite) {
  Driven<TypeParam> d(small_pool);
  const int a = d.admit(3), b = d.pool.admit(d.exec, 6);
  d.pool.reserve(d.exec, std::vector<int>{a, b}, std::vector<int>{4, 1});
  EXPECT_EQ(d.pool.seq_len(a), 7);
  EXPECT_EQ(d.pool.seq_len(b), 7);
  // The rows of both, interleaved with skipped rows.
  const auto at_a = d.pool.slot_mapping(a, 3, 4), at_b = d.pool.slot_mapping(b, 0, 7);
  std::vector<std::int64_t> mapping;
  std::vector<int> rows;
  for (int i = 0; i < 7; ++i) {
    for (const int slot : {a, b}) {
      if (slot == a && i >= 4) continue;
      mapping.push_back(slot == a ? at_a[i] : at_b[i]);
      rows.push_back(d.next);
      d.model[slot].push_back(d.next++);
    }
    mapping.push_back(-1);
    rows.push_back(d.next++);
  }
  d.pool.write(d.exec, on_device(d.exec, mapping), keys(d.pool, d.exec, rows), values(d.pool, d.exec, rows));
  d.check();
}

// The same over arrays that the caller owns, in both orders, with padding behind every row and a strided mapping.
TYPED_TEST(Sequences, WriteIntoArraysOfTheCaller) {
  using T         = typename TypeParam::value_type;
  using Space     = typename TypeParam::execution_space;
  using Memory    = typename TypeParam::memory_space;
  using Pages     = Kokkos::View<T****, Kokkos::LayoutRight, Memory>;
  const bool hnd  = is_paged<TypeParam>;
  const int pages = 5, page_size = 3, heads = 2, dim = 6, padded = 8;
  const Space exec;
  const Pages k("k", pages, hnd ? heads : page_size, hnd ? page_size : heads, padded);
  const Pages v("v", pages, hnd ? heads : page_size, hnd ? page_size : heads, padded);
  const auto dims = [&](const auto& x) {
    const auto part = Kokkos::pair(0, dim);
    if constexpr (std::decay_t<decltype(x)>::rank() == 3) {
      return Kokkos::subview(x, Kokkos::ALL, Kokkos::ALL, part);
    } else {
      return Kokkos::subview(x, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, part);
    }
  };
  const std::vector<std::int64_t> positions{14, -1, 0, 7};
  const Kokkos::View<std::int64_t**, Kokkos::LayoutRight, Memory> mapping("mapping", 4, 2);
  const auto mapping_host = Kokkos::create_mirror_view(mapping);
  for (int i = 0; i < 4; ++i) mapping_host(i, 0) = positions[i], mapping_host(i, 1) = 1;
  Kokkos::deep_copy(mapping, mapping_host);
  write_kv(exec, dims(k), dims(v), Kokkos::subview(mapping, Kokkos::ALL, 0),
           dims(make_rows<Space, T>(exec, {1, 2, 3, 4}, heads, padded, false)),
           dims(make_rows<Space, T>(exec, {1, 2, 3, 4}, heads, padded, true)), hnd ? KVOrder::HND : KVOrder::NHD);
  exec.fence();
  const auto k_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), k);
  const auto v_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), v);
  for (int position = 0; position < pages * page_size; ++position) {
    const auto row = std::find(positions.begin(), positions.end(), position) - positions.begin();
    for (int h = 0; h < heads; ++h)
      for (int d = 0; d < padded; ++d) {
        const int page = position / page_size, t = position % page_size, token = static_cast<int>(row) + 1;
        const bool written = row < 4 && d < dim;
        const auto at = [&](const auto& x) { return static_cast<double>(hnd ? x(page, h, t, d) : x(page, t, h, d)); };
        EXPECT_EQ(at(k_host), written ? element(token, h, d, false) : 0.0);
        EXPECT_EQ(at(v_host), written ? element(token, h, d, true) : 0.0);
      }
  }
}

// ---- forks

TYPED_TEST(Sequences, ForksGoTheirOwnWays) {
  for (const bool parent_first : {true, false}) {
    for (const int length : {3, 4, 6, 8}) {
      Driven<TypeParam> d(small_pool);
      const int a = d.admit(length), b = d.fork(a);
      d.check();
      d.append(parent_first ? a : b, 1);
      d.check();
      d.append(parent_first ? b : a, 2);
      d.check();
      d.append({a, b}, {3, 4});
      d.check();
      d.release(parent_first ? a : b);
      d.check();
      d.append(parent_first ? b : a, 1);
      d.check();
    }
  }
}

TYPED_TEST(Sequences, ForkOfAPrefix) {
  Driven<TypeParam> d(small_pool);
  const int a = d.admit(10);
  const int b = d.fork(a, 6), c = d.fork(a, 4), e = d.fork(b, 0), f = d.fork(b, 5);
  d.check();
  d.append({f, e, c, b, a}, {1, 1, 1, 1, 1});  // sharers of one page, in one call
  d.check();
  d.release(a);
  d.append({b, f}, {2, 2});
  d.check();
}

TYPED_TEST(Sequences, ChainsOfForks) {
  std::vector<int> order{0, 1, 2, 3};
  do {
    Driven<TypeParam> d(small_pool);
    std::vector<int> chain{d.admit(5)};
    for (int i = 0; i < 3; ++i) {
      if (i == 2) d.append(chain.back(), 1);
      chain.push_back(d.fork(chain.back()));
    }
    d.check();
    for (const int i : order) {
      d.release(chain[i]);
      for (const auto slot : slots_of(d.model)) d.append(slot, 1);
      d.check();
    }
    EXPECT_EQ(d.pool.free_pages(), d.pool.num_pages());
  } while (std::next_permutation(order.begin(), order.end()));
}

TYPED_TEST(PagedSequences, ForksShareUntilOneWrites) {
  Driven<TypeParam> d(small_pool);
  const int a = d.admit(10);  // pages of 4: two full, one of 2
  EXPECT_EQ(d.pool.free_pages(), 17);
  const int b = d.fork(a), c = d.fork(a);
  EXPECT_EQ(d.pool.free_pages(), 17);
  EXPECT_EQ(d.pool.tokens_held(), 30);
  EXPECT_EQ(d.pool.tokens_stored(), 10);
  EXPECT_EQ(d.pool.page_ref_count(d.pool.block_table(a)[2]), 3);
  d.append({a, b, c}, {1, 1, 1});  // two copies; the last writer keeps the page
  EXPECT_EQ(d.pool.free_pages(), 15);
  EXPECT_EQ(d.pool.page_ref_count(d.pool.block_table(a)[0]), 3);
  for (const int slot : {a, b, c}) EXPECT_EQ(d.pool.page_ref_count(d.pool.block_table(slot)[2]), 1);
  d.release(b), d.release(c);
  EXPECT_EQ(d.pool.free_pages(), 17);
  const int e = d.fork(a, 8);  // ends on an edge: nothing to copy, now or later
  d.append(e, 1);
  EXPECT_EQ(d.pool.free_pages(), 16);
  d.check();
}

// ---- how full

TYPED_TEST(Sequences, CapacityAndWaste) {
  using T = typename TypeParam::value_type;
  Driven<TypeParam> d(small_pool);
  const auto token = static_cast<std::int64_t>(2 * (4 + 3) * sizeof(T));
  EXPECT_EQ(d.pool.bytes_per_token(), token);
  EXPECT_EQ(d.pool.bytes_allocated(), token * (is_paged<TypeParam> ? 20 * 4 : 6 * 24));
  d.admit(9);
  EXPECT_EQ(d.pool.bytes_reserved(), token * (is_paged<TypeParam> ? 12 : 24));
  EXPECT_EQ(d.pool.bytes_used(), token * 9);
  EXPECT_DOUBLE_EQ(d.pool.waste(), is_paged<TypeParam> ? 0.25 : 0.625);
  EXPECT_FALSE(d.pool.can_admit(25));
  EXPECT_FALSE(d.pool.can_admit(-1));
  d.admit(24), d.admit(24);
  EXPECT_EQ(d.pool.can_admit(24), !is_paged<TypeParam>);  // 15 of 20 pages are taken
  EXPECT_TRUE(d.pool.can_admit(20));
}

// Case K3 of the study, at a thousandth of its 4 GB: sequences of 512 tokens in memory for 4096. At 75% fragmentation
// pages hold four times as many, at 87% eight times.
TYPED_TEST(Sequences, CapacityOfTheStudy) {
  for (const int max_seq_len : {512, 1024, 2048, 4096}) {
    PoolOptions options{
        .num_kv_heads = 1, .head_dim = 2, .max_seq_len = max_seq_len, .page_size = 16, .num_pages = 256};
    options.max_sequences = is_paged<TypeParam> ? 64 : 4096 / max_seq_len;
    typename TypeParam::execution_space exec;
    TypeParam pool(exec, options);
    int sequences = 0;
    for (; pool.can_admit(512); ++sequences) pool.admit(exec, 512);
    EXPECT_EQ(sequences, is_paged<TypeParam> ? 8 : 4096 / max_seq_len);
    EXPECT_DOUBLE_EQ(pool.waste(), is_paged<TypeParam> ? 0.0 : 1.0 - 512.0 / max_seq_len);
  }
}

}  // namespace
}  // namespace pagoda::test
