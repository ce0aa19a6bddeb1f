// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/problem.hpp>
#include <pagoda/types.hpp>

#include <cstdint>
#include <limits>

/// What several entries refuse in the same words.
namespace pagoda::detail {

/// Rows that come from or go to the caller are of floating types of 16 bits and more. `what`: the argument and its
/// verb.
inline void require_plain(const char* who, const char* what, DType type) {
  require(!is_quantized(type), who, ": ", what, " ", name_of(type), "; allowed: fp64, fp32, fp16 or bf16");
}

/// Lengths and the page table of a batch that has entries have memory.
inline void require_tables(const char* who, const CacheRef& kv) {
  if (kv.batch == 0) return;
  require(kv.seq_lens, who, ": the cache's seq_lens has a null pointer; allowed: memory for its ", kv.num_sequences,
          " entries");
  require(!kv.paged || kv.block_table || kv.table_pages == 0, who,
          ": the cache's page table has a null pointer; allowed: memory for its ", kv.table_pages,
          kv.page_indptr ? " entries" : " entries a row");
}

/// Only quantized caches have scales, those of integers must, and kernels carry their strides in 32 bits.
inline void require_scales(const char* who, const CacheRef& kv) {
  const auto check = [&](const char* name, const TensorRef& t, const ScaleRef& scale) {
    require(is_quantized(t.type) || !scale.data, who, ": ", name, " has scales and elements of ", name_of(t.type),
            "; allowed: scales of fp8_e4m3, fp8_e5m2, int8 or int4 caches");
    require(scale.data || (t.type != DType::int8 && t.type != DType::int4), who, ": ", name, " has elements of ",
            name_of(t.type), " and no scales; allowed: with scales (with_scales of the cache)");
    for (const std::int64_t stride : scale.stride)
      require(stride >= 0 && stride <= std::numeric_limits<std::uint32_t>::max(), who, ": the scales of ", name,
              " have a stride of ", stride, "; allowed: 0 to 2^32 - 1");
  };
  check("k", kv.k, kv.k_scale);
  check("v", kv.v, kv.v_scale);
}

}  // namespace pagoda::detail
