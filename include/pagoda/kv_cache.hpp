// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/execution_space.hpp>
#include <pagoda/error.hpp>
#include <pagoda/export.hpp>
#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

/// @file
/// Memory for keys and values, allocated for the fastest decodes:
///  - LayoutRight, so that the dims of a row are adjacent. A plain View<T****> is LayoutLeft on a GPU, and decodes then
///    read one element at a time.
///  - The first row is aligned to 1024 bytes.
///  - On hosts, huge pages are requested, and each thread of the execution space is the first to write its part of the
///    memory, so that the memory is spread over the NUMA nodes of the threads.
///
///   const auto cache = pagoda::make_paged_cache<pagoda::half_t>(
///       exec, {.num_pages = 8192, .page_size = 16, .num_kv_heads = 8, .head_dim = 128});
///   const pagoda::PagedKV kv{cache.k, cache.v, block_table, seq_lens, cache.order};
namespace pagoda {

/// Shape of a paged cache. Zero selects the default given beside the field.
struct PagedCacheShape {
  int num_pages    = 0;             ///< required
  int page_size    = 0;             ///< required: tokens in a page
  int num_kv_heads = 0;             ///< required
  int head_dim     = 0;             ///< required; even where an element holds two dims
  int head_dim_v   = 0;             ///< dims of a value; default: head_dim
  KVOrder order    = KVOrder::NHD;  ///< order of the token and head axes
};

/// Shape of a contiguous cache.
struct ContiguousCacheShape {
  int num_sequences = 0;             ///< required
  int max_seq_len   = 0;             ///< required: tokens that a sequence can hold
  int num_kv_heads  = 0;             ///< required
  int head_dim      = 0;             ///< required; even where an element holds two dims
  int head_dim_v    = 0;             ///< dims of a value; default: head_dim
  KVOrder order     = KVOrder::NHD;  ///< order of the token and head axes
};

/// Keys and values with the memory that holds them. `k` and `v` are unmanaged Views into this memory: keep the cache,
/// or a copy of it, as long as they are in use. All bytes start as zero.
template <class T, class MemorySpace>
struct KVCache {
  using Rows   = Kokkos::View<T****, Kokkos::LayoutRight, MemorySpace>;  ///< Views of keys and of values
  using Memory = Kokkos::View<std::byte*, MemorySpace>;                  ///< managed

  /// NHD: (page or sequence, token, kv head, head_dim). HND: (page or sequence, kv head, token, head_dim).
  Rows k;
  Rows v;           ///< the same axes with head_dim_v
  KVOrder order;    ///< order of the token and head axes
  Memory k_memory;  ///< owns what k refers to
  Memory v_memory;  ///< owns what v refers to

  /// Used by make_paged_cache and make_contiguous_cache. (Not an aggregate, because GCC 12 does not construct the Views
  /// of one.)
  KVCache(const Rows& keys, const Rows& values, KVOrder kv_order, const Memory& memory_of_k, const Memory& memory_of_v)
      : k(keys), v(values), order(kv_order), k_memory(memory_of_k), v_memory(memory_of_v) {}
};

namespace detail {

/// Allocates bytes + 1024 zeros on exec, so that `bytes` fit after the first multiple of 1024.
template <class ExecutionSpace>
PAGODA_EXPORT Kokkos::View<std::byte*, typename ExecutionSpace::memory_space> allocate_cache(const ExecutionSpace& exec,
                                                                                             const char* label,
                                                                                             std::size_t bytes);

/// Bytes of rows for this many tokens and heads. Throws InvalidArgument for 2^62 bytes or more, before they overflow.
inline std::size_t cache_bytes(const std::string& who, int num_pages, int page_size, int num_kv_heads,
                               std::size_t row_bytes) {
  const double bytes = double(num_pages) * page_size * num_kv_heads * double(row_bytes);
  require(bytes < 0x1p62, who, ": the cache has ", num_pages, " * ", page_size, " tokens of ", num_kv_heads,
          " kv heads, ", bytes, " bytes of keys or values; allowed: fewer than 2^62 bytes");
  return std::size_t(num_pages) * page_size * num_kv_heads * row_bytes;
}

/// The first multiple of 1024 in memory of allocate_cache.
inline std::byte* first_row_of(std::byte* memory) {
  constexpr std::uintptr_t alignment = 1024;
  const auto at                      = reinterpret_cast<std::uintptr_t>(memory);
  return memory + ((at + alignment - 1) / alignment * alignment - at);
}

template <class T, class ExecutionSpace>
KVCache<T, typename ExecutionSpace::memory_space> make_cache(const ExecutionSpace& exec, const char* call,
                                                             const char* outer_name, const char* token_name,
                                                             const PagedCacheShape& shape) {
  check_execution_space<ExecutionSpace>();
  const auto at_least_1 = [&](const char* name, int value) {
    require(value >= 1, call, ": ", name, " is ", value, "; allowed: 1 or more");
  };
  at_least_1(outer_name, shape.num_pages);
  at_least_1(token_name, shape.page_size);
  at_least_1("num_kv_heads", shape.num_kv_heads);
  at_least_1("head_dim", shape.head_dim);
  require(shape.head_dim_v >= 0, call, ": head_dim_v is ", shape.head_dim_v, "; allowed: 0 (as head_dim) or more");
  constexpr int per_element = dims_per_element_v<T>;
  const int head_dim_v      = shape.head_dim_v > 0 ? shape.head_dim_v : shape.head_dim;
  require(shape.head_dim % per_element == 0 && head_dim_v % per_element == 0, call, ": head_dim is ", shape.head_dim,
          " and head_dim_v ", head_dim_v, "; allowed: multiples of ", per_element, ", the dims of an element of ",
          name_of(dtype_v<T>));
  const bool nhd        = shape.order == KVOrder::NHD;
  using Cache           = KVCache<T, typename ExecutionSpace::memory_space>;
  const auto memory_for = [&](const char* label, int dims) {
    return allocate_cache(exec, label,
                          cache_bytes(call, shape.num_pages, shape.page_size, shape.num_kv_heads,
                                      std::size_t(dims / per_element) * sizeof(T)));
  };
  if constexpr (has_row_format_v<T>) {
    constexpr RowFormat format = row_format_of(dtype_v<T>);
    require(shape.head_dim == format.head_dim && head_dim_v == format.head_dim_v && shape.num_kv_heads == 1, call,
            ": head_dim is ", shape.head_dim, ", head_dim_v ", head_dim_v, " and num_kv_heads ", shape.num_kv_heads,
            "; allowed: ", format.head_dim, ", ", format.head_dim_v, " and 1 for rows of ", name_of(dtype_v<T>));
    const typename Cache::Memory rows = memory_for("Pagoda::cache::k", format.bytes);
    const typename Cache::Rows view(reinterpret_cast<T*>(first_row_of(rows.data())), shape.num_pages,
                                    nhd ? shape.page_size : 1, nhd ? 1 : shape.page_size, format.bytes);
    return Cache(view, view, shape.order, rows, rows);
  }
  const auto rows_in = [&](const typename Cache::Memory& memory, int dims) {
    return typename Cache::Rows(reinterpret_cast<T*>(first_row_of(memory.data())), shape.num_pages,
                                nhd ? shape.page_size : shape.num_kv_heads, nhd ? shape.num_kv_heads : shape.page_size,
                                dims / per_element);
  };
  const typename Cache::Memory k = memory_for("Pagoda::cache::k", shape.head_dim);
  const typename Cache::Memory v = memory_for("Pagoda::cache::v", head_dim_v);
  return Cache(rows_in(k, shape.head_dim), rows_in(v, head_dim_v), shape.order, k, v);
}

}  // namespace detail

/// Allocates the pages of a PagedKV with elements of type T, in the memory space of exec. The memory is zeroed by a
/// kernel on exec.
///
/// Of a type with a row format (row_formats.hpp), keys and values are the same rows.
///
/// Throws InvalidArgument if a size of the shape is not allowed, and what Kokkos throws if there is not enough memory
/// (std::bad_alloc or std::runtime_error, which depends on its version).
template <class T, class ExecutionSpace>
auto make_paged_cache(const ExecutionSpace& exec, const PagedCacheShape& shape) {
  return detail::make_cache<T>(exec, "pagoda::make_paged_cache", "num_pages", "page_size", shape);
}

/// Allocates the rows of a ContiguousKV with elements of type T. See make_paged_cache.
template <class T, class ExecutionSpace>
auto make_contiguous_cache(const ExecutionSpace& exec, const ContiguousCacheShape& shape) {
  return detail::make_cache<T>(
      exec, "pagoda::make_contiguous_cache", "num_sequences", "max_seq_len",
      {shape.num_sequences, shape.max_seq_len, shape.num_kv_heads, shape.head_dim, shape.head_dim_v, shape.order});
}

}  // namespace pagoda
