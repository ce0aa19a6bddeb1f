// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/execution_space.hpp>
#include <pagoda/error.hpp>
#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

/// @file
/// Writing new keys and values into a cache that the caller owns.
namespace pagoda {

namespace detail {

/// A list of positions on the device.
struct SlotMapping {
  const std::int64_t* data = nullptr;
  std::int64_t count = 0, stride = 1;
};

template <class View>
SlotMapping slot_mapping_ref(const View& view) {
  static_assert(View::rank() == 1 && std::is_same_v<typename View::non_const_value_type, std::int64_t>,
                "slot_mapping is a View of rank 1 of std::int64_t");
  return {view.data(), static_cast<std::int64_t>(view.extent(0)), static_cast<std::int64_t>(view.stride(0))};
}

template <class ExecutionSpace, class K, class V>
constexpr void check_row_views() {
  check_execution_space<ExecutionSpace>();
  static_assert(K::rank() == 3 && V::rank() == 3, "new keys and values are (token, kv head, dim)");
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename K::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename V::memory_space>::accessible,
                "new keys and values must lie in memory that the execution space can read");
}

/// Throws InvalidArgument unless k and v are `tokens` rows of this shape. Messages begin with the owner and the call.
PAGODA_EXPORT void check_rows(const char* owner, const char* call, const TensorRef& k, const TensorRef& v,
                              std::int64_t tokens, std::int64_t num_kv_heads, std::int64_t head_dim,
                              std::int64_t head_dim_v);

/// k_cache, v_cache: axes (page, token in page, kv head, dim).
template <class ExecutionSpace>
PAGODA_EXPORT void write_kv(const ExecutionSpace& exec, const TensorRef& k_cache, const TensorRef& v_cache,
                            const SlotMapping& mapping, const TensorRef& k, const TensorRef& v);

}  // namespace detail

/// Writes row i of k and v to position slot_mapping(i) of the cache, for all tokens of all sequences of a step in one
/// launch (serving engines call it reshape-and-cache). A position is page * page_size + offset in the page; in a
/// contiguous cache it is sequence * max_seq_len + token. Rows with a negative position are skipped.
///
///  - k_cache, v_cache: the keys and values of a PagedKV or a ContiguousKV, in the given order. Elements are fp64,
///    fp32, fp16 or bf16. A quantized cache is written by kernels of your own, which choose its scales.
///  - slot_mapping: [tokens] of std::int64_t, any stride.
///  - k, v: (token, kv head, dim), any strides, fp64, fp32, fp16 or bf16. They are converted to the cache's type with
///    one rounding, to nearest even.
///
/// A position beyond the cache is undefined behaviour; a build with PAGODA_BOUNDS_CHECK stops at it. If two rows have
/// the same position, either may be the one that stays. Asynchronous on exec; allocates nothing.
///
/// Throws InvalidArgument if shapes do not agree or an array with elements has a null pointer, with nothing launched,
/// and what Kokkos throws if it cannot launch.
///
/// Source: Kwon et al., PagedAttention, section 5.1 (fused reshape and block write).
template <class ExecutionSpace, class KCache, class VCache, class Mapping, class K, class V>
void write_kv(const ExecutionSpace& exec, const KCache& k_cache, const VCache& v_cache, const Mapping& slot_mapping,
              const K& k, const V& v, KVOrder order = KVOrder::NHD) {
  static_assert(!std::is_const_v<typename KCache::value_type> && !std::is_const_v<typename VCache::value_type>,
                "k_cache and v_cache are written: their elements cannot be const");
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KCache::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename VCache::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Mapping::memory_space>::accessible,
                "the cache and slot_mapping must lie in memory that the execution space can reach");
  detail::check_row_views<ExecutionSpace, K, V>();
  const auto k_pages =
      detail::as_cache_view<typename KCache::non_const_value_type, typename KCache::memory_space>(k_cache, order);
  const auto v_pages =
      detail::as_cache_view<typename VCache::non_const_value_type, typename VCache::memory_space>(v_cache, order);
  detail::check_cache_views("pagoda::write_kv", k_pages, v_pages);
  detail::write_kv(exec, tensor_ref(k_pages), tensor_ref(v_pages), detail::slot_mapping_ref(slot_mapping),
                   tensor_ref(k), tensor_ref(v));
}

}  // namespace pagoda
