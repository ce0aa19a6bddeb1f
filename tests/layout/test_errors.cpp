// SPDX-License-Identifier: Apache-2.0
#include <pagoda/kv_cache.hpp>
#include <pagoda/kv_layout.hpp>

#include "tests/support/refusal.hpp"
#include "tests/support/spaces.hpp"

#include <Kokkos_Core.hpp>

namespace pagoda::test {
namespace {

using Memory   = Device::memory_space;
using Cache    = Kokkos::View<float****, Kokkos::LayoutRight, Memory>;
using IntsView = Kokkos::View<const int*, Memory>;

/// Shapes without memory: nothing is read.
Cache cache(std::size_t n0, std::size_t n1, std::size_t n2, std::size_t n3) {
  return Cache(static_cast<float*>(nullptr), n0, n1, n2, n3);
}
IntsView ints(std::size_t n) { return IntsView(static_cast<const int*>(nullptr), n); }
using TableView = Kokkos::View<const int**, Kokkos::LayoutRight, Memory>;
TableView table(std::size_t rows, std::size_t pages) {
  return TableView(static_cast<const int*>(nullptr), rows, pages);
}

void refuses_contiguous(const Cache& k, const Cache& v, std::size_t lengths, std::initializer_list<const char*> words) {
  expect_refusal([&] { ContiguousKV<float, Memory>(k, v, ints(lengths)); }, words);
}
void refuses_paged(const Cache& k, const Cache& v, std::initializer_list<const char*> words) {
  expect_refusal([&] { PagedKV<float, Memory>(k, v, table(3, 5), ints(3)); }, words);
  expect_refusal([&] { PagedKV<float, Memory>(k, v, ints(4), ints(9), ints(3), 100); }, words);
}

TEST(LayoutErrors, KeysAndValuesThatDisagree) {
  refuses_contiguous(cache(3, 10, 2, 16), cache(4, 10, 2, 16), 3, {"pagoda::ContiguousKV", "(4, 10, 2)", "(3, 10, 2)"});
  refuses_contiguous(cache(3, 10, 2, 16), cache(3, 9, 2, 16), 3, {"(3, 9, 2)", "(3, 10, 2)"});
  refuses_contiguous(cache(3, 10, 2, 16), cache(3, 10, 1, 16), 3, {"(3, 10, 1)", "(3, 10, 2)"});
  refuses_paged(cache(8, 10, 2, 16), cache(7, 10, 2, 16), {"pagoda::PagedKV", "(7, 10, 2)", "(8, 10, 2)"});
}

TEST(LayoutErrors, NothingToHold) {
  refuses_contiguous(cache(3, 0, 2, 16), cache(3, 0, 2, 16), 3, {"at least one token", "(3, 0, 2, 16)"});
  refuses_contiguous(cache(3, 10, 0, 16), cache(3, 10, 0, 16), 3, {"one kv head", "(3, 10, 0, 16)"});
  refuses_contiguous(cache(3, 10, 2, 0), cache(3, 10, 2, 16), 3, {"one dim", "(3, 10, 2, 0)"});
  refuses_contiguous(cache(3, 10, 2, 16), cache(3, 10, 2, 0), 3, {"head_dim 0"});
  refuses_paged(cache(3, 0, 2, 16), cache(3, 0, 2, 16), {"pagoda::PagedKV", "at least one token"});
}

TEST(LayoutErrors, MoreThanAnIntCounts) {
  const std::size_t many = std::size_t(1) << 31;
  for (int axis = 0; axis < 4; ++axis) {
    std::size_t n[4]        = {1, 1, 1, 1};
    n[axis]                 = many;
    const Cache k           = cache(n[0], n[1], n[2], n[3]);
    const std::string where = "axis " + std::to_string(axis);
    refuses_contiguous(k, k, 1, {where.c_str(), "2147483648", "below 2^31"});
    refuses_paged(k, k, {where.c_str(), "2147483648", "below 2^31"});
  }
  refuses_contiguous(cache(1, 1, 1, 1), cache(1, 1, 1, many), 1, {"axis 3 of v", "2147483648", "below 2^31"});
}

// Two dims of int4 in an element: the elements fit an int, the dims do not.
TEST(LayoutErrors, MoreDimsThanAnIntCounts) {
  const Kokkos::View<int4x2_t****, Kokkos::LayoutRight, Memory> k(nullptr, 1, 1, 1, std::size_t(1) << 30);
  expect_refusal([&] { ContiguousKV<int4x2_t, Memory>(k, k, ints(1)); },
                 {"pagoda::ContiguousKV", "1073741824 of 2 dims each", "below 2^31 dims"});
}

TEST(LayoutErrors, CachesToAllocate) {
  const Device exec;
  expect_refusal(
      [&] { make_paged_cache<float>(exec, {.num_pages = 0, .page_size = 4, .num_kv_heads = 1, .head_dim = 8}); },
      {"pagoda::make_paged_cache: num_pages is 0", "1 or more"});
  expect_refusal(
      [&] {
        make_paged_cache<float>(exec,
                                {.num_pages = 1, .page_size = 4, .num_kv_heads = 1, .head_dim = 8, .head_dim_v = -1});
      },
      {"pagoda::make_paged_cache: head_dim_v is -1", "0 (as head_dim) or more"});
  expect_refusal(
      [&] { make_paged_cache<int4x2_t>(exec, {.num_pages = 1, .page_size = 4, .num_kv_heads = 1, .head_dim = 9}); },
      {"head_dim is 9 and head_dim_v 9", "multiples of 2", "int4"});
}

// 2^64 bytes and more: a product that wraps around would allocate a few bytes for them.
TEST(LayoutErrors, CachesOfMoreBytesThanIntegersCount) {
  const Device exec;
  constexpr int many = 1 << 30;
  expect_refusal(
      [&] {
        make_paged_cache<float>(exec, {.num_pages = many, .page_size = many, .num_kv_heads = 16, .head_dim = 128});
      },
      {"pagoda::make_paged_cache: the cache has 1073741824 * 1073741824 tokens of 16 kv heads",
       "fewer than 2^62 bytes"});
  expect_refusal(
      [&] {
        make_contiguous_cache<float>(
            exec, {.num_sequences = many, .max_seq_len = many, .num_kv_heads = 1, .head_dim = 1, .head_dim_v = 128});
      },
      {"pagoda::make_contiguous_cache: the cache has 1073741824 * 1073741824 tokens of 1 kv heads"});
}

TEST(LayoutErrors, ArraysWithoutMemory) {
  const Cache k = cache(3, 4, 2, 16);
  expect_refusal([&] { PagedKV<float, Memory>(k, k, ints(4), ints(9), ints(3), 12); },
                 {"pagoda::PagedKV: page_indptr has a null pointer"});
  expect_refusal([&] { ContiguousKV<float, Memory>(k, k, ints(3), KVOrder::NHD, ints(2)); },
                 {"pagoda::ContiguousKV: sequence_ids has a null pointer and 2 entries"});
  const Kokkos::View<fp8_e4m3_t****, Kokkos::LayoutRight, Memory> bytes(nullptr, 3, 4, 2, 16);
  const Kokkos::View<const float*, Memory> scales(nullptr, 2);
  expect_refusal(
      [&] { ContiguousKV<fp8_e4m3_t, Memory>(bytes, bytes, ints(3)).with_scales(per_head_scales(scales, scales)); },
      {"pagoda::ContiguousKV::with_scales: scales.k has a null pointer and 2 entries", "or an empty View"});
}

// A default-constructed struct of Views is empty, on the stack too.
TEST(Layouts, EmptyScales) {
  const KVScales<Memory> none;
  EXPECT_EQ(none.k.data(), nullptr);
  EXPECT_EQ(none.v.extent(0), 0u);
}

TEST(Layouts, LongTablesHoldAsManyTokensAsAnIntCounts) {
  const int id = 0;
  for (const std::size_t pages : {std::size_t(1) << 31, std::size_t(1) << 62}) {
    const TableView wide(&id, 1, pages);
    EXPECT_EQ((PagedKV<float, Memory>(cache(1, 4, 1, 8), cache(1, 4, 1, 8), wide, ints(1)).max_seq_len()), 2147483647);
  }
}

TEST(LayoutErrors, NumbersOfSequences) {
  refuses_contiguous(cache(3, 10, 2, 16), cache(3, 10, 2, 16), 2, {"seq_lens has 2", "k has 3 sequences"});
  const Cache k = cache(8, 4, 2, 16);
  expect_refusal([&] { PagedKV<float, Memory>(k, k, table(3, 5), ints(4)); },
                 {"pagoda::PagedKV", "block_table has 3 rows", "seq_lens has 4"});
  expect_refusal([&] { PagedKV<float, Memory>(k, k, ints(4), ints(9), ints(4), 100); },
                 {"page_indptr has 4", "sequences + 1 = 5"});
  expect_refusal([&] { PagedKV<float, Memory>(k, k, ints(5), ints(9), ints(4), -1); },
                 {"max_seq_len is -1", "0 or more"});
  const std::size_t many = std::size_t(1) << 32;
  expect_refusal([&] { PagedKV<float, Memory>(k, k, table(many, 5), ints(many)); },
                 {"pagoda::PagedKV: seq_lens has 4294967296 entries", "below 2^31"});
  expect_refusal([&] { PagedKV<float, Memory>(k, k, table(3, 5), ints(3), KVOrder::NHD, ints(many)); },
                 {"pagoda::PagedKV: seq_lens has 3 entries and sequence_ids 4294967296", "below 2^31"});
}

}  // namespace
}  // namespace pagoda::test
