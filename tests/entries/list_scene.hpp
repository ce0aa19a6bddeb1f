// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/scene.hpp"

#include <pagoda/entries.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace pagoda::test {

/// Sequences of a decode of a list, on the host.
struct Sequences {
  int page_size = 16;
  std::vector<std::vector<int>> rows{};  ///< page numbers of each sequence: 0, 1 ...; sequences may share pages
  std::vector<int> lengths{};            ///< tokens of each sequence
  bool contiguous = false;               ///< each sequence has its own memory, and no pages

  int num_pages() const {
    int n = 0;
    for (const auto& row : rows)
      for (const int page : row) n = std::max(n, page + 1);
    return n;
  }
  /// Where the sample holds a token: its batch entry and the token there. Pages follow each other in entry 0.
  std::pair<int, int> at(int sequence, int token) const {
    if (contiguous) return {sequence, token};
    return {0, rows[sequence][token / page_size] * page_size + token % page_size};
  }
  /// The first `count` tokens of a sequence, seen from a position.
  Sight sight(int sequence, int count, int position) const {
    Sight s{{}, position};
    for (int t = 0; t < count; ++t) s.tokens.push_back(at(sequence, t));
    return s;
  }
  /// The shape of a sample that holds all tokens and `query_tokens` queries.
  Shape shape(Shape options, int query_tokens) const {
    options.lengths = contiguous ? lengths : std::vector{std::max(num_pages(), 1) * page_size};
    options.query_lens.assign(options.lengths.size(), 0);
    options.query_lens[0] = query_tokens;
    return options;
  }
  /// An entry for all tokens of each sequence. query_lens: query tokens of each; rows of q are in order.
  EntryList plain_list(const std::vector<int>& query_lens) const {
    EntryList list;
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      list.entries.push_back({s, 0, -1, static_cast<int>(list.queries.size()), query_lens[s], -1});
      for (int i = 0; i < query_lens[s]; ++i)
        list.queries.push_back({static_cast<int>(list.queries.size()), s, query_lens[s] - i});
      list.max_queries = std::max(list.max_queries, query_lens[s]);
    }
    return list;
  }
};

/// What a test chooses besides the list. Decodes of fp64 have states of fp64, whatever a test chooses: any other type
/// would round more than their tolerance allows.
struct ListOptions {
  DType state_type     = DType::fp32;
  DType state_lse_type = DType::fp32;
  Arrangement states{};
  int spare_entries = 0;  ///< the bounds of the plan exceed the list by these
};

/// A device copy of a host vector.
template <class Space, class X>
Kokkos::View<const X*, typename Space::memory_space> on_device(const Space& exec, const std::vector<X>& values) {
  Kokkos::View<X*, typename Space::memory_space> there(
      Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "test list"), values.size());
  Kokkos::deep_copy(exec, there,
                    Kokkos::View<const X*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(values.data(), values.size()));
  exec.fence();
  return there;
}

template <class Space>
DeviceEntries<typename Space::memory_space> on_device(const Space& exec, const EntryList& list) {
  return {on_device(exec, list.entries), on_device(exec, list.queries), on_device(exec, list.state_begin),
          on_device(exec, list.masks)};
}

inline EntryBounds bounds_of(const EntryList& list, int spare_entries = 0) {
  int listed = 0;
  for (const Entry& e : list.entries) listed += e.num_queries;
  return {static_cast<int>(list.entries.size()) + 1 + spare_entries, std::max(list.max_queries, 1),
          std::max(listed, 1) + spare_entries};
}

template <int Rank, class Space>
TensorRef ref_of(const Array<Space>& array) {
  return with_type(array.type(), [&]<class X>(X*) { return tensor_ref(array.template view<X, Rank>()); });
}

/// A sample whose sight is set, in memory of a space, and the decode of a list. What no query row sees is NaN (Scene).
/// The layout of the placement is that of the sequences: dense or CSR page lists, or none.
template <class Space, class T>
class ListScene {
 public:
  using Memory = typename Space::memory_space;

  ListScene(const Sample<T>& sample, const Sequences& sequences, const Placement& placement = {.layout = Layout::paged},
            const Space& exec = Space())
      : scene_(sample, of_sample(sequences, placement), exec),
        sequences_(sequences),
        lengths_(exec, sequences.lengths),
        cache_(scene_.cache()) {
    if (sequences.contiguous) return;
    auto& kv               = std::get<PagedKV<T, Memory>>(cache_);
    const auto& pages      = scene_.pages(0);
    const std::size_t rows = sequences.rows.size();
    std::size_t most       = 1;
    std::vector<int> table, indptr{0};
    for (const auto& row : sequences.rows) {
      most = std::max(most, row.size());
      for (const int page : row) table.push_back(pages[page]);
      indptr.push_back(static_cast<int>(table.size()));
    }
    if (placement.layout == Layout::csr) {
      table.push_back(-1);
      table_ = Ints<Space>(exec, table), indptr_ = Ints<Space>(exec, indptr);
      kv.block_table = {}, kv.page_indices = table_.view(), kv.page_indptr = indptr_.view();
    } else {
      const std::size_t stride = most + 2;
      std::vector<int> dense(rows * stride, -1);
      for (std::size_t s = 0; s < rows; ++s)
        std::copy(table.begin() + indptr[s], table.begin() + indptr[s + 1], dense.begin() + s * stride);
      table_         = Ints<Space>(exec, dense);
      kv.block_table = decltype(kv.block_table)(table_.view().data(), Kokkos::LayoutStride(rows, stride, most, 1));
    }
    kv.seq_lens = lengths_.view();
    kv.max_len  = static_cast<int>(most) * sequences.page_size;
  }

  Scene<Space, T>& scene() { return scene_; }
  const Space& exec() const { return scene_.exec(); }
  const auto& cache() const { return cache_; }
  Plan<Space> plan(const EntryBounds& bounds) {
    scene_.options().entries = bounds;
    return scene_.plan();
  }
  void set_lengths(const std::vector<int>& lengths) { lengths_.assign(exec(), lengths); }

  /// The problem of a list with `states` partial states, whose arrays are poison until decodes write them.
  detail::Problem problem(const DeviceEntries<Memory>& list, int states, const ListOptions& o = {}) {
    const Shape& shape   = scene_.sample().shape();
    constexpr bool exact = std::is_same_v<T, double>;
    state_out_.emplace(exact ? DType::fp64 : o.state_type,
                       typename Array<Space>::Extents{states, shape.num_q_heads, scene_.sample().head_dim_v()},
                       o.states, exec());
    state_lse_.emplace(exact ? DType::fp64 : o.state_lse_type,
                       typename Array<Space>::Extents{states, shape.num_q_heads}, o.states, exec());
    state_out_->poison_all(exec()), state_lse_->poison_all(exec());
    detail::Problem p{std::visit([](const auto& kv) { return kv.ref(); }, cache_), ref_of<3>(scene_.q()),
                      ref_of<3>(scene_.out()), ref_of<2>(scene_.lse())};
    p.entries   = list.ref();
    p.state_out = ref_of<3>(*state_out_), p.state_lse = ref_of<2>(*state_lse_);
    return p;
  }
  /// Decodes and merges. Asynchronous; the device list must live until then.
  void decode(const Plan<Space>& plan, const detail::Problem& p) {
    scene_.note(plan);
    detail::decode_entries(exec(), plan, p);
    detail::merge_entries(exec(), p, plan.schedule().options.sinks);
  }
  testing::AssertionResult right(double leeway = 1) { return right(scene_.sample(), leeway); }
  /// As Scene::right. Partial states were written only where they belong, and tables not at all.
  testing::AssertionResult right(const Sample<T>& sample, double leeway = 1) {
    state_out_->download(exec()), state_lse_->download(exec());
    if (!state_out_->untouched_around() || !state_lse_->untouched_around())
      return testing::AssertionFailure() << "something was written between or around the partial states";
    if (!table_.unchanged(exec()) || !indptr_.unchanged(exec()) || !lengths_.unchanged(exec()))
      return testing::AssertionFailure() << "lengths or tables were written";
    return scene_.right(sample, leeway);
  }

 private:
  static Placement of_sample(const Sequences& sequences, Placement placement) {
    placement.layout        = sequences.contiguous ? Layout::contiguous : Layout::paged;
    placement.page_size     = sequences.page_size;
    placement.table_strides = Strides::dense;
    return placement;
  }

  Scene<Space, T> scene_;
  Sequences sequences_;
  Ints<Space> lengths_, table_, indptr_;
  typename Scene<Space, T>::Cache cache_;
  std::optional<Array<Space>> state_out_, state_lse_;
};

/// Plans, decodes and merges once, and expects right results.
template <class Space, class T>
void expect_right(const Sample<T>& sample, const Sequences& sequences, const EntryList& list,
                  const Placement& placement = {.layout = Layout::paged}, const ListOptions& options = {}) {
  ListScene<Space, T> scene(sample, sequences, placement);
  const auto device  = on_device(scene.exec(), list);
  const auto problem = scene.problem(device, list.num_states(), options);
  scene.decode(scene.plan(bounds_of(list, options.spare_entries)), problem);
  // States of 16 bits are rounded once more than the outputs.
  EXPECT_TRUE(scene.right(size_of(options.state_type) == 2 ? 2 : 1))
      << describe(sample.shape()) << "; " << describe(placement) << "; " << list.entries.size() << " entries, "
      << list.num_states() << " states of " << name_of(options.state_type);
}

}  // namespace pagoda::test
