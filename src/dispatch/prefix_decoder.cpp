// SPDX-License-Identifier: Apache-2.0
#include "src/dispatch/prefix_state.hpp"

#include <pagoda/entries.hpp>
#include <pagoda/error.hpp>
#include <pagoda/kv_capacity.hpp>

#include "backends/cuda/rates.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/list_rates.hpp"
#include "src/plan/backend_choice.hpp"
#include "src/plan/cache_rows.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

namespace pagoda {

namespace detail {

namespace {

constexpr const char* plan_name = "pagoda::PrefixDecoder::plan";

/// Memory that a decode reads for each token and kv head, with the scales of tokens.
double bytes_of_token(const CacheRef& kv) {
  const DType type = kv.k.type;
  if (has_row_format(type)) return row_format_of(type).bytes;
  const int key = kv.head_dim(), value = values_in_keys(kv) ? 0 : kv.head_dim_v();
  double bytes = double(key + value) * size_of(type) / dims_per_element(type);
  for (const ScaleRef& scale : {kv.k_scale, kv.v_scale})
    if (scale.data && scale.stride[1] != 0) bytes += sizeof(float);
  if (kv.k_scale.blocks) bytes += blocks_of(type, key);  // of one byte
  if (kv.v_scale.blocks) bytes += blocks_of(type, value);
  return bytes;
}

void check_bounds(const PrefixOptions& o) {
  const char* const who = "pagoda::PrefixDecoder: ";
  constexpr int most    = 1 << 20;  // graph_key has 21 bits for each number
  require(o.max_entries >= 0 && o.max_entries <= most, who, "max_entries is ", o.max_entries,
          "; allowed: 0 (4 for each query token) to 2^20");
  require(o.max_states >= 0, who, "max_states is ", o.max_states, "; allowed: 0 (4 for each query token) or more");
  const DType state_type = o.state_type.value_or(DType::fp32);
  require(state_type == DType::fp32 || state_type == DType::fp16 || state_type == DType::bf16, who, "state_type is ",
          name_of(state_type), "; allowed: fp32, fp16 or bf16");
}

PrefixBounds bounds_of(const PrefixOptions& o, const Schedule& plain) {
  PrefixBounds b{};
  b.max_batch        = plain.bounds.max_batch;
  b.max_query_tokens = plain.bounds.max_query_tokens;
  const auto four    = [&](int given) {
    return given > 0 ? given
                        : std::max(static_cast<int>(std::min<std::int64_t>(4 * std::int64_t(b.max_query_tokens),
                                                                           std::int64_t(1) << 20)),
                                   16);
  };
  b.max_entries = four(o.max_entries);
  b.max_states  = four(o.max_states);
  return b;
}

TensorRef dense(void* data, DType type, std::int64_t rows, std::int64_t heads, std::int64_t dims) {
  TensorRef t;
  t.data = data, t.type = type, t.rank = dims > 0 ? 3 : 2;
  t.extent = {rows, heads, dims, 0};
  t.stride =
      dims > 0 ? std::array<std::int64_t, 4>{heads * dims, dims, 1, 0} : std::array<std::int64_t, 4>{heads, 1, 0, 0};
  return t;
}

}  // namespace

template <class ExecutionSpace>
PrefixState<ExecutionSpace>::PrefixState(const ExecutionSpace& exec, const CacheRef& kv,
                                         const DecodeOptions<MemorySpace>& options, const PrefixOptions& prefix)
    : page_size(kv.paged ? kv.page_size() : 0), state_type(prefix.state_type) {
  check_bounds(prefix);
  require(options.entries.max_entries == 0, "pagoda::PrefixDecoder: options.entries.max_entries is ",
          options.entries.max_entries,
          "; allowed: 0. The decoder makes its own lists, whose bounds are in PrefixOptions");
  require(!options.checked,
          "pagoda::PrefixDecoder: checked is true; allowed: false (pagoda::check examines the tables)");
  require(options.exactness == Exactness::fast, "pagoda::PrefixDecoder: exactness is ", name_of(options.exactness),
          "; allowed: fast (sequences that share pages are decoded together)");
  plain             = std::make_unique<Plan<ExecutionSpace>>(make_plan(exec, kv, options, {}));
  bounds            = bounds_of(prefix, plain->schedule());
  const Schedule& s = plain->schedule();
  heads             = {s.shape.num_q_heads, s.shape.num_kv_heads, s.shape.head_dim,
                       s.shape.head_dim_v,  bytes_of_token(kv),   size_of(state_type_of(usual_row_type(s.shape.kv_type)))};
  if (!kv.paged) {
    always_plain = "the cache is contiguous";
  } else if (s.shape.kv_type == DType::fp64) {
    always_plain = "partial states have at most 32 bits, and the cache holds fp64";
  } else if (options.window_left >= 0) {
    always_plain = "a sliding window hides different tokens from different sequences";
  } else {
    make_list_plans(exec, kv, options);
  }
  if (always_plain.empty()) allocate(exec);
  std::vector<const Schedule*> lists;
  lists.reserve(parts.size());
  for (const PartPlan<ExecutionSpace>& part : parts) lists.push_back(&part.plan.schedule());
  set_rates(prefix.rates ? *prefix.rates : list_rates(exec, s, lists, page_size, heads.state_bytes));
}

/// All plans share a workspace, as their decodes run one after the other. A part without a kernel of its own is left
/// out.
template <class ExecutionSpace>
void PrefixState<ExecutionSpace>::make_list_plans(const ExecutionSpace& exec, const CacheRef& kv,
                                                  const DecodeOptions<MemorySpace>& options) {
  DecodeOptions<MemorySpace> o = options;
  // A sequence's only query token sees all of its tokens.
  if (options.max_query_len == 1) o.causal = false;
  o.cu_seqlens_q        = {};
  o.max_query_len       = 1;
  o.max_query_tokens    = bounds.max_query_tokens;
  o.programmatic_launch = false;  // the kernel before may be one of ours
  o.entries.max_entries = bounds.padded_entries();
  o.entries.max_listed  = static_cast<int>(
      std::min<std::int64_t>(std::int64_t(bounds.max_states) + bounds.max_query_tokens, std::int64_t(1) << 30));
  const int group = plain->schedule().shape.group();
  for (const int rows : gpu_rows) {
    // On a host, the last part has the entries of a sequence's own query tokens.
    const int queries = on_host && rows < max_rows ? options.max_query_len : std::max(rows / group, 1);
    if (!parts.empty() && (queries >= parts.back().max_queries || rows < group)) continue;
    o.entries.max_queries = queries;
    try {
      o.entries.chains = false;
      Schedule s       = make_schedule(exec, kv, o);
      o.entries.chains = has_chains(s, page_size);
      if (o.entries.chains) s = make_schedule(exec, kv, o);
      if (!parts.empty() && !is_faster_part(s, parts.back().plan.schedule(), page_size)) continue;
      const auto shared   = parts.empty() ? typename Plan<ExecutionSpace>::Workspace{} : parts[0].plan.workspace();
      const bool fits     = s.workspace.bytes <= shared.extent(0);
      const bool few_rows = !parts.empty() && has_few_rows_kernel(s, page_size);
      const bool mixed    = few_rows && has_mixed_kernel(parts.back().plan.schedule(), page_size);
      parts.push_back({queries, few_rows, mixed, o.entries.chains, mixed_few_queries(s, page_size),
                       make_plan(exec, kv, o, fits ? shared : typename Plan<ExecutionSpace>::Workspace{})});
    } catch (const InvalidArgument& refused) {  // the plain plan was accepted: lists are what is refused
      if (parts.empty()) always_plain = refused.what();
      return;
    }
  }
}

/// Leaves out parts that are not worth a launch of their own.
template <class ExecutionSpace>
std::array<bool, max_list_parts> PrefixState<ExecutionSpace>::parts_in_use(const std::vector<Entry>& entries) const {
  std::array<bool, max_list_parts> in_use{true};
  for (std::size_t part = 1; part < parts.size(); ++part) {
    int count = 0;
    for (const Entry& e : entries) count += e.chain == 0 && e.num_queries <= parts[part].max_queries ? 1 : 0;
    in_use[part] = !parts[part].few_rows || count == static_cast<int>(entries.size()) ||
                   are_worth_a_launch(count, heads.num_kv_heads, parts[part].mixed);
  }
  return in_use;
}

template <class ExecutionSpace>
void PrefixState<ExecutionSpace>::allocate(const ExecutionSpace& exec) {
  const ListLayout layout(bounds);
  list   = decltype(list)(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::PrefixDecoder::list"),
                        layout.bytes);
  states = decltype(states)(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::PrefixDecoder::states"),
                            StateLayout(bounds, heads, state_type_of(DType::fp32)).bytes);
  for (int i = 0; i < num_staged; ++i) {
    staged.emplace_back("Pagoda::PrefixDecoder::staging", layout.bytes);
    copied[i] = std::make_unique<Event>(exec);
  }
}

template <class ExecutionSpace>
void PrefixState<ExecutionSpace>::set_rates(const DeviceRates& new_rates) {
  for (const RowTile& tile : new_rates.tiles)
    require(tile.rows <= max_rows, "pagoda::PrefixDecoder: a tile of the rates has ", tile.rows,
            " rows; allowed: up to ", max_rows);
  int chain_rows = 0;
  for (const PartPlan<ExecutionSpace>& part : parts)
    if (part.chains) chain_rows = part.max_queries * plain->schedule().shape.group();
  require(new_rates.chain_rows <= chain_rows, "pagoda::PrefixDecoder: chain_rows of the rates is ",
          new_rates.chain_rows, "; allowed: 0 (no chains) to ", chain_rows, ", what the decoder's kernels carry out");
  planner = std::make_unique<PrefixPlanner>(heads, new_rates);
  rates   = new_rates;
}

/// Writes the planner's list to the staging memory, part by part. Returns why it cannot be decoded, or null.
template <class ExecutionSpace>
const char* PrefixState<ExecutionSpace>::stage() {
  const EntryList& l = planner->list();
  if (static_cast<int>(l.entries.size()) > bounds.max_entries) return "the list has more than max_entries entries";
  if (l.num_states() > bounds.max_states) return "the list has more than max_states partial states";
  if (std::exchange(in_flight[slot], false)) copied[slot]->synchronize();
  const ListLayout layout(bounds);
  std::byte* const to = staged[slot].data();
  std::memcpy(to, l.queries.data(), l.queries.size() * sizeof(EntryQuery));
  std::memcpy(to + layout.state_begin, l.state_begin.data(), l.state_begin.size() * sizeof(int));
  Entry* end = reinterpret_cast<Entry*>(to + layout.entries);
  const Entry empty{0, 0, 0, 0, 0, -1};
  next.entries      = {};
  const auto in_use = parts_in_use(l.entries);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (!in_use[part]) continue;
    int fewer = 0;  // query tokens of the entries that belong to later parts
    for (std::size_t later = part + 1; later < parts.size(); ++later)
      if (in_use[later]) fewer = std::max(fewer, parts[later].max_queries);
    Entry* const first = end;
    for (const Entry& e : l.entries) {
      const bool here = e.num_queries > fewer && e.num_queries <= parts[part].max_queries;
      if (e.chain == 0 ? !here : !parts[part].chains) continue;
      *end++ = e;
      next.has_few_rows[part] |= e.chain == 0 && e.num_queries <= parts[part].few_queries;
      next.has_chains |= e.chain != 0;
    }
    const int padded = end == first ? 0 : padded_length(static_cast<int>(end - first));
    std::fill(end, first + padded, empty);
    end = first + padded, next.entries[part] = padded;
  }
  next.queries = static_cast<int>(l.queries.size());
  next.states  = l.num_states();
  next.packed  = true;
  return nullptr;
}

template <class ExecutionSpace>
bool PrefixState<ExecutionSpace>::plan(const BatchPages& tables) {
  using Clock      = std::chrono::steady_clock;
  const auto begin = Clock::now();
  require(tables.batch >= 0 && tables.batch <= bounds.max_batch, plan_name, ": batch is ", tables.batch,
          "; allowed: 0 to the decoder's max_batch = ", bounds.max_batch);
  require(!tables.paged() || tables.page_size == page_size, plan_name, ": page_size is ", tables.page_size,
          "; allowed: that of the decoder's cache, ", page_size);
  const std::int64_t tokens =
      tables.cu_seqlens_q ? tables.cu_seqlens_q[tables.batch] : std::int64_t(tables.batch) * tables.query_len;
  require(tokens <= bounds.max_query_tokens, plan_name, ": there are ", tokens,
          " query tokens; allowed: up to the decoder's max_query_tokens = ", bounds.max_query_tokens);
  bool new_plan = false;
  if (!always_plain.empty()) {
    report = {false, always_plain.c_str(), 0, 0, 0, 0, 0};
  } else if (!planner->holds(tables, plan_name) || !planner->same_batch(tables)) {
    const bool pays = planner->plan(tables, plan_name);
    next            = {};
    pending = new_plan   = true;  // also if stage() throws: the plan before does not hold
    const char* const no = pays                ? stage()
                           : planner->shares() ? "reading shared pages once is predicted to take longer"
                                               : "no page is shared";
    const bool shares    = planner->shares();
    report               = {true,
                            no,
                            static_cast<int>(planner->list().entries.size()),
                            planner->list().num_states(),
                            0,
              shares ? planner->plain_us() : 0,
              shares ? planner->packed_us() : 0};
  }
  report.new_plan    = new_plan;
  report.planning_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  return pending;
}

template <class ExecutionSpace>
void PrefixState<ExecutionSpace>::install(const ExecutionSpace& exec) {
  if (!pending) return;
  if (next.packed) copy(exec);
  now     = next;
  pending = false;
}

/// Copies the staged list to the device. If that fails, the next install() tries again.
template <class ExecutionSpace>
void PrefixState<ExecutionSpace>::copy(const ExecutionSpace& exec) {
  const std::size_t bytes = ListLayout(bounds).entries + std::size_t(next.all_entries()) * sizeof(Entry);
  using Unmanaged         = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  Kokkos::deep_copy(exec, Kokkos::View<std::byte*, MemorySpace, Unmanaged>(list.data(), bytes),
                    Kokkos::View<const std::byte*, StagingSpace, Unmanaged>(staged[slot].data(), bytes));
  copied[slot]->record(exec);
  in_flight[slot] = true;
  slot            = (slot + 1) % num_staged;
}

template <class ExecutionSpace>
EntriesRef PrefixState<ExecutionSpace>::entries(int first, int count) const {
  const ListLayout layout(bounds);
  EntriesRef e;
  e.entries         = reinterpret_cast<const Entry*>(list.data() + layout.entries) + first;
  e.queries         = reinterpret_cast<const EntryQuery*>(list.data());
  e.state_begin     = reinterpret_cast<const int*>(list.data() + layout.state_begin);
  e.num_entries     = count;
  e.num_queries     = now.queries;
  e.num_state_begin = now.queries + 1;
  return e;
}

template <class ExecutionSpace>
void PrefixState<ExecutionSpace>::decode(const ExecutionSpace& exec, const CacheRef& kv, const TensorRef& q,
                                         const TensorRef& out, const TensorRef& lse) const {
  Problem p{kv, q, out, lse, {}, {}, {}};
  if (!now.packed) return detail::decode(exec, *plain, p);
  const char* const who = "pagoda::PrefixDecoder::decode: ";
  require(q.extent[0] == now.queries, who, "q has ", q.extent[0],
          " query tokens; allowed: those of the installed plan, ", now.queries);
  require(kv.paged && kv.page_size() == page_size, who, "the cache has pages of ", kv.paged ? kv.page_size() : 0,
          " tokens; allowed: as the decoder was made for, ", page_size);
  // The bound on states, not their number: a captured decode may read a longer list.
  const DType type = state_type_of(out.type);
  const StateLayout layout(bounds, heads, type);
  p.state_out = dense(states.data(), type, bounds.max_states, heads.num_q_heads, heads.head_dim_v);
  p.state_lse = dense(states.data() + layout.lse, DType::fp32, bounds.max_states, heads.num_q_heads, 0);
  int first   = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (now.entries[part] == 0) continue;
    p.entries              = entries(first, now.entries[part]);
    p.entries.has_few_rows = now.has_few_rows[part], p.entries.has_chains = now.has_chains;
    if (!parts[part].chains) {
      decode_entries(exec, parts[part].plan, p);
    } else if (!try_decode_entries(exec, parts[part].plan, p)) {
      // No other backend carries out chains. A plain decode is always right.
      return detail::decode(exec, *plain, {kv, q, out, lse, {}, {}, {}});
    }
    first += now.entries[part];
  }
  if (now.states > 0) merge_entries(exec, p, parts[0].plan.schedule().options.sinks);
}

}  // namespace detail

template <class ExecutionSpace>
PrefixDecoder<ExecutionSpace>::PrefixDecoder(const ExecutionSpace& exec, const CacheRef& kv,
                                             const DecodeOptions<memory_space>& options, const PrefixOptions& prefix)
    : state_(std::make_unique<detail::PrefixState<ExecutionSpace>>(exec, kv, options, prefix)) {}

template <class ExecutionSpace>
PrefixDecoder<ExecutionSpace>::~PrefixDecoder() = default;
template <class ExecutionSpace>
PrefixDecoder<ExecutionSpace>::PrefixDecoder(PrefixDecoder&&) noexcept = default;
template <class ExecutionSpace>
PrefixDecoder<ExecutionSpace>& PrefixDecoder<ExecutionSpace>::operator=(PrefixDecoder&&) noexcept = default;

template <class ExecutionSpace>
bool PrefixDecoder<ExecutionSpace>::plan(const BatchPages& tables) {
  return state_->plan(tables);
}

template <class ExecutionSpace>
bool PrefixDecoder<ExecutionSpace>::install(const ExecutionSpace& exec) {
  state_->install(exec);
  return packed();
}

template <class ExecutionSpace>
const PrefixReport& PrefixDecoder<ExecutionSpace>::report() const {
  return state_->report;
}

template <class ExecutionSpace>
void PrefixDecoder<ExecutionSpace>::decode_erased(const ExecutionSpace& exec, const CacheRef& kv, const TensorRef& q,
                                                  const TensorRef& out, const TensorRef& lse) {
  state_->decode(exec, kv, q, out, lse);
}

template <class ExecutionSpace>
bool PrefixDecoder<ExecutionSpace>::packed() const {
  return state_->now.packed;
}

template <class ExecutionSpace>
std::uint64_t PrefixDecoder<ExecutionSpace>::graph_key() const {
  const detail::ListShape& now = state_->now;
  if (!now.packed) return 0;
  std::uint64_t key = std::uint64_t(now.queries) << 1 | (now.states > 0);  // whether states are merged
  for (const int entries : now.entries) {                                  // five significant bits, and their place
    const int shift = std::max(static_cast<int>(std::bit_width(static_cast<unsigned>(entries))) - 5, 0);
    key             = key << 10 | std::uint64_t(shift << 5 | entries >> shift);
  }
  for (const bool few : now.has_few_rows) key = key << 1 | std::uint64_t(few);  // lists without take another kernel
  return key << 1 | std::uint64_t(now.has_chains);
}

template <class ExecutionSpace>
const Plan<ExecutionSpace>& PrefixDecoder<ExecutionSpace>::plain_plan() const {
  return *state_->plain;
}

template <class ExecutionSpace>
const Plan<ExecutionSpace>& PrefixDecoder<ExecutionSpace>::list_plan() const {
  detail::require(!state_->parts.empty(),
                  "pagoda::PrefixDecoder::list_plan: there is no plan for lists: ", state_->always_plain);
  return state_->parts[0].plan;
}

template <class ExecutionSpace>
const DeviceRates& PrefixDecoder<ExecutionSpace>::rates() const {
  return state_->rates;
}

template <class ExecutionSpace>
void PrefixDecoder<ExecutionSpace>::set_rates(const DeviceRates& rates) {
  state_->set_rates(rates);
}

#define PAGODA_INSTANTIATE(Space) template class PAGODA_EXPORT PrefixDecoder<Space>;
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda
