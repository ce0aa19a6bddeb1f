// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/check_row_format.hpp>
#include <pagoda/error.hpp>
#include <pagoda/kv_scales.hpp>
#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <concepts>
#include <cstdint>
#include <limits>

/// @file
/// The two cache layouts. A layout computes where the KV row of (sequence, kv head, token) lies. Both layouts are small
/// and made of Views, can be copied to a device, and satisfy the concept KVLayout, so that one kernel serves both.
///
/// Ownership: a layout shares ownership of lengths, ids and tables. It does not own the keys, the values and their
/// scales: keep these Views as long as the layout is in use.
///
/// Elements are those of detail/type_table.hpp. Where an element holds two dims, the last extent is head_dim / 2.
/// with_scales gives a quantized cache its scales (kv_scales.hpp). Elements may also be the bytes of rows that have
/// their scales in them; the last extent is then the bytes of a row, and keys and values are the same View
/// (row_formats.hpp).
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.B
/// (one kernel over accessor types); Kwon et al., PagedAttention (block tables).
namespace pagoda {

namespace detail {

template <class T, class MemorySpace>
using CacheView = Kokkos::View<const T****, Kokkos::LayoutStride, MemorySpace>;
template <class MemorySpace>
using IntView = Kokkos::View<const int*, MemorySpace>;

/// Requirements on the Views of keys and values, besides their rank.
template <class T, class MemorySpace, class K, class V>
constexpr void check_kv_types() {
  static_assert(std::is_same_v<std::remove_const_t<typename K::value_type>, T> &&
                    std::is_same_v<std::remove_const_t<typename V::value_type>, T>,
                "k and v must have one element type");
  static_assert(Kokkos::SpaceAccessibility<MemorySpace, typename K::memory_space>::assignable &&
                    Kokkos::SpaceAccessibility<MemorySpace, typename V::memory_space>::assignable,
                "k and v must lie in one memory space");
}

/// Any rank-4 View of keys or values as (page, token, head, dim), for any order in memory.
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
  check_row_format(who, tensor_ref(k), tensor_ref(v));
}

/// Lengths and ids as int counts them, and memory for the ids.
template <class View>
void check_sequences(const char* who, const View& seq_lens, const View& sequence_ids) {
  constexpr std::size_t max_int = std::numeric_limits<int>::max();
  require(seq_lens.extent(0) <= max_int && sequence_ids.extent(0) <= max_int, who, ": seq_lens has ",
          seq_lens.extent(0), " entries and sequence_ids ", sequence_ids.extent(0), "; allowed: below 2^31");
  require(sequence_ids.data() || sequence_ids.extent(0) == 0, who, ": sequence_ids has a null pointer and ",
          sequence_ids.extent(0), " entries; allowed: memory for all of its entries, or an empty View");
}

/// The layout with these scales.
template <class KV, class Scales>
KV with_scales(const char* who, const KV& kv, const Scales& scales) {
  using T = typename KV::value_type;
  static_assert(facts_of(dtype_v<T>).scales != ScaleUse::none && block_dims_v<T> == 0 && !has_row_format_v<T>,
                "these scales are for caches of quantized elements without block scales");
  KV scaled      = kv;
  scaled.k_scale = scale_ref(who, "k", scales.k, kv.k);
  scaled.v_scale = scale_ref(who, "v", scales.v, kv.v);
  return scaled;
}
/// The layout with these block scales.
template <class KV, class S, class MemorySpace>
KV with_block_scales(const char* who, const KV& kv, const KVBlockScales<S, MemorySpace>& scales) {
  using T = typename KV::value_type;
  static_assert(std::is_same_v<S, block_scale_t<T>>, "block scales have the type that the cache's elements ask for");
  KV scaled      = kv;
  scaled.k_scale = block_scale_ref(who, "k", scales.k, kv.k, scales.per_tensor.k);
  scaled.v_scale = block_scale_ref(who, "v", scales.v, kv.v, scales.per_tensor.v);
  return scaled;
}

/// Result of key() and value(): the element or, for a quantized cache, the number that it stands for.
template <class T>
using NumberOf = std::conditional_t<is_quantized_v<T>, float, const T&>;

template <class T, class MemorySpace>
KOKKOS_FUNCTION NumberOf<T> number_of(const CacheView<T, MemorySpace>& cache, [[maybe_unused]] const ScaleRef& scale,
                                      std::size_t page, int token, int head, int d) {
  if constexpr (has_row_format_v<T>) {
    return number_in_row(&cache(page, token, head, 0), d);
  } else if constexpr (is_quantized_v<T>) {
    constexpr int n = dims_per_element_v<T>;
    const T element = cache(page, token, head, d / n);
    const auto at   = static_cast<std::int64_t>(page);
    float number    = static_cast<float>(stored_dim(&element, d % n, 1)) * scale(at, token, head);
    if constexpr (block_dims_v<T> > 0) number *= scale.template of_block<T>(at, token, head, d);
    return number;
  } else {
    return cache(page, token, head, d);
  }
}

}  // namespace detail

// Kokkos 5 computes offsets in the widest type among the indices: int alone would overflow in large caches.

/// Requirements of kernels and references on a layout: the elements of a KV row, and the length of a sequence.
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

/// A contiguous cache: memory for max_seq_len tokens of each sequence. k: (sequence, token, kv head, head_dim), v: the
/// same axes with head_dim_v, or HND order, in any strides.
///
/// seq_lens: [sequences], the tokens that each sequence holds, in the same memory space. Every decode reads it, so it
/// may change on the device between decodes. sequence_ids: optional, [batch]; batch entry b decodes sequence
/// sequence_ids(b), so a batch can select sequences of a larger cache. Lengths and ids outside the cache are undefined
/// behaviour in a release build: check(exec, kv) finds them, and so does a build with PAGODA_BOUNDS_CHECK where the
/// generic kernel runs.
template <class T, class MemorySpace>
struct ContiguousKV {
  using value_type   = T;            ///< element type of keys and values
  using memory_space = MemorySpace;  ///< space of all Views

  detail::CacheView<T, MemorySpace> k;        ///< (sequence, token, kv head, head_dim), whatever the order in memory
  detail::CacheView<T, MemorySpace> v;        ///< (sequence, token, kv head, head_dim_v)
  ScaleRef k_scale;                           ///< scales of keys of a quantized cache
  ScaleRef v_scale;                           ///< scales of values of a quantized cache
  detail::IntView<MemorySpace> seq_lens;      ///< [sequences] tokens
  detail::IntView<MemorySpace> sequence_ids;  ///< [batch], or empty: batch entry b is sequence b

  /// Throws InvalidArgument if the extents of keys, values and lengths do not agree, or are 2^31 or more.
  template <class KView, class VView>
  ContiguousKV(const KView& keys, const VView& values, const detail::IntView<MemorySpace>& lengths,
               KVOrder order = KVOrder::NHD, const detail::IntView<MemorySpace>& ids = {})
      : k(detail::as_cache_view<T, MemorySpace>(keys, order)),
        v(detail::as_cache_view<T, MemorySpace>(values, order)),
        seq_lens(lengths),
        sequence_ids(ids) {
    detail::check_kv_types<T, MemorySpace, KView, VView>();
    detail::check_cache_views("pagoda::ContiguousKV", k, v);
    detail::check_sequences("pagoda::ContiguousKV", seq_lens, sequence_ids);
    detail::require(seq_lens.extent(0) == k.extent(0), "pagoda::ContiguousKV: seq_lens has ", seq_lens.extent(0),
                    " entries; k has ", k.extent(0), " sequences, and the two must agree");
  }

  /// Batch entries of a decode: the entries of sequence_ids, or of seq_lens without them.
  KOKKOS_FUNCTION int batch() const {
    return static_cast<int>(sequence_ids.data() ? sequence_ids.extent(0) : seq_lens.extent(0));
  }
  /// Tokens that a sequence can hold.
  KOKKOS_FUNCTION int max_seq_len() const { return static_cast<int>(k.extent(1)); }
  /// The sequence that batch entry b decodes.
  KOKKOS_FUNCTION int sequence(int b) const { return sequence_ids.data() ? sequence_ids(b) : b; }
  /// Tokens that the sequence of batch entry b holds.
  KOKKOS_FUNCTION int seq_len(int b) const { return seq_lens(sequence(b)); }
  /// Dim d of the key of token t of batch entry b: the element or, for a quantized cache, the element times its scale.
  KOKKOS_FUNCTION detail::NumberOf<T> key(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(k, k_scale, std::size_t(sequence(b)), t, head, d);
  }
  /// Dim d of the value; see key.
  KOKKOS_FUNCTION detail::NumberOf<T> value(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(v, v_scale, std::size_t(sequence(b)), t, head, d);
  }

  /// Returns the same cache with these scales. Throws InvalidArgument if an axis of the scales has neither the cache's
  /// extent nor extent 1.
  ContiguousKV with_scales(const KVScales<MemorySpace>& scales) const {
    return detail::with_scales("pagoda::ContiguousKV::with_scales", *this, scales);
  }
  /// Returns the same cache with block scales. Throws InvalidArgument if the elements do not require scales of type S,
  /// if an extent is not that of the cache's blocks, or if the elements also require float scales and there are none.
  template <class S>
  ContiguousKV with_scales(const KVBlockScales<S, MemorySpace>& scales) const {
    return detail::with_block_scales("pagoda::ContiguousKV::with_scales", *this, scales);
  }

  /// The type-erased description that decode passes on.
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

/// A paged cache. k_pages: (page, token in page, kv head, head_dim), v_pages: the same axes with head_dim_v, or HND
/// order, in any strides, with page_size >= 1. Token t of sequence s lies in page table(s, t / page_size) at t %
/// page_size. Results are correct for every alignment; align the first row to 256 bytes for speed (make_paged_cache
/// does; the data of a managed View starts 128 bytes behind its allocation, which costs 4 to 6% on an H200).
///
/// The table is dense (block_table: [sequences, max_pages]; entries behind a sequence's pages are not read) or CSR
/// (page_indptr: [sequences + 1], page_indices: [total pages]). Page ids are read by every decode, so they may change
/// on the device between decodes. seq_lens and sequence_ids: see ContiguousKV.
template <class T, class MemorySpace>
struct PagedKV {
  using value_type   = T;            ///< element type of keys and values
  using memory_space = MemorySpace;  ///< space of all Views
  using TableView    = Kokkos::View<const int**, Kokkos::LayoutStride, MemorySpace>;  ///< (sequence, page of it)

  detail::CacheView<T, MemorySpace> k;       ///< (page, token in page, kv head, head_dim), whatever the order in memory
  detail::CacheView<T, MemorySpace> v;       ///< (page, token in page, kv head, head_dim_v)
  ScaleRef k_scale;                          ///< scales of keys of a quantized cache
  ScaleRef v_scale;                          ///< scales of values of a quantized cache
  TableView block_table;                     ///< dense, or empty
  detail::IntView<MemorySpace> page_indptr;  ///< CSR, or empty
  detail::IntView<MemorySpace> page_indices;  ///< CSR, or empty
  detail::IntView<MemorySpace> seq_lens;      ///< [sequences] tokens
  detail::IntView<MemorySpace> sequence_ids;  ///< [batch], or empty: batch entry b is sequence b
  int max_len;                                ///< tokens that a sequence can hold

  /// With a dense block table: any View of int of rank 2. Throws InvalidArgument if extents do not agree, or are 2^31
  /// or more.
  template <class KView, class VView, class Table>
    requires(Table::rank() == 2)
  PagedKV(const KView& k_pages, const VView& v_pages, const Table& table, const detail::IntView<MemorySpace>& lengths,
          KVOrder order = KVOrder::NHD, const detail::IntView<MemorySpace>& ids = {})
      : k(detail::as_cache_view<T, MemorySpace>(k_pages, order)),
        v(detail::as_cache_view<T, MemorySpace>(v_pages, order)),
        block_table(table),
        seq_lens(lengths),
        sequence_ids(ids),
        max_len(bounded_product(table.extent(1), k.extent(1))) {
    detail::check_kv_types<T, MemorySpace, KView, VView>();
    check_common();
    detail::require(block_table.extent(0) == seq_lens.extent(0), "pagoda::PagedKV: block_table has ",
                    block_table.extent(0), " rows; seq_lens has ", seq_lens.extent(0),
                    " entries, and the two must agree");
  }

  /// With CSR page lists, which are on the device. max_seq_len: length of the longest sequence that the lists will
  /// hold. Throws InvalidArgument if extents do not agree, or are 2^31 or more, and for a page_indptr without memory.
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
    detail::require(page_indptr.data() != nullptr,
                    "pagoda::PagedKV: page_indptr has a null pointer; allowed: memory for all of its entries");
  }

  /// Batch entries of a decode: the entries of sequence_ids, or of seq_lens without them.
  KOKKOS_FUNCTION int batch() const {
    return static_cast<int>(sequence_ids.data() ? sequence_ids.extent(0) : seq_lens.extent(0));
  }
  /// Tokens in a page.
  KOKKOS_FUNCTION int page_size() const { return static_cast<int>(k.extent(1)); }
  /// Tokens that a sequence can hold.
  KOKKOS_FUNCTION int max_seq_len() const { return max_len; }
  /// The sequence that batch entry b decodes.
  KOKKOS_FUNCTION int sequence(int b) const { return sequence_ids.data() ? sequence_ids(b) : b; }
  /// Tokens that the sequence of batch entry b holds.
  KOKKOS_FUNCTION int seq_len(int b) const { return seq_lens(sequence(b)); }
  /// Page that holds token t of batch entry b.
  KOKKOS_FUNCTION int page(int b, int t) const {
    const int s = sequence(b), i = t / page_size();
    return page_indptr.data() ? page_indices(page_indptr(s) + i) : block_table(s, i);
  }
  /// Dim d of the key of token t of batch entry b: the element or, for a quantized cache, the element times its scale.
  KOKKOS_FUNCTION detail::NumberOf<T> key(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(k, k_scale, std::size_t(page(b, t)), t % page_size(), head, d);
  }
  /// Dim d of the value; see key.
  KOKKOS_FUNCTION detail::NumberOf<T> value(int b, int t, int head, int d) const {
    return detail::number_of<T, MemorySpace>(v, v_scale, std::size_t(page(b, t)), t % page_size(), head, d);
  }

  /// Returns the same cache with these scales; see ContiguousKV::with_scales.
  PagedKV with_scales(const KVScales<MemorySpace>& scales) const {
    return detail::with_scales("pagoda::PagedKV::with_scales", *this, scales);
  }
  /// Returns the same cache with block scales; see ContiguousKV::with_scales.
  template <class S>
  PagedKV with_scales(const KVBlockScales<S, MemorySpace>& scales) const {
    return detail::with_block_scales("pagoda::PagedKV::with_scales", *this, scales);
  }

  /// The type-erased description that decode passes on.
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
  static int bounded_product(std::size_t pages, std::size_t page_size) {
    constexpr std::size_t max_int = std::numeric_limits<int>::max();
    return static_cast<int>(page_size > 0 && pages > max_int / page_size ? max_int : pages * page_size);
  }
  void check_common() const {
    detail::check_cache_views("pagoda::PagedKV", k, v);
    detail::check_sequences("pagoda::PagedKV", seq_lens, sequence_ids);
  }
};

/// ContiguousKV{k, v, seq_lens} deduces the element type and the memory space.
template <class K, class V, class L, class... Rest>
ContiguousKV(const K&, const V&, const L&, Rest...)
    -> ContiguousKV<std::remove_const_t<typename K::value_type>, typename K::memory_space>;
/// PagedKV{k_pages, v_pages, block_table, seq_lens} deduces the element type and the memory space.
template <class K, class V, class... Rest>
PagedKV(const K&, const V&, Rest...) -> PagedKV<std::remove_const_t<typename K::value_type>, typename K::memory_space>;

}  // namespace pagoda
