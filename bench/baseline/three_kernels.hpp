// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/types.hpp>

#include "src/base/unroll.hpp"

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The straightforward form of attention: all scores, then their softmax, then the weighted sum, one kernel each. Flash
/// decoding is compared with it. Do not tune it.
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.A.b (parallel
/// GPU baseline) and III.B (kernels over accessor types).
namespace pagoda::bench {

namespace three_kernels {

template <class Scores, class Q, class KV, class Out>
struct Rows {
  using Acc = typename Scores::value_type;
  Q q;
  KV kv;
  Out out;
  Scores scores;
  int heads, group;
  Acc scale;

  KOKKOS_FUNCTION int entry(int row) const { return row / heads; }
  KOKKOS_FUNCTION int head(int row) const { return row % heads; }
  KOKKOS_FUNCTION int kv_head(int row) const { return head(row) / group; }
  KOKKOS_FUNCTION int seq_len(int row) const { return kv.seq_len(entry(row)); }
};

/// One thread per token.
template <class Rows>
struct Score {
  using Acc = typename Rows::Acc;
  Rows a;
  int max_seq_len;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const int row = static_cast<int>(i / max_seq_len), t = static_cast<int>(i % max_seq_len);
    if (t >= a.seq_len(row)) return;
    Acc dot = 0;
    for (int d = 0; d < a.q.extent_int(2); ++d)
      dot += static_cast<Acc>(a.q(a.entry(row), a.head(row), d)) *
             static_cast<Acc>(a.kv.key(a.entry(row), t, a.kv_head(row), d));
    a.scores(row, t) = dot * a.scale;
  }
};

/// One team per row.
template <class Rows, class Member>
struct Softmax {
  using Acc = typename Rows::Acc;
  Rows a;

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int row     = team.league_rank();
    const auto tokens = Kokkos::TeamThreadRange(team, a.seq_len(row));
    Acc* const scores = &a.scores(row, 0);
    Acc most, sum;
    Kokkos::parallel_reduce(tokens, [&](int t, Acc& m) { m = Kokkos::max(m, scores[t]); }, Kokkos::Max<Acc>(most));
    Kokkos::parallel_reduce(tokens, [&](int t, Acc& s) { s += scores[t] = Kokkos::exp(scores[t] - most); }, sum);
    Kokkos::parallel_for(tokens, [&](int t) { scores[t] /= sum; });
  }
};

/// One thread per output element.
template <class Rows>
struct Output {
  using Acc = typename Rows::Acc;
  Rows a;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const int dims = a.out.extent_int(2), row = static_cast<int>(i / dims), d = static_cast<int>(i % dims);
    const int len = a.seq_len(row);
    Acc sum       = 0;
    // Keeps several loads in flight. Otherwise a GPU waits for the memory's latency at every token, and this baseline
    // is slower than the study's.
    PAGODA_UNROLL(16)
    for (int t = 0; t < len; ++t)
      sum += a.scores(row, t) * static_cast<Acc>(a.kv.value(a.entry(row), t, a.kv_head(row), d));
    using Element                       = std::remove_reference_t<decltype(a.out(0, 0, 0))>;
    a.out(a.entry(row), a.head(row), d) = static_cast<Element>(sum);
  }
};

/// rows, seq_len: the sizes of the scratch memory.
template <class Q, class KV>
void require_fits(const char* name, const Q& q, const KV& kv, std::size_t rows, std::size_t seq_len) {
  const int heads = q.extent_int(1), kv_heads = kv.ref().num_kv_heads();
  const auto asked = static_cast<std::size_t>(kv.batch()) * static_cast<std::size_t>(heads);
  pagoda::detail::require(asked <= rows && static_cast<std::size_t>(kv.max_seq_len()) <= seq_len, name,
                          ": the cache has ", asked, " rows of up to ", kv.max_seq_len(), " tokens; allowed: ", rows,
                          " of ", seq_len);
  pagoda::detail::require(heads % kv_heads == 0, name, ": q has ", heads, " heads; allowed: a multiple of ", kv_heads);
}

}  // namespace three_kernels

/// One query token per batch entry. Rows are (batch entry, query head); the scores of all rows are kept between calls.
template <class ExecutionSpace, class Acc = float>
class ThreeKernels {
 public:
  using Scores = Kokkos::View<Acc**, Kokkos::LayoutRight, typename ExecutionSpace::memory_space>;

  /// max_rows: batch entries times query heads.
  ThreeKernels(const ExecutionSpace& exec, int max_rows, int max_seq_len)
      : exec_(exec),
        scores_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::scores"), max_rows, max_seq_len) {
  }

  /// q and out are Views (batch, query head, dim). Asynchronous. The output of an empty sequence is 0.
  template <class Q, KVLayout KV, class Out>
  void operator()(const Q& q, const KV& kv, const Out& out) const {
    const int heads = q.extent_int(1), rows = kv.batch() * heads, kv_heads = kv.ref().num_kv_heads();
    three_kernels::require_fits("pagoda::bench::ThreeKernels", q, kv, scores_.extent(0), scores_.extent(1));
    if (rows == 0) return;
    using Rows       = three_kernels::Rows<Scores, Q, KV, Out>;
    using Range      = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;
    using Teams      = Kokkos::TeamPolicy<ExecutionSpace>;
    const auto scale = static_cast<Acc>(1 / std::sqrt(static_cast<double>(q.extent(2))));
    const Rows args{q, kv, out, scores_, heads, heads / kv_heads, scale};
    Kokkos::parallel_for("Pagoda::bench::scores", Range(exec_, 0, std::int64_t(rows) * kv.max_seq_len()),
                         three_kernels::Score<Rows>{args, kv.max_seq_len()});
    Kokkos::parallel_for("Pagoda::bench::softmax", Teams(exec_, rows, Kokkos::AUTO),
                         three_kernels::Softmax<Rows, typename Teams::member_type>{args});
    Kokkos::parallel_for("Pagoda::bench::output", Range(exec_, 0, std::int64_t(rows) * out.extent_int(2)),
                         three_kernels::Output<Rows>{args});
  }

 private:
  ExecutionSpace exec_;
  Scores scores_;
};

}  // namespace pagoda::bench
