// SPDX-License-Identifier: Apache-2.0
#include <pagoda/kv_layout.hpp>

#include "tests/support/spaces.hpp"

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

/// The Views that layouts accept, and the sizes that they report.
namespace pagoda::test {
namespace {

using Memory = Device::memory_space;
using Ints   = Kokkos::View<int*, Memory>;

static_assert(KVLayout<ContiguousKV<float, Memory>> && KVLayout<PagedKV<half_t, Memory>>);
static_assert(!KVLayout<int> && !KVLayout<Kokkos::View<float****, Memory>>);

template <class View>
void expect_describes(const TensorRef& ref, const View& view, DType type, const std::array<int, 4>& axes) {
  EXPECT_EQ(ref.data, static_cast<const void*>(view.data()));
  EXPECT_EQ(ref.type, type);
  EXPECT_EQ(ref.rank, 4);
  for (int axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(ref.extent[axis], static_cast<std::int64_t>(view.extent(axes[axis]))) << "axis " << axis;
    EXPECT_EQ(ref.stride[axis], static_cast<std::int64_t>(view.stride(axes[axis]))) << "axis " << axis;
  }
}

constexpr std::array<int, 4> nhd{0, 1, 2, 3}, hnd{0, 2, 1, 3};

template <class View>
void expect_contiguous(const View& k, const View& v, DType type) {
  const Ints lengths("lengths", k.extent(0));
  const ContiguousKV kv{k, v, lengths};
  static_assert(std::is_same_v<typename decltype(kv)::value_type, std::remove_const_t<typename View::value_type>>);
  expect_describes(kv.ref().k, k, type, nhd);
  expect_describes(kv.ref().v, v, type, nhd);
  expect_describes(ContiguousKV{k, v, lengths, KVOrder::HND}.ref().k, k, type, hnd);
}

TEST(Views, OfAnyLayout) {
  const Kokkos::View<float****, Kokkos::LayoutLeft, Memory> left("k", 2, 3, 4, 5);
  const Kokkos::View<double****, Kokkos::LayoutRight, Memory> right("k", 2, 3, 4, 5);
  const Kokkos::View<bfloat16_t****, Kokkos::LayoutStride, Memory> strided(
      Kokkos::view_alloc("k", Kokkos::WithoutInitializing), Kokkos::LayoutStride(2, 100, 3, 30, 4, 7, 5, 1));
  expect_contiguous(left, left, DType::fp32);
  expect_contiguous(right, right, DType::fp64);
  expect_contiguous(strided, strided, DType::bf16);
}

TEST(Views, OfConstElementsAndFixedExtents) {
  const Kokkos::View<float****, Memory> k("k", 2, 3, 4, 5);
  expect_contiguous(Kokkos::View<const float****, Memory>(k), Kokkos::View<const float****, Memory>(k), DType::fp32);
  const Kokkos::View<half_t* [3][4][5], Kokkos::LayoutRight, Memory> fixed(
      Kokkos::view_alloc("k", Kokkos::WithoutInitializing), 2);
  expect_contiguous(fixed, fixed, DType::fp16);
}

// Keys and values side by side in one allocation, as (page, key or value, token, head, dim).
TEST(Views, OfPartsOfALargerOne) {
  const Kokkos::View<float*****, Kokkos::LayoutRight, Memory> both("kv", 6, 2, 3, 4, 5);
  const auto k = Kokkos::subview(both, Kokkos::ALL, 0, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
  const auto v = Kokkos::subview(both, Kokkos::ALL, 1, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
  const Kokkos::View<int**, Memory> table("table", 2, 3);
  const Ints lengths("lengths", 2);
  const CacheRef ref = PagedKV{k, v, table, lengths}.ref();
  expect_describes(ref.k, k, DType::fp32, nhd);
  expect_describes(ref.v, v, DType::fp32, nhd);
  EXPECT_EQ(static_cast<float*>(ref.v.data) - static_cast<float*>(ref.k.data), 3 * 4 * 5);
}

TEST(Views, WhatAContiguousCacheSaysOfItself) {
  const Kokkos::View<float****, Memory> k("k", 3, 10, 2, 16), v("v", 3, 10, 2, 8);
  const Ints lengths("lengths", 3), ids("ids", 2);
  const CacheRef ref = ContiguousKV{k, v, lengths, KVOrder::NHD, Kokkos::View<const int*, Memory>(ids)}.ref();
  EXPECT_FALSE(ref.paged);
  EXPECT_EQ(ref.batch, 2);
  EXPECT_EQ(ref.max_seq_len, 10);
  EXPECT_EQ(ref.page_size(), 10);
  EXPECT_EQ(ref.num_kv_heads(), 2);
  EXPECT_EQ(ref.head_dim(), 16);
  EXPECT_EQ(ref.head_dim_v(), 8);
  EXPECT_EQ(ref.seq_lens, lengths.data());
  EXPECT_EQ(ref.sequence_ids, ids.data());
  EXPECT_EQ(ContiguousKV(k, v, lengths).ref().batch, 3);
}

TEST(Views, OfTwoDimsToAnElement) {
  const Kokkos::View<int4x2_t****, Memory> k(Kokkos::view_alloc("k", Kokkos::WithoutInitializing), 3, 10, 2, 16),
      v(Kokkos::view_alloc("v", Kokkos::WithoutInitializing), 3, 10, 2, 8);
  const CacheRef ref = ContiguousKV{k, v, Ints("lengths", 3)}.ref();
  EXPECT_EQ(ref.k.type, DType::int4);
  EXPECT_EQ(ref.head_dim(), 32);
  EXPECT_EQ(ref.head_dim_v(), 16);
  EXPECT_EQ(ref.k.extent[3], 16);
}

TEST(Views, ScalesOfEveryKind) {
  using Cache = Kokkos::View<std::int8_t****, Memory>;
  const Cache k("k", 3, 10, 2, 16), v("v", 3, 10, 2, 8);
  const ContiguousKV kv{k, v, Ints("lengths", 3)};
  EXPECT_EQ(kv.ref().k_scale.data, nullptr);
  const auto strides = [](const ScaleRef& s) { return std::array{s.stride[0], s.stride[1], s.stride[2]}; };
  using Strides      = std::array<std::int64_t, 3>;

  const Kokkos::View<float, Memory> one("one"), other("other");
  const CacheRef by_tensor = kv.with_scales(per_tensor_scales(one, other)).ref();
  EXPECT_EQ(by_tensor.k_scale.data, one.data());
  EXPECT_EQ(by_tensor.v_scale.data, other.data());
  EXPECT_EQ(strides(by_tensor.k_scale), (Strides{0, 0, 0}));

  const Kokkos::View<float*, Memory> heads("heads", 2);
  const CacheRef by_head = kv.with_scales(per_head_scales(heads, heads)).ref();
  EXPECT_EQ(by_head.k_scale.data, heads.data());
  EXPECT_EQ(strides(by_head.v_scale), (Strides{0, 0, 1}));

  const Kokkos::View<float***, Kokkos::LayoutRight, Memory> rows("rows", 3, 10, 2), columns("columns", 3, 2, 10);
  EXPECT_EQ(strides(kv.with_scales(per_token_and_head_scales(rows, rows)).ref().k_scale), (Strides{20, 2, 1}));
  EXPECT_EQ(strides(kv.with_scales(per_token_and_head_scales(columns, columns, KVOrder::HND)).ref().v_scale),
            (Strides{20, 1, 10}));
  // Scales of one head for all.
  const auto first = Kokkos::subview(rows, Kokkos::ALL, Kokkos::ALL, std::pair(0, 1));
  EXPECT_EQ(strides(kv.with_scales(per_token_and_head_scales(first, rows)).ref().k_scale), (Strides{20, 2, 0}));
}

// An empty batch: a View of no ids differs from no View.
TEST(Views, AnEmptyBatchOfALargerCache) {
  const Kokkos::View<float****, Memory> k("k", 3, 10, 2, 16);
  const Ints lengths("lengths", 3), ids("ids", 0);
  EXPECT_EQ(ContiguousKV(k, k, lengths, KVOrder::NHD, Kokkos::View<const int*, Memory>(ids)).batch(), 0);
}

TEST(Views, WhatAPagedCacheSaysOfItself) {
  const Kokkos::View<float****, Memory> k("k", 7, 4, 2, 16);
  const Ints lengths("lengths", 3), indptr("indptr", 4), indices("indices", 7);
  const Kokkos::View<int**, Kokkos::LayoutLeft, Memory> table("table", 3, 5);
  const CacheRef dense = PagedKV{k, k, table, lengths}.ref();
  EXPECT_TRUE(dense.paged);
  EXPECT_EQ(dense.batch, 3);
  EXPECT_EQ(dense.page_size(), 4);
  EXPECT_EQ(dense.num_pages(), 7);
  EXPECT_EQ(dense.max_seq_len, 5 * 4);
  EXPECT_EQ(dense.block_table, table.data());
  EXPECT_EQ(dense.page_indptr, nullptr);
  EXPECT_EQ(dense.table_row_stride, 1);
  EXPECT_EQ(dense.table_page_stride, 3);

  const CacheRef csr =
      PagedKV(k, k, Kokkos::View<const int*, Memory>(indptr), Kokkos::View<const int*, Memory>(indices), lengths, 28)
          .ref();
  EXPECT_EQ(csr.max_seq_len, 28);
  EXPECT_EQ(csr.block_table, indices.data());
  EXPECT_EQ(csr.page_indptr, indptr.data());
  EXPECT_EQ(csr.table_page_stride, 1);
}

// A table of many pages holds more than 2^31 tokens, but lengths are ints.
TEST(Views, LengthsOfHugeTablesAreBounded) {
  const Kokkos::View<float****, Memory> k("k", 1, 1000, 1, 1);
  const Kokkos::View<const int**, Kokkos::LayoutRight, Memory> table(static_cast<const int*>(nullptr), 0, 3'000'000);
  const Ints lengths("lengths", 0);
  EXPECT_EQ((PagedKV{k, k, table, lengths}.max_seq_len()), std::numeric_limits<int>::max());
}

}  // namespace
}  // namespace pagoda::test
