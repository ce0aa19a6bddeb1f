// SPDX-License-Identifier: Apache-2.0
#include "src/dispatch/generic.hpp"

#include "pagoda_enabled_types.hpp"
#include "src/base/by_type.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/device_arrays.hpp"
#include "src/plan/bounds.hpp"
#include "src/plan/cache_rows.hpp"
#include "src/plan/launch_numbers.hpp"
#include "src/plan/workspace.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagoda::detail {

namespace {

/// Whether indices into the array and its strides fit 31 bits.
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

void set_cache(AllKernelArgs& a, const CacheRef& kv) {
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
  a.seq_lens = kv.seq_lens, a.sequence_ids = kv.sequence_ids, a.batch = kv.batch;
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
}

void set_queries(AllKernelArgs& a, const Schedule& s, const Problem& p) {
  a.q = device_array(p.q), a.out = device_array(p.out), a.lse = device_array(p.lse);
  a.options                   = s.options;
  a.options.uniform_query_len = p.kv.batch > 0 ? static_cast<int>(p.q.extent[0] / p.kv.batch) : 0;
  if (of_lists(s.bounds)) a.options.uniform_query_len = average_listed_queries(s.bounds);
  a.softmax_scale32 = static_cast<float>(s.options.softmax_scale);
  a.head_dim = s.shape.head_dim, a.head_dim_v = s.shape.head_dim_v;
  a.wide_queries = p.q.type == s.kernel.query_type && in_vectors(p.q, 16);
  a.wide_outputs = in_quads(p.out);
}

/// Has no effect if the problem has no list.
void set_list(AllKernelArgs& a, const Problem& p) {
  const EntriesRef& e = p.entries;
  if (!e.entries) return;
  a.batch        = e.num_entries;
  a.list.entries = e.entries, a.list.queries = e.queries, a.list.state_begin = e.state_begin;
  a.list.masks = e.num_mask_words > 0 ? e.masks : nullptr;
  a.list.out = device_array(p.state_out), a.list.lse = device_array(p.state_lse);
  a.list.wide_outputs = in_quads(p.state_out);
#if defined(PAGODA_DEBUG_BOUNDS)
  a.list.num_queries = e.num_queries, a.list.num_state_begin = e.num_state_begin,
  a.list.num_mask_words = e.num_mask_words;
#endif
}

void set_work(AllKernelArgs& a, const Schedule& s) {
  a.group = Divisor::of(s.shape.group()), a.row_tile = Divisor::of(s.kernel.row_tile);
  a.isa            = s.kernel.isa;
  a.heads_per_item = s.kernel.heads_per_item, a.head_groups = s.shape.num_kv_heads / s.kernel.heads_per_item;
  const LaunchNumbers n = launch_numbers(s, a.batch, a.options.uniform_query_len);
  a.split               = n.split;
  a.grid_splits         = Divisor::of(n.grid_splits);
  a.tiles_per_head      = n.tiles_per_head;
  a.tiles_per_entry     = Divisor::of(n.tiles_per_entry);
}

/// The counters of the kernels, which are zero between decodes.
struct CounterLayout {
  std::size_t team_counters = 0, arrived = 0, bytes = 0;

  explicit CounterLayout(const Schedule& s) {
    Allocator space;
    team_counters = space.take(sizeof(TeamCounters));
    arrived       = space.take(2 * std::size_t(s.max_slots) * sizeof(int));
    bytes         = space.used;
  }
};

void set_memory(AllKernelArgs& a, const Schedule& s, std::byte* workspace, std::byte* persistent) {
  const CounterLayout counters(s);
  a.team_counters  = reinterpret_cast<TeamCounters*>(persistent + counters.team_counters);
  a.arrived        = reinterpret_cast<int*>(persistent + counters.arrived);
  a.partial_state  = workspace + s.workspace.states;
  a.partial_values = workspace + s.workspace.values;
  a.slots          = s.max_slots;
  a.value_stride   = padded_to_quads(s.shape.head_dim_v);
  a.value_quads    = Divisor::of(a.value_stride / 4);
}

AllKernelArgs kernel_args(const Schedule& s, const Problem& p, std::byte* workspace, std::byte* persistent) {
  AllKernelArgs a{};
  set_cache(a, p.kv);
  set_queries(a, s, p);
  set_list(a, p);
  set_work(a, s);
  set_memory(a, s, workspace, persistent);
#if defined(PAGODA_DEBUG_BOUNDS)
  a.max_seq_len = p.kv.max_seq_len, a.num_sequences = p.kv.num_sequences;
  a.num_query_tokens = static_cast<int>(p.q.extent[0]);
#endif
  return a;
}

struct ClearInts {
  int* at;
  KOKKOS_FUNCTION void operator()(int i) const { at[i] = 0; }
};

template <class ExecutionSpace>
void launch(const ExecutionSpace& exec, const Schedule& s, const AllKernelArgs& args, bool general) {
  by_type(s.shape.kv_type, [&]<class T>(T*) { launch_decode<ExecutionSpace, T>(exec, s, args, general); });
}

template <class ExecutionSpace>
class GenericBackend : public Backend<ExecutionSpace> {
 public:
  const char* name() const override { return "generic"; }
  const char* why_not(const ExecutionSpace&, const Schedule& s, const Problem&) const override {
    return s.bounds.chains ? "entries.chains is true, and only hand-tuned kernels carry out chains" : nullptr;
  }

  std::size_t persistent_bytes(const ExecutionSpace&, const Schedule& s) const override {
    return CounterLayout(s).bytes;
  }

  void prepare(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, std::byte* persistent) const override {
    const Schedule& s  = plan.schedule();
    const int counters = static_cast<int>(CounterLayout(s).bytes / sizeof(int));
    Kokkos::parallel_for("Pagoda::plan::clear_counters", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, counters),
                         ClearInts{reinterpret_cast<int*>(persistent)});
    // For an empty batch, teams find no work items and return at once.
    const AllKernelArgs args = kernel_args(s, Problem{}, plan.workspace().data(), persistent);
    for (const bool general : {false, true}) launch(exec, s, args, general);
  }

  const char* decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& p,
                     std::byte* persistent) const override {
    const Schedule& s = plan.schedule();
    if (const char* const reason = why_not(exec, s, p)) return reason;
    const AllKernelArgs args = kernel_args(s, p, plan.workspace().data(), persistent);
    const bool small         = is_small(p.q) && is_small(p.out) && is_small(p.lse);
    launch(exec, s, args, s.kernel.general || !small || !(s.kernel.any_query || args.wide_queries));
    return nullptr;
  }
};

}  // namespace

template <class ExecutionSpace>
const Backend<ExecutionSpace>& generic_backend() {
  static const GenericBackend<ExecutionSpace> backend;
  return backend;
}

template <class ExecutionSpace>
FragmentChoice choose_fragment(const ExecutionSpace& exec, DType kv_type, const FragmentShape& shape) {
  FragmentChoice choice;
  by_type(kv_type, [&]<class T>(T*) { choice = choose_fragment_for<ExecutionSpace, T>(exec, shape); });
  return choice;
}

#define PAGODA_INSTANTIATE(Space)                          \
  template const Backend<Space>& generic_backend<Space>(); \
  template FragmentChoice choose_fragment<Space>(const Space&, DType, const FragmentShape&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
