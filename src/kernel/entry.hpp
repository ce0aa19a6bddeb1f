// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::detail {

/// One entry of a decode: query tokens, and the cached tokens that they attend to. The query tokens are the newest of
/// the cached ones: query token i stands at position first + tokens - queries + i of the sequence. An entry may have
/// more query tokens than cached ones, and the first of them then see nothing.
///
/// Kernels make a view from their arguments where they use it. A field that is not read is not loaded.
struct EntryView {
  int sequence;     ///< sequence of the cached tokens
  int first;        ///< position of the first cached token; in a paged cache the start of a page
  int tokens;       ///< number of cached tokens
  int query_begin;  ///< the first query token: a row of q, out and lse
  int queries;      ///< number of query tokens
};

}  // namespace pagoda::detail
