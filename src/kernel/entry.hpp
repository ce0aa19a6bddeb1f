// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::detail {

/// One entry of a decode: query tokens, and the cached tokens that they attend to.
///
/// In a decode of a batch the query tokens are the newest of the cached ones: query token i stands at position first +
/// tokens - queries + i of the sequence. An entry may have more query tokens than cached ones, and the first of them
/// then see nothing. In a decode of a list each query token has its own position (EntryQuery).
///
/// Kernels make a view from their arguments where they use it. A field that is not read is not loaded.
struct EntryView {
  int sequence;     ///< sequence of the cached tokens
  int first;        ///< position of the first cached token; in a paged cache the start of a page
  int tokens;       ///< number of cached tokens
  int query_begin;  ///< the first query token: a row of q, out and lse; in a list an index into its queries
  int queries;      ///< number of query tokens

  // Only entries of a list have other values than these.
  int kv_head = -1;     ///< the only kv head that is read; negative: all
  int state   = -1;     ///< index of the partial state of each query token; negative: results go to the output
  bool open   = false;  ///< the entry ends with the sequence's newest tokens, some of which may be hidden
};

}  // namespace pagoda::detail
