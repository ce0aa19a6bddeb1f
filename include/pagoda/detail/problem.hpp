// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/entry.hpp>

#include <cstdint>

namespace pagoda::detail {

/// A list of entries on the device (DeviceEntries).
struct EntriesRef {
  const Entry* entries       = nullptr;
  const EntryQuery* queries  = nullptr;
  const int* state_begin     = nullptr;  ///< [num_state_begin], or null
  const std::uint64_t* masks = nullptr;  ///< [num_mask_words], or null
  int num_entries = 0, num_queries = 0, num_state_begin = 0, num_mask_words = 0;
  bool has_few_rows = true;  ///< false: entries of few query rows are all in chains, so a faster kernel may serve
  bool has_chains   = true;  ///< false: no entry is in a chain, so kernels need not look for chains
};

/// One call of decode, without types. decode checks it, a backend runs it.
struct Problem {
  CacheRef kv;    ///< keys and values
  TensorRef q;    ///< (query token, q head, head_dim)
  TensorRef out;  ///< (query token, q head, head_dim_v)
  TensorRef lse;  ///< (query token, q head); data may be null

  // Only in decodes of a list.
  EntriesRef entries{};   ///< what to decode
  TensorRef state_out{};  ///< (state, q head, head_dim_v) partial states; data may be null if no entry has one
  TensorRef state_lse{};  ///< (state, q head)
};

}  // namespace pagoda::detail
