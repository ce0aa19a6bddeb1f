// SPDX-License-Identifier: Apache-2.0
// pagoda::check finds what decode does not check: lengths, sequence ids and page ids outside the cache.
#include "tests/support/refusal.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/check.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using Exec  = Kokkos::DefaultExecutionSpace;
using Space = Exec::memory_space;
using Ints  = Kokkos::View<int*, Space>;
using Pages = Kokkos::View<float****, Kokkos::LayoutRight, Space>;

Ints ints(const std::vector<int>& values) {
  const Kokkos::View<const int*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host(values.data(), values.size());
  Ints device("values", values.size());
  Kokkos::deep_copy(device, host);
  return device;
}

/// Three sequences over five pages of four tokens.
struct Cache {
  std::vector<int> seq_lens{8, 3, 0}, table{4, 2, 0, -1, -1, -1}, ids{}, indptr{0, 2, 3, 3}, indices{4, 2, 0};
  Pages k{"k", 5, 4, 1, 8}, v{"v", 5, 4, 1, 8};

  auto dense() const {
    Kokkos::View<int**, Kokkos::LayoutRight, Space> rows("rows", 3, 2);
    Kokkos::deep_copy(Ints(rows.data(), 6), ints(table));
    return pagoda::PagedKV<float, Space>(k, v, rows, ints(seq_lens), pagoda::KVOrder::NHD,
                                         ids.empty() ? Ints() : ints(ids));
  }
  auto csr() const { return pagoda::PagedKV<float, Space>(k, v, ints(indptr), ints(indices), ints(seq_lens), 8); }
};

template <class KV>
std::string complaint(const KV& kv) {
  try {
    pagoda::check(Exec(), kv);
  } catch (const pagoda::InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Check, QueryCounts) {
  using T = pagoda::test::AnyType;  // a plan needs a type of this build
  const Kokkos::View<T****, Kokkos::LayoutRight, Space> k("k", 5, 4, 1, 8), v("v", 5, 4, 1, 8);
  const Kokkos::View<int**, Kokkos::LayoutRight, Space> rows("rows", 3, 2);
  const pagoda::PagedKV<T, Space> kv(k, v, rows, ints({8, 3, 0}));
  const auto complaint_of = [&](const std::vector<int>& cu_seqlens_q) -> std::string {
    const Kokkos::View<float***, Space> q("q", 6, 1, 8);
    const auto plan =
        pagoda::plan(Exec(), kv, {.num_q_heads = 1, .max_query_len = 3, .cu_seqlens_q = ints(cu_seqlens_q)});
    try {
      pagoda::check(Exec(), plan, q, kv);
    } catch (const pagoda::InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(complaint_of({0, 3, 3, 6}), "");
  EXPECT_EQ(complaint_of({1, 3, 4, 6, 77}), "");  // entries beyond the batch are not read
  for (const auto& [counts, words] :
       {std::pair(std::vector<int>{0, 3, 2, 6}, "cu_seqlens_q(1) is 3 and cu_seqlens_q(2) is 2"),
        {{0, 3, 6, 7}, "cu_seqlens_q(2) is 6 and cu_seqlens_q(3) is 7"},
        {{-1, 0, 1, 2}, "cu_seqlens_q(0) is -1"},
        {{0, 4, 5, 6}, "max_query_len = 3"}})
    EXPECT_NE(complaint_of(counts).find(words), std::string::npos) << complaint_of(counts) << " lacks " << words;
}

TEST(Check, QueryCountsForALargerBatch) {
  using T = pagoda::test::AnyType;
  const Kokkos::View<T****, Kokkos::LayoutRight, Space> k("k", 3, 4, 1, 8);
  const Kokkos::View<float***, Space> q("q", 2, 1, 8);
  const auto of = [&](int batch) {
    return pagoda::ContiguousKV<T, Space>(k, k, ints({4, 4, 4}), pagoda::KVOrder::NHD, ints(std::vector(batch, 0)));
  };
  const auto plan = pagoda::plan(Exec(), of(2), {.num_q_heads = 1, .cu_seqlens_q = ints({0, 1, 2})});
  pagoda::check(Exec(), plan, q, of(2));
  pagoda::test::expect_refusal(
      [&] { pagoda::check(Exec(), plan, q, of(3)); },
      {"pagoda::check: the cache's batch is 3", "fewer than the 3 entries of the plan's cu_seqlens_q"});
}

TEST(Check, AcceptsWhatLiesInside) {
  EXPECT_EQ(complaint(Cache{}.dense()), "");
  EXPECT_EQ(complaint(Cache{}.csr()), "");
  EXPECT_EQ(complaint(Cache{.ids = {2, 0, 0, 1}}.dense()), "");
}

TEST(Check, NamesALengthBeyondTheCache) {
  EXPECT_EQ(complaint(Cache{.seq_lens = {8, 9, 0}}.dense()), "pagoda::check: seq_lens(1) is 9; allowed: 0 to 8");
  EXPECT_EQ(complaint(Cache{.seq_lens = {8, 3, -1}}.dense()), "pagoda::check: seq_lens(2) is -1; allowed: 0 to 8");
}

TEST(Check, NamesASequenceThatIsNotThere) {
  EXPECT_EQ(complaint(Cache{.ids = {0, 3}}.dense()), "pagoda::check: sequence_ids(1) is 3; allowed: 0 to 2");
}

TEST(Check, NamesAPageOutsideThePool) {
  EXPECT_EQ(complaint(Cache{.table = {4, 5, 0, -1, -1, -1}}.dense()),
            "pagoda::check: page 1 of sequence 0 (batch entry 0) is 5; allowed: 0 to 4");
  EXPECT_EQ(complaint(Cache{.table = {4, 2, -1, -1, -1, -1}}.dense()),
            "pagoda::check: page 0 of sequence 1 (batch entry 1) is -1; allowed: 0 to 4");
  EXPECT_EQ(complaint(Cache{.indices = {4, 2, 7}}.csr()),
            "pagoda::check: page 0 of sequence 1 (batch entry 1) is 7; allowed: 0 to 4");
}

TEST(Check, NamesAPageListThatIsTooShort) {
  EXPECT_NE(complaint(Cache{.indptr = {0, 1, 3, 3}}.csr()).find("page_indptr gives 1 pages of sequence 0"),
            std::string::npos);
}

TEST(Check, LooksAtContiguousCachesToo) {
  const Pages k("k", 2, 4, 1, 8), v("v", 2, 4, 1, 8);
  EXPECT_EQ(complaint(pagoda::ContiguousKV(k, v, ints({4, 0}))), "");
  EXPECT_EQ(complaint(pagoda::ContiguousKV(k, v, ints({4, 5}))), "pagoda::check: seq_lens(1) is 5; allowed: 0 to 4");
}

}  // namespace
