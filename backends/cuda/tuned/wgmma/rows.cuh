// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"

/// Batch entries, the query rows of an entry that share a kv head, and which of them are a block's.
namespace pagoda::tuned::wgmma {

using namespace ptx;

/// A batch entry.
PAGODA_DEVICE EntryView entry_of(const Args& args, int batch) {
  EntryView entry   = tuned::entry_of(args, batch);
  entry.query_begin = batch * args.q_tokens_bound, entry.queries = args.q_tokens_bound;
  return entry;
}
/// An entry without query tokens has no tokens either, so that no block reads its sequence.
PAGODA_DEVICE EntryView entry_of(const RaggedArgs& args, int batch) {
  EntryView entry   = tuned::entry_of(args, batch);
  entry.query_begin = __ldg(args.cu_seqlens_q + batch);
  // Limited by the bound, because partial results have no room for more.
  entry.queries = min(__ldg(args.cu_seqlens_q + batch + 1) - entry.query_begin, args.q_tokens_bound);
  if (entry.queries <= 0) entry.queries = entry.tokens = 0;
  return entry;
}
/// Query rows of an entry that share a kv head.
template <class Args>
PAGODA_DEVICE int num_rows(const Args& args, const EntryView& entry) {
  return Args::ragged ? entry.queries * args.heads.value : args.rows_bound;
}
/// Newest tokens that the first query token of a batch entry does not see.
template <class Args>
PAGODA_DEVICE int hidden_tokens(const Args& args, int batch) {
  return Args::ragged ? min(args.hidden_bound, entry_of(args, batch).queries - 1) : args.hidden_bound;
}

/// First query row of the block. BlocksPerHead: blocks that share the query rows of a kv head.
template <int BlocksPerHead>
PAGODA_DEVICE int first_row() {
  return BlocksPerHead == 1 ? 0 : static_cast<int>(blockIdx.x % BlocksPerHead) * tile_rows;
}
/// Number of the block's query rows among `num_rows` that share a kv head.
template <int BlocksPerHead>
PAGODA_DEVICE int block_rows(int num_rows) {
  return BlocksPerHead == 1 ? num_rows : max(min(tile_rows, num_rows - first_row<BlocksPerHead>()), 0);
}

/// A query row. `token` counts from the first query token of the entry.
struct QueryRow {
  int token, head;
  /// r: among those that share the kv head.
  PAGODA_DEVICE QueryRow(const Args& args, int kv_head, int r)
      : token(args.heads.divide(r)), head(kv_head * args.heads.value + r - token * args.heads.value) {}
  /// Newest tokens that the row does not see. hidden_from_first: those that the entry's first query token does not see.
  PAGODA_DEVICE int hidden(int hidden_from_first) const { return max(hidden_from_first - token, 0); }
  /// Index of the row's first element in q or out.
  PAGODA_DEVICE std::int64_t offset(const Heads& h, int query_begin) const {
    return (query_begin + token) * h.token + head * h.head;
  }
};

/// Waits until `Threads` threads of the block have arrived. All of them must execute the same bar.sync instruction.
template <int Threads>
PAGODA_DEVICE void sync_block() {
  asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory");
}
/// The same where warps arrive from different places in the code.
template <int Threads>
PAGODA_DEVICE void sync_block_from_anywhere() {
  asm volatile("barrier.sync 1, %0;" ::"n"(Threads) : "memory");
}

}  // namespace pagoda::tuned::wgmma
