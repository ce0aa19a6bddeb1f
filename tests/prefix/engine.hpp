// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda.hpp>
#include <pagoda/reference.hpp>

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace pagoda::test {

/// A small serving engine: sequences that begin with pages of others, grow and end. Its tables are on the host, with
/// copies in the space's memory.
template <class Space, class T>
class Engine {
 public:
  using Memory                       = typename Space::memory_space;
  using Rows                         = Kokkos::View<T***, Kokkos::LayoutRight, Memory>;
  using Lse                          = Kokkos::View<float**, Kokkos::LayoutRight, Memory>;
  static constexpr int max_sequences = 24;
  static constexpr int q_heads = 4, kv_heads = 2, dim = 64, max_tokens = 3 * max_sequences;
  const int page_size, max_pages, num_pages;

  /// pages_each: most pages of a sequence. pages: in all; 0: pages_each for all sequences.
  explicit Engine(unsigned seed, int page_tokens = 16, int pages_each = 20, int pages = 0, const Space& exec = Space())
      : page_size(page_tokens),
        max_pages(pages_each),
        num_pages(pages > 0 ? pages : max_sequences * pages_each),
        exec_(exec),
        random_(seed),
        cache_(make_paged_cache<T>(
            exec_, {.num_pages = num_pages, .page_size = page_size, .num_kv_heads = kv_heads, .head_dim = dim})) {
    rows_.resize(max_sequences), lengths_.assign(max_sequences, 0), refs_.assign(num_pages, 0);
    k_ = fill(cache_.k), v_ = fill(cache_.v), q_ = fill(q), host_rows_.resize(max_sequences);
  }

  /// A sequence in a free slot: `shared` pages of the sequence in slot `of`, and `own` tokens after these.
  int admit(int of, int shared, int own) {
    const int slot = static_cast<int>(std::find(lengths_.begin(), lengths_.end(), 0) - lengths_.begin());
    auto& row      = rows_[slot];
    row.assign(rows_[of].begin(), rows_[of].begin() + shared);
    for (const int page : row) ++refs_[page];
    lengths_[slot] = shared * page_size;
    batch.push_back(slot);
    grow(slot, own);
    return slot;
  }
  /// Takes tokens from a sequence; their pages stay in its row.
  void shorten(int slot, int tokens) { lengths_[slot] -= tokens; }
  void finish(int slot) {
    for (const int page : rows_[slot]) --refs_[page];
    rows_[slot].clear(), lengths_[slot] = 0;
    std::erase(batch, slot);
  }
  void grow(int slot, int tokens) {
    lengths_[slot] += tokens;
    while (static_cast<int>(rows_[slot].size()) * page_size < lengths_[slot]) {
      int page = up_to(num_pages - 1);
      while (refs_[page] > 0) page = (page + 1) % num_pages;
      ++refs_[page];
      rows_[slot].push_back(page);
    }
    host_rows_[slot] = rows_[slot].data();
  }
  /// Five sequences: four share six pages, and two pairs of them three more.
  void two_branches() {
    admit(0, 0, 6 * page_size + 5);
    const int left = admit(batch[0], 6, 3 * page_size + 1);
    admit(left, 9, 7);
    const int right = admit(batch[0], 6, 3 * page_size + 2);
    admit(right, 9, 20);
  }
  /// A step of a server at random: some sequences end, some begin with pages of others, all grow.
  void step(int new_tokens) {
    for (const int slot : std::vector(batch))
      if (up_to(19) == 0 || lengths_[slot] + new_tokens > max_pages * page_size) finish(slot);
    while (up_to(2) > 0 && static_cast<int>(batch.size()) < max_sequences) {
      const int of     = batch.empty() ? 0 : batch[up_to(static_cast<int>(batch.size()) - 1)];
      const int shared = batch.empty() || up_to(4) == 0 ? 0 : std::min(lengths_[of] / page_size, max_pages - 3);
      admit(of, up_to(3) > 0 ? shared : up_to(shared), 1 + up_to(2 * page_size - 1));
    }
    for (const int slot : batch) grow(slot, new_tokens);
  }

  /// The tables as they are now. Query counts: query_len each, or those in cu_seqlens if it is not empty.
  BatchPages tables() const {
    BatchPages p;
    p.batch = static_cast<int>(batch.size()), p.num_sequences = max_sequences, p.page_size = page_size;
    p.seq_lens = lengths_.data(), p.sequence_ids = batch.data(), p.query_len = query_len;
    p.cu_seqlens_q = cu_seqlens.empty() ? nullptr : cu_seqlens.data();
    p.page_rows    = host_rows_.data();
    return p;
  }
  int tokens() const { return tables().query_tokens(); }
  /// The cache with copies of the tables as they are now.
  PagedKV<T, Memory> kv() {
    const Kokkos::View<int**, Kokkos::LayoutRight, Memory> pages("pages", max_sequences, max_pages);
    const Kokkos::View<int*, Memory> lengths("lengths", max_sequences), ids("ids", batch.size());
    const PagedKV<T, Memory> all{cache_.k, cache_.v, pages, lengths, cache_.order, ids};
    refresh(all);
    return all;
  }
  /// Copies the tables as they are now to those of a cache that kv() returned, for a batch of the same size.
  void refresh(const PagedKV<T, Memory>& kv) const {
    std::vector<int> table(static_cast<std::size_t>(max_sequences) * max_pages, -1);
    for (int s = 0; s < max_sequences; ++s)
      std::copy(rows_[s].begin(), rows_[s].end(), table.begin() + std::ptrdiff_t(s) * max_pages);
    const auto to = [](const int* data, std::size_t n) {
      return Kokkos::View<int*, Memory>(const_cast<int*>(data), n);
    };
    copy(to(kv.block_table.data(), table.size()), table);
    copy(to(kv.seq_lens.data(), lengths_.size()), lengths_), copy(to(kv.sequence_ids.data(), batch.size()), batch);
  }
  Kokkos::View<int*, Memory> device_cu_seqlens() const {
    const Kokkos::View<int*, Memory> cu("cu_seqlens", max_sequences + 1);
    std::vector<int> all = cu_seqlens;
    all.resize(max_sequences + 1, all.back());
    copy(cu, all);
    return cu;
  }
  /// The first rows of q for this batch.
  Rows queries() const { return Rows(q.data(), tokens(), q_heads, dim); }
  Rows outputs() const {
    const Rows out("out", max_tokens, q_heads, dim);
    Kokkos::deep_copy(out, T(std::numeric_limits<float>::quiet_NaN()));
    return out;
  }
  static Rows first(const Rows& rows, int n) { return Rows(rows.data(), n, q_heads, dim); }

  /// Compares every row with attention in float64. leeway: factor of the tolerances.
  void expect_right(const Rows& device_out, const Lse& device_lse, const std::vector<float>& sinks = {},
                    double leeway = 1) {
    const auto out     = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), device_out);
    const auto lse     = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), device_lse);
    const BatchPages p = tables();
    for (int b = 0; b < p.batch; ++b)
      for (int i = 0; i < p.num_queries(b); ++i)
        for (int h = 0; h < q_heads; ++h) {
          const int t = p.query_begin(b) + i;
          std::vector<double> query(dim);
          for (int d = 0; d < dim; ++d) query[d] = static_cast<double>(q_(t * q_heads + h, d));
          const auto read = [&](const auto& from) {
            return [&, b, h](int token, std::span<double> row) {
              const int at = (p.row(b)[token / page_size] * page_size + token % page_size) * kv_heads;
              for (int d = 0; d < dim; ++d) row[d] = static_cast<double>(from(at + h / (q_heads / kv_heads), d));
            };
          };
          reference::RowOptions options;
          options.softmax_scale = 1 / std::sqrt(double(dim));
          if (!sinks.empty()) options.sink = sinks[h];
          const int length = p.seq_len(b);
          const auto right =
              reference::attend(query, length, length - p.num_queries(b) + i, dim, read(k_), read(v_), options);
          double error = 0;
          for (int d = 0; d < dim; ++d) error += std::pow(static_cast<double>(out(t, h, d)) - right.out[d], 2);
          const double allowed = leeway * reference::tolerance(right, dtype_v<T>, dtype_v<T>);
          ASSERT_LE(std::sqrt(error), allowed * right.norm) << "query token " << t << ", head " << h;
          ASSERT_NEAR(lse(t, h), right.lse, leeway * reference::tolerance(right, dtype_v<T>, DType::fp32))
              << "query token " << t << ", head " << h;
        }
  }

  int up_to(int n) { return static_cast<int>(random_() % (static_cast<unsigned>(n) + 1)); }
  int length(int slot) const { return lengths_[slot]; }
  const Space& exec() const { return exec_; }

  Rows q{"q", max_tokens, q_heads, dim};
  std::vector<int> batch;  ///< slots
  int query_len = 1;
  std::vector<int> cu_seqlens;

 private:
  using HostRows = Kokkos::View<T**, Kokkos::LayoutRight, Kokkos::HostSpace>;

  static void copy(const Kokkos::View<int*, Memory>& to, const std::vector<int>& from) {
    Kokkos::deep_copy(Kokkos::subview(to, std::pair<std::size_t, std::size_t>(0, from.size())),
                      Kokkos::View<const int*, Kokkos::HostSpace>(from.data(), from.size()));
  }
  /// Fills a dense View with N(0, 1) and returns its rows on the host.
  template <class View>
  HostRows fill(const View& view) {
    const HostRows host("host", view.size() / dim, dim);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < view.size(); ++i) host.data()[i] = T(normal(random_));
    const Kokkos::View<T*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>> all(const_cast<T*>(view.data()),
                                                                                view.size());
    Kokkos::deep_copy(all, Kokkos::View<const T*, Kokkos::HostSpace>(host.data(), view.size()));
    return host;
  }

  Space exec_;
  std::mt19937 random_;
  decltype(make_paged_cache<T>(Space(), PagedCacheShape{})) cache_;
  std::vector<std::vector<int>> rows_;
  std::vector<const int*> host_rows_;
  std::vector<int> lengths_, refs_;
  HostRows k_, v_, q_;
};

}  // namespace pagoda::test
