// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_args.hpp"
#include "backends/cuda/tuned/common/option_args.hpp"

namespace pagoda::tuned::wgmma {

/// What the wgmma kernels read, by value. Row r of the query rows that share a kv head is query token r / group_size,
/// head r % group_size of the group. Bounds hold for all entries. Here, each entry has as many query tokens as the
/// bound says.
struct Args : tuned::Args {
  static constexpr bool ragged = false, in_passes = false, pairs = false, small_pages = false;
  CUtensorMap q_map;       ///< latent caches: boxes of eight rows
  Divisor heads;           ///< query heads that share a kv head
  int rows_bound;          ///< query rows of an entry that share a kv head
  int hidden_bound;        ///< newest tokens that the first query token of an entry does not see
  int q_tokens_bound;      ///< query tokens of an entry
  Divisor rounds;          ///< PassArgs: rounds of passes over a batch entry
  Divisor side_by_side;    ///< PassArgs: passes of a round
  int num_q_tokens;        ///< PassArgs: query tokens of a batch entry, where cu_seqlens_q is null
  bool hides_newer;        ///< PassArgs: query tokens do not see newer tokens
  float4* wgmma_partials;  ///< [block][2][partial_quads]
  std::int64_t partial_quads;
};

/// The same where entries have different numbers of query tokens.
struct RaggedArgs : Args {
  static constexpr bool ragged = true;
};
/// The same where each entry is a pass over a batch entry (passes.hpp): `batch` counts rounds.
struct PassArgs : RaggedArgs {
  static constexpr bool in_passes = true;
};
/// The same for pages of any number of tokens.
struct SmallPageArgs : PassArgs {
  static constexpr bool small_pages = true;
};

/// The same as Base, which is Args or RaggedArgs, where blocks of even and of odd splits form clusters of two. Only the
/// kernels for latent caches have instances for it.
template <class Base>
struct PairedArgs : Base {
  static constexpr bool pairs = true;
};

/// The same as Base, which is any of these but PairedArgs, with score options. Only the grouped kernels have instances
/// for it.
template <class Base>
struct OptionArgs : OptionArgsOf<Base> {};

/// The same for a list. Only the grouped kernels have an instance for it.
struct ListArgs : ListArgsOf<Args> {
  int heads_at_once;  ///< blocks that take as many kv heads of an entry at the same time, see list_heads_at_once
  int box_eights;     ///< a copy loads so many times 8 tokens, all of one page; a power of two, at most 8
  EightsMap order;    ///< of the dims of k_map and v_map
};

}  // namespace pagoda::tuned::wgmma
