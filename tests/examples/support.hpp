// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda.hpp>

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

/// Helpers of the examples: numbers to decode, and the comparison with the float64 reference.
namespace example {

/// Fills any contiguous View with numbers between -1 and 1.
template <class View>
void fill(const View& view, float seed) {
  using T       = typename View::value_type;
  T* const data = view.data();
  using Policy  = Kokkos::RangePolicy<typename View::execution_space, Kokkos::IndexType<std::size_t>>;
  Kokkos::parallel_for(
      "fill", Policy(0, view.size()),
      KOKKOS_LAMBDA(std::size_t i) { data[i] = T(Kokkos::sin(seed + 1.7f * static_cast<float>(i % 65521))); });
}

/// An integer View on the device with these numbers.
inline Kokkos::View<int*> integers(const std::vector<int>& numbers) {
  const Kokkos::View<int*> view("integers", numbers.size());
  Kokkos::deep_copy(view, Kokkos::View<const int*, Kokkos::HostSpace>(numbers.data(), numbers.size()));
  return view;
}

/// A copy on the device of any vector.
template <class T>
Kokkos::View<const T*> on_device(const std::vector<T>& values) {
  const Kokkos::View<T*> view(Kokkos::view_alloc(Kokkos::WithoutInitializing, "values"), values.size());
  Kokkos::deep_copy(view, Kokkos::View<const T*, Kokkos::HostSpace>(values.data(), values.size()));
  return view;
}

/// A block table of `rows` rows with consecutive pages, from `first_page` on.
inline Kokkos::View<int**, Kokkos::LayoutRight> consecutive_pages(int rows, int pages_each, int first_page = 0) {
  const Kokkos::View<int**, Kokkos::LayoutRight> table("block_table", rows, pages_each);
  const auto host = Kokkos::create_mirror_view(table);
  for (int i = 0; i < rows * pages_each; ++i) host(i / pages_each, i % pages_each) = first_page + i;
  Kokkos::deep_copy(table, host);
  return table;
}

template <class View>
auto on_host(const View& view) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
}

/// A copy of a cache with a dense block table, and the layout that reads it; without its scales.
template <class T>
struct HostCache {
  Kokkos::View<const T****, Kokkos::LayoutStride, Kokkos::HostSpace> k, v;  // a layout does not own them
  pagoda::PagedKV<T, Kokkos::HostSpace> kv;

  template <class Space>
  explicit HostCache(const pagoda::PagedKV<T, Space>& cache)
      : k(on_host(cache.k)), v(on_host(cache.v)), kv(k, v, on_host(cache.block_table), on_host(cache.seq_lens)) {
    if (cache.sequence_ids.data()) kv.sequence_ids = on_host(cache.sequence_ids);
  }
};

/// Compares each row of `out` with the float64 reference and returns the exit status of an example. kv: on the host.
/// options_of(head): what changes the scores of this query head; its softmax_scale is set here.
template <class KV, class Q, class Out, class OptionsOf>
int compare(const KV& kv, const Q& q, const Out& out, const OptionsOf& options_of) {
  const auto host_q = on_host(q);
  const auto rows   = on_host(out);
  const int heads = static_cast<int>(q.extent(1)), dim = static_cast<int>(q.extent(2));
  const int dim_v = static_cast<int>(out.extent(2)), group = heads / static_cast<int>(kv.k.extent(2));
  int wrong = 0;
  for (int row = 0; row < kv.batch() * heads; ++row) {
    const int b = row / heads, h = row % heads;
    const std::vector<double> query(&host_q(b, h, 0), &host_q(b, h, 0) + dim);
    const auto key = [&](int t, std::span<double> x) {
      for (int d = 0; d < dim; ++d) x[d] = kv.key(b, t, h / group, d);
    };
    const auto value = [&](int t, std::span<double> x) {
      for (int d = 0; d < dim_v; ++d) x[d] = kv.value(b, t, h / group, d);
    };
    pagoda::reference::RowOptions options = options_of(h);
    options.softmax_scale                 = 1 / std::sqrt(dim);
    const int len                         = kv.seq_len(b);
    const auto right                      = pagoda::reference::attend(query, len, len - 1, dim_v, key, value, options);
    double error                          = 0;
    for (int d = 0; d < dim_v; ++d) error += std::pow(rows(b, h, d) - right.out[d], 2);
    using Rounded = pagoda::DType;
    const double allowed =
        right.norm * pagoda::reference::tolerance(right, Rounded::fp16, pagoda::dtype_v<typename Out::value_type>);
    wrong += !(std::sqrt(error) <= allowed);
  }
  std::printf("%d of %d rows are wrong\n", wrong, kv.batch() * heads);
  return wrong == 0 ? 0 : 1;
}

template <class KV, class Q, class Out>
int compare(const KV& kv, const Q& q, const Out& out) {
  return compare(kv, q, out, [](int) { return pagoda::reference::RowOptions{}; });
}

}  // namespace example
