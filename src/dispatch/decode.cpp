// SPDX-License-Identifier: Apache-2.0
#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>

#include "src/dispatch/by_type.hpp"
#include "src/dispatch/checks.hpp"
#include "src/dispatch/launch.hpp"
#include "src/dispatch/plan_memory.hpp"
#include "src/dispatch/spaces.hpp"
#include "src/dispatch/tuned.hpp"
#include "src/plan/split.hpp"
#include "src/plan/team_count.hpp"

#include <algorithm>
#include <cstdint>

namespace pagoda::detail {

namespace {

/// Every (token, head) row is dense and starts on a multiple of `bytes`.
bool in_vectors(const TensorRef& t, int bytes) {
  const auto whole = [&](std::int64_t stride) { return stride * size_of(t.type) % bytes == 0; };
  return t.stride[2] == 1 && reinterpret_cast<std::uintptr_t>(t.data) % bytes == 0 && whole(t.stride[0]) &&
         whole(t.stride[1]) && whole(t.extent[2]);
}

DeviceArray device_array(const TensorRef& t) { return {t.data, t.stride[0], t.stride[1], t.stride[2], t.type}; }

/// Indices into it, and each of its strides, fit 31 bits.
bool is_small(const TensorRef& t) {
  std::int64_t last = 0, longest = 0;
  for (int axis = 0; axis < t.rank; ++axis) {
    last += std::max<std::int64_t>(t.extent[axis] - 1, 0) * t.stride[axis];
    longest = std::max(longest, t.stride[axis]);
  }
  return std::max(last, longest) < std::int64_t(1) << 31;
}

ScaleArray scale_array(const ScaleRef& s) {
  const auto stride = [&](int axis) { return static_cast<std::uint32_t>(s.stride[axis]); };
  return {s.data, stride(0), stride(1), stride(2)};
}

BlockScaleArray block_scale_array(const ScaleRef& s) {
  const auto stride = [&](int axis) { return static_cast<std::uint32_t>(s.block_stride[axis]); };
  return {s.blocks, stride(0), stride(1), stride(2), stride(3)};
}

template <class ExecutionSpace>
AllKernelArgs kernel_args(const Plan<ExecutionSpace>& plan, const Problem& p) {
  const PlanState& s = plan.state();
  const CacheRef& kv = p.kv;
  AllKernelArgs a{};
  a.k = kv.k.data, a.k_page = kv.k.stride[0], a.k_token = kv.k.stride[1], a.k_head = kv.k.stride[2],
  a.k_dim = kv.k.stride[3];
  a.v = kv.v.data, a.v_page = kv.v.stride[0], a.v_token = kv.v.stride[1], a.v_head = kv.v.stride[2],
  a.v_dim   = kv.v.stride[3];
  a.k_scale = scale_array(kv.k_scale), a.v_scale = scale_array(kv.v_scale);
  a.k_blocks = block_scale_array(kv.k_scale), a.v_blocks = block_scale_array(kv.v_scale);
  a.paged = kv.paged, a.table = kv.block_table, a.page_indptr = kv.page_indptr;
  a.table_row_stride  = static_cast<int>(kv.num_sequences > 1 ? kv.table_row_stride : 0);
  a.table_page_stride = static_cast<int>(kv.table_pages > 1 ? kv.table_page_stride : 0);
  a.table_pages       = static_cast<int>(std::min<std::int64_t>(kv.table_pages, 1 << 30));
  a.seq_lens = kv.seq_lens, a.sequence_ids = kv.sequence_ids;
  a.page_size = Divisor::of(std::max(kv.page_size(), 1)), a.num_pages = static_cast<int>(kv.num_pages());
  const RowUnits units = row_units(kv);
  a.row_unit           = 1u << units.shift;
  const auto in_units  = [&](const TensorRef& t) {
    const auto steps = [&](int axis) {
      return t.extent[axis] > 1 ? static_cast<std::uint32_t>((t.stride[axis] * size_of(t.type)) >> units.shift) : 0;
    };
    return RowSteps{steps(0), steps(1), steps(2)};
  };
  a.k_units = in_units(kv.k), a.v_units = in_units(kv.v);
  a.near_tokens = (std::int64_t(std::max(a.k_units.token, a.v_units.token)) << units.shift) < (1 << 26);
  a.q = device_array(p.q), a.out = device_array(p.out), a.lse = device_array(p.lse);
  a.cu_seqlens_q      = s.cu_seqlens_q;
  a.uniform_query_len = kv.batch > 0 ? static_cast<int>(p.q.extent[0] / kv.batch) : 0;
  a.batch = kv.batch, a.group = Divisor::of(s.num_q_heads / s.num_kv_heads);
  a.head_dim = s.head_dim, a.head_dim_v = s.head_dim_v;
  a.softmax_scale = s.softmax_scale, a.softmax_scale32 = static_cast<float>(s.softmax_scale);
  a.score    = s.score;
  a.row_tile = Divisor::of(s.row_tile), a.slots = s.max_slots;
  a.heads_per_item = s.heads_per_item, a.head_groups = s.num_kv_heads / s.heads_per_item;
  a.tiles_per_head = ceil_div(s.num_q_heads / s.num_kv_heads, s.row_tile);
  const int tiles  = a.tiles_per_head * a.head_groups;
  // Of the batch's query tokens; where entries have several, and not equally many, of an average one.
  const std::int64_t rows = std::int64_t(kv.batch) * a.head_groups *
                            ceil_div(std::max(a.uniform_query_len, 1) * (s.num_q_heads / s.num_kv_heads), s.row_tile);
  a.tiles_per_entry = Divisor::of(tiles);
  a.split           = fit_teams_to_rows(rows, s.split);
  a.grid_splits     = Divisor::of(grid_for(rows, a.split.teams * a.split.even_waves));
  if (s.split.deals_tiles) a.split.teams = teams_launched(rows * a.grid_splits.value, a.split.teams);
  a.value_stride              = padded_to_quads(s.head_dim_v);
  a.value_quads               = Divisor::of(a.value_stride / 4);
  a.wide_queries              = p.q.type == s.query_type && in_vectors(p.q, 16);
  a.wide_outputs              = in_vectors(p.out, 4 * size_of(p.out.type)) && s.head_dim_v % 4 == 0;
  std::byte* const persistent = plan.memory().data();
  a.teams                     = reinterpret_cast<TeamCounters*>(persistent + s.persistent.team_counters);
  a.arrived                   = reinterpret_cast<int*>(persistent + s.persistent.arrived);
  a.partial_state             = plan.workspace().data() + s.layout.states;
  a.partial_values            = plan.workspace().data() + s.layout.values;
#if defined(PAGODA_DEBUG_BOUNDS)
  a.max_seq_len = kv.max_seq_len, a.num_sequences = kv.num_sequences;
  a.num_query_tokens = static_cast<int>(p.q.extent[0]);
#endif
  return a;
}

/// Counters are zero between decodes.
struct ClearInts {
  int* at;
  KOKKOS_FUNCTION void operator()(int i) const { at[i] = 0; }
};

template <class ExecutionSpace>
void launch(const ExecutionSpace& exec, const PlanState& s, const AllKernelArgs& args, bool all) {
  by_type(s.kv_type, [&]<class T>(T*) { launch_decode<ExecutionSpace, T>(exec, s, args, all); });
}

/// A View that has elements has memory.
void require_data(const char* name, const TensorRef& t) {
  bool empty = false;
  for (int axis = 0; axis < t.rank; ++axis) empty = empty || t.extent[axis] == 0;
  require(t.data || empty, "pagoda::decode: ", name, " has a null pointer; allowed: memory for all of its elements");
}

void check_data(const PlanState& s, const Problem& p) {
  const CacheRef& kv = p.kv;
  require_data("q", p.q);
  require_data("out", p.out);
  require_data("the cache's k", kv.k);
  require_data("the cache's v", kv.v);
  require_tables("pagoda::decode", kv);
  require(kv.batch == 0 || !s.cu_seqlens_q || kv.batch < s.cu_seqlens_entries, "pagoda::decode: the cache's batch is ",
          kv.batch, "; allowed: fewer than the ", s.cu_seqlens_entries, " entries of the plan's cu_seqlens_q");
}

void check(const PlanState& s, const Problem& p) {
  const char* const who = "pagoda::decode: ";
  const CacheRef& kv    = p.kv;
  require(kv.k.type == s.kv_type && kv.v.type == s.kv_type, who, "the cache holds ", name_of(kv.k.type), " keys and ",
          name_of(kv.v.type), " values; the plan was made for ", name_of(s.kv_type));
  require_scales("pagoda::decode", kv);
  require_plain("pagoda::decode", "q holds", p.q.type);
  require_plain("pagoda::decode", "out holds", p.out.type);
  require(kv.num_kv_heads() == s.num_kv_heads, who, "the cache has ", kv.num_kv_heads(),
          " kv heads; the plan was made for ", s.num_kv_heads);
  require(kv.head_dim() == s.head_dim && kv.head_dim_v() == s.head_dim_v, who, "the cache has head_dim ", kv.head_dim(),
          " (keys) and ", kv.head_dim_v(), " (values); the plan was made for ", s.head_dim, " and ", s.head_dim_v);
  require(kv.batch <= s.max_batch, who, "the cache's batch is ", kv.batch,
          "; allowed: up to the plan's max_batch = ", s.max_batch);
  require(rows_fit(kv, s.wide, s.row_alignment), who,
          "the cache's strides or alignment are not those the plan was made for: every row must start on ",
          s.row_alignment, s.row_alignment == 1 ? " byte" : " bytes", " and be dense; make the plan from this cache");
  require(
      !s.values_in_keys || values_in_keys(kv), who,
      "the values are not a prefix of the keys in the same memory (data, strides), as in the cache the plan was made "
      "for; make the plan from this cache");
  const RowUnits units = row_units(kv);
  require(units.count <= s.max_row_units, who, "the cache's last row lies ", units.count, " units of 2^", units.shift,
          " bytes (the largest that divides its strides) from the first; allowed: ", s.max_row_units,
          ", or a plan made from this cache");
  const std::int64_t tokens = p.q.extent[0];
  require(tokens <= s.max_query_tokens, who, "q has ", tokens,
          " query tokens; allowed: up to the plan's max_query_tokens = ", s.max_query_tokens);
  if (!s.cu_seqlens_q) {
    require(kv.batch == 0 ? tokens == 0 : tokens % kv.batch == 0 && tokens / kv.batch <= s.max_query_len, who, "q has ",
            tokens, " query tokens for a batch of ", kv.batch,
            "; allowed: the same number for each, up to max_query_len = ", s.max_query_len,
            " (or cu_seqlens_q in the plan's options)");
  }
  require(p.q.extent[1] == s.num_q_heads && p.q.extent[2] == s.head_dim, who, "q has (heads, head_dim) = (",
          p.q.extent[1], ", ", p.q.extent[2], "); allowed: (", s.num_q_heads, ", ", s.head_dim, ")");
  require(p.out.extent[0] == tokens && p.out.extent[1] == s.num_q_heads && p.out.extent[2] == s.head_dim_v, who,
          "out is (", p.out.extent[0], ", ", p.out.extent[1], ", ", p.out.extent[2], "); allowed: (", tokens, ", ",
          s.num_q_heads, ", ", s.head_dim_v, ")");
  require(std::max(kv.table_row_stride, kv.table_page_stride) < std::int64_t(1) << 31, who,
          "block_table's strides are ", kv.table_row_stride, " and ", kv.table_page_stride,
          " elements; allowed: fewer than 2^31");
  require(!p.lse.data || (p.lse.extent[0] == tokens && p.lse.extent[1] == s.num_q_heads), who, "lse is (",
          p.lse.extent[0], ", ", p.lse.extent[1], "); allowed: (", tokens, ", ", s.num_q_heads, ") or an empty View");
  check_data(s, p);
}

}  // namespace

template <class ExecutionSpace>
void check_decode(const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check(plan.state(), problem);
}

template <class ExecutionSpace>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check(plan.state(), problem);
  if (problem.q.extent[0] == 0) return;
  const PlanState& s                = plan.state();
  const bool enough_multiprocessors = plan.memory().enter(exec, s.multiprocessors);
  if (s.tuned) {
    const char* const reason = enough_multiprocessors
                                   ? decode_tuned(exec, s, problem, plan.memory().data() + s.persistent.tuned)
                                   : "exec may use fewer multiprocessors than the plan counts on";
    if (!reason) return;
    require(s.forced != Backend::tuned, "pagoda::decode: backend \"tuned\" does not support this problem: ", reason,
            "; allowed: a plan for any backend, or a problem that \"tuned\" supports");
  }
  const AllKernelArgs args = kernel_args(plan, problem);
  const bool small         = is_small(problem.q) && is_small(problem.out) && is_small(problem.lse);
  launch(exec, s, args, s.all || !small || !(s.any_query || args.wide_queries));
}

template <class ExecutionSpace>
void warm_up(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  const PlanState& s              = plan.state();
  const std::size_t counter_bytes = s.persistent.tuned - s.persistent.team_counters;
  Kokkos::parallel_for("Pagoda::plan::clear_counters",
                       Kokkos::RangePolicy<ExecutionSpace>(exec, 0, static_cast<int>(counter_bytes / sizeof(int))),
                       ClearInts{reinterpret_cast<int*>(plan.memory().data() + s.persistent.team_counters)});
  // A batch of none: teams find no items and leave at once.
  AllKernelArgs args = kernel_args(plan, Problem{});
  args.batch         = 0;
  for (const bool all : {false, true}) launch(exec, s, args, all);
  if (s.tuned) prepare_tuned(exec, s, plan.memory().data() + s.persistent.tuned);
}

#define PAGODA_INSTANTIATE(Space)                                                              \
  template void check_decode<Space>(const Plan<Space>&, const Problem&);                       \
  template PAGODA_EXPORT void decode<Space>(const Space&, const Plan<Space>&, const Problem&); \
  template void warm_up<Space>(const Space&, const Plan<Space>&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
