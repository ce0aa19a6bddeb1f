// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/problem.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/types.hpp>

#include "backends/cuda/tuned/decode.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>

/// Problems in the terms of the hand-tuned kernels. Needs no CUDA.
namespace pagoda::detail {

inline std::optional<tuned::Type> tuned_type(DType type) {
  switch (type) {
    case DType::fp32:
      return tuned::Type::fp32;
    case DType::fp16:
      return tuned::Type::fp16;
    case DType::bf16:
      return tuned::Type::bf16;
    case DType::fp8_e4m3:
      return tuned::Type::fp8_e4m3;
    case DType::fp8_e5m2:
      return tuned::Type::fp8_e5m2;
    case DType::int8:
      return tuned::Type::int8;
    case DType::int4:
      return tuned::Type::int4;
    case DType::fp8_ds_mla:
      return tuned::Type::fp8_ds_mla;
    default:
      return std::nullopt;
  }
}

/// The part of a problem that is known when the plan is made. There must be kernels for the cache's type.
inline tuned::Problem tuned_shape(const Schedule& s) {
  tuned::Problem t{};
  if (const auto type = tuned_type(s.shape.kv_type)) t.type = *type;
  t.num_q_heads      = s.shape.num_q_heads;
  t.num_kv_heads     = s.shape.num_kv_heads;
  t.head_dim         = s.shape.head_dim;
  t.head_dim_v       = s.shape.head_dim_v;
  t.list.max_entries = s.bounds.max_entries;
  t.list.chains      = s.bounds.chains;
  t.num_q_tokens = t.max_q_tokens = is_list(t) ? s.bounds.max_entry_queries : s.bounds.max_query_len;
  t.max_seq_len                   = s.bounds.max_seq_len;
  t.fixed_splits = s.fixed_splits, t.max_batch = s.bounds.max_batch;
  const AttentionOptions& o = s.options;
  t.causal                  = o.causal;
  t.options                 = {o.window_left, o.num_initial_tokens, o.logit_soft_cap, o.alibi_slopes, o.sinks};
  if (is_list(t)) {
    t.options.sinks = nullptr, t.list.sinks = o.sinks;  // partial states have none
  } else {
    t.cu_seqlens_q = o.cu_seqlens_q;
  }
  return t;
}

/// Fills in `list` besides its bound. Returns null, or the reason if the kernels' interface cannot express it.
inline const char* tuned_list(const Problem& p, tuned::List& list) {
  const EntriesRef& e = p.entries;
  list.num_entries = e.num_entries, list.entries = e.entries, list.queries = e.queries;
  list.state_begin = e.state_begin, list.masks = e.num_mask_words > 0 ? e.masks : nullptr;
  list.has_few_rows = e.has_few_rows, list.chains = list.chains && e.has_chains;
  if (!p.state_out.data) return nullptr;
  const auto type = tuned_type(p.state_out.type);
  if (!type) return "partial states are fp64";
  if (p.state_out.stride[2] != 1) return "dims of partial states do not lie side by side";
  list.state_out = {p.state_out.data, *type, p.state_out.stride[0], p.state_out.stride[1]};
  list.state_lse = {p.state_lse.data, p.state_lse.type == DType::fp64, p.state_lse.stride[0], p.state_lse.stride[1]};
  return nullptr;
}

/// Fills in `t`. Returns null, or the reason if the kernels' interface cannot express the problem.
inline const char* tuned_problem(const Schedule& s, const Problem& p, tuned::Problem& t) {
  const CacheRef& kv = p.kv;
  const auto type = tuned_type(kv.k.type), q = tuned_type(p.q.type), out = tuned_type(p.out.type);
  if (!type) return "no hand-tuned kernel for the cache's type";
  if (!q || !out) return "q or out is fp64";
  if (kv.paged && !kv.block_table) return "the block table is empty";
  if (kv.k.stride[3] != 1 || kv.v.stride[3] != 1 || p.q.stride[2] != 1 || p.out.stride[2] != 1)
    return "dims do not lie side by side";
  t       = tuned_shape(s);
  t.batch = kv.batch;
  if (is_list(t)) {
    // Ranges begin at any token of a contiguous cache. These kernels copy 8 tokens at a time, counted from a sequence's
    // first one.
    if (!kv.paged) return "a list of entries, with a contiguous cache";
    if (const char* const reason = tuned_list(p, t.list)) return reason;
    t.total_q_tokens = p.q.extent[0];
  } else if (t.cu_seqlens_q) {
    t.total_q_tokens = p.q.extent[0];
  } else if (kv.batch > 0) {
    t.num_q_tokens = static_cast<int>(p.q.extent[0] / kv.batch);
  }
  t.page_size = kv.page_size();
  t.num_pages = kv.num_pages();
  for (const auto& [to, from, scale] : {std::tuple{&t.k, &kv.k, &kv.k_scale}, std::tuple{&t.v, &kv.v, &kv.v_scale}}) {
    const auto bytes = [f = from](int axis) { return f->extent[axis] > 1 ? f->stride[axis] * size_of(f->type) : 128; };
    *to = {from->data, bytes(0), bytes(1), bytes(2), scale->data, scale->stride[2], scale->stride[0], scale->stride[1]};
  }
  t.seq_lens = kv.seq_lens, t.sequence_ids = kv.sequence_ids;
  if (kv.paged) {
    t.block_table = kv.block_table, t.page_indptr = kv.page_indptr;
    t.table_row = kv.table_row_stride, t.table_page = kv.table_page_stride, t.table_pages = kv.table_pages;
    t.table_entries = kv.page_indptr ? kv.table_pages
                                     : (std::max(kv.num_sequences, 1) - 1) * kv.table_row_stride +
                                           kv.table_pages * kv.table_page_stride;
  }
  t.q   = {p.q.data, *q, p.q.stride[0], p.q.stride[1]};
  t.out = {p.out.data, *out, p.out.stride[0], p.out.stride[1]};
  t.lse = p.lse.data, t.lse_double = p.lse.type == DType::fp64;
  t.lse_token = p.lse.stride[0], t.lse_head = p.lse.stride[1];
  t.softmax_scale = s.options.softmax_scale;
  t.programmatic  = s.programmatic_launch;
  return nullptr;
}

}  // namespace pagoda::detail
