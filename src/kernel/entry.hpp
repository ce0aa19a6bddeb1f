// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::detail {

/// One entry of a decode: query tokens, and the cached tokens that they attend to. The query tokens are the newest of
/// the cached ones: query token i stands at position first + tokens - queries + i of the sequence. An entry may have
/// more query tokens than cached ones, and the first of them then see nothing.
///
/// Kernels make a view from their arguments at the place of use, for what they read of it: a field that nothing reads
/// costs no load.
struct EntryView {
  int sequence;     ///< whose cached tokens
  int first;        ///< position of the first of them; in a paged cache the start of a page
  int tokens;       ///< number of cached tokens
  int query_begin;  ///< the first query token: a row of q, out and lse
  int queries;      ///< number of query tokens
};

}  // namespace pagoda::detail
