// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/kv_scales.hpp>
#include <pagoda/problem.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <concepts>
#include <cstdint>
#include <limits>

/// Where the row of (sequence, kv head, token) lies: the two cache layouts. Both are small and View-based, can be
/// copied to a device, and meet the concept KVLayout, so code that is written once serves both. They share ownership of
/// lengths, ids and tables (managed Views stay alive in them) and only refer to the keys and values.
///
/// Elements are fp64, fp32, fp16 or bf16, or those of a quantized cache: fp8_e4m3_t, fp8_e5m2_t, std::int8_t, int4x2_t
/// (two dims each: the last extent is head_dim / 2). with_scales gives a quantized cache its scales (kv_scales.hpp).
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.B
/// (one kernel over accessor types); Kwon et al., PagedAttention (block tables).
namespace pagoda {

namespace detail {

template <class T, class MemorySpace>
using CacheView = Kokkos::View<const T****, Kokkos::LayoutStride, MemorySpace>;
template <class MemorySpace>
using IntView = Kokkos::View<const int*, MemorySpace>;

/// What a layout asks of the Views of keys and values, beyond their rank.
template <class T, class MemorySpace, class K, class V>
constexpr void check_kv_types() {
  static_assert(std::is_same_v<std::remove_const_t<typename K::value_type>, T> &&
                    std::is_same_v<std::remove_const_t<typename V::value_type>, T>,
                "k and v must have one element type");
  static_assert(Kokkos::SpaceAccessibility<MemorySpace, typename K::memory_space>::assignable &&
                    Kokkos::SpaceAccessibility<MemorySpace, typename V::memory_space>::assignable,
                "k and v must lie in one memory space");
}

/// Any rank-4 View of keys or values as (page, token, head, dim), whatever its order in memory.
template <class T, class MemorySpace, class View>
CacheView<T, MemorySpace> as_cache_view(const View& view, KVOrder order) {
  static_assert(View::rank() == 4, "keys and values are Views of rank 4: (page or sequence, token, head, dim) or HND");
  const int token = order == KVOrder::NHD ? 1 : 2;
  const int head  = order == KVOrder::NHD ? 2 : 1;
  const Kokkos::LayoutStride layout(view.extent(0), view.stride(0), view.extent(token), view.stride(token),
                                    view.extent(head), view.stride(head), view.extent(3), view.stride(3));
  return CacheView<T, MemorySpace>(view.data(), layout);
}

template <class K, class V>
void check_cache_views(const char* who, const K& k, const V& v) {
  constexpr std::size_t max_int = std::numeric_limits<int>::max();
  for (int axis = 0; axis < 4; ++axis)
    require(k.extent(axis) <= max_int, who, ": axis ", axis, " of k has extent ", k.extent(axis),
            "; allowed: below 2^31");
  require(v.extent(3) <= max_int, who, ": axis 3 of v has extent ", v.extent(3), "; allowed: below 2^31");
  constexpr int per_element = dims_per_element_v<typename K::value_type>;
  require(k.extent(3) <= max_int / per_element && v.extent(3) <= max_int / per_element, who,
          ": the last axes of k and v have extents ", k.extent(3), " and ", v.extent(3), " of ", per_element,
          " dims each; allowed: below 2^31 dims");
  require(k.extent(0) == v.extent(0) && k.extent(1) == v.extent(1) && k.extent(2) == v.extent(2), who,
          ": v has (pages or sequences, tokens, kv heads) = (", v.extent(0), ", ", v.extent(1), ", ", v.extent(2),
          "); k has (", k.extent(0), ", ", k.extent(1), ", ", k.extent(2), "), and the two must agree");
  require(k.extent(1) >= 1 && k.extent(2) >= 1 && k.extent(3) >= 1 && v.extent(3) >= 1, who,
          ": k and v need at least one token, one kv head and one dim; k is (", k.extent(0), ", ", k.extent(1), ", ",
          k.extent(2), ", ", k.extent(3), "), v has head_dim ", v.extent(3));
}

/// The layout with these scales.
template <class KV, class Scales>
KV with_scales(const char* who, const KV& kv, const Scales& scales) {
  static_assert(is_quantized_v<typename KV::value_type>, "scales are for caches of fp8, int8 or int4 elements");
  KV scaled      = kv;
  scaled.k_scale = scale_ref(who, "k", scales.k, kv.k);
  scaled.v_scale = scale_ref(who, "v", scales.v, kv.v);
  return scaled;
}

/// What a layout gives for an element: the element itself or, of a quantized cache, the number that is meant.
template <class T>
using NumberOf = std::conditional_t<is_quantized_v<T>, float, const T&>;

template <class T, class MemorySpace>
KOKKOS_FUNCTION NumberOf<T> number_of(const CacheView<T, MemorySpace>& cache, const ScaleRef& scale, std::size_t page,
                                      int token, int head, int d) {
  if constexpr (is_quantized_v<T>) {
    constexpr int n = dims_per_element_v<T>;
    const T element = cache(page, token, head, d / n);
    return static_cast<float>(stored_dim(&element, d % n, 1)) * scale(static_cast<std::int64_t>(page), token, head);
  } else {
    return cache(page, token, head, d);
  }
}

}  // namespace detail

// Kokkos 5 works offsets out in the widest type among the indices: int alone would overflow in large caches.

/// What kernels and references ask of a layout: the numbers of a row, the length of a sequence.
template <class L>
concept KVLayout = requires(const L& kv, int b, int h, int t) {
  typename L::value_type;
  typename L::memory_space;
  { kv.batch() } -> std::convertible_to<int>;
  { kv.seq_len(b) } -> std::convertible_to<int>;
  { kv.key(b, t, h, 0) } -> std::convertible_to<float>;
  { kv.value(b, t, h, 0) } -> std::convertible_to<float>;
  { kv.ref() } -> std::same_as<CacheRef>;
};

/// One row of memory per sequence: k is (sequence, token, kv head, head_dim), v the same with head_dim_v, in any
/// strides and in NHD or HND order.
///
/// seq_lens: [sequences] tokens held by each sequence, in the same memory space; read by every decode, so it may
/// change on the device between calls. sequence_ids: optional, [batch]; batch entry b decodes sequence
/// sequence_ids[b] (continuous batching out of a larger cache). Values outside the cache are undefined behaviour in
/// a release build. check(exec, kv) finds them, and so does a build with PAGODA_BOUNDS_CHECK where the generic kernel
/// runs.
template <class T, class MemorySpace>
struct ContiguousKV {
  using value_type   = T;
  using memory_space = MemorySpace;

  detail::CacheView<T, MemorySpace> k, v;
  ScaleRef k_scale, v_scale;  ///< of a quantized cache
  detail::IntView<MemorySpace> seq_lens;
  detail::IntView<MemorySpace> sequence_ids;

  template <class KView, class VView>
  ContiguousKV(const KView& keys, const VView& values, const detail::IntView<MemorySpace>& lengths,
               KVOrder order = KVOrder::NHD, const detail::IntView<MemorySpace>& ids = {})
      : k(detail::as_cache_view<T, MemorySpace>(keys, order)),
        v(detail::as_cache_view<T, MemorySpace>(values, order)),
        seq_lens(lengths),
        sequence_ids(ids) {
    detail::check_kv_types<T, MemorySpace, KView, VView>();
    detail::check_cache_views("pagoda::ContiguousKV", k, v);
    detail::require(seq_lens.extent(0) == k.extent(0), "pagoda::ContiguousKV: seq_lens has ", seq_lens.extent(0),
                    " entries; k has ", k.extent(0), " sequences, and the two must agree");
  }

  KOKKOS_FUNCTION int batch() const {
    return static_cast<int>(sequence_ids.data() ? sequence_ids.extent(0) : seq_lens.extent(0));
  }
  KOKKOS_FUNCTION int max_seq_len() const { return static_cast<int>(k.extent(1)); }
  KOKKOS_FUNCTION int sequence(int b) const { return sequence_ids.data() ? sequence_ids(b) : b; }
  KOKKOS_FUNCTION int seq_len(int b) const { return seq_lens(sequence(b)); }
  /// Dim d of a key or value: the element or, of a quantized cache, the number it stands for, scale and all.
  KOKKOS_FUNCTION detail::NumberOf<T> key(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(k, k_scale, std::size_t(sequence(b)), t, head, d);
  }
  KOKKOS_FUNCTION detail::NumberOf<T> value(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(v, v_scale, std::size_t(sequence(b)), t, head, d);
  }

  /// The same cache with these scales. Throws InvalidArgument where an axis of them fits neither the cache nor all.
  ContiguousKV with_scales(const KVScales<MemorySpace>& scales) const {
    return detail::with_scales("pagoda::ContiguousKV::with_scales", *this, scales);
  }

  CacheRef ref() const {
    CacheRef r;
    r.k = tensor_ref(k), r.v = tensor_ref(v);
    r.k_scale = k_scale, r.v_scale = v_scale;
    r.seq_lens      = seq_lens.data();
    r.num_sequences = static_cast<int>(seq_lens.extent(0));
    r.sequence_ids  = sequence_ids.data();
    r.batch         = batch();
    r.max_seq_len   = max_seq_len();
    return r;
  }
};

/// Pages of page_size tokens anywhere in a pool: k_pages is (page, token in page, kv head, head_dim), v_pages the same
/// with head_dim_v, in any strides, NHD or HND, any page_size >= 1. Token t of sequence s lies in page
/// table(s, t / page_size) at t % page_size. Any alignment is right; a GPU is 4 to 6% faster where the first row begins
/// on 256 bytes (a managed View's data does not: it lies 128 bytes behind its allocation).
///
/// The table is dense (block_table: [sequences, max_pages], rows padded with anything, -1 by custom) or CSR
/// (page_indptr: [sequences + 1], page_indices: [total pages]). seq_lens and sequence_ids: as for ContiguousKV.
template <class T, class MemorySpace>
struct PagedKV {
  using value_type   = T;
  using memory_space = MemorySpace;
  using TableView    = Kokkos::View<const int**, Kokkos::LayoutStride, MemorySpace>;

  detail::CacheView<T, MemorySpace> k, v;
  ScaleRef k_scale, v_scale;                  ///< of a quantized cache
  TableView block_table;                      ///< dense, or empty
  detail::IntView<MemorySpace> page_indptr;   ///< CSR, or empty
  detail::IntView<MemorySpace> page_indices;  ///< CSR, or empty
  detail::IntView<MemorySpace> seq_lens;
  detail::IntView<MemorySpace> sequence_ids;
  int max_len;  ///< tokens a sequence can hold

  /// Dense block table, any rank-2 integer View.
  template <class KView, class VView, class Table>
    requires(Table::rank() == 2)
  PagedKV(const KView& k_pages, const VView& v_pages, const Table& table, const detail::IntView<MemorySpace>& lengths,
          KVOrder order = KVOrder::NHD, const detail::IntView<MemorySpace>& ids = {})
      : k(detail::as_cache_view<T, MemorySpace>(k_pages, order)),
        v(detail::as_cache_view<T, MemorySpace>(v_pages, order)),
        block_table(table),
        seq_lens(lengths),
        sequence_ids(ids),
        max_len(bounded(table.extent(1) * k.extent(1))) {
    detail::check_kv_types<T, MemorySpace, KView, VView>();
    check_common();
    detail::require(block_table.extent(0) == seq_lens.extent(0), "pagoda::PagedKV: block_table has ",
                    block_table.extent(0), " rows; seq_lens has ", seq_lens.extent(0),
                    " entries, and the two must agree");
  }

  /// CSR page lists. max_seq_len: the longest sequence the lists may come to hold (the lists are on the device).
  template <class KView, class VView>
  PagedKV(const KView& k_pages, const VView& v_pages, const detail::IntView<MemorySpace>& indptr,
          const detail::IntView<MemorySpace>& indices, const detail::IntView<MemorySpace>& lengths, int max_seq_len,
          KVOrder order = KVOrder::NHD, const detail::IntView<MemorySpace>& ids = {})
      : k(detail::as_cache_view<T, MemorySpace>(k_pages, order)),
        v(detail::as_cache_view<T, MemorySpace>(v_pages, order)),
        page_indptr(indptr),
        page_indices(indices),
        seq_lens(lengths),
        sequence_ids(ids),
        max_len(max_seq_len) {
    detail::check_kv_types<T, MemorySpace, KView, VView>();
    check_common();
    detail::require(page_indptr.extent(0) == seq_lens.extent(0) + 1, "pagoda::PagedKV: page_indptr has ",
                    page_indptr.extent(0), " entries; allowed: sequences + 1 = ", seq_lens.extent(0) + 1);
    detail::require(max_seq_len >= 0, "pagoda::PagedKV: max_seq_len is ", max_seq_len, "; allowed: 0 or more");
  }

  KOKKOS_FUNCTION int batch() const {
    return static_cast<int>(sequence_ids.data() ? sequence_ids.extent(0) : seq_lens.extent(0));
  }
  KOKKOS_FUNCTION int page_size() const { return static_cast<int>(k.extent(1)); }
  KOKKOS_FUNCTION int max_seq_len() const { return max_len; }
  KOKKOS_FUNCTION int sequence(int b) const { return sequence_ids.data() ? sequence_ids(b) : b; }
  KOKKOS_FUNCTION int seq_len(int b) const { return seq_lens(sequence(b)); }
  /// Page that holds token t of batch entry b.
  KOKKOS_FUNCTION int page(int b, int t) const {
    const int s = sequence(b), i = t / page_size();
    return page_indptr.data() ? page_indices(page_indptr(s) + i) : block_table(s, i);
  }
  /// As for ContiguousKV.
  KOKKOS_FUNCTION detail::NumberOf<T> key(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(k, k_scale, std::size_t(page(b, t)), t % page_size(), head, d);
  }
  KOKKOS_FUNCTION detail::NumberOf<T> value(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(v, v_scale, std::size_t(page(b, t)), t % page_size(), head, d);
  }

  /// As for ContiguousKV.
  PagedKV with_scales(const KVScales<MemorySpace>& scales) const {
    return detail::with_scales("pagoda::PagedKV::with_scales", *this, scales);
  }

  CacheRef ref() const {
    CacheRef r;
    r.k = tensor_ref(k), r.v = tensor_ref(v);
    r.k_scale = k_scale, r.v_scale = v_scale;
    r.seq_lens      = seq_lens.data();
    r.num_sequences = static_cast<int>(seq_lens.extent(0));
    r.sequence_ids  = sequence_ids.data();
    r.paged         = true;
    r.page_indptr   = page_indptr.data();
    r.block_table   = page_indptr.data() ? page_indices.data() : block_table.data();
    r.table_pages   = static_cast<std::int64_t>(page_indptr.data() ? page_indices.extent(0) : block_table.extent(1));
    if (!page_indptr.data()) {
      r.table_row_stride  = static_cast<std::int64_t>(block_table.stride(0));
      r.table_page_stride = static_cast<std::int64_t>(block_table.stride(1));
    }
    r.batch       = batch();
    r.max_seq_len = max_len;
    return r;
  }

 private:
  static int bounded(std::size_t tokens) {
    constexpr std::size_t max_int = std::numeric_limits<int>::max();
    return static_cast<int>(tokens < max_int ? tokens : max_int);
  }
  void check_common() const { detail::check_cache_views("pagoda::PagedKV", k, v); }
};

// ContiguousKV{k, v, seq_lens} and PagedKV{k_pages, v_pages, block_table, seq_lens} find T and the space themselves.
template <class K, class V, class L, class... Rest>
ContiguousKV(const K&, const V&, const L&, Rest...)
    -> ContiguousKV<std::remove_const_t<typename K::value_type>, typename K::memory_space>;
template <class K, class V, class... Rest>
PagedKV(const K&, const V&, Rest...) -> PagedKV<std::remove_const_t<typename K::value_type>, typename K::memory_space>;

}  // namespace pagoda
