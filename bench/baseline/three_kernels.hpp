// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cmath>

/// Attention as it is written down first: all scores, then their softmax, then the weighted sum, one kernel each. Kept
/// as the yardstick that flash decoding is measured against; nothing in it is to be tuned.
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.A.b (parallel
/// GPU baseline) and III.B (kernels over accessor types).
namespace pagoda::bench {

/// One query token per batch entry. Rows are (batch entry, query head); ExecutionSpace's instance and the scratch of
/// scores are kept between calls.
template <class ExecutionSpace, class Acc = float>
class ThreeKernels {
 public:
  using memory_space = typename ExecutionSpace::memory_space;
  using Scores       = Kokkos::View<Acc**, Kokkos::LayoutRight, memory_space>;  ///< (row, token)

  /// max_rows: batch entries times query heads.
  ThreeKernels(const ExecutionSpace& exec, int max_rows, int max_seq_len)
      : exec_(exec),
        scores_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::scores"), max_rows, max_seq_len) {
  }

  /// q and out are Views (batch, query head, dim). Asynchronous. Sequences without a token give 0.
  template <class Q, KVLayout KV, class Out>
  void operator()(const Q& q, const KV& kv, const Out& out) const {
    const int heads = static_cast<int>(q.extent(1)), rows = kv.batch() * heads;
    const auto ref = kv.ref();
    detail::require(rows <= scores_.extent_int(0) && kv.max_seq_len() <= scores_.extent_int(1),
                    "pagoda::bench::ThreeKernels: the cache has ", rows, " rows of up to ", kv.max_seq_len(),
                    " tokens; allowed: ", scores_.extent(0), " of ", scores_.extent(1));
    detail::require(heads % ref.num_kv_heads() == 0, "pagoda::bench::ThreeKernels: q has ", heads,
                    " heads; allowed: a multiple of ", ref.num_kv_heads());
    if (rows == 0) return;
    const Rows<Q, KV, Out> args{q,
                                kv,
                                out,
                                scores_,
                                heads,
                                heads / ref.num_kv_heads(),
                                static_cast<Acc>(1 / std::sqrt(static_cast<double>(ref.head_dim())))};
    using Index = Kokkos::IndexType<std::int64_t>;
    Kokkos::parallel_for("Pagoda::bench::scores",
                         Kokkos::RangePolicy<ExecutionSpace, Index>(exec_, 0, std::int64_t(rows) * kv.max_seq_len()),
                         ScoreOfToken<Q, KV, Out>{args, kv.max_seq_len()});
    Kokkos::parallel_for("Pagoda::bench::softmax", Kokkos::TeamPolicy<ExecutionSpace>(exec_, rows, Kokkos::AUTO),
                         SoftmaxOfRow<Q, KV, Out>{args});
    Kokkos::parallel_for("Pagoda::bench::output",
                         Kokkos::RangePolicy<ExecutionSpace, Index>(exec_, 0, std::int64_t(rows) * ref.head_dim_v()),
                         OutputElement<Q, KV, Out>{args, ref.head_dim_v()});
  }

 private:
  template <class Q, class KV, class Out>
  struct Rows {
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

  /// One thread a token.
  template <class Q, class KV, class Out>
  struct ScoreOfToken {
    Rows<Q, KV, Out> a;
    int max_seq_len;

    KOKKOS_FUNCTION void operator()(std::int64_t i) const {
      const int row = static_cast<int>(i / max_seq_len), t = static_cast<int>(i % max_seq_len);
      if (t >= a.seq_len(row)) return;
      Acc dot = 0;
      for (int d = 0; d < static_cast<int>(a.q.extent(2)); ++d)
        dot += static_cast<Acc>(a.q(a.entry(row), a.head(row), d)) *
               static_cast<Acc>(a.kv.key(a.entry(row), t, a.kv_head(row), d));
      a.scores(row, t) = dot * a.scale;
    }
  };

  /// One team a row.
  template <class Q, class KV, class Out>
  struct SoftmaxOfRow {
    Rows<Q, KV, Out> a;

    KOKKOS_FUNCTION void operator()(const typename Kokkos::TeamPolicy<ExecutionSpace>::member_type& team) const {
      const int row     = team.league_rank();
      const auto tokens = Kokkos::TeamThreadRange(team, a.seq_len(row));
      Acc* const scores = &a.scores(row, 0);
      Acc most, sum;
      Kokkos::parallel_reduce(tokens, [&](int t, Acc& m) { m = Kokkos::max(m, scores[t]); }, Kokkos::Max<Acc>(most));
      Kokkos::parallel_reduce(tokens, [&](int t, Acc& s) { s += scores[t] = Kokkos::exp(scores[t] - most); }, sum);
      Kokkos::parallel_for(tokens, [&](int t) { scores[t] /= sum; });
    }
  };

  /// One thread an element of the output.
  template <class Q, class KV, class Out>
  struct OutputElement {
    Rows<Q, KV, Out> a;
    int head_dim_v;

    KOKKOS_FUNCTION void operator()(std::int64_t i) const {
      const int row = static_cast<int>(i / head_dim_v), d = static_cast<int>(i % head_dim_v);
      Acc sum = 0;
      for (int t = 0; t < a.seq_len(row); ++t)
        sum += a.scores(row, t) * static_cast<Acc>(a.kv.value(a.entry(row), t, a.kv_head(row), d));
      a.out(a.entry(row), a.head(row), d) = static_cast<typename Out::non_const_value_type>(sum);
    }
  };

  ExecutionSpace exec_;
  Scores scores_;
};

}  // namespace pagoda::bench
