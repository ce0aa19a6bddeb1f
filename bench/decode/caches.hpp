// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/decode/arena.hpp"
#include "bench/decode/cases.hpp"

#include <pagoda/kv_layout.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace pagoda::bench {

/// The caches that a case takes in turns, in one pool of pages: keys of all pages, then values. The pages of each cache
/// lie anywhere in the whole pool, and no two caches share one. A contiguous sequence is a page.
template <class ExecutionSpace, class T>
class Caches {
 public:
  using memory_space = typename ExecutionSpace::memory_space;
  using Pages        = Kokkos::View<const T****, Kokkos::LayoutStride, memory_space, Kokkos::MemoryUnmanaged>;
  using Table        = Kokkos::View<int**, Kokkos::LayoutRight, memory_space>;
  using Paged        = PagedKV<T, memory_space>;
  using Contiguous   = ContiguousKV<T, memory_space>;

  /// Elements of the arena that so many caches take.
  static std::size_t elements(const Case& c, int caches) {
    return static_cast<std::size_t>(c.pages()) * caches * c.page_elements() * (c.latent() ? 1 : 2);
  }

  /// `memory`: elements(c, count) of them; null for the shape alone.
  Caches(const ExecutionSpace& exec, const Case& c, const T* memory, int count)
      : case_(c), num_pages_(static_cast<std::size_t>(c.pages()) * count) {
    const std::size_t page = c.page_elements(), row = static_cast<std::size_t>(c.head_dim) * c.num_kv_heads;
    const auto pages = [&](const T* at, int head_dim) {
      return Pages(
          at, Kokkos::LayoutStride(num_pages_, page, c.page_tokens(), row, c.num_kv_heads, c.head_dim, head_dim, 1));
    };
    value_offset_ = c.latent() ? 0 : num_pages_ * page;
    k_            = pages(memory, c.head_dim);
    v_            = pages(memory ? memory + value_offset_ : nullptr, c.head_dim_v);

    Kokkos::View<int*, memory_space> lengths("Pagoda::bench::lengths", c.lengths.size());
    copy(exec, lengths, c.lengths);
    lengths_ = lengths;
    if (c.paged()) {
      deal_pages(count);
      for (int i = 0; i < count; ++i) {
        Table table(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::table"), c.lengths.size(),
                    columns());
        copy(exec, Kokkos::View<int*, memory_space>(table.data(), table.size()), tables_[i]);
        paged_.emplace_back(k_, v_, table, lengths_);
      }
    } else {
      const auto batch = static_cast<std::size_t>(c.batch());
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const std::pair<std::size_t, std::size_t> own(i * batch, (i + 1) * batch);
        const auto part = [&](const Pages& all) {
          return Kokkos::subview(all, own, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
        };
        contiguous_.emplace_back(part(k_), part(v_), lengths_);
      }
    }
    exec.fence("Pagoda::bench::caches");
  }

  /// Calls f with cache i, of whichever layout.
  template <class F>
  auto with(int i, F&& f) const {
    return case_.paged() ? f(paged_[i]) : f(contiguous_[i]);
  }

  /// Where in the arena the key (or value) of a token of cache 0 begins.
  std::size_t key_at(int b, int token, int kv_head) const {
    const int in_page        = token % case_.page_tokens();
    const std::size_t column = static_cast<std::size_t>(token / case_.page_tokens());
    const auto page = case_.paged() ? static_cast<std::size_t>(tables_[0][b * columns() + column]) : std::size_t(b);
    return page * case_.page_elements() +
           (static_cast<std::size_t>(in_page) * case_.num_kv_heads + kv_head) * case_.head_dim;
  }
  std::size_t value_at(int b, int token, int kv_head) const { return value_offset_ + key_at(b, token, kv_head); }

 private:
  std::size_t columns() const { return (case_.longest() + case_.page_size - 1) / case_.page_size; }

  template <class View>
  static void copy(const ExecutionSpace& exec, const View& to, const std::vector<int>& from) {
    Kokkos::deep_copy(exec, to,
                      Kokkos::View<const int*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(from.data(), from.size()));
  }

  /// All pages of the pool in random order, dealt out to the sequences of all caches; rows are padded with -1.
  void deal_pages(int count) {
    std::vector<int> order(num_pages_);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(20240901);
    // Not std::shuffle: its result differs between standard libraries.
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    std::size_t next = 0;
    for (int i = 0; i < count; ++i) {
      std::vector<int> table(case_.lengths.size() * columns(), -1);
      for (std::size_t b = 0; b < case_.lengths.size(); ++b) {
        const int held = (case_.lengths[b] + case_.page_size - 1) / case_.page_size;
        for (int p = 0; p < held; ++p) table[b * columns() + p] = order[next++];
      }
      tables_.push_back(std::move(table));
    }
  }

  Case case_;
  std::size_t num_pages_, value_offset_ = 0;
  Pages k_, v_;
  Kokkos::View<const int*, memory_space> lengths_;
  std::vector<std::vector<int>> tables_;
  std::vector<Paged> paged_;
  std::vector<Contiguous> contiguous_;
};

}  // namespace pagoda::bench
