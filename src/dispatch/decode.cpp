// SPDX-License-Identifier: Apache-2.0
#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>

#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/plan_memory.hpp"
#include "src/plan/backend.hpp"
#include "src/plan/cache_rows.hpp"

#include <algorithm>
#include <cstdint>

namespace pagoda::detail {

namespace {

/// A View that has elements must have memory.
void require_data(const char* name, const TensorRef& t) {
  bool empty = false;
  for (int axis = 0; axis < t.rank; ++axis) empty = empty || t.extent[axis] == 0;
  require(t.data || empty, "pagoda::decode: ", name, " has a null pointer; allowed: memory for all of its elements");
}

void check_data(const Schedule& s, const Problem& p) {
  const CacheRef& kv = p.kv;
  require_data("q", p.q);
  require_data("out", p.out);
  require_data("the cache's k", kv.k);
  require_data("the cache's v", kv.v);
  require_tables("pagoda::decode", kv);
  require(kv.batch == 0 || !s.options.cu_seqlens_q || kv.batch < s.bounds.cu_seqlens_entries,
          "pagoda::decode: the cache's batch is ", kv.batch, "; allowed: fewer than the ", s.bounds.cu_seqlens_entries,
          " entries of the plan's cu_seqlens_q");
}

void check(const Schedule& s, const Problem& p) {
  const char* const who = "pagoda::decode: ";
  const CacheRef& kv    = p.kv;
  require(kv.k.type == s.shape.kv_type && kv.v.type == s.shape.kv_type, who, "the cache holds ", name_of(kv.k.type),
          " keys and ", name_of(kv.v.type), " values; the plan was made for ", name_of(s.shape.kv_type));
  require_scales("pagoda::decode", kv);
  require_plain("pagoda::decode", "q holds", p.q.type);
  require_plain("pagoda::decode", "out holds", p.out.type);
  require(kv.num_kv_heads() == s.shape.num_kv_heads, who, "the cache has ", kv.num_kv_heads(),
          " kv heads; the plan was made for ", s.shape.num_kv_heads);
  require(kv.head_dim() == s.shape.head_dim && kv.head_dim_v() == s.shape.head_dim_v, who, "the cache has head_dim ",
          kv.head_dim(), " (keys) and ", kv.head_dim_v(), " (values); the plan was made for ", s.shape.head_dim,
          " and ", s.shape.head_dim_v);
  require(kv.batch <= s.bounds.max_batch, who, "the cache's batch is ", kv.batch,
          "; allowed: up to the plan's max_batch = ", s.bounds.max_batch);
  require(rows_fit(kv, s.kernel.row_alignment), who,
          "the cache's strides or alignment are not those the plan was made for: every row must start on ",
          s.kernel.row_alignment, s.kernel.row_alignment == 1 ? " byte" : " bytes",
          " and be dense; make the plan from this cache");
  require(
      !s.kernel.values_in_keys || values_in_keys(kv), who,
      "the values are not a prefix of the keys in the same memory (data, strides), as in the cache the plan was made "
      "for; make the plan from this cache");
  const RowUnits units = row_units(kv);
  require(units.count <= s.kernel.max_row_units, who, "the cache's last row lies ", units.count, " units of 2^",
          units.shift,
          " bytes (the largest that divides its strides) from the first; allowed: ", s.kernel.max_row_units,
          ", or a plan made from this cache");
  const std::int64_t tokens = p.q.extent[0];
  require(tokens <= s.bounds.max_query_tokens, who, "q has ", tokens,
          " query tokens; allowed: up to the plan's max_query_tokens = ", s.bounds.max_query_tokens);
  if (!s.options.cu_seqlens_q) {
    require(kv.batch == 0 ? tokens == 0 : tokens % kv.batch == 0 && tokens / kv.batch <= s.bounds.max_query_len, who,
            "q has ", tokens, " query tokens for a batch of ", kv.batch,
            "; allowed: the same number for each, up to max_query_len = ", s.bounds.max_query_len,
            " (or cu_seqlens_q in the plan's options)");
  }
  require(p.q.extent[1] == s.shape.num_q_heads && p.q.extent[2] == s.shape.head_dim, who, "q has (heads, head_dim) = (",
          p.q.extent[1], ", ", p.q.extent[2], "); allowed: (", s.shape.num_q_heads, ", ", s.shape.head_dim, ")");
  require(p.out.extent[0] == tokens && p.out.extent[1] == s.shape.num_q_heads && p.out.extent[2] == s.shape.head_dim_v,
          who, "out is (", p.out.extent[0], ", ", p.out.extent[1], ", ", p.out.extent[2], "); allowed: (", tokens, ", ",
          s.shape.num_q_heads, ", ", s.shape.head_dim_v, ")");
  require(std::max(kv.table_row_stride, kv.table_page_stride) < std::int64_t(1) << 31, who,
          "block_table's strides are ", kv.table_row_stride, " and ", kv.table_page_stride,
          " elements; allowed: fewer than 2^31");
  require(!p.lse.data || (p.lse.extent[0] == tokens && p.lse.extent[1] == s.shape.num_q_heads), who, "lse is (",
          p.lse.extent[0], ", ", p.lse.extent[1], "); allowed: (", tokens, ", ", s.shape.num_q_heads,
          ") or an empty View");
  check_data(s, p);
}

}  // namespace

template <class ExecutionSpace>
void check_decode(const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check(plan.schedule(), problem);
}

template <class ExecutionSpace>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  const Schedule& s = plan.schedule();
  check(s, problem);
  if (problem.q.extent[0] == 0) return;
  const bool enough_multiprocessors = plan.memory().enter(exec, s.multiprocessors);
  const auto list                   = backends<ExecutionSpace>();
  const auto run                    = [&](int index) -> const char* {
    const Backend<ExecutionSpace>& backend = *list[index];
    if (backend.needs_all_multiprocessors() && !enough_multiprocessors)
      return "exec may use fewer multiprocessors than the plan counts on";
    return backend.decode(exec, plan, problem, plan.memory().data() + persistent_offset(s, index));
  };
  const char* const reason = run(s.backend.index);
  if (!reason) return;
  require(!s.backend.forced, "pagoda::decode: backend \"", s.backend.name, "\" does not support this problem: ", reason,
          "; allowed: a plan for any backend, or a problem that \"", s.backend.name, "\" supports");
  run(static_cast<int>(list.size()) - 1);
}

#define PAGODA_INSTANTIATE(Space)                                        \
  template void check_decode<Space>(const Plan<Space>&, const Problem&); \
  template PAGODA_EXPORT void decode<Space>(const Space&, const Plan<Space>&, const Problem&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
