// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/error.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

/// @file
/// Scales of a quantized cache: dim d of a key is the stored number times k(page, token in page, kv head); values
/// likewise. An int8 cache with a scale for every token and head:
///
///   Kokkos::View<std::int8_t****> k(..., num_pages, page_size, num_kv_heads, head_dim), v(...);  // int4: see below
///   Kokkos::View<float***> k_scale(..., num_pages, page_size, num_kv_heads), v_scale(...);
///   // your kernel stores k = round(x / s), k_scale = s, with s = max over dims of |x| / 127
///   const auto scales = pagoda::per_token_and_head_scales(k_scale, v_scale);
///   const auto kv     = pagoda::PagedKV{k, v, block_table, seq_lens}.with_scales(scales);
///
/// Scales are optional for fp8_e4m3_t and fp8_e5m2_t (default: 1) and required for std::int8_t and int4x2_t. An int4
/// cache is a View of int4x2_t whose last extent is head_dim / 2. Scales are floats, finite and not negative; they are
/// read by every decode, so they may change on the device between calls. Scales of tokens that no query sees, and of
/// heads whose sequences are all empty, may hold anything.
///
/// Elements like mxfp4x2_t have block scales: one for every 32 dims of a row (the number of dims is in
/// detail/type_table.hpp).
///
/// @code
///   template <class T> using Rows = Kokkos::View<T****, Kokkos::LayoutRight>;
///   Rows<pagoda::mxfp4x2_t> k(..., num_pages, page_size, num_kv_heads, head_dim / 2), v(...);
///   Rows<pagoda::e8m0_t> k_scale(..., num_pages, page_size, num_kv_heads, head_dim / 32), v_scale(...);
///   const auto kv = pagoda::PagedKV{k, v, block_table, seq_lens}.with_scales(pagoda::block_scales(k_scale, v_scale));
/// @endcode
///
/// If head_dim is not a multiple of the block, the last block of a row is shorter and has its own scale: the last
/// extent is head_dim / block, rounded up.
///
/// The key's scale multiplies the score after the product, the value's scale multiplies the probability before it, so
/// elements are not scaled one by one. Scales that are the same for all tokens cost nothing.
/// Source: Hooper et al., "KVQuant", and Liu et al., "KIVI" (scales per token and per channel; a scale of keys per
/// channel belongs into the query, which the caller scales).
namespace pagoda {

/// The scales of a quantized cache: see per_tensor_scales, per_head_scales and per_token_and_head_scales.
template <class MemorySpace>
struct KVScales {
  using memory_space = MemorySpace;                                                      ///< space of the scales
  using ScaleView    = Kokkos::View<const float***, Kokkos::LayoutStride, MemorySpace>;  ///< scales of all KV rows

  /// (page or sequence, token in page, kv head), as the cache's first three axes in NHD order; an axis of extent 1
  /// holds one scale for all. Any strides. Empty: all scales are 1. Keep the memory as long as the scales are in use.
  ScaleView k;
  ScaleView v;  ///< as k, for the values

  KVScales() {}  // a body: GCC 12 miscompiles a defaulted constructor of Views alone
  /// Either View may be empty.
  KVScales(const ScaleView& keys, const ScaleView& values) : k(keys), v(values) {}
};

/// Scales of blocks of dims. S: the block scale type of the cache's elements (detail/type_table.hpp).
template <class S, class MemorySpace>
struct KVBlockScales {
  using memory_space = MemorySpace;                                                   ///< space of the scales
  using BlockView    = Kokkos::View<const S****, Kokkos::LayoutStride, MemorySpace>;  ///< scales of all blocks

  /// (page or sequence, token in page, kv head, block): the extents of the cache's first three axes in NHD order, then
  /// the blocks of a row. Any strides. Keep the memory as long as the scales are in use.
  BlockView k;
  BlockView v;                       ///< as k, for the values
  KVScales<MemorySpace> per_tensor;  ///< one float for all keys and one for all values, beside the blocks; or empty

  /// Only block scales. (Not an aggregate, like KVScales.)
  KVBlockScales(const BlockView& keys, const BlockView& values) : k(keys), v(values) {}
  /// Block scales, and floats for all keys and all values.
  KVBlockScales(const BlockView& keys, const BlockView& values, const KVScales<MemorySpace>& tensor)
      : k(keys), v(values), per_tensor(tensor) {}
};

namespace detail {

/// Scales of rank 0 (one for all), 1 (by head) or 3 (by page, token and head) as three axes.
template <class View>
auto as_scale_view(const View& view, KVOrder order = KVOrder::NHD) {
  static_assert(std::is_same_v<typename View::non_const_value_type, float>, "scales are Views of float");
  using Scales = typename KVScales<typename View::memory_space>::ScaleView;
  if constexpr (View::rank() == 0) {
    return Scales(view.data(), Kokkos::LayoutStride(1, 1, 1, 1, 1, 1));
  } else if constexpr (View::rank() == 1) {
    return Scales(view.data(), Kokkos::LayoutStride(1, 1, 1, 1, view.extent(0), view.stride(0)));
  } else {
    static_assert(View::rank() == 3, "scales of tokens are Views of rank 3: (page or sequence, token, head) or HND");
    const int token = order == KVOrder::NHD ? 1 : 2, head = 3 - token;
    return Scales(view.data(), Kokkos::LayoutStride(view.extent(0), view.stride(0), view.extent(token),
                                                    view.stride(token), view.extent(head), view.stride(head)));
  }
}

/// Throws InvalidArgument unless each axis of the scales is the cache's or of extent 1.
template <class Scales, class Cache>
ScaleRef scale_ref(const char* who, const char* name, const Scales& scales, const Cache& cache) {
  ScaleRef ref;
  ref.data           = scales.data();
  const auto entries = scales.extent(0) * scales.extent(1) * scales.extent(2);
  require(ref.data || entries <= 1, who, ": scales.", name, " has a null pointer and ", entries,
          " entries; allowed: memory for all of its entries, or an empty View");
  if (!ref.data) return ref;
  for (int axis = 0; axis < 3; ++axis) {
    require(scales.extent(axis) == 1 || scales.extent(axis) == cache.extent(axis), who, ": axis ", axis, " of scales.",
            name, " (page or sequence, token, kv head) has extent ", scales.extent(axis),
            "; allowed: 1 (one for all) or ", cache.extent(axis), ", as ", name, " has");
    ref.stride[axis] = scales.extent(axis) == 1 ? 0 : static_cast<std::int64_t>(scales.stride(axis));
  }
  return ref;
}

/// Throws InvalidArgument unless there is a scale for each block of each row.
template <class Blocks, class Cache, class PerTensor>
ScaleRef block_scale_ref(const char* who, const char* name, const Blocks& blocks, const Cache& cache,
                         const PerTensor& per_tensor) {
  constexpr DType type = dtype_v<typename Cache::value_type>;
  const int dims       = static_cast<int>(cache.extent(3)) * dims_per_element(type);
  const auto wanted    = static_cast<std::size_t>(blocks_of(type, dims));
  ScaleRef ref         = scale_ref(who, name, per_tensor, cache);
  ref.blocks           = blocks.data();
  if (!ref.blocks) return ref;
  for (int axis = 0; axis < 3; ++axis)
    require(blocks.extent(axis) == cache.extent(axis), who, ": axis ", axis, " of block scales ", name,
            " (page or sequence, token, kv head, block) has extent ", blocks.extent(axis),
            "; allowed: ", cache.extent(axis), ", as ", name, " has");
  require(blocks.extent(3) == wanted, who, ": axis 3 of block scales ", name,
          " (page or sequence, token, kv head, block) has extent ", blocks.extent(3), "; allowed: ", wanted,
          ", one for ", facts_of(type).block_dims, " of the ", dims, " dims each");
  for (int axis = 0; axis < 4; ++axis) ref.block_stride[axis] = static_cast<std::int64_t>(blocks.stride(axis));
  return ref;
}

/// Block scales as (page, token, head, block), whatever their order in memory.
template <class View>
auto as_block_view(const View& view, KVOrder order) {
  static_assert(View::rank() == 4, "block scales are Views of rank 4: (page or sequence, token, head, block) or HND");
  using Scales    = KVBlockScales<typename View::non_const_value_type, typename View::memory_space>;
  const int token = order == KVOrder::NHD ? 1 : 2, head = 3 - token;
  return typename Scales::BlockView(
      view.data(), Kokkos::LayoutStride(view.extent(0), view.stride(0), view.extent(token), view.stride(token),
                                        view.extent(head), view.stride(head), view.extent(3), view.stride(3)));
}

}  // namespace detail

/// One scale for all keys and one for all values: Views of rank 0.
template <class K, class V>
auto per_tensor_scales(const K& k, const V& v) {
  static_assert(K::rank() == 0 && V::rank() == 0, "a scale per tensor is a View of rank 0");
  return KVScales<typename K::memory_space>{detail::as_scale_view(k), detail::as_scale_view(v)};
}

/// One scale for each kv head: Views [num_kv_heads].
template <class K, class V>
auto per_head_scales(const K& k, const V& v) {
  static_assert(K::rank() == 1 && V::rank() == 1, "scales per head are Views of rank 1: (kv head)");
  return KVScales<typename K::memory_space>{detail::as_scale_view(k), detail::as_scale_view(v)};
}

/// One scale for each token and kv head: Views (page or sequence, token in page, kv head), or (page or sequence, kv
/// head, token in page) for KVOrder::HND, which need not be the cache's order.
template <class K, class V>
auto per_token_and_head_scales(const K& k, const V& v, KVOrder order = KVOrder::NHD) {
  static_assert(K::rank() == 3 && V::rank() == 3, "scales per token and head are Views of rank 3");
  return KVScales<typename K::memory_space>{detail::as_scale_view(k, order), detail::as_scale_view(v, order)};
}

/// One scale for each block of each row: Views (page or sequence, token in page, kv head, block), or (page or sequence,
/// kv head, token in page, block) for KVOrder::HND, which need not be the cache's order.
template <class K, class V>
auto block_scales(const K& k, const V& v, KVOrder order = KVOrder::NHD) {
  using Scales = KVBlockScales<typename K::non_const_value_type, typename K::memory_space>;
  return Scales{detail::as_block_view(k, order), detail::as_block_view(v, order)};
}
/// The same, with a float for all keys and one for all values: Views of rank 0.
template <class K, class V, class KTensor, class VTensor>
auto block_scales(const K& k, const V& v, const KTensor& k_tensor, const VTensor& v_tensor,
                  KVOrder order = KVOrder::NHD) {
  using Scales = KVBlockScales<typename K::non_const_value_type, typename K::memory_space>;
  return Scales{detail::as_block_view(k, order), detail::as_block_view(v, order),
                per_tensor_scales(k_tensor, v_tensor)};
}

}  // namespace pagoda
