// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/arithmetic.hpp"
#include "src/kernel/entry.hpp"
#include "src/kernel/kernel_args.hpp"

#include <Kokkos_Core.hpp>

#include <climits>
#include <cstdint>

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
  KOKKOS_FORCEINLINE_FUNCTION ScoreChange(const Args& args, const EntryView&, const Rows& rows, const Fragment&)
      : query_scale(scale_of_queries<Fragment>(args, rows) * Kokkos::numbers::log2e_v<Acc>) {}
  KOKKOS_FUNCTION static constexpr bool hides(int, int) { return false; }
};

/// Applies the options: scale, soft cap, position bias and mask, in the order of FlashAttention and FlashInfer.
template <class Fragment>
struct ScoreChange<Fragment, true> {
  using Acc                  = typename Fragment::Acc;
  static constexpr int lanes = Fragment::lane_rows;  ///< rows that the lane holds scores of
  Acc query_scale;
  const KernelArgs& args;
  bool changes;         ///< the options change scores of visible tokens: soft cap or ALiBi
  Acc unit;             ///< log2(e), or 1 if query_scale contains it
  int lowest, highest;  ///< the tile: smallest limit; position of the last query token, for windows
  int limit[lanes];     ///< of each row: newest token that it sees without a look at its mask
  /// Of each row: the position of its query token in its sequence. In a list with masks, which has no use for it:
  /// EntryQuery::mask, and bit j is for token limit + 1 + j.
  int position[lanes];
  Acc slope[lanes];
  Acc cap;

  template <class Args, class Rows>
  KOKKOS_FORCEINLINE_FUNCTION ScoreChange(const Args& a, const EntryView& entry, const Rows& rows,
                                          const Fragment& fragment)
      : args(a),
        changes(a.options.logit_soft_cap > 0 || a.options.alibi_slopes != nullptr),
        unit(changes ? Kokkos::numbers::log2e_v<Acc> : Acc(1)),
        cap(static_cast<Acc>(a.options.logit_soft_cap)) {
    query_scale       = scale_of_queries<Fragment>(a, rows) * (changes ? Acc(1) : Kokkos::numbers::log2e_v<Acc>);
    const auto row_of = [&](int j) { return least(fragment.lane_row(j), rows.count - 1); };  // others see what it sees
    if (args.list.entries) {
      lowest = highest = INT_MAX;
      if (entry.open)
        for (int i = rows.query(0); i <= rows.query(rows.count - 1); ++i)
          lowest = least(lowest, limit_of(entry, args.query_of_list(entry.query_begin + i)));
      for (int j = 0; j < lanes; ++j) {
        const EntryQuery& q = args.query_of_list(entry.query_begin + rows.query(row_of(j)));
        limit[j]            = entry.open ? limit_of(entry, q) : INT_MAX;
        position[j] = args.list.masks ? q.mask : args.options.alibi_slopes ? args.seq_len(q.sequence) - q.behind : 0;
      }
    } else {
      const int first = entry.first + entry.tokens - entry.queries;
      lowest          = args.options.causal ? first + rows.query(0) : INT_MAX;
      highest         = first + rows.query(rows.count - 1);
      for (int j = 0; j < lanes; ++j) {
        position[j] = first + rows.query(row_of(j));
        limit[j]    = args.options.causal ? position[j] : INT_MAX;
      }
    }
    for (int j = 0; j < lanes; ++j) {
      const int r = fragment.lane_row(j);
      slope[j]    = rows.valid(r) && args.options.alibi_slopes ? Acc(args.options.alibi_slopes[rows.head(r)]) : Acc(0);
    }
  }

  /// Whether a token of a tile is hidden from one of the rows. first, last: the tile's lowest and highest token.
  KOKKOS_FUNCTION bool hides(int first, int last) const {
    return last > lowest || (args.options.window_left >= 0 && first - highest < -args.options.window_left &&
                             last >= args.options.num_initial_tokens);
  }

  /// Changes the score s of a token, in row j of the lane. The score of a hidden token becomes -infinity.
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int j, int token, Acc& s) const {
    const AttentionOptions& o = args.options;
    if (cap > Acc(0)) s = cap * Kokkos::tanh(s / cap);
    const int distance = token - position[j];
    s                  = (s + slope[j] * Acc(distance)) * unit;
    bool hidden        = token > limit[j];
    if (hidden && args.list.masks && position[j] >= 0) hidden = !is_set(position[j], token - limit[j] - 1);
    if (o.window_left >= 0 && distance < -o.window_left && token >= o.num_initial_tokens) hidden = true;
    if (hidden) s = -Kokkos::Experimental::infinity_v<Acc>;
  }

 private:
  /// The newest token of an open entry that a query token of a list sees, apart from what its mask allows. A query
  /// token of another sequence sees all.
  KOKKOS_FORCEINLINE_FUNCTION int limit_of(const EntryView& entry, const EntryQuery& q) const {
    if (q.sequence != entry.sequence || (q.mask < 0 && !args.options.causal)) return INT_MAX;
    return entry.first + entry.tokens - q.behind - (q.mask >= 0 ? 1 : 0);
  }
  KOKKOS_FORCEINLINE_FUNCTION bool is_set(int first_word, int bit) const {
    return (args.list.masks[first_word + (bit >> 6)] >> (bit & 63) & 1) != 0;
  }
};

}  // namespace pagoda::detail
