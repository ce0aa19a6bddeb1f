// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/arithmetic.hpp"
#include "src/kernel/entry.hpp"
#include "src/kernel/kernel_args.hpp"

#include <Kokkos_Core.hpp>

namespace pagoda::detail {

/// The factor that queries are multiplied by: softmax_scale, times the scale of quantized keys if all tokens of the kv
/// head have the same.
template <class Fragment, class Args, class Rows>
KOKKOS_INLINE_FUNCTION typename Fragment::Acc scale_of_queries(const Args& args, [[maybe_unused]] const Rows& rows) {
  auto scale = args.template softmax_scale_as<typename Fragment::Acc>();
  if constexpr (Fragment::scaled) scale *= args.k_scale.of_head(rows.kv_head());
  return scale;
}

/// Changes scores between the product and the softmax. Kernels work in base 2, so scores are multiplied by log2(e).
/// Without options, this factor and softmax_scale are one factor of the queries, and scores are not changed.
template <class Fragment, bool Scored>
struct ScoreChange {
  using Acc = typename Fragment::Acc;
  Acc query_scale;

  template <class Args, class Rows>
  KOKKOS_FUNCTION ScoreChange(const Args& args, const EntryView&, const Rows& rows, const Fragment&)
      : query_scale(scale_of_queries<Fragment>(args, rows) * Kokkos::numbers::log2e_v<Acc>) {}
  KOKKOS_FUNCTION static constexpr bool hides(int, int) { return false; }
};

/// Applies the options: scale, soft cap, position bias and mask, in the order of FlashAttention and FlashInfer.
template <class Fragment>
struct ScoreChange<Fragment, true> {
  using Acc = typename Fragment::Acc;
  Acc query_scale;
  const AttentionOptions& options;
  bool changes;                       ///< the options change scores of visible tokens: soft cap or ALiBi
  Acc unit;                           ///< log2(e), or 1 if query_scale contains it
  int lowest, highest;                ///< positions of the tile's first and last query token in the sequence
  int position[Fragment::lane_rows];  ///< position of the query token of each row that the lane holds scores of
  Acc slope[Fragment::lane_rows];
  Acc cap;

  template <class Args, class Rows>
  KOKKOS_FUNCTION ScoreChange(const Args& args, const EntryView& entry, const Rows& rows, const Fragment& fragment)
      : options(args.options),
        changes(args.options.logit_soft_cap > 0 || args.options.alibi_slopes != nullptr),
        unit(changes ? Kokkos::numbers::log2e_v<Acc> : Acc(1)),
        cap(static_cast<Acc>(args.options.logit_soft_cap)) {
    query_scale     = scale_of_queries<Fragment>(args, rows) * (changes ? Acc(1) : Kokkos::numbers::log2e_v<Acc>);
    const int first = entry.first + entry.tokens - entry.queries;
    lowest          = first + rows.query(0);
    highest         = first + rows.query(rows.count - 1);
    for (int j = 0; j < Fragment::lane_rows; ++j) {
      const int r = fragment.lane_row(j);
      position[j] = first + rows.query(least(r, rows.count - 1));  // invalid rows see what the last one sees
      slope[j]    = rows.valid(r) && options.alibi_slopes ? Acc(options.alibi_slopes[rows.head(r)]) : Acc(0);
    }
  }

  /// Whether a token of a tile is hidden from one of the rows. first, last: the tile's lowest and highest token.
  KOKKOS_FUNCTION bool hides(int first, int last) const {
    return (options.causal && last > lowest) ||
           (options.window_left >= 0 && first - highest < -options.window_left && last >= options.num_initial_tokens);
  }

  /// Changes the score s of a token, in row j of the lane. The score of a hidden token becomes -infinity.
  KOKKOS_FUNCTION void operator()(int j, int token, Acc& s) const {
    if (cap > Acc(0)) s = cap * Kokkos::tanh(s / cap);
    const int distance = token - position[j];
    s                  = (s + slope[j] * Acc(distance)) * unit;
    const bool future  = options.causal && distance > 0;
    const bool past =
        options.window_left >= 0 && distance < -options.window_left && token >= options.num_initial_tokens;
    if (future || past) s = -Kokkos::Experimental::infinity_v<Acc>;
  }
};

}  // namespace pagoda::detail
