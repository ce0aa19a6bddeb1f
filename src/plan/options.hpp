// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>
#include <pagoda/types.hpp>

#include "src/base/checks.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

/// The options of a plan: what is allowed, and the values that kernels read.
namespace pagoda::detail {

/// The shape of the problem, checked.
template <class MemorySpace>
ProblemShape problem_shape(const DecodeOptions<MemorySpace>& o, const CacheRef& kv) {
  check_row_format("pagoda::plan", kv.k, kv.v);
  const ProblemShape s{kv.k.type, o.num_q_heads, kv.num_kv_heads(), kv.head_dim(), kv.head_dim_v()};
  require(o.num_q_heads > 0 && o.num_q_heads % s.num_kv_heads == 0, "pagoda::plan: num_q_heads is ", o.num_q_heads,
          "; allowed: a positive multiple of num_kv_heads = ", s.num_kv_heads);
  constexpr int most_dims = 1 << 24;  // beyond that, sizes in bytes overflow
  require(s.head_dim <= most_dims && s.head_dim_v <= most_dims, "pagoda::plan: head_dim is ", s.head_dim,
          " and head_dim_v ", s.head_dim_v, "; allowed: up to 2^24");
  require(kv.v.type == kv.k.type, "pagoda::plan: values are ", name_of(kv.v.type), " and keys ", name_of(kv.k.type),
          "; allowed: one type for both");
  require_scales("pagoda::plan", kv);
  return s;
}

/// Kernels read softmax_scale and logit_soft_cap in the accumulator's type: they must be finite there, and the cap must
/// not be rounded to 0.
template <class MemorySpace>
void check_numbers(const DecodeOptions<MemorySpace>& o, DType kv_type) {
  const bool fp64        = kv_type == DType::fp64;
  const double most      = fp64 ? std::numeric_limits<double>::max() : double(std::numeric_limits<float>::max());
  const double least     = fp64 ? std::numeric_limits<double>::min() : double(std::numeric_limits<float>::min());
  const char* const type = fp64 ? "double" : "float";
  constexpr double log2e = std::numbers::log2e;  // kernels work in base 2
  require(!o.softmax_scale || std::abs(*o.softmax_scale) <= most / log2e, "pagoda::plan: softmax_scale is ",
          o.softmax_scale.value_or(0), "; allowed: any number that is finite in ", type, ", times log2(e) too");
  const double cap = o.logit_soft_cap;
  require(cap == 0 || (cap >= least && cap <= most / log2e), "pagoda::plan: logit_soft_cap is ", cap,
          "; allowed: 0 (off), or ", least, " to ", most / log2e);
}

/// Throws InvalidArgument if a value of the options is not allowed, whatever the cache holds.
template <class MemorySpace>
void check_options(const DecodeOptions<MemorySpace>& o, DType kv_type) {
  require(o.max_batch >= 0, "pagoda::plan: max_batch is ", o.max_batch, "; allowed: 0 (the cache's batch) or more");
  require(o.max_seq_len >= 0, "pagoda::plan: max_seq_len is ", o.max_seq_len, "; allowed: 0 (the cache's) or more");
  require(o.max_query_len >= 1, "pagoda::plan: max_query_len is ", o.max_query_len, "; allowed: 1 or more");
  require(o.max_query_tokens >= 0, "pagoda::plan: max_query_tokens is ", o.max_query_tokens, "; allowed: 0 or more");
  check_numbers(o, kv_type);
  require(o.window_left >= -1, "pagoda::plan: window_left is ", o.window_left, "; allowed: -1 (none) or more");
  require(o.num_initial_tokens >= 0, "pagoda::plan: num_initial_tokens is ", o.num_initial_tokens,
          "; allowed: 0 or more");
  const EntryBounds& e = o.entries;
  require(e.max_entries >= 0, "pagoda::plan: entries.max_entries is ", e.max_entries,
          "; allowed: 0 (the plan decodes batches) or more");
  require(e.max_queries >= 1, "pagoda::plan: entries.max_queries is ", e.max_queries, "; allowed: 1 or more");
  require(e.max_listed >= 0, "pagoda::plan: entries.max_listed is ", e.max_listed, "; allowed: 0 or more");
  require(
      e.max_entries == 0 || o.window_left < 0, "pagoda::plan: window_left is ", o.window_left,
      " in a plan for lists of entries; allowed: -1 (none): a window would hide a part of an entry from some of its "
      "query tokens");
  require(!o.checked || e.max_entries == 0,
          "pagoda::plan: checked is true in a plan for lists of entries; allowed: "
          "false (pagoda::check examines a list)");
  require(
      !o.checked || !o.programmatic_launch,
      "pagoda::plan: checked is true with programmatic_launch; allowed: one of them (a checked decode reads what the "
      "kernel before it wrote)");
  require(o.exactness == Exactness::fast || o.exactness == Exactness::batch_invariant ||
              o.exactness == Exactness::reproducible,
          "pagoda::plan: exactness is ", static_cast<int>(o.exactness),
          "; allowed: fast (0), batch_invariant (1) or reproducible (2)");
  require(o.exactness == Exactness::fast || e.max_entries == 0, "pagoda::plan: exactness is ", name_of(o.exactness),
          " in a plan for lists of entries; allowed: fast (the splits of an entry depend on the whole list)");
  const auto require_memory = [](const char* name, const auto& view) {
    require(view.data() || view.extent(0) == 0, "pagoda::plan: ", name, " has a null pointer and ", view.extent(0),
            " entries; allowed: memory for all of its entries, or an empty View");
  };
  require_memory("cu_seqlens_q", o.cu_seqlens_q);
  require_memory("alibi_slopes", o.alibi_slopes);
  require_memory("sinks", o.sinks);
  const std::size_t heads = static_cast<std::size_t>(o.num_q_heads);
  require(!o.alibi_slopes.data() || o.alibi_slopes.extent(0) == heads, "pagoda::plan: alibi_slopes has ",
          o.alibi_slopes.extent(0), " entries; allowed: num_q_heads = ", o.num_q_heads);
  require(!o.sinks.data() || o.sinks.extent(0) == heads, "pagoda::plan: sinks has ", o.sinks.extent(0),
          " entries; allowed: num_q_heads = ", o.num_q_heads);
}

/// The values that kernels read.
template <class MemorySpace>
AttentionOptions attention_options(const DecodeOptions<MemorySpace>& o, const ProblemShape& shape) {
  AttentionOptions a;
  a.cu_seqlens_q       = o.entries.max_entries > 0 ? nullptr : o.cu_seqlens_q.data();
  a.softmax_scale      = o.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  a.causal             = o.causal;
  a.window_left        = o.window_left;
  a.num_initial_tokens = o.num_initial_tokens;
  a.logit_soft_cap     = o.logit_soft_cap;
  a.alibi_slopes       = o.alibi_slopes.data();
  a.sinks              = o.sinks.data();
  return a;
}

}  // namespace pagoda::detail
