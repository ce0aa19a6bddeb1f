// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/c/boundary.hpp"

#include <algorithm>
#include <string>

/// Converts the structs of pagoda.h to the library's type-erased descriptions, and back. Messages begin with the call
/// (`who`) and name the field.
namespace pagoda::c {

/// The memory that an execution space can access.
struct Reach {
  bool host, device;
  const char* space;

  template <class Space>
  static Reach of() {
    using DeviceMemory = AllSpaces::Default::memory_space;
    return {Kokkos::SpaceAccessibility<Space, Kokkos::HostSpace>::accessible,
            Kokkos::SpaceAccessibility<Space, DeviceMemory>::accessible, Space::name()};
  }
};

/// Null unless the code is that of an element type of caches.
const DType* find_type(pagoda_type code);
pagoda_type code_of(DType type);

/// A tensor of `rank` axes with memory for its elements.
TensorRef tensor(const char* who, const char* name, const pagoda_tensor* given, int rank, const Reach& reach);

template <int Rank>
Array<Rank> array(const char* who, const char* name, const pagoda_tensor* given, const Reach& reach) {
  return {tensor(who, name, given, Rank, reach)};
}

/// The same, or an empty one if the caller passes none.
template <int Rank>
Array<Rank> optional_array(const char* who, const char* name, const pagoda_tensor* given, const Reach& reach) {
  if (given && given->data) return array<Rank>(who, name, given, reach);
  Array<Rank> none;
  none.ref.rank = Rank;
  return none;
}

/// A log-sum-exp, fp32 or fp64.
template <int Rank>
Array<Rank> lse_array(const char* who, const char* name, const pagoda_tensor* given, const Reach& reach) {
  const Array<Rank> lse = array<Rank>(who, name, given, reach);
  require(lse.ref.type == DType::fp32 || lse.ref.type == DType::fp64, who, ": ", name, " holds ", name_of(lse.ref.type),
          "; allowed: PAGODA_FP32 or PAGODA_FP64");
  return lse;
}
/// The same, or an empty one if the caller passes none.
template <int Rank>
Array<Rank> optional_lse(const char* who, const char* name, const pagoda_tensor* given, const Reach& reach) {
  return given && given->data ? lse_array<Rank>(who, name, given, reach)
                              : optional_array<Rank>(who, name, nullptr, reach);
}

KVOrder order_of(const char* who, const char* name, pagoda_order order);

/// Keys or values as (page or sequence, token, kv head, dim).
Array<4> cache_tensor(const char* who, const char* name, const pagoda_tensor* given, KVOrder order, const Reach& reach);

Cache cache(const char* who, const pagoda_cache* given, const Reach& reach);

/// A description of this array in axes of its own.
pagoda_tensor describe_tensor(const TensorRef& t);

/// A description of this cache for pagoda_cache; struct_size stays 0.
pagoda_cache describe_cache(const CacheRef& kv);

pagoda_decode_options read_options(const char* who, const pagoda_decode_options* given);

/// Options without the workspace.
template <class Space>
Options<Space> decode_options(const pagoda_decode_options& o) {
  using Memory       = typename Space::memory_space;
  const auto entries = [](int n) { return static_cast<std::size_t>(std::max(n, 0)); };
  Options<Space> to;
  to.num_q_heads = o.num_q_heads, to.max_batch = o.max_batch, to.max_seq_len = o.max_seq_len;
  to.max_query_len    = o.max_query_len == 0 ? 1 : o.max_query_len;
  to.max_query_tokens = o.max_query_tokens;
  if (o.cu_seqlens_q) to.cu_seqlens_q = Kokkos::View<const int*, Memory>(o.cu_seqlens_q, entries(o.num_cu_seqlens_q));
  if (o.softmax_scale != 0) to.softmax_scale = o.softmax_scale;
  to.causal      = o.not_causal == 0;
  to.window_left = o.window - 1, to.num_initial_tokens = o.num_initial_tokens;
  to.logit_soft_cap = o.logit_soft_cap;
  if (o.alibi_slopes) to.alibi_slopes = Kokkos::View<const float*, Memory>(o.alibi_slopes, entries(o.num_q_heads));
  if (o.sinks) to.sinks = Kokkos::View<const float*, Memory>(o.sinks, entries(o.num_q_heads));
  if (o.backend) to.backend = o.backend;
  to.programmatic_launch = o.programmatic_launch != 0;
  to.exactness           = Exactness(o.exactness);
  to.checked             = o.checked != 0;
  to.entries             = {o.max_entries, o.max_entry_queries == 0 ? 1 : o.max_entry_queries, o.max_listed_queries,
                            o.entry_chains != 0};
  return to;
}

}  // namespace pagoda::c
