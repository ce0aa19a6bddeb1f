// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/check_row_format.hpp>
#include <pagoda/detail/problem.hpp>
#include <pagoda/error.hpp>
#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

/// Checks that several public functions share.
namespace pagoda::detail {

/// "a, b or c": the types of the table for which `wanted` is true.
template <class Wanted>
std::string types_that(const Wanted& wanted) {
  std::string list;
  std::size_t comma = 0;
#define PAGODA_LIST(name, ...)                               \
  if (wanted(DType::name)) {                                 \
    if (!list.empty()) comma = list.size();                  \
    list += (list.empty() ? "" : ", ") + std::string(#name); \
  }
  PAGODA_FOR_EACH_TYPE(PAGODA_LIST)
#undef PAGODA_LIST
  return comma > 0 ? list.replace(comma, 2, " or ") : list;
}

/// Whether an array has memory for its elements, or no elements.
inline bool has_memory(const TensorRef& t) {
  bool empty = false;
  for (int axis = 0; axis < t.rank; ++axis) empty = empty || t.extent[axis] == 0;
  return t.data || empty;
}

/// Throws InvalidArgument if an array with elements has no memory.
inline void require_data(const char* who, const char* name, const TensorRef& t) {
  require(has_memory(t), who, ": ", name, " has a null pointer; allowed: memory for all of its elements");
}

/// Throws InvalidArgument if a list with entries lacks the memory of one of its arrays. (That of state_begin is checked
/// with its length.)
inline void require_list(const char* who, const EntriesRef& e) {
  const auto check = [&](const char* name, const void* data, bool needed) {
    require(data || !needed, who, ": the list's ", name,
            " have a null pointer; allowed: memory for all of its elements");
  };
  check("entries", e.entries, e.num_entries > 0);
  check("queries", e.queries, e.num_entries > 0);
  check("masks", e.masks, e.num_mask_words > 0);
}

/// Throws InvalidArgument if a decode of `entries` entries, one or more, has no memory for the lengths or the page
/// table.
inline void require_tables(const char* who, const CacheRef& kv, int entries) {
  if (entries == 0) return;
  require(kv.seq_lens, who, ": the cache's seq_lens has a null pointer; allowed: memory for its ", kv.num_sequences,
          " entries");
  require(!kv.paged || kv.block_table || kv.table_pages == 0, who,
          ": the cache's page table has a null pointer; allowed: memory for its ", kv.table_pages,
          kv.page_indptr ? " entries" : " entries a row");
}

inline std::string plain_types() {
  return types_that([](DType type) { return !is_quantized(type); });
}

/// Throws InvalidArgument if rows of the caller are quantized. `what`: the argument and its verb.
inline void require_plain(const char* who, const char* what, DType type) {
  if (is_quantized(type))
    throw InvalidArgument(concat(who, ": ", what, " ", name_of(type), "; allowed: ", plain_types()));
}

/// Throws InvalidArgument if the scales of a cache do not suit its type. Plain caches have none, some quantized ones
/// must have some, and strides fit 32 bits.
inline void require_scales(const char* who, const CacheRef& kv) {
  const auto check = [&](const char* name, const TensorRef& t, const ScaleRef& scale) {
    const ScaleUse use    = facts_of(t.type).scales;
    const auto has_arrays = [](ScaleUse uses) { return uses == ScaleUse::optional || uses == ScaleUse::required; };
    if (scale.data && !has_arrays(use))
      throw InvalidArgument(
          concat(who, ": ", name, " has scales and elements of ", name_of(t.type), "; allowed: scales of ",
                 types_that([&](DType type) { return has_arrays(facts_of(type).scales); }), " caches"));
    require(scale.data || use != ScaleUse::required, who, ": ", name, " has elements of ", name_of(t.type),
            " and no scales; allowed: with scales (with_scales of the cache)");
    const int block = facts_of(t.type).block_dims;
    require(block == 0 || scale.blocks, who, ": ", name, " has elements of ", name_of(t.type),
            " and no block scales; allowed: with scales for each ", block,
            " dims (block_scales, with_scales of the cache)");
    require(block > 0 || !scale.blocks, who, ": ", name, " has block scales and elements of ", name_of(t.type),
            "; allowed: block scales of elements that have blocks");
    require(block == 0 || (scale.stride[0] == 0 && scale.stride[1] == 0 && scale.stride[2] == 0), who,
            ": the float of ", name, " beside its block scales has strides; allowed: one for the tensor");
    for (const std::int64_t stride : scale.block_stride)
      require(stride >= 0 && stride <= std::numeric_limits<std::uint32_t>::max(), who, ": the block scales of ", name,
              " have a stride of ", stride, "; allowed: 0 to 2^32 - 1");
    for (const std::int64_t stride : scale.stride)
      require(stride >= 0 && stride <= std::numeric_limits<std::uint32_t>::max(), who, ": the scales of ", name,
              " have a stride of ", stride, "; allowed: 0 to 2^32 - 1");
  };
  check("k", kv.k, kv.k_scale);
  check("v", kv.v, kv.v_scale);
}

}  // namespace pagoda::detail
