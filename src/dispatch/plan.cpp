// SPDX-License-Identifier: Apache-2.0
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include "pagoda_enabled_types.hpp"
#include "src/dispatch/by_type.hpp"
#include "src/dispatch/checks.hpp"
#include "src/dispatch/launch.hpp"
#include "src/dispatch/plan_memory.hpp"
#include "src/dispatch/spaces.hpp"
#include "src/dispatch/tuned.hpp"
#include "src/kernel/machine.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

namespace pagoda {
namespace detail {

namespace {

constexpr std::size_t alignment = 16;

/// Gives out consecutive aligned parts; what it has given out in the end is the size of the workspace.
struct Allocator {
  std::size_t used = 0;
  template <class T>
  std::size_t take(std::size_t count) {
    return take_bytes(count * sizeof(T));
  }
  std::size_t take_bytes(std::size_t bytes) {
    const std::size_t at = used;
    used += (bytes + alignment - 1) / alignment * alignment;
    return at;
  }
};

WorkspaceLayout workspace_layout(const PlanState& s) {
  const std::size_t acc  = s.kv_type == DType::fp64 ? sizeof(double) : sizeof(float);
  const std::size_t rows = std::size_t(s.max_slots) * s.row_tile * s.heads_per_item;
  Allocator space;
  WorkspaceLayout l;
  l.states = space.take_bytes(2 * acc * 2 * rows);
  l.values = space.take_bytes(acc * rows * padded_to_quads(s.head_dim_v));
  l.bytes  = space.used;
  return l;
}

PersistentLayout persistent_layout(const PlanState& s, std::size_t tuned_bytes) {
  Allocator space;
  PersistentLayout l;
  l.team_counters = space.take<TeamCounters>(1);
  l.arrived       = space.take<int>(2 * std::size_t(s.max_slots));
  l.tuned         = space.take_bytes(tuned_bytes);
  l.bytes         = space.used;
  return l;
}

/// Query rows that share a kv head in the longest batch entry there may be.
int query_rows_of_longest(const PlanState& s) {
  const std::int64_t rows = std::int64_t(s.max_query_len) * (s.num_q_heads / s.num_kv_heads);
  require(rows < std::int64_t(1) << 31, "pagoda::plan: max_query_len is ", s.max_query_len, " with ",
          s.num_q_heads / s.num_kv_heads, " query heads to a kv head; allowed: a product below 2^31");
  return static_cast<int>(rows);
}

template <class ExecutionSpace>
void choose_kernel(const ExecutionSpace& exec, const CacheRef& kv, PlanState& s) {
  const RowUnits units   = row_units(kv);
  const RowLayout layout = row_layout(kv);
  const FragmentShape shape{query_rows_of_longest(s), s.head_dim,         s.head_dim_v,      layout.dense_dims,
                            layout.alignment,         values_in_keys(kv), heads_in_turn(kv), units.count};
  FragmentChoice choice;
  by_type(s.kv_type, [&]<class T>(T*) { choice = choose_fragment<ExecutionSpace, T>(exec, shape); });
  require(choice.index >= 0, "pagoda::plan: head_dim is ", s.head_dim, " and head_dim_v ", s.head_dim_v,
          "; allowed: what fits the ", MachineOf<ExecutionSpace>::scratch_limit(),
          " bytes of scratch of a team on this device");
  s.fragment = choice.index, s.row_tile = choice.rows, s.num_workers = choice.workers;
  s.heads_per_item = choice.heads_per_item;
  s.values_in_keys = choice.values_in_keys;
  s.wide = choice.row_alignment > 0, s.row_alignment = std::max(choice.row_alignment, 1);
  if (!s.wide)
    s.slow_because = layout.dense_dims
                         ? "no vector kernel takes this head_dim and alignment, so keys and values are read one "
                           "element at a time"
                         : "the dims of a row of keys or values, or its block scales, do not lie side by side (a "
                           "View<T****> is LayoutLeft "
                           "on a GPU; use Kokkos::LayoutRight or pagoda::make_paged_cache), so they are read one "
                           "element at a time";
  s.max_row_units = choice.max_row_units, s.any_query = choice.any_query, s.probability_type = choice.probability_type;
  s.query_type  = choice.query_type;
  s.split.teams = std::max(choice.teams, 1);
  // A worker's tile, and splits that occupy all workers of a team.
  const auto log2     = [](int n) { return std::bit_width(static_cast<unsigned>(n) - 1); };
  s.split.chunk_shift = log2(choice.tile_tokens);
  s.split.round_shift = log2(choice.round_tiles);
  s.split.deals_tiles = choice.deals_tiles;
  s.split.split_shift =
      log2(std::max(MachineOf<ExecutionSpace>::min_split_tokens, choice.workers * choice.tile_tokens)) -
      s.split.chunk_shift;
}

/// What the caller asks for, then the environment, then the faster of the kernels that can do it. Only the hand-tuned
/// ones know programmatic launches.
template <class ExecutionSpace>
void choose_backend(const ExecutionSpace& exec, const CacheRef& kv, const std::string& option, PlanState& s) {
  const char* const variable = std::getenv("PAGODA_BACKEND");
  const std::string name     = !option.empty() ? option : variable ? variable : "";
  require(name.empty() || name == "tuned" || name == "generic",
          "pagoda::plan: ", option.empty() ? "PAGODA_BACKEND in the environment" : "backend", " is \"", name,
          "\"; allowed: \"tuned\", \"generic\", or nothing");
  if (name == "tuned") s.forced = Backend::tuned;
  if (name == "generic") s.forced = Backend::generic;
  if (s.forced == Backend::generic) return;
  const char* const reason = why_not_tuned(exec, s, usual_problem(s, kv));
  require(s.forced != Backend::tuned || !reason,
          "pagoda::plan: backend \"tuned\" does not support this problem: ", reason ? reason : "",
          "; allowed: backend \"generic\", or a problem that \"tuned\" supports");
  if (!reason && !s.forced && !s.programmatic) s.generic_is_faster_on = why_not_faster(exec, s, kv);
  s.tuned = !reason && !s.generic_is_faster_on;
}

/// Says once in a process, on standard error, that a plan cannot run at full speed.
void warn_once_if_slow(const PlanState& s) {
  static std::atomic<bool> said{false};
  if (!s.slow_because) return;
  const char* const setting = std::getenv("PAGODA_WARN");
  if ((setting && std::string(setting) == "0") || said.exchange(true)) return;
  std::cerr << concat("pagoda: slow plan: ", describe(s), ". This is said once; PAGODA_WARN=0 turns it off.\n");
}

/// Numbers of the options that kernels read in the accumulator's type: finite there too, and not rounded to 0.
void check_numbers(const PlanState& s, double logit_soft_cap, const std::optional<double>& softmax_scale) {
  const bool fp64        = s.kv_type == DType::fp64;
  const double most      = fp64 ? std::numeric_limits<double>::max() : double(std::numeric_limits<float>::max());
  const double least     = fp64 ? std::numeric_limits<double>::min() : double(std::numeric_limits<float>::min());
  const char* const type = fp64 ? "double" : "float";
  constexpr double log2e = 1.4426950408889634;  // kernels work in base 2
  require(!softmax_scale || std::abs(*softmax_scale) <= most / log2e, "pagoda::plan: softmax_scale is ",
          softmax_scale.value_or(0), "; allowed: any number that is finite in ", type, ", times log2(e) too");
  require(logit_soft_cap == 0 || (logit_soft_cap >= least && logit_soft_cap <= most / log2e),
          "pagoda::plan: logit_soft_cap is ", logit_soft_cap, "; allowed: 0 (off), or ", least, " to ", most / log2e);
}

}  // namespace

template <class ExecutionSpace>
PlanState make_plan_state(const ExecutionSpace& exec, const CacheRef& kv,
                          const DecodeOptions<typename ExecutionSpace::memory_space>& o) {
  PlanState s;
  s.kv_type      = kv.k.type;
  s.num_q_heads  = o.num_q_heads;
  s.num_kv_heads = kv.num_kv_heads();
  s.head_dim     = kv.head_dim();
  s.head_dim_v   = kv.head_dim_v();
  require(o.num_q_heads > 0 && o.num_q_heads % s.num_kv_heads == 0, "pagoda::plan: num_q_heads is ", o.num_q_heads,
          "; allowed: a positive multiple of num_kv_heads = ", s.num_kv_heads);
  constexpr int most_dims = 1 << 24;  // beyond that, sizes in bytes overflow
  require(s.head_dim <= most_dims && s.head_dim_v <= most_dims, "pagoda::plan: head_dim is ", s.head_dim,
          " and head_dim_v ", s.head_dim_v, "; allowed: up to 2^24");
  require(kv.v.type == kv.k.type, "pagoda::plan: values are ", name_of(kv.v.type), " and keys ", name_of(kv.k.type),
          "; allowed: one type for both");
  require_scales("pagoda::plan", kv);
  require(o.max_batch >= 0, "pagoda::plan: max_batch is ", o.max_batch, "; allowed: 0 (the cache's batch) or more");
  require(o.max_seq_len >= 0, "pagoda::plan: max_seq_len is ", o.max_seq_len, "; allowed: 0 (the cache's) or more");
  require(o.max_query_len >= 1, "pagoda::plan: max_query_len is ", o.max_query_len, "; allowed: 1 or more");
  require(o.max_query_tokens >= 0, "pagoda::plan: max_query_tokens is ", o.max_query_tokens, "; allowed: 0 or more");
  check_numbers(s, o.logit_soft_cap, o.softmax_scale);
  require(o.window_left >= -1, "pagoda::plan: window_left is ", o.window_left, "; allowed: -1 (none) or more");
  require(o.num_initial_tokens >= 0, "pagoda::plan: num_initial_tokens is ", o.num_initial_tokens,
          "; allowed: 0 or more");
  const std::size_t heads = static_cast<std::size_t>(o.num_q_heads);
  require(!o.alibi_slopes.data() || o.alibi_slopes.extent(0) == heads, "pagoda::plan: alibi_slopes has ",
          o.alibi_slopes.extent(0), " entries; allowed: num_q_heads = ", o.num_q_heads);
  require(!o.sinks.data() || o.sinks.extent(0) == heads, "pagoda::plan: sinks has ", o.sinks.extent(0),
          " entries; allowed: num_q_heads = ", o.num_q_heads);

  s.max_batch     = std::max({1, o.max_batch, o.max_batch == 0 ? kv.batch : 0});
  s.max_seq_len   = o.max_seq_len > 0 ? o.max_seq_len : kv.max_seq_len;
  s.max_query_len = o.max_query_len;
  require(o.max_query_tokens > 0 || std::int64_t(s.max_batch) * s.max_query_len < (std::int64_t(1) << 31),
          "pagoda::plan: max_batch is ", s.max_batch, " at max_query_len ", s.max_query_len,
          "; allowed: fewer than 2^31 query tokens (or say max_query_tokens)");
  s.max_query_tokens = o.max_query_tokens > 0 ? o.max_query_tokens : s.max_batch * o.max_query_len;
  s.cu_seqlens_q     = o.cu_seqlens_q.data();
  if (s.cu_seqlens_q) {
    const std::int64_t entries = static_cast<std::int64_t>(o.cu_seqlens_q.extent(0));
    const std::int64_t batch   = o.max_batch > 0 ? o.max_batch : kv.batch;
    require(entries >= batch + 1, "pagoda::plan: cu_seqlens_q has ", entries, " entries; allowed: at least ",
            o.max_batch > 0 ? "max_batch" : "the cache's batch", " + 1 = ", batch + 1);
    s.cu_seqlens_entries = static_cast<int>(std::min<std::int64_t>(entries, std::numeric_limits<int>::max()));
  }
  s.softmax_scale = o.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
  s.score = {o.causal, o.window_left, o.num_initial_tokens, o.logit_soft_cap, o.alibi_slopes.data(), o.sinks.data()};
  s.all   = o.max_query_len > 1 || s.cu_seqlens_q || s.score.any();
  s.multiprocessors = multiprocessors_of(exec);

  using Machine = MachineOf<ExecutionSpace>;
  choose_kernel(exec, kv, s);
  s.split.even_waves = Machine::even_waves, s.split.waves = Machine::waves;

  s.split.max_chunks         = Machine::max_split_tokens >> s.split.chunk_shift;
  const int min_split_tokens = 1 << (s.split.chunk_shift + s.split.split_shift);
  const int max_split_tokens = s.split.max_chunks << s.split.chunk_shift;

  // Bounds that hold for all lengths (limit_splits sees to it), and are tight for those up to max_seq_len. Each
  // entry's rows fill its tiles but for the last. In floating point first: absurd bounds would overflow.
  const std::int64_t group = s.num_q_heads / s.num_kv_heads;
  const int head_groups    = s.num_kv_heads / s.heads_per_item;
  const double estimate =
      double(s.num_kv_heads) *
      (double(s.max_query_tokens) * double(group) / s.row_tile + std::min(s.max_batch, s.max_query_tokens)) *
      (1 + double(s.max_seq_len) / max_split_tokens);
  require(estimate < 0x1p30, "pagoda::plan: max_query_tokens is ", s.max_query_tokens, " at max_seq_len ",
          s.max_seq_len, "; allowed: fewer than 2^30 work items, and these make about ", estimate);
  const auto ragged_rows =
      std::int64_t(head_groups) * (s.max_query_tokens * group / s.row_tile + std::min(s.max_batch, s.max_query_tokens));
  const auto uniform_rows =
      std::int64_t(head_groups) * s.max_batch * ((s.max_query_len * group + s.row_tile - 1) / s.row_tile);
  const std::int64_t rows       = s.cu_seqlens_q ? ragged_rows : std::min(ragged_rows, uniform_rows);
  const std::int64_t num_splits = s.max_seq_len / min_split_tokens + 1;  // of a row, at most
  const bool may_be_smaller =
      s.split.deals_tiles && rows > s.split.teams;  // teams, and more of them (fit_teams_to_rows)
  const std::int64_t all_teams  = std::int64_t(s.split.teams) << (may_be_smaller ? s.split.round_shift : 0);
  const std::int64_t most_teams = std::min(all_teams, rows * std::max<std::int64_t>(num_splits, 1));
  const std::int64_t for_busy   = std::max(s.split.waves, s.split.even_waves) * all_teams;
  const std::int64_t for_long   = rows * s.max_seq_len / max_split_tokens + 1;
  const std::int64_t cuts = std::min(std::max(for_busy, for_long), rows * std::max<std::int64_t>(num_splits - 1, 1));
  s.split.max_cuts        = static_cast<int>(std::max<std::int64_t>(cuts, 1));
  s.split.teams = static_cast<int>(std::min<std::int64_t>(s.split.teams, rows * std::max<std::int64_t>(num_splits, 1)));
  // A row of n splits has n - 1 cuts; and where items are numbered through, there are no more than teams.
  s.max_slots         = std::max(2 * s.split.max_cuts, static_cast<int>(most_teams));
  const double values = double(s.max_slots) * s.row_tile * s.heads_per_item * padded_to_quads(s.head_dim_v);
  require(values < 0x1p31, "pagoda::plan: max_seq_len ", s.max_seq_len, " and max_query_tokens ", s.max_query_tokens,
          " ask for ", values, " partial values of head_dim_v ", s.head_dim_v, "; allowed: fewer than 2^31");
  s.programmatic = o.programmatic_launch;
  choose_backend(exec, kv, o.backend, s);
  s.layout     = workspace_layout(s);
  s.persistent = persistent_layout(s, s.tuned ? tuned_workspace_bytes(exec, s) : 0);
  return s;
}

template <class ExecutionSpace>
Plan<ExecutionSpace> make_plan(const ExecutionSpace& exec, const CacheRef& kv,
                               const DecodeOptions<typename ExecutionSpace::memory_space>& options,
                               typename Plan<ExecutionSpace>::Workspace workspace) {
  const PlanState state = make_plan_state(exec, kv, options);
  if (!workspace.data()) {
    workspace = typename Plan<ExecutionSpace>::Workspace(
        Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::plan::workspace"), state.layout.bytes);
  }
  require(workspace.extent(0) >= state.layout.bytes, "pagoda::plan: workspace has ", workspace.extent(0),
          " bytes; allowed: at least ", state.layout.bytes);
  require(reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment == 0, "pagoda::plan: workspace is at address ",
          workspace.data(), "; allowed: aligned to ", alignment, " bytes");
  const Plan<ExecutionSpace> plan(state, options, workspace,
                                  std::make_shared<PlanMemory<ExecutionSpace>>(exec, state.persistent.bytes));
  warm_up(exec, plan);
  plan.memory().initialized_by(exec);
  warn_once_if_slow(state);
  return plan;
}

#define PAGODA_INSTANTIATE(Space)                                                                     \
  template PAGODA_EXPORT PlanState make_plan_state<Space>(const Space&, const CacheRef&,              \
                                                          const DecodeOptions<Space::memory_space>&); \
  template PAGODA_EXPORT Plan<Space> make_plan<Space>(                                                \
      const Space&, const CacheRef&, const DecodeOptions<Space::memory_space>&, Plan<Space>::Workspace);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

std::string describe(const PlanState& s) {
  return concat(s.tuned ? "tuned " : "generic ", name_of(s.kv_type), " heads ", s.num_q_heads, "/", s.num_kv_heads,
                " head_dim ", s.head_dim, s.head_dim_v != s.head_dim ? concat("/", s.head_dim_v) : std::string(), ": ",
                s.row_tile, " query rows an item, ", s.split.teams, " teams of ", s.num_workers,
                s.num_workers == 1 ? " worker, " : " workers, ", s.layout.bytes, " bytes of workspace",
                size_of(s.probability_type) == 2 ? ", matrix products" : "",
                s.slow_because ? concat(", slow: ", s.slow_because) : std::string(),
                s.values_in_keys ? ", values in keys" : "", s.all ? ", all options" : "",
                s.generic_is_faster_on ? concat(", faster on ", s.generic_is_faster_on) : std::string());
}

}  // namespace detail
}  // namespace pagoda
