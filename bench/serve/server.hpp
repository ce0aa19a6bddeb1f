// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/contents.hpp"
#include "bench/serve/progress.hpp"
#include "bench/serve/results.hpp"
#include "bench/serve/scheduler.hpp"
#include "bench/serve/workload.hpp"

#include <pagoda/kv_pool.hpp>
#include <pagoda/reference.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pagoda::serve {

/// Scatters the free pages of a fresh pool, as long use does: sequences grow page by page in turns and are released in
/// random order, twice. Writes no keys or values.
template <class Pool>
void scatter_pages(const typename Pool::execution_space& exec, Pool& pool, std::uint64_t seed) {
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<int> slots;
    while (pool.free_slots() > 0) slots.push_back(pool.admit(exec, 0));
    const auto shuffle = [&] {
      for (std::size_t i = slots.size(); i > 1; --i) std::swap(slots[i - 1], slots[mix(++seed) % i]);
    };
    const std::vector<int> counts(slots.size(), pool.page_size());
    const int columns = pool.options().max_seq_len / pool.page_size();
    for (int i = 0; i < columns && pool.free_pages() > 0; ++i) {
      shuffle();
      const auto n = std::min(slots.size(), static_cast<std::size_t>(pool.free_pages()));
      pool.reserve(exec, std::span(slots).first(n), std::span(counts).first(n));
    }
    shuffle();
    for (const int slot : slots) pool.release(slot);
  }
}

/// A pool that serves the requests of a workload, with the workload's keys, values and queries.
template <class Pool>
class Server {
 public:
  using ExecutionSpace = typename Pool::execution_space;
  using MemorySpace    = typename ExecutionSpace::memory_space;
  using T              = typename Pool::value_type;
  using Rows           = Kokkos::View<T***, Kokkos::LayoutRight, MemorySpace>;

  Server(const ExecutionSpace& exec, const Workload<MemorySpace>& workload, const Capacity& capacity, int max_len)
      : exec_(exec),
        workload_(workload),
        scheduler_(workload.requests(), capacity),
        pool_(exec, pool_options(workload.model(), capacity, max_len)) {
    const Model& m = workload.model();
    const int most = capacity.max_sequences, chunk = std::min(max_len, 2048);
    const auto rows = [&](int n, int heads) {
      return Rows(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::serve::rows"), n, heads, m.head_dim);
    };
    prompt_k_ = rows(chunk, m.num_kv_heads), prompt_v_ = rows(chunk, m.num_kv_heads);
    new_k_ = rows(most, m.num_kv_heads), new_v_ = rows(most, m.num_kv_heads);
    q_ = rows(most, m.num_q_heads), out_ = rows(most, m.num_q_heads);
    tokens_ = Kokkos::View<Token*, MemorySpace>(
        Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::serve::tokens"), most);
    exec.fence("Pagoda::serve: buffers");
  }

  /// Admits every request that fits and writes its prompt.
  void admit(Progress* progress = nullptr) {
    for (const Live& s : scheduler_.admit()) {
      const int slot          = pool_.admit(exec_, 0);
      slot_of_[s.number]      = slot;
      const Contents contents = workload_.on_device(s.number);
      for (int first = 0; first < s.length; first += prompt_k_.extent_int(0)) {
        const int count = std::min(prompt_k_.extent_int(0), s.length - first);
        const Rows k = first_rows(prompt_k_, count), v = first_rows(prompt_v_, count);
        fill_rows(exec_, Part::key, PromptTokens{contents, first}, k);
        fill_rows(exec_, Part::value, PromptTokens{contents, first}, v);
        pool_.append(exec_, std::span(&slot, 1), std::span(&count, 1), k, v);
        if (progress) {
          exec_.fence("Pagoda::serve: a part of a prompt");
          progress->add(count);
        }
      }
    }
    slots_.clear();
    for (const Live& s : scheduler_.live()) slots_.push_back(slot_of_.at(s.number));
    exec_.fence("Pagoda::serve: prompts");
  }

  /// Appends a token to every sequence.
  void append() {
    scheduler_.grow();
    list_newest_tokens();
    const int n  = static_cast<int>(slots_.size());
    const Rows k = first_rows(new_k_, n), v = first_rows(new_v_, n);
    const ListedTokens<MemorySpace> newest{tokens_};
    fill_rows(exec_, Part::key, newest, k);
    fill_rows(exec_, Part::value, newest, v);
    exec_.fence("Pagoda::serve: new tokens");
    const Kokkos::Timer timer;
    pool_.append(exec_, slots_, k, v);
    exec_.fence("Pagoda::serve: append");
    append_seconds_ += timer.seconds();
  }

  /// A query for the newest token of every sequence.
  void make_queries() {
    list_newest_tokens();
    fill_rows(exec_, Part::query, ListedTokens<MemorySpace>{tokens_}, first_rows(q_, static_cast<int>(slots_.size())));
    exec_.fence("Pagoda::serve: queries");
  }

  /// Seconds of one decode of all sequences, of `repeats` in a row.
  double decode(int repeats) {
    const int n  = static_cast<int>(slots_.size());
    const Rows q = first_rows(q_, n), out = first_rows(out_, n);
    exec_.fence("Pagoda::serve: before decode");
    const Kokkos::Timer timer;
    for (int i = 0; i < repeats; ++i) pool_.decode(exec_, slots_, q, out);
    exec_.fence("Pagoda::serve: decode");
    return timer.seconds() / repeats;
  }

  /// Compares rows of the last decode, chosen at random, with attention in float64 over recomputed keys and values.
  void check(int rows, std::uint64_t seed, Check& result) const {
    const Model& m = workload_.model();
    const int n    = static_cast<int>(slots_.size());
    if (rows == 0 || n == 0) return;
    const auto out = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), first_rows(out_, n));
    std::vector<double> errors(static_cast<std::size_t>(rows));
    using Host = Kokkos::DefaultHostExecutionSpace;
    Kokkos::parallel_for("Pagoda::serve::check", Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>>(0, rows),
                         [&](const int i) {
                           const std::uint64_t x = mix(mix(seed) + static_cast<std::uint64_t>(i));
                           const int b           = static_cast<int>(x % static_cast<std::uint64_t>(n));
                           const int head = static_cast<int>((x >> 32) % static_cast<std::uint64_t>(m.num_q_heads));
                           errors[i]      = error_of(scheduler_.live()[b], head, &out(b, head, 0));
                         });
    Host().fence("Pagoda::serve::check");
    for (const double error : errors) result.add(error);
  }

  /// Releases the complete sequences.
  void retire() {
    for (const Live& s : scheduler_.retire()) {
      pool_.release(slot_of_.at(s.number));
      slot_of_.erase(s.number);
    }
  }

  Pool& pool() { return pool_; }
  const Scheduler& scheduler() const { return scheduler_; }
  double append_seconds() const { return append_seconds_; }

 private:
  static PoolOptions pool_options(const Model& m, const Capacity& capacity, int max_len) {
    PoolOptions o;
    o.num_kv_heads  = m.num_kv_heads;
    o.head_dim      = m.head_dim;
    o.max_seq_len   = max_len;
    o.max_sequences = capacity.max_sequences;
    o.page_size     = capacity.page_size;
    o.num_pages     = static_cast<int>(capacity.pages);
    o.num_q_heads   = m.num_q_heads;
    return o;
  }

  static Rows first_rows(const Rows& rows, int n) { return Rows(rows.data(), n, rows.extent(1), rows.extent(2)); }

  void list_newest_tokens() {
    std::vector<Token> list;
    for (const Live& s : scheduler_.live()) list.push_back({workload_.on_device(s.number), s.length - 1});
    Kokkos::deep_copy(exec_, Kokkos::subview(tokens_, std::pair<std::size_t, std::size_t>(0, list.size())),
                      Kokkos::View<const Token*, Kokkos::HostSpace>(list.data(), list.size()));
    exec_.fence("Pagoda::serve: tokens listed");
  }

  /// Error of one row of the output, in tolerances.
  double error_of(const Live& s, int head, const T* out) const {
    const Model& m          = workload_.model();
    const Contents contents = workload_.on_host(s.number);
    const auto read         = [&](Part part, int h) {
      return [&contents, part, h](int token, std::span<double> row) {
        const std::uint64_t key = contents.row(part, token, h);
        for (std::size_t d = 0; d < row.size(); ++d) row[d] = T(normal(key, static_cast<std::uint32_t>(d)));
      };
    };
    const int kv_head = head / (m.num_q_heads / m.num_kv_heads), position = s.length - 1;
    std::vector<double> q(m.head_dim);
    read(Part::query, head)(position, q);
    reference::RowOptions options;
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(m.head_dim));
    const auto row        = reference::attend(q, s.length, position, m.head_dim, read(Part::key, kv_head),
                                              read(Part::value, kv_head), options);
    double error          = 0;
    for (int d = 0; d < m.head_dim; ++d) error += std::pow(static_cast<double>(out[d]) - row.out[d], 2);
    return std::sqrt(error) / row.norm / reference::tolerance(row, dtype_v<T>, dtype_v<T>, dtype_v<accumulator_t<T>>);
  }

  ExecutionSpace exec_;
  const Workload<MemorySpace>& workload_;
  Scheduler scheduler_;
  Pool pool_;
  std::unordered_map<std::int64_t, int> slot_of_;  ///< by number of request
  std::vector<int> slots_;                         ///< of the live sequences, in the scheduler's order
  Rows prompt_k_, prompt_v_, new_k_, new_v_, q_, out_;
  Kokkos::View<Token*, MemorySpace> tokens_;
  double append_seconds_ = 0;
};

}  // namespace pagoda::serve
