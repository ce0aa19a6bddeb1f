// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/elements.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/kv_pool.hpp>

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

/// A simple model of a pool's contents, and the comparison of a pool with it.
namespace pagoda::test {

/// Slot -> the tokens of its sequence. A token is a number that determines its rows.
using Model                    = std::map<int, std::vector<int>>;
inline constexpr int unwritten = 0;  ///< a token whose rows are not written yet and may hold anything

inline std::vector<int> slots_of(const Model& model) {
  std::vector<int> slots;
  for (const auto& [slot, tokens] : model) slots.push_back(slot);
  return slots;
}

/// Element of a token's key or value: a multiple of 1/16 in (-4, 4), so exact in every type.
inline double element(int token, int head, int d, bool value) {
  unsigned x = static_cast<unsigned>(token) * 2654435761u + static_cast<unsigned>(head) * 40503u +
               static_cast<unsigned>(d) * 9176u + (value ? 77777u : 0u);
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return (static_cast<int>(x % 127u) - 63) / 16.0;
}

/// Rows (token, head, dim) of these tokens in the memory of a space, as U.
template <class Space, class U>
auto make_rows(const Space& exec, const std::vector<int>& tokens, int heads, int dims, bool value) {
  Kokkos::View<U***, Kokkos::LayoutRight, typename Space::memory_space> rows("rows", tokens.size(), heads, dims);
  const auto host = Kokkos::create_mirror_view(rows);
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (int h = 0; h < heads; ++h)
      for (int d = 0; d < dims; ++d) host(t, h, d) = to_element<U>(element(tokens[t], h, d, value));
  Kokkos::deep_copy(exec, rows, host);
  exec.fence();
  return rows;
}

template <class Pool, class U = typename Pool::value_type>
auto keys(const Pool& pool, const typename Pool::execution_space& exec, const std::vector<int>& tokens) {
  return make_rows<typename Pool::execution_space, U>(exec, tokens, pool.options().num_kv_heads,
                                                      pool.options().head_dim, false);
}
template <class Pool, class U = typename Pool::value_type>
auto values(const Pool& pool, const typename Pool::execution_space& exec, const std::vector<int>& tokens) {
  return make_rows<typename Pool::execution_space, U>(exec, tokens, pool.options().num_kv_heads,
                                                      pool.options().head_dim_v, true);
}

/// Host values in the memory of a space.
template <class Space, class I>
auto on_device(const Space& exec, const std::vector<I>& list) {
  Kokkos::View<I*, typename Space::memory_space> there("list", list.size());
  const auto host = Kokkos::create_mirror_view(there);
  std::copy(list.begin(), list.end(), host.data());
  Kokkos::deep_copy(exec, there, host);
  exec.fence();
  return there;
}

/// A block table, or nothing.
template <class T, class M>
KOKKOS_INLINE_FUNCTION int table_columns(const ContiguousKV<T, M>&) {
  return 0;
}
template <class T, class M>
KOKKOS_INLINE_FUNCTION int table_columns(const PagedKV<T, M>& kv) {
  return static_cast<int>(kv.block_table.extent(1));
}
template <class T, class M>
KOKKOS_INLINE_FUNCTION int table_entry(const ContiguousKV<T, M>&, int, int) {
  return -1;
}
template <class T, class M>
KOKKOS_INLINE_FUNCTION int table_entry(const PagedKV<T, M>& kv, int b, int column) {
  return kv.block_table(kv.sequence(b), column);
}

/// Reads a cache as kernels do.
template <class KV, class Space>
struct Gather {
  using Memory = typename Space::memory_space;
  KV kv;
  int max_len, heads, head_dim, head_dim_v;
  Kokkos::View<float****, Kokkos::LayoutRight, Memory> rows;  ///< (batch, token, head, key then value)
  Kokkos::View<int*, Memory> lengths;
  Kokkos::View<int**, Kokkos::LayoutRight, Memory> table;

  KOKKOS_FUNCTION void operator()(int b) const {
    lengths(b) = kv.seq_len(b);
    for (int i = 0; i < table_columns(kv); ++i) table(b, i) = table_entry(kv, b, i);
    for (int t = 0; t < lengths(b) && t < max_len; ++t)
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < head_dim; ++d) rows(b, t, h, d) = static_cast<float>(kv.key(b, t, h, d));
        for (int d = 0; d < head_dim_v; ++d) rows(b, t, h, head_dim + d) = static_cast<float>(kv.value(b, t, h, d));
      }
  }
};

/// The device's state of some sequences, copied to the host.
struct Contents {
  std::vector<int> lengths;
  std::vector<std::vector<int>> table;   ///< all columns; contiguous: none
  std::vector<std::vector<float>> rows;  ///< of each sequence, (token, head, key then value)
  bool operator==(const Contents&) const = default;
};

/// max_len: tokens of each sequence to read.
template <class Space, class KV>
Contents read_cache(const Space& exec, const KV& kv, const PoolOptions& o, int max_len) {
  using Kernel    = Gather<KV, Space>;
  const auto n    = static_cast<std::size_t>(kv.batch());
  const int dims  = o.head_dim + o.head_dim_v;
  const int width = table_columns(kv);
  const Kernel gather{kv,
                      max_len,
                      o.num_kv_heads,
                      o.head_dim,
                      o.head_dim_v,
                      decltype(Kernel::rows)("rows", n, max_len, o.num_kv_heads, dims),
                      decltype(Kernel::lengths)("lengths", n),
                      decltype(Kernel::table)("table", n, width)};
  Kokkos::parallel_for("gather", Kokkos::RangePolicy<Space>(exec, 0, n), gather);
  exec.fence();
  const auto rows    = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), gather.rows);
  const auto lengths = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), gather.lengths);
  const auto table   = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), gather.table);

  Contents c;
  for (std::size_t b = 0; b < n; ++b) {
    c.lengths.push_back(lengths(b));
    c.table.emplace_back(table.data() + b * width, table.data() + (b + 1) * width);
    const std::size_t row = static_cast<std::size_t>(o.num_kv_heads) * dims, first = b * max_len * row;
    const std::size_t count = std::min(lengths(b), max_len) * row;
    c.rows.emplace_back(rows.data() + first, rows.data() + first + count);
  }
  return c;
}

template <class Pool>
Contents read(Pool& pool, const typename Pool::execution_space& exec, const std::vector<int>& slots) {
  int max_len = 0;
  for (const int slot : slots) max_len = std::max(max_len, pool.seq_len(slot));
  return read_cache(exec, pool.kv(exec, slots), pool.options(), max_len);
}

/// Expected contents; NaN in rows that may hold anything.
template <class Pool>
Contents expected(const Pool& pool, const Model& model) {
  const auto o = pool.options();
  Contents c;
  for (const auto& [slot, tokens] : model) {
    c.lengths.push_back(static_cast<int>(tokens.size()));
    std::vector<float> rows;
    for (const int token : tokens)
      for (int h = 0; h < o.num_kv_heads; ++h) {
        const auto number = [&](int d, bool value) {
          return token == unwritten ? std::nanf("") : static_cast<float>(element(token, h, d, value));
        };
        for (int d = 0; d < o.head_dim; ++d) rows.push_back(number(d, false));
        for (int d = 0; d < o.head_dim_v; ++d) rows.push_back(number(d, true));
      }
    c.rows.push_back(rows);
    c.table.emplace_back();
  }
  return c;
}

template <class Pool>
inline constexpr bool is_paged =
    std::is_same_v<typename Pool::Layout, PagedKV<typename Pool::value_type, typename Pool::memory_space>>;

/// Compares all queries and contents of a pool with the model, and checks its consistency.
template <class Pool>
void expect_holds(Pool& pool, const typename Pool::execution_space& exec, const Model& model) {
  const auto o        = pool.options();
  const auto slots    = slots_of(model);
  const int page_size = pool.page_size();

  // On the host: pages are held by sequences or free, and counted right.
  std::vector<int> holders(pool.num_pages(), 0);
  std::set<std::int64_t> positions;
  std::int64_t held = 0;
  for (int slot = 0; slot < o.max_sequences; ++slot)
    ASSERT_EQ(pool.holds(slot), model.contains(slot)) << "slot " << slot;
  for (const auto& [slot, tokens] : model) {
    const int length = static_cast<int>(tokens.size());
    ASSERT_EQ(pool.seq_len(slot), length);
    const auto pages = pool.block_table(slot);
    ASSERT_EQ(pages.size(), is_paged<Pool> ? static_cast<std::size_t>((length + page_size - 1) / page_size) : 1u);
    EXPECT_TRUE(is_paged<Pool> || pages[0] == slot);
    for (const int page : pages) {
      ASSERT_TRUE(page >= 0 && page < pool.num_pages());
      ++holders[page];
    }
    held += length;
    const auto mapping = pool.slot_mapping(slot, 0, length);
    for (int t = 0; t < length; ++t)
      ASSERT_EQ(mapping[t], std::int64_t(pages[t / page_size]) * page_size + t % page_size);
    positions.insert(mapping.begin(), mapping.end());
  }
  for (int page = 0; page < pool.num_pages(); ++page)
    ASSERT_EQ(pool.page_ref_count(page), holders[page]) << "page " << page;
  const auto used = pool.num_pages() - std::count(holders.begin(), holders.end(), 0);
  int cached      = 0;  // in the index, and no sequence holds them
  for (int page = 0; page < pool.num_pages(); ++page) cached += holders[page] == 0 && pool.is_indexed(page);
  EXPECT_EQ(pool.free_pages() - pool.evictable_pages(), pool.num_pages() - used - cached);
  EXPECT_LE(pool.evictable_pages(), cached);  // some may be needed by pages that follow them in the index
  EXPECT_EQ(pool.free_slots() + static_cast<int>(model.size()), o.max_sequences);
  EXPECT_EQ(pool.tokens_held(), held);
  EXPECT_EQ(pool.tokens_stored(), static_cast<std::int64_t>(positions.size()));
  EXPECT_EQ(pool.bytes_reserved(), used * page_size * pool.bytes_per_token());
  EXPECT_EQ(pool.bytes_used(), pool.tokens_stored() * pool.bytes_per_token());

  // On the device.
  const Contents found = read(pool, exec, slots), wanted = expected(pool, model);
  EXPECT_EQ(found.lengths, wanted.lengths);
  for (std::size_t b = 0; b < slots.size(); ++b) {
    ASSERT_TRUE(std::equal(found.rows[b].begin(), found.rows[b].end(), wanted.rows[b].begin(), wanted.rows[b].end(),
                           [](float is, float should) { return is == should || std::isnan(should); }))
        << "rows of slot " << slots[b];
    if constexpr (is_paged<Pool>) {
      const auto pages = pool.block_table(slots[b]);
      auto row         = std::vector<int>(pages.begin(), pages.end());
      row.resize(found.table[b].size(), -1);
      ASSERT_EQ(found.table[b], row) << "block table of slot " << slots[b];
    }
  }
}

/// A snapshot of a pool, to check that nothing has changed.
template <class Pool>
struct State {
  std::vector<int> slots, lengths, refs;
  std::vector<std::vector<int>> tables;
  std::vector<bool> indexed;
  std::vector<int> named;
  PrefixStats stats;
  int free_slots = 0, free_pages = 0, evictable = 0;
  std::int64_t held = 0, stored = 0;
  Contents contents;
  bool operator==(const State&) const = default;
};

/// The snapshot without contents; makes no call that could change the pool.
template <class Pool>
State<Pool> host_state_of(const Pool& pool) {
  State<Pool> s;
  for (int slot = 0; slot < pool.options().max_sequences; ++slot) {
    if (!pool.holds(slot)) continue;
    const auto pages = pool.block_table(slot);
    s.slots.push_back(slot);
    s.lengths.push_back(pool.seq_len(slot));
    s.tables.emplace_back(pages.begin(), pages.end());
    s.named.push_back(pool.named_tokens(slot));
  }
  for (int page = 0; page < pool.num_pages(); ++page) s.indexed.push_back(pool.is_indexed(page));
  s.stats = pool.prefix_stats(), s.evictable = pool.evictable_pages();
  for (int page = 0; page < pool.num_pages(); ++page) s.refs.push_back(pool.page_ref_count(page));
  s.free_slots = pool.free_slots(), s.free_pages = pool.free_pages();
  s.held = pool.tokens_held(), s.stored = pool.tokens_stored();
  return s;
}

template <class Pool>
State<Pool> state_of(Pool& pool, const typename Pool::execution_space& exec) {
  auto s     = host_state_of(pool);
  s.contents = read(pool, exec, s.slots);
  return s;
}

/// A pool and its model; each call changes both.
template <class Pool>
struct Driven {
  using Space = typename Pool::execution_space;
  Space exec;
  Pool pool;
  Model model{};
  int next = 1;  ///< the next token

  explicit Driven(const PoolOptions& options, const Space& on = Space()) : exec(on), pool(exec, options) {}

  std::vector<int> fresh(int n) {
    std::vector<int> tokens(n);
    for (int& t : tokens) t = next++;
    return tokens;
  }
  int admit(int n) {
    const auto tokens = fresh(n);
    const int slot    = pool.admit(exec, keys(pool, exec, tokens), values(pool, exec, tokens));
    model[slot]       = tokens;
    return slot;
  }
  void append(const std::vector<int>& slots, const std::vector<int>& counts) {
    std::vector<int> all;
    std::vector<std::vector<int>> parts;
    for (const int n : counts) {
      parts.push_back(fresh(n));
      all.insert(all.end(), parts.back().begin(), parts.back().end());
    }
    pool.append(exec, slots, counts, keys(pool, exec, all), values(pool, exec, all));
    for (std::size_t i = 0; i < slots.size(); ++i)
      model[slots[i]].insert(model[slots[i]].end(), parts[i].begin(), parts[i].end());
  }
  void append(int slot, int n) { append(std::vector<int>{slot}, std::vector<int>{n}); }
  int fork(int slot, int n = -1) {
    const int child = pool.fork(exec, slot, n);
    auto tokens     = model[slot];
    if (n >= 0) tokens.resize(n);
    model[child] = tokens;
    return child;
  }
  void release(int slot) {
    pool.release(slot);
    model.erase(slot);
  }
  void check() { expect_holds(pool, exec, model); }
};

namespace lists {

template <class>
struct PoolsOn;
template <class... O>
struct PoolsOn<testing::Types<O...>> {
  using paged = testing::Types<PagedPool<typename O::type, typename O::space>...>;
  using both  = testing::Types<ContiguousPool<typename O::type, typename O::space>...,
                               PagedPool<typename O::type, typename O::space>...>;
};

}  // namespace lists

/// What a pool does with pages and slots does not depend on the type of its rows.
using PagedPools      = lists::PoolsOn<SpacesAndAnyType>::paged;
using Pools           = lists::PoolsOn<SpacesAndAnyType>::both;
using PoolsOfAllTypes = lists::PoolsOn<SpacesAndTypes>::both;

struct PoolNames {
  template <class Pool>
  static std::string GetName(int) {
    return std::string(is_paged<Pool> ? "paged_" : "contiguous_") + Pool::execution_space::name() + "_" +
           name_of(dtype_v<typename Pool::value_type>);
  }
};

inline const PoolOptions small_pool{.num_kv_heads  = 2,
                                    .head_dim      = 4,
                                    .head_dim_v    = 3,
                                    .max_seq_len   = 24,
                                    .max_sequences = 6,
                                    .page_size     = 4,
                                    .num_pages     = 20};

}  // namespace pagoda::test
