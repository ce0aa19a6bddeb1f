// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/kv_capacity.hpp>
#include <pagoda/kv_pool.hpp>

#include "src/pool/pool_state.hpp"

#include <numeric>

namespace pagoda {

template <class T, class ExecutionSpace>
KVPool<T, ExecutionSpace>::KVPool(const ExecutionSpace& exec, const PoolOptions& options, bool contiguous) {
  const std::string owner = contiguous ? "pagoda::ContiguousPool" : "pagoda::PagedPool";
  state_                  = std::make_unique<detail::PoolState<T, ExecutionSpace>>(
      exec, owner, detail::checked(owner, options, contiguous), contiguous);
}

template <class T, class ExecutionSpace>
KVPool<T, ExecutionSpace>::~KVPool() = default;

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::admit_rows(const ExecutionSpace& exec, const TensorRef& k, const TensorRef& v) {
  auto& s = *state_;
  s.check("::admit", k, v, k.extent[0]);
  detail::require(k.extent[0] <= s.options.max_seq_len, s.owner(), "::admit: k has ", k.extent[0],
                  " tokens; allowed: 0 to max_seq_len = ", s.options.max_seq_len);
  const int tokens = static_cast<int>(k.extent[0]);
  int slot         = -1;
  s.transact(exec, k, v, [&] {
    slot = s.table.admit(tokens);
    s.table.add_runs(slot, 0, tokens, 0, s.runs);
  });
  return slot;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::admit(const ExecutionSpace& exec, int num_tokens) {
  int slot = -1;
  state_->transact(exec, {}, {}, [&] { slot = state_->table.admit(num_tokens); });
  return slot;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::admit(const ExecutionSpace& exec, const Prompt& prompt) {
  auto& s  = *state_;
  int slot = -1;
  s.transact(exec, {}, {}, [&] { slot = s.table.admit(prompt, -1); });
  s.table.name_admitted(slot, prompt, s.table.seq_len(slot));
  return slot;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::admit_rows(const ExecutionSpace& exec, const Prompt& prompt, const TensorRef& k,
                                          const TensorRef& v) {
  auto& s = *state_;
  s.check("::admit", k, v, k.extent[0]);
  int slot = -1, cached = 0;
  s.transact(exec, k, v, [&] {
    slot              = s.table.admit(prompt, k.extent[0]);
    cached            = s.table.named_tokens(slot);
    const int written = s.table.seq_len(slot) - cached;
    s.table.add_runs(slot, cached, written, k.extent[0] - written, s.runs);
  });
  s.table.name_admitted(slot, prompt, cached);
  return slot;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::fork(const ExecutionSpace& exec, int slot, int num_tokens) {
  auto& s = *state_;
  s.table.check_slot("::fork: ", slot);
  const int tokens = num_tokens == -1 ? s.table.seq_len(slot) : num_tokens;
  int child        = -1;
  s.transact(exec, {}, {}, [&] { child = s.table.fork(slot, tokens, s.copies); });
  return child;
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::release(int slot) {
  state_->table.release(slot);
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::append_rows(const ExecutionSpace& exec, std::span<const int> slots,
                                            std::span<const int> counts, const TensorRef& k, const TensorRef& v) {
  auto& s = *state_;
  s.table.check_extend("::append: ", slots, counts);
  const auto tokens = counts.empty() ? static_cast<std::int64_t>(slots.size())
                                     : std::accumulate(counts.begin(), counts.end(), std::int64_t(0));
  s.check("::append", k, v, tokens);
  s.transact(exec, k, v, [&] {
    s.table.extend("::append: ", slots, counts, s.copies);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const int count = counts.empty() ? 1 : counts[i];
      s.table.add_runs(slots[i], s.table.seq_len(slots[i]) - count, count, row, s.runs);
      row += count;
    }
  });
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::reserve(const ExecutionSpace& exec, std::span<const int> slots,
                                        std::span<const int> counts) {
  state_->transact(exec, {}, {}, [&] { state_->table.extend("::reserve: ", slots, counts, state_->copies); });
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::write_rows(const ExecutionSpace& exec, const detail::SlotMapping& mapping,
                                           const TensorRef& k, const TensorRef& v) {
  state_->check("::write", k, v, mapping.count);
  detail::check_mapping(state_->owner().c_str(), "::write", mapping);
  detail::write_mapped<T>(state_->write_label, exec, mapping, state_->row_shape(),
                          {detail::caller_rows(k), detail::caller_rows(v)}, state_->cache());
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::match(const Prompt& prompt) const {
  return state_->table.match(prompt);
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::name(int slot, std::span<const int> token_ids) {
  state_->table.name(slot, token_ids);
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::name(int slot, std::span<const std::uint64_t> page_hashes) {
  state_->table.name(slot, page_hashes);
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::named_tokens(int slot) const {
  state_->table.check_slot("::named_tokens: ", slot);
  return state_->table.named_tokens(slot);
}

template <class T, class ExecutionSpace>
bool KVPool<T, ExecutionSpace>::is_indexed(int page) const {
  state_->check_page("::is_indexed: ", page);
  return state_->table.is_indexed(page);
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::evict(int num_pages) {
  return state_->table.evict(num_pages);
}

template <class T, class ExecutionSpace>
PrefixStats KVPool<T, ExecutionSpace>::prefix_stats() const {
  PrefixStats stats   = state_->table.prefix_stats();
  stats.saved_bytes   = stats.hit_tokens * bytes_per_token();
  stats.indexed_pages = state_->table.indexed_pages();
  return stats;
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::reset_prefix_stats() {
  state_->table.reset_prefix_stats();
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::prepare(const ExecutionSpace& exec, const DecodeOptions<memory_space>& options) {
  auto bounded = options;
  detail::require(
      !options.programmatic_launch, state_->owner(),
      "::prepare: programmatic_launch is true; allowed: false. The kernel before the decode is the pool's "
      "own, and such a decode would read the lengths, sequence ids and pages that this kernel writes before "
      "they are written. Instead call kv, launch a kernel of yours, and decode with a plan of yours");
  if (bounded.max_batch == 0) bounded.max_batch = state_->options.max_sequences;
  if (bounded.max_seq_len == 0) bounded.max_seq_len = state_->options.max_seq_len;
  detail::require(bounded.entries.max_entries == 0, state_->owner(), "::prepare: entries.max_entries is ",
                  bounded.entries.max_entries,
                  "; allowed: 0. A pool makes its own lists; for yours, make a plan from the cache that kv returns");
  const char* const plain = state_->always_plain(bounded);
  if (plain) {
    state_->plan = std::make_unique<const Plan<ExecutionSpace>>(make_plan(exec, bounded));
    state_->shared.reset();
  } else {
    const int max_sequences = state_->options.max_sequences;
    state_->shared = std::make_unique<detail::SharedDecode<ExecutionSpace>>(exec, cache(max_sequences), bounded,
                                                                            state_->options.prefix, max_sequences);
    state_->plan.reset();
  }
  state_->plain_report               = {};
  state_->plain_report.plain_because = plain;
}

template <class T, class ExecutionSpace>
const Plan<ExecutionSpace>& KVPool<T, ExecutionSpace>::plan() const {
  if (state_->shared) return state_->shared->plain_plan();
  detail::require(state_->plan != nullptr, state_->owner(),
                  ": there is no plan to decode with; give num_q_heads in PoolOptions, or call prepare first");
  return *state_->plan;
}

template <class T, class ExecutionSpace>
const PrefixReport& KVPool<T, ExecutionSpace>::prefix_report() const {
  return state_->shared ? state_->shared->report() : state_->plain_report;
}

template <class T, class ExecutionSpace>
const DeviceRates& KVPool<T, ExecutionSpace>::rates() const {
  return state_->shares("::rates").rates();
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::set_rates(const DeviceRates& rates) {
  state_->shares("::set_rates").set_rates(rates);
}

template <class T, class ExecutionSpace>
BatchPages KVPool<T, ExecutionSpace>::batch_pages(std::span<const int> slots, int query_len) const {
  state_->check_slots("::batch_pages: ", slots);
  detail::require(query_len >= 0, state_->owner(), "::batch_pages: query_len is ", query_len, "; allowed: 0 or more");
  return state_->host_tables.of(state_->table, slots, query_len);
}

template <class T, class ExecutionSpace>
void KVPool<T, ExecutionSpace>::decode_erased(const ExecutionSpace& exec, std::span<const int> slots,
                                              const TensorRef& q, const TensorRef& out, const TensorRef& lse) {
  // Everything is checked before the first launch.
  const auto& with = plan();
  state_->check_slots("::decode: ", slots);
  const detail::Problem problem{cache(static_cast<int>(slots.size())), q, out, lse};
  detail::check_decode(with, problem);
  state_->select(exec, slots, state_->for_decode);
  if (!state_->shared || slots.empty()) return detail::decode(exec, with, problem);
  state_->shared->plan(state_->table, state_->host_tables, slots, static_cast<int>(q.extent[0] / slots.size()));
  state_->shared->decode(exec, problem);
}

template <class T, class ExecutionSpace>
const PoolOptions& KVPool<T, ExecutionSpace>::options() const {
  return state_->options;
}

template <class T, class ExecutionSpace>
bool KVPool<T, ExecutionSpace>::holds(int slot) const {
  return state_->table.holds(slot);
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::seq_len(int slot) const {
  state_->table.check_slot("::seq_len: ", slot);
  return state_->table.seq_len(slot);
}

template <class T, class ExecutionSpace>
std::span<const int> KVPool<T, ExecutionSpace>::block_table(int slot) const {
  state_->table.check_slot("::block_table: ", slot);
  return state_->table.pages(slot);
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::page_ref_count(int page) const {
  state_->check_page("::page_ref_count: ", page);
  return state_->table.ref_count(page);
}

template <class T, class ExecutionSpace>
std::vector<std::int64_t> KVPool<T, ExecutionSpace>::slot_mapping(int slot, int first, int count) const {
  const int length = seq_len(slot);
  detail::require(first >= 0 && count >= 0 && std::int64_t(first) + count <= length, state_->owner(),
                  "::slot_mapping: tokens ", first, " .. ", std::int64_t(first) + count, " of slot ", slot,
                  " are asked for; allowed: 0 .. seq_len = ", length);
  std::vector<std::int64_t> positions(count);
  for (int i = 0; i < count; ++i) positions[i] = state_->table.position(slot, first + i);
  return positions;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::free_slots() const {
  return state_->table.free_slots();
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::page_size() const {
  return state_->options.page_size;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::num_pages() const {
  return state_->options.num_pages;
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::free_pages() const {
  return state_->table.free_pages();
}

template <class T, class ExecutionSpace>
int KVPool<T, ExecutionSpace>::evictable_pages() const {
  return state_->table.evictable_pages();
}

template <class T, class ExecutionSpace>
bool KVPool<T, ExecutionSpace>::can_admit(int num_tokens) const {
  return state_->table.can_admit(num_tokens);
}

template <class T, class ExecutionSpace>
bool KVPool<T, ExecutionSpace>::can_admit(const Prompt& prompt) const {
  return state_->table.can_admit(prompt);
}

template <class T, class ExecutionSpace>
std::int64_t KVPool<T, ExecutionSpace>::tokens_held() const {
  return state_->table.tokens_held();
}

template <class T, class ExecutionSpace>
std::int64_t KVPool<T, ExecutionSpace>::tokens_stored() const {
  return state_->table.tokens_stored();
}

template <class T, class ExecutionSpace>
std::int64_t KVPool<T, ExecutionSpace>::bytes_per_token() const {
  const PoolOptions& o = state_->options;
  return pagoda::bytes_per_token(o.num_kv_heads, o.head_dim, dtype_v<T>, o.head_dim_v);
}

template <class T, class ExecutionSpace>
std::int64_t KVPool<T, ExecutionSpace>::bytes_allocated() const {
  return bytes_per_token() * page_size() * num_pages();
}

template <class T, class ExecutionSpace>
std::int64_t KVPool<T, ExecutionSpace>::bytes_reserved() const {
  return bytes_per_token() * page_size() * state_->table.used_pages();
}

template <class T, class ExecutionSpace>
std::int64_t KVPool<T, ExecutionSpace>::bytes_used() const {
  return bytes_per_token() * tokens_stored();
}

template <class T, class ExecutionSpace>
double KVPool<T, ExecutionSpace>::waste() const {
  const std::int64_t reserved = bytes_reserved();
  return reserved > 0 ? 1.0 - static_cast<double>(bytes_used()) / static_cast<double>(reserved) : 0.0;
}

// ---- the two layouts

namespace detail {

template <class T, class ExecutionSpace>
void write_mapped(const std::string& label, const ExecutionSpace& exec, const SlotMapping& mapping,
                  const RowShape& shape, const RowPair& from, const RowPair& to) {
  write_rows<T>(label, exec, MappedRuns{mapping.data, mapping.stride}, static_cast<int>(mapping.count), shape, from,
                to);
}

template <template <class, class> class KV>
inline constexpr bool is_contiguous = false;
template <>
inline constexpr bool is_contiguous<ContiguousKV> = true;

}  // namespace detail

template <template <class, class> class KV, class T, class ExecutionSpace>
LayoutPool<KV, T, ExecutionSpace>::LayoutPool(const ExecutionSpace& exec, const PoolOptions& options)
    : KVPool<T, ExecutionSpace>(exec, options, detail::is_contiguous<KV>) {
  if (options.num_q_heads > 0) this->prepare(exec, {.num_q_heads = options.num_q_heads});
}

template <template <class, class> class KV, class T, class ExecutionSpace>
auto LayoutPool<KV, T, ExecutionSpace>::kv(const ExecutionSpace& exec, std::span<const int> slots) -> Layout {
  this->state_->check_slots("::kv: ", slots);
  this->state_->select(exec, slots, this->state_->for_kv);
  return layout(this->state_->for_kv, static_cast<int>(slots.size()));
}

template <template <class, class> class KV, class T, class ExecutionSpace>
auto LayoutPool<KV, T, ExecutionSpace>::layout(const detail::SlotSelection<ExecutionSpace>& selection, int batch) const
    -> Layout {
  const auto& s  = *this->state_;
  const auto ids = Kokkos::subview(selection.ids, Kokkos::pair<int, int>(0, batch));
  if constexpr (detail::is_contiguous<KV>) {
    return Layout(s.k, s.v, s.seq_lens, s.options.order, ids);
  } else {
    return Layout(s.k, s.v, s.block_table, s.seq_lens, s.options.order, ids);
  }
}

template <template <class, class> class KV, class T, class ExecutionSpace>
CacheRef LayoutPool<KV, T, ExecutionSpace>::cache(int batch) const {
  return layout(this->state_->for_decode, batch).ref();
}

template <template <class, class> class KV, class T, class ExecutionSpace>
Plan<ExecutionSpace> LayoutPool<KV, T, ExecutionSpace>::make_plan(const ExecutionSpace& exec,
                                                                  const DecodeOptions<memory_space>& options) const {
  return pagoda::plan(exec, layout(this->state_->for_decode, this->options().max_sequences), options);
}

}  // namespace pagoda
