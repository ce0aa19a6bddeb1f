// SPDX-License-Identifier: Apache-2.0
#include <pagoda/decode.hpp>
#include <pagoda/entries.hpp>
#include <pagoda/error.hpp>

#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/checked.hpp"
#include "src/dispatch/plan_memory.hpp"
#include "src/plan/backend.hpp"
#include "src/plan/bounds.hpp"
#include "src/plan/cache_rows.hpp"

#include <Kokkos_Profiling_ScopedRegion.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace pagoda::detail {

namespace {

/// The shape of rows of q heads.
void require_rows(const char* who, const char* name, const TensorRef& t, std::int64_t rows, const ProblemShape& s) {
  require(t.extent[0] == rows && t.extent[1] == s.num_q_heads && t.extent[2] == s.head_dim_v, who, ": ", name, " is (",
          t.extent[0], ", ", t.extent[1], ", ", t.extent[2], "); allowed: (", rows, ", ", s.num_q_heads, ", ",
          s.head_dim_v, ")");
}

/// What decodes of batches and of lists have in common: caches and types, and the number of query tokens.
void check_cache(const char* who, const Schedule& s, const Problem& p) {
  const CacheRef& kv = p.kv;
  require(kv.k.type == s.shape.kv_type && kv.v.type == s.shape.kv_type, who, ": the cache holds ", name_of(kv.k.type),
          " keys and ", name_of(kv.v.type), " values; the plan was made for ", name_of(s.shape.kv_type));
  check_row_format(who, kv.k, kv.v);
  require_scales(who, kv);
  require_plain(who, "q holds", p.q.type);
  require_plain(who, "out holds", p.out.type);
  require(kv.num_kv_heads() == s.shape.num_kv_heads, who, ": the cache has ", kv.num_kv_heads(),
          " kv heads; the plan was made for ", s.shape.num_kv_heads);
  require(kv.head_dim() == s.shape.head_dim && kv.head_dim_v() == s.shape.head_dim_v, who, ": the cache has head_dim ",
          kv.head_dim(), " (keys) and ", kv.head_dim_v(), " (values); the plan was made for ", s.shape.head_dim,
          " and ", s.shape.head_dim_v);
  require(rows_fit(kv, s.kernel.row_alignment), who,
          ": the cache's strides or alignment are not those the plan was made for; allowed: rows of adjacent dims that "
          "start on multiples of ",
          s.kernel.row_alignment, s.kernel.row_alignment == 1 ? " byte" : " bytes", ", or a plan made from this cache");
  require(!s.kernel.values_in_keys || values_in_keys(kv), who,
          ": the values are not a prefix of the keys in the same memory (data, strides), as in the cache the plan was "
          "made for; make the plan from this cache");
  const RowUnits units = row_units(kv);
  require(units.count <= s.kernel.max_row_units, who, ": the cache's last row lies ", units.count, " units of 2^",
          units.shift,
          " bytes (the largest that divides its strides) from the first; allowed: ", s.kernel.max_row_units,
          ", or a plan made from this cache");
  const std::int64_t tokens = p.q.extent[0];
  require(tokens <= s.bounds.max_query_tokens, who, ": q has ", tokens,
          " query tokens; allowed: up to the plan's max_query_tokens = ", s.bounds.max_query_tokens);
}

/// What they have in common besides: the shapes of queries and outputs, and memory. entries: number of entries.
void check_rows(const char* who, const Schedule& s, const Problem& p, int entries) {
  const CacheRef& kv        = p.kv;
  const std::int64_t tokens = p.q.extent[0];
  require(p.q.extent[1] == s.shape.num_q_heads && p.q.extent[2] == s.shape.head_dim, who,
          ": q has (heads, head_dim) = (", p.q.extent[1], ", ", p.q.extent[2], "); allowed: (", s.shape.num_q_heads,
          ", ", s.shape.head_dim, ")");
  require_rows(who, "out", p.out, tokens, s.shape);
  require(std::max(kv.table_row_stride, kv.table_page_stride) < std::int64_t(1) << 31, who,
          ": block_table's strides are ", kv.table_row_stride, " and ", kv.table_page_stride,
          " elements; allowed: fewer than 2^31");
  require(!p.lse.data || (p.lse.extent[0] == tokens && p.lse.extent[1] == s.shape.num_q_heads), who, ": lse is (",
          p.lse.extent[0], ", ", p.lse.extent[1], "); allowed: (", tokens, ", ", s.shape.num_q_heads,
          ") or an empty View");
  require_data(who, "q", p.q);
  require_data(who, "out", p.out);
  require_data(who, "the cache's k", kv.k);
  require_data(who, "the cache's v", kv.v);
  require_tables(who, kv, entries);
}

void check_batch(const Schedule& s, const Problem& p) {
  const char* const who = "pagoda::decode";
  const CacheRef& kv    = p.kv;
  require(!of_lists(s.bounds), who, ": the plan's options have entries.max_entries = ", s.bounds.max_entries,
          "; allowed: a plan without it, or decode_entries");
  require(kv.batch <= s.bounds.max_batch, who, ": the cache's batch is ", kv.batch,
          "; allowed: up to the plan's max_batch = ", s.bounds.max_batch);
  check_cache(who, s, p);
  if (s.options.cu_seqlens_q) {
    require(kv.batch == 0 || kv.batch < s.bounds.cu_seqlens_entries, who, ": the cache's batch is ", kv.batch,
            "; allowed: fewer than the ", s.bounds.cu_seqlens_entries, " entries of the plan's cu_seqlens_q");
  } else {
    const std::int64_t tokens = p.q.extent[0];
    require(kv.batch == 0 ? tokens == 0 : tokens % kv.batch == 0 && tokens / kv.batch <= s.bounds.max_query_len, who,
            ": q has ", tokens, " query tokens for a batch of ", kv.batch,
            "; allowed: the same number for each, up to max_query_len = ", s.bounds.max_query_len,
            " (or cu_seqlens_q in the plan's options)");
  }
  check_rows(who, s, p, kv.batch);
  require(!s.checked.on || kv.num_sequences <= s.checked.max_sequences, who, ": the cache has ", kv.num_sequences,
          " sequences; allowed: up to those the checked plan was made for, ", s.checked.max_sequences);
}

void check_list(const Schedule& s, const Problem& p) {
  const char* const who = "pagoda::decode_entries";
  const EntriesRef& e   = p.entries;
  require(of_lists(s.bounds), who,
          ": the plan's options have entries.max_entries = 0; allowed: a plan with the number of entries, or decode");
  require(e.num_entries <= s.bounds.max_entries, who, ": the list has ", e.num_entries,
          " entries; allowed: up to the plan's entries.max_entries = ", s.bounds.max_entries);
  check_cache(who, s, p);
  check_rows(who, s, p, e.num_entries);
  require_list(who, e);
  require(e.num_mask_words == 0 || !s.options.alibi_slopes, who, ": the list has ", e.num_mask_words,
          " words of masks, and the plan has alibi_slopes; allowed: one of them (a mask gives no position)");
  if (e.num_state_begin == 0) return;
  require(e.state_begin && e.num_state_begin == p.q.extent[0] + 1, who, ": the list's state_begin has ",
          e.num_state_begin, " elements; allowed: none, or q.extent(0) + 1 = ", p.q.extent[0] + 1, ", not null");
  require_plain(who, "states.out holds", p.state_out.type);
  require_rows(who, "states.out", p.state_out, p.state_out.extent[0], s.shape);
  require(p.state_lse.extent[0] == p.state_out.extent[0] && p.state_lse.extent[1] == s.shape.num_q_heads, who,
          ": states.lse is (", p.state_lse.extent[0], ", ", p.state_lse.extent[1], "); allowed: (",
          p.state_out.extent[0], ", ", s.shape.num_q_heads, "), for the states of states.out");
  require_data(who, "states.out", p.state_out);
  require_data(who, "states.lse", p.state_lse);
}

/// Launches a checked problem on a backend, or launches nothing and returns why that does not support it.
template <class ExecutionSpace>
const char* launch_on(int index, const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  const Schedule& s                      = plan.schedule();
  const bool enough_multiprocessors      = plan.memory().enter(exec, s.multiprocessors);
  const Backend<ExecutionSpace>& backend = *backends<ExecutionSpace>()[index];
  std::optional<Kokkos::Profiling::ScopedRegion> region;  // its destructor also runs when a launch throws
  if (Kokkos::Tools::profileLibraryLoaded())
    region.emplace(concat("Pagoda::decode[", backend.name(), ",", name_of(s.shape.kv_type), "]"));
  if (backend.needs_all_multiprocessors(s) && !enough_multiprocessors)
    return "exec may use fewer multiprocessors than the plan counts on";
  return backend.decode(exec, plan, problem, plan.memory().data() + persistent_offset(s, index));
}

/// Launches a checked problem on the plan's backend or, if that does not support it, on the last one.
template <class ExecutionSpace>
void launch(const char* who, const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  const Schedule& s        = plan.schedule();
  const char* const reason = launch_on(s.backend.index, exec, plan, problem);
  if (!reason) return;
  require(!s.backend.forced, who, ": backend \"", s.backend.name, "\" does not support this problem: ", reason,
          "; allowed: a plan for any backend, or a problem that \"", s.backend.name, "\" supports");
  const int last           = static_cast<int>(backends<ExecutionSpace>().size()) - 1;
  const char* const unable = launch_on(last, exec, plan, problem);
  require(!unable, who, ": backend \"", s.backend.name, "\" does not support this problem: ", reason,
          "; nor does any other: ", unable ? unable : "");
}

}  // namespace

template <class ExecutionSpace>
void check_decode(const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check_batch(plan.schedule(), problem);
}

template <class ExecutionSpace>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check_batch(plan.schedule(), problem);
  if (problem.q.extent[0] == 0) return;
  if (!plan.schedule().checked.on) return launch("pagoda::decode", exec, plan, problem);
  plan.memory().enter(exec, plan.schedule().multiprocessors);
  launch("pagoda::decode", exec, plan, examine_tables(exec, plan, problem));
  poison_faulty(exec, plan, problem);
}

template <class ExecutionSpace>
void decode_entries(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check_list(plan.schedule(), problem);
  if (problem.entries.num_entries > 0) launch("pagoda::decode_entries", exec, plan, problem);
}

template <class ExecutionSpace>
bool try_decode_entries(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check_list(plan.schedule(), problem);
  return problem.entries.num_entries == 0 || !launch_on(plan.schedule().backend.index, exec, plan, problem);
}

#define PAGODA_INSTANTIATE(Space)                                                              \
  template bool try_decode_entries<Space>(const Space&, const Plan<Space>&, const Problem&);   \
  template void check_decode<Space>(const Plan<Space>&, const Problem&);                       \
  template PAGODA_EXPORT void decode<Space>(const Space&, const Plan<Space>&, const Problem&); \
  template PAGODA_EXPORT void decode_entries<Space>(const Space&, const Plan<Space>&, const Problem&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
