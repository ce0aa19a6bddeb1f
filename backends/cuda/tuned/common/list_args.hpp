// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

#include <cstdint>

namespace pagoda::tuned {

/// Where results of a list go: the outputs, or partial states.
struct Outputs {
  Divisor heads;  ///< query heads that share a kv head
  Heads out;
  void* lse;  ///< null: not wanted
  std::int64_t lse_token, lse_head;
  bool lse_double;
  const float* sinks;  ///< [query heads] logits; null, also for partial states: none
};

/// What kernels for lists read besides the arguments of other kernels, of which `Base` is the structure: it has members
/// `heads` (query heads that share a kv head) and `q_tokens_bound` (query tokens of an entry). `batch` is the number of
/// entries.
template <class Base>
struct ListArgsOf : Base {
  static constexpr bool ragged = true;
  const Entry* entries;        ///< [batch]
  const EntryQuery* queries;   ///< what entries refer to
  const std::uint64_t* masks;  ///< two words for each query token with a mask
  const int* state_begin;
  Outputs outputs[2];  ///< the outputs, and partial states
  bool causal;
  /// Query tokens of the entries that are carried out. Others count as entries without query tokens: other blocks of
  /// the launch carry them out, or nobody has to.
  int min_queries, max_queries;
  bool chains;  ///< whether chains are carried out; else they count as entries without query tokens
};

}  // namespace pagoda::tuned
