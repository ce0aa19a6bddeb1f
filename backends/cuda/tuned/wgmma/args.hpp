// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

namespace pagoda::tuned::wgmma {

/// What the wgmma kernels read, by value. Row r of the query rows that share a kv head is query token r / group_size,
/// head r % group_size of the group. Bounds hold for all entries. Here, each entry has as many query tokens as the
/// bound says.
struct Args : tuned::Args {
  static constexpr bool ragged = false;
  CUtensorMap q_map;       ///< latent caches: boxes of eight rows
  Divisor heads;           ///< query heads that share a kv head
  int rows_bound;          ///< query rows of an entry that share a kv head
  int hidden_bound;        ///< newest tokens that the first query token of an entry does not see
  int q_tokens_bound;      ///< query tokens of an entry
  float4* wgmma_partials;  ///< [block][2][partial_quads]
  std::int64_t partial_quads;
};

/// The same where entries have different numbers of query tokens. Each kernel has an instance for either.
struct RaggedArgs : Args {
  static constexpr bool ragged = true;
  const int* cu_seqlens_q;  ///< [batch + 1]
};

/// Where results of a list go: the outputs, or partial states.
struct Outputs {
  Divisor heads;  ///< query heads that share a kv head
  Heads out;
  void* lse;  ///< null: not wanted
  std::int64_t lse_token, lse_head;
  bool lse_double;
  const float* sinks;  ///< [query heads] logits; null, also for partial states: none
};

/// The same for a list: `batch` is the number of entries. Only the grouped kernels have an instance for it.
struct ListArgs : Args {
  static constexpr bool ragged = true;
  const Entry* entries;        ///< [batch]
  const EntryQuery* queries;   ///< what entries refer to
  const std::uint64_t* masks;  ///< two words for each query token with a mask
  const int* state_begin;
  Outputs states;
  const float* sinks;
  bool causal;
};

}  // namespace pagoda::tuned::wgmma
