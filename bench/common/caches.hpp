// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/arena.hpp"
#include "bench/common/case.hpp"
#include "bench/stream/portable_read.hpp"

#include <pagoda/error.hpp>
#include <pagoda/kv_layout.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagoda::bench {

/// The caches that a case uses in turns, in one pool of pages: keys of all pages, then values. The pages of a cache are
/// scattered over the whole pool; no two caches share a page. A contiguous sequence is one page.
template <class ExecutionSpace, class T>
class Caches {
 public:
  using memory_space = typename ExecutionSpace::memory_space;
  using Pages        = Kokkos::View<const T****, Kokkos::LayoutStride, memory_space, Kokkos::MemoryUnmanaged>;
  using Table        = Kokkos::View<int**, Kokkos::LayoutRight, memory_space>;
  using Paged        = PagedKV<T, memory_space>;
  using Contiguous   = ContiguousKV<T, memory_space>;

  /// Elements of the arena that this number of caches takes.
  static std::size_t elements(const Case& c, int caches) {
    return static_cast<std::size_t>(c.pages()) * caches * c.page_elements() * (c.latent() ? 1 : 2) + c.offset;
  }

  /// How the case is kept cold in an arena, given the bytes of the machine's last-level cache. Throws if not one cache
  /// fits.
  static Rotation rotation_in(const Arena<ExecutionSpace>& arena, const Case& c, std::size_t last_level) {
    const std::size_t bytes = elements(c, 1) * sizeof(T), room = arena.limit();
    const Rotation r = rotation(bytes, last_level, room);
    pagoda::detail::require(r.caches > 0, "one cache takes ", static_cast<double>(bytes) * 1e-9, " GB; there are ",
                            static_cast<double>(room) * 1e-9);
    return r;
  }

  /// `memory`: elements(c, count) of them; null: only the shape is needed.
  Caches(const ExecutionSpace& exec, const Case& c, const T* memory, int count)
      : case_(c), num_pages_(static_cast<std::size_t>(c.pages()) * count) {
    constexpr int per_element = dims_per_element_v<T>;
    const std::size_t page = c.page_elements(), token = c.token_elements();
    const std::size_t row = c.row_elements();
    const auto pages      = [&](const T* at, int head_dim) {
      return Pages(at, Kokkos::LayoutStride(num_pages_, page, c.page_tokens(), c.by_head ? row : token, c.num_kv_heads,
                                            c.by_head ? c.page_tokens() * row : row,
                                            has_row_format_v<T> ? row : head_dim / per_element, 1));
    };
    value_offset_ = c.latent() ? 0 : num_pages_ * page;
    k_            = pages(memory ? memory + c.offset : nullptr, c.head_dim);
    v_            = pages(memory ? memory + c.offset + value_offset_ : nullptr, c.head_dim_v);

    Kokkos::View<int*, memory_space> lengths("Pagoda::bench::lengths", c.lengths.size());
    copy(exec, lengths, c.lengths);
    lengths_ = lengths;
    if constexpr (block_dims_v<T> > 0) {
      make_block_scales(exec, memory != nullptr);
    } else if constexpr (is_quantized_v<T> && !has_row_format_v<T>) {
      make_scales(exec, memory != nullptr);
    }
    if (c.paged()) {
      deal_pages(count);
      for (int i = 0; i < count; ++i) {
        Table table(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::table"), c.lengths.size(),
                    columns());
        copy(exec, Kokkos::View<int*, memory_space>(table.data(), table.size()), tables_[i]);
        paged_.push_back(scaled(Paged(k_, v_, table, lengths_), 0, num_pages_));
      }
    } else {
      const auto batch = static_cast<std::size_t>(c.batch());
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const std::pair<std::size_t, std::size_t> own(i * batch, (i + 1) * batch);
        const auto part = [&](const Pages& all) {
          return Kokkos::subview(all, own, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
        };
        contiguous_.push_back(scaled(Contiguous(part(k_), part(v_), lengths_), own.first, batch));
      }
    }
    exec.fence("Pagoda::bench::caches");
  }

  /// Calls f with cache i in its layout.
  template <class F>
  auto with(int i, F&& f) const {
    return case_.paged() ? f(paged_[i]) : f(contiguous_[i]);
  }

  /// Cache i, which must have this layout.
  template <class Layout>
  const Layout& as(int i) const {
    if constexpr (std::is_same_v<Layout, Paged>) {
      return paged_[static_cast<std::size_t>(i)];
    } else {
      return contiguous_[static_cast<std::size_t>(i)];
    }
  }

  /// The whole pages of cache i in the order of its block table: keys, then values of each page. Paged caches only.
  std::vector<portable::Run> page_runs(int i) const {
    std::vector<portable::Run> runs;
    const std::size_t page = case_.page_elements();
    for (const int id : tables_[static_cast<std::size_t>(i)]) {
      if (id < 0) continue;
      const auto add = [&](const T* at) { runs.push_back(std::as_bytes(std::span(at, page))); };
      add(k_.data() + page * static_cast<std::size_t>(id));
      if (!case_.latent()) add(v_.data() + page * static_cast<std::size_t>(id));
    }
    return runs;
  }

  /// The key and the value of a token of cache 0, computed from their position in the arena.
  void read_key(int b, int token, int kv_head, std::span<double> row) const {
    const Place at = place(b, token, kv_head);
    read(at.row * case_.row_elements(), case_.scaled_by_token() ? at.scale : 0,
         at.scale * blocks_of(dtype_v<T>, case_.head_dim), row);
  }
  void read_value(int b, int token, int kv_head, std::span<double> row) const {
    const Place at = place(b, token, kv_head);
    read(value_offset_ + at.row * case_.row_elements(), (case_.scaled_by_token() ? at.scale : 0) + scales_of_keys(),
         blocks_of_keys() + at.scale * blocks_of(dtype_v<T>, case_.head_dim_v), row);
  }

 private:
  /// Index of a token of cache 0 among the rows, and among the scales, of all pages. Scales are ordered by token.
  struct Place {
    std::size_t row, scale;
  };
  Place place(int b, int token, int kv_head) const {
    const int in_page        = token % case_.page_tokens();
    const std::size_t column = static_cast<std::size_t>(token / case_.page_tokens());
    const auto page = case_.paged() ? static_cast<std::size_t>(tables_[0][b * columns() + column]) : std::size_t(b);
    const std::size_t by_token = (page * case_.page_tokens() + in_page) * case_.num_kv_heads + kv_head;
    return {case_.by_head ? (page * case_.num_kv_heads + kv_head) * case_.page_tokens() + in_page : by_token, by_token};
  }
  void read(std::size_t element, std::size_t scale, [[maybe_unused]] std::size_t blocks, std::span<double> row) const {
    element += case_.offset;
    if constexpr (has_row_format_v<T>) {
      std::vector<T> stored(case_.row_elements());
      for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = arena_element<T>(element + i);
      for (std::size_t d = 0; d < row.size(); ++d)
        row[d] = static_cast<double>(pagoda::detail::number_in_row(stored.data(), static_cast<int>(d)));
    } else {
      for (std::size_t d = 0; d < row.size(); ++d) row[d] = number(element, scale, blocks, static_cast<int>(d));
    }
  }
  /// Dim d of the row that begins at an element.
  double number(std::size_t element, std::size_t scale, [[maybe_unused]] std::size_t blocks, int d) const {
    const T stored = arena_element<T>(element + d / dims_per_element_v<T>);
    if constexpr (block_dims_v<T> > 0) {
      return static_cast<double>(tensor_scale<T>) *
             static_cast<float>(arena_block_scale<T>(blocks + d / block_dims_v<T>)) *
             pagoda::detail::stored_dim(&stored, d % dims_per_element_v<T>, 1);
    } else if constexpr (is_quantized_v<T>) {
      return static_cast<double>(arena_scale<T>(scale)) *
             static_cast<double>(pagoda::detail::stored_dim(&stored, d % dims_per_element_v<T>, 1));
    } else {
      return static_cast<double>(stored);
    }
  }

  std::size_t scales_of_keys() const {
    return case_.scaled_by_token() ? num_pages_ * case_.page_tokens() * case_.num_kv_heads : 1;
  }
  /// Keys' scales, then values'. Without a cache one scale is enough.
  void make_scales(const ExecutionSpace& exec, bool cache) {
    const std::size_t n = cache ? scales_of_keys() : 1;
    scales_             = Scales(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::scales"), 2 * n);
    Kokkos::parallel_for("Pagoda::bench::fill_scales",
                         Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::size_t>>(exec, 0, 2 * n),
                         FillScales<T, memory_space>{scales_});
  }
  /// Block scales are ordered by token, like float scales.
  std::size_t rows() const { return num_pages_ * case_.page_tokens() * case_.num_kv_heads; }
  std::size_t blocks_of_keys() const { return rows() * blocks_of(dtype_v<T>, case_.head_dim); }
  /// Keys' block scales, then values', and the per-tensor float.
  void make_block_scales(const ExecutionSpace& exec, bool cache) {
    const std::size_t n = cache ? blocks_of_keys() + rows() * blocks_of(dtype_v<T>, case_.head_dim_v) : 1;
    blocks_ = Blocks(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::block_scales"), n);
    Kokkos::parallel_for("Pagoda::bench::fill_block_scales",
                         Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::size_t>>(exec, 0, n),
                         FillBlockScales<T, memory_space>{blocks_});
    scales_ = Scales(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::scales"), 1);
    Kokkos::deep_copy(exec, scales_, tensor_scale<T>);
  }
  /// The layout with the scales of its pages.
  template <class KV>
  KV scaled(const KV& kv, std::size_t first_page, std::size_t pages) const {
    if constexpr (block_dims_v<T> > 0) {
      const auto view = [&](std::size_t first, int head_dim) {
        const std::size_t tokens = case_.page_tokens(), heads = case_.num_kv_heads,
                          each = blocks_of(dtype_v<T>, head_dim);
        return Kokkos::View<const block_scale_t<T>****, Kokkos::LayoutRight, memory_space>(
            blocks_.data() + first + first_page * tokens * heads * each, pages, tokens, heads, each);
      };
      const auto k = view(0, case_.head_dim), v = view(blocks_.size() > 1 ? blocks_of_keys() : 0, case_.head_dim_v);
      if constexpr (facts_of(dtype_v<T>).scales == ScaleUse::required) {
        const Kokkos::View<const float, memory_space> tensor(scales_.data());
        return kv.with_scales(block_scales(k, v, tensor, tensor));
      } else {
        return kv.with_scales(block_scales(k, v));
      }
    } else if constexpr (is_quantized_v<T> && !has_row_format_v<T>) {
      const std::size_t each = scales_.size() / 2, heads = case_.num_kv_heads;
      if (each == 1) {
        const Kokkos::View<const float, memory_space> k(scales_.data()), v(scales_.data() + 1);
        return kv.with_scales(per_tensor_scales(k, v));
      }
      const std::size_t tokens = case_.page_tokens();
      const auto view          = [&](const float* all) {
        return Kokkos::View<const float***, Kokkos::LayoutRight, memory_space>(all + first_page * tokens * heads, pages,
                                                                                        tokens, heads);
      };
      return kv.with_scales(per_token_and_head_scales(view(scales_.data()), view(scales_.data() + each)));
    } else {
      return kv;
    }
  }
  std::size_t columns() const { return (case_.longest() + case_.page_size - 1) / case_.page_size; }

  template <class View>
  static void copy(const ExecutionSpace& exec, const View& to, const std::vector<int>& from) {
    Kokkos::deep_copy(exec, to,
                      Kokkos::View<const int*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(from.data(), from.size()));
  }

  /// All pages of the pool in random order, divided among the sequences of all caches; rows are padded with -1.
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
  using Scales = Kokkos::View<float*, memory_space>;
  Scales scales_;
  using Blocks = Kokkos::View<std::conditional_t<(block_dims_v<T> > 0), block_scale_t<T>, char>*, memory_space>;
  Blocks blocks_;
  Kokkos::View<const int*, memory_space> lengths_;
  std::vector<std::vector<int>> tables_;
  std::vector<Paged> paged_;
  std::vector<Contiguous> contiguous_;
};

}  // namespace pagoda::bench
