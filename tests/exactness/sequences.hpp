// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace pagoda::test {

/// Bytes of the rows of out and lse of one batch entry.
using RowBytes = std::vector<std::byte>;

struct HeadShape {
  int num_q_heads, num_kv_heads, head_dim;
  int query_len = 1;
};

/// Random sequences in one cache, of which batches select some in any order. Queries belong to the sequence.
template <class Space, class T>
class Sequences {
 public:
  using Memory = typename Space::memory_space;
  template <class DataType>
  using View  = Kokkos::View<DataType, Kokkos::LayoutRight, Memory>;
  using Cache = PagedKV<T, Memory>;

  Sequences(const HeadShape& shape, const std::vector<int>& lengths, unsigned seed)
      : shape_(shape), lengths_(lengths), random_(seed) {
    longest_          = *std::max_element(lengths.begin(), lengths.end());
    const int columns = pages_of(longest_);
    int pages         = 0;
    for (const int length : lengths) pages += pages_of(length);
    k_        = View<T****>("k", pages, page_size, shape.num_kv_heads, shape.head_dim);
    v_        = View<T****>("v", pages, page_size, shape.num_kv_heads, shape.head_dim);
    q_        = View<T***>("q", lengths.size() * shape.query_len, shape.num_q_heads, shape.head_dim);
    table_    = View<int**>("block_table", lengths.size(), columns);
    seq_lens_ = to_device(lengths);
    fill_queries();
    fill_pages();
  }

  const std::vector<int>& lengths() const { return lengths_; }
  int longest() const { return longest_; }

  /// Moves every page to another place.
  void shuffle_pages() { fill_pages(); }

  /// A decode of these sequences. The views live as long as this object.
  struct Batch {
    std::vector<int> ids;
    View<int*> device_ids;
    View<T***> q, out;
    View<float**> lse;
  };
  Batch batch(const std::vector<int>& ids) const {
    const int n = static_cast<int>(ids.size()), tokens = n * shape_.query_len;
    Batch b{ids, to_device(ids), View<T***>("q", tokens, shape_.num_q_heads, shape_.head_dim),
            View<T***>("out", tokens, shape_.num_q_heads, shape_.head_dim),
            View<float**>("lse", tokens, shape_.num_q_heads)};
    const auto from       = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), q_);
    const auto to         = Kokkos::create_mirror_view(b.q);
    const std::size_t row = static_cast<std::size_t>(shape_.query_len) * shape_.num_q_heads * shape_.head_dim;
    for (int i = 0; i < n; ++i) std::copy_n(from.data() + ids[i] * row, row, to.data() + i * row);
    Kokkos::deep_copy(b.q, to);
    return b;
  }
  Cache cache(const Batch& b) const { return Cache(k_, v_, table_, seq_lens_, KVOrder::NHD, b.device_ids); }
  DecodeOptions<Memory> options() const {
    return {.num_q_heads = shape_.num_q_heads, .max_query_len = shape_.query_len};
  }

  void decode(const Space& exec, const Plan<Space>& plan, const Batch& b) const {
    pagoda::decode(exec, plan, b.q, cache(b), b.out, b.lse);
  }
  void clear(const Space& exec, const Batch& b) const {
    Kokkos::deep_copy(exec, b.out, T(-7));
    Kokkos::deep_copy(exec, b.lse, -7.0f);
  }
  /// The results of each batch entry.
  std::vector<RowBytes> results(const Space& exec, const Batch& b) const {
    exec.fence();
    const auto out      = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), b.out);
    const auto lse      = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), b.lse);
    const std::size_t n = b.ids.size(), out_bytes = out.size() * sizeof(T) / n,
                      lse_bytes = lse.size() * sizeof(float) / n;
    std::vector<RowBytes> rows(n, RowBytes(out_bytes + lse_bytes));
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(rows[i].data(), reinterpret_cast<const std::byte*>(out.data()) + i * out_bytes, out_bytes);
      std::memcpy(rows[i].data() + out_bytes, reinterpret_cast<const std::byte*>(lse.data()) + i * lse_bytes,
                  lse_bytes);
    }
    return rows;
  }

  /// One to `most` sequences in random order; one may occur several times.
  std::vector<int> random_ids(int most) {
    std::vector<int> ids(1 + random_() % static_cast<unsigned>(most));
    for (int& id : ids) id = static_cast<int>(random_() % lengths_.size());
    return ids;
  }
  int random_below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

 private:
  static constexpr int page_size = 16;

  static View<int*> to_device(const std::vector<int>& values) {
    const View<int*> there("ints", values.size());
    Kokkos::deep_copy(there, Kokkos::View<const int*, Kokkos::HostSpace>(values.data(), values.size()));
    return there;
  }
  static int pages_of(int tokens) { return (tokens + page_size - 1) / page_size; }
  /// Numbers from -size to size.
  static void fill(T* to, std::size_t n, float size, unsigned seed) {
    for (std::size_t i = 0; i < n; ++i) {
      seed  = seed * 1664525u + 1013904223u;
      to[i] = T(size * (static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f));
    }
  }
  void fill_queries() {
    const auto q = Kokkos::create_mirror_view(q_);
    fill(q.data(), q.size(), 2, 7);
    Kokkos::deep_copy(q_, q);
  }
  /// Writes the pages of all sequences to random places. The tokens stay the same.
  void fill_pages() {
    std::vector<int> places(k_.extent(0));
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random_);
    const auto k = Kokkos::create_mirror_view(k_), v = Kokkos::create_mirror_view(v_);
    const auto table       = Kokkos::create_mirror_view(table_);
    const std::size_t size = k_.size() / k_.extent(0);
    unsigned page          = 0;
    for (std::size_t s = 0; s < lengths_.size(); ++s)
      for (int i = 0; i < pages_of(lengths_[s]); ++i, ++page) {
        table(s, i) = places[page];
        // Some keys are larger, so that the running maximum rises in the middle of rows.
        fill(k.data() + places[page] * size, size, page % 5 == 0 ? 3 : 1, 2 * page);
        fill(v.data() + places[page] * size, size, 1, 2 * page + 1);
      }
    Kokkos::deep_copy(k_, k);
    Kokkos::deep_copy(v_, v);
    Kokkos::deep_copy(table_, table);
  }

  HeadShape shape_;
  std::vector<int> lengths_;
  std::mt19937 random_;
  int longest_ = 0;
  View<T****> k_, v_;
  View<T***> q_;
  View<int**> table_;
  View<int*> seq_lens_;
};

}  // namespace pagoda::test
