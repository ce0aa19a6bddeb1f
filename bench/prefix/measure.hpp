// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/arena.hpp"
#include "bench/common/harness.hpp"
#include "bench/common/timing.hpp"
#include "bench/prefix/cases.hpp"
#include "bench/prefix/lists.hpp"

#include <pagoda/prefix.hpp>
#include <pagoda/reference.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagoda::bench {

/// Copies of a batch's cache, which decodes use in turns. The pages of each are scattered over all of the memory.
template <class Exec, class T>
class PrefixCaches {
 public:
  using Memory = typename Exec::memory_space;
  using Pages  = Kokkos::View<const T****, Kokkos::LayoutRight, Memory, Kokkos::MemoryUnmanaged>;
  using Paged  = PagedKV<T, Memory>;

  static std::size_t elements(const PrefixCase& c, const PrefixWork& work, int copies) {
    return 2 * values_at(c, work, copies);
  }

  PrefixCaches(const Exec& exec, const PrefixCase& c, const test::PrefixBatch& batch, const PrefixWork& work,
               const T* memory, int copies)
      : case_(c), batch_(batch), pages_(static_cast<int>(work.pages)), values_(values_at(c, work, copies)) {
    const int all = pages_ * copies;
    places_.resize(static_cast<std::size_t>(all));
    std::iota(places_.begin(), places_.end(), 0);
    std::shuffle(places_.begin(), places_.end(), std::mt19937(1));
    const Pages k(memory, all, c.page_size, c.num_kv_heads, c.head_dim);
    const Pages v(memory + values_, all, c.page_size, c.num_kv_heads, c.head_dim);
    Kokkos::View<int*, Memory> lengths("Pagoda::bench::lengths", batch.seq_lens.size());
    copy(lengths, batch.seq_lens);
    std::size_t columns = 1;
    for (const auto& row : batch.rows) columns = std::max(columns, row.size());
    for (int i = 0; i < copies; ++i) {
      std::vector<int> ids(batch.rows.size() * columns, -1);
      for (std::size_t s = 0; s < batch.rows.size(); ++s)
        for (std::size_t p = 0; p < batch.rows[s].size(); ++p) ids[s * columns + p] = place(i, batch.rows[s][p]);
      const Kokkos::View<int**, Kokkos::LayoutRight, Memory> table("Pagoda::bench::table", batch.rows.size(), columns);
      copy(Kokkos::View<int*, Memory>(table.data(), table.size()), ids);
      caches_.push_back(scaled(Paged(k, v, table, lengths)));
    }
    exec.fence("Pagoda::bench::caches");
  }

  const Paged& operator[](int i) const { return caches_[static_cast<std::size_t>(i)]; }

  /// Attention of one query row of copy 0, in float64.
  reference::Row attend(const std::vector<double>& q, const Sight& sight, int kv_head) const {
    const auto read = [&, this](std::size_t first) {
      return [=, &sight, this](int index, std::span<double> row) {
        const int token = index < sight.tokens ? index : sight.others[static_cast<std::size_t>(index - sight.tokens)];
        const int page  = place(0, batch_.rows[sight.sequence][token / case_.page_size]);
        const std::size_t from =
            first + ((std::size_t(page) * case_.page_size + token % case_.page_size) * case_.num_kv_heads + kv_head) *
                        case_.head_dim;
        for (std::size_t d = 0; d < row.size(); ++d)
          row[d] = static_cast<double>(scale()) * static_cast<double>(arena_element<T>(from + d));
      };
    };
    reference::RowOptions options;
    options.softmax_scale = 1 / std::sqrt(double(case_.head_dim));
    const int length      = sight.tokens + static_cast<int>(sight.others.size());
    return reference::attend(q, length, length - 1, case_.head_dim, read(0), read(values_), options);
  }

 private:
  static std::size_t values_at(const PrefixCase& c, const PrefixWork& work, int copies) {
    return std::size_t(work.pages) * copies * c.page_size * c.num_kv_heads * c.head_dim;
  }
  int place(int copy, int page) const { return places_[std::size_t(copy) * pages_ + page]; }
  /// Of all keys and all values: it maps stored numbers back to N(0, 1).
  static constexpr float scale() { return is_quantized_v<T> ? 1 / stored_deviation<T> : 1.0f; }
  Paged scaled(const Paged& kv) {
    if constexpr (is_quantized_v<T>) {
      scales_ = Kokkos::View<float*, Memory>("Pagoda::bench::scales", 1);
      Kokkos::deep_copy(scales_, scale());
      const Kokkos::View<const float, Memory> one(scales_.data());
      return kv.with_scales(per_tensor_scales(one, one));
    } else {
      return kv;
    }
  }
  static void copy(const Kokkos::View<int*, Memory>& to, const std::vector<int>& from) {
    Kokkos::deep_copy(to, Kokkos::View<const int*, Kokkos::HostSpace>(from.data(), from.size()));
  }

  const PrefixCase& case_;
  const test::PrefixBatch& batch_;
  int pages_;
  std::size_t values_;
  std::vector<int> places_;
  Kokkos::View<float*, Memory> scales_;  ///< one, of a quantized cache
  std::vector<Paged> caches_;
};

/// Seconds of a call outside of a graph: `calls` of them are queued, and the host waits once. The median of samples.
template <class Exec, class Call>
double seconds_without_graph(const Exec& exec, const Rotation& rotation, const StreamReader<Exec>& reader,
                             const Call& call) {
  std::vector<double> samples;
  for (int sample = 0; sample < 5; ++sample) {
    reader.evict();
    exec.fence("Pagoda::bench::queued");
    const Kokkos::Timer timer;
    for (int i = 0; i < rotation.calls; ++i) call(i % rotation.caches);
    exec.fence("Pagoda::bench::queued");
    samples.push_back(timer.seconds() / rotation.calls);
  }
  std::nth_element(samples.begin(), samples.begin() + 2, samples.end());
  return samples[2];
}

/// Compares a few rows of a decode of copy 0, and says which is wrong. sight_of(token, kv_head): what the row sees.
template <class Caches, class Rows, class SightOf>
std::string find_prefix_fault(const Caches& caches, const Rows& q, const Rows& out, int group, int rows,
                              const SightOf& sight_of) {
  using T = std::remove_const_t<typename Rows::value_type>;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!std::isfinite(static_cast<double>(out.data()[i])))
      return pagoda::detail::concat("element ", i, " of the output is not a finite number");
  for (int i = 0; i < rows; ++i) {
    const std::uint64_t x = mix(static_cast<std::uint64_t>(i) + 1);
    const int token = static_cast<int>(x % out.extent(0)), head = static_cast<int>((x >> 32) % out.extent(1));
    std::vector<double> query(q.extent(2));
    for (std::size_t d = 0; d < query.size(); ++d) query[d] = static_cast<double>(q(token, head, d));
    const auto right = caches.attend(query, sight_of(token, head / group), head / group);
    double error     = 0;
    for (std::size_t d = 0; d < query.size(); ++d)
      error += std::pow(static_cast<double>(out(token, head, d)) - right.out[d], 2);
    error                = std::sqrt(error) / right.norm;
    const double allowed = 2 * reference::tolerance(right, dtype_v<T>, dtype_v<T>);  // states of 16 bits round too
    if (!(error <= allowed))
      return pagoda::detail::concat("out(", token, ", ", head, ") is off by ", error, "; allowed: ", allowed);
  }
  return {};
}

}  // namespace pagoda::bench
