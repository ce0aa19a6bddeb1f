// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/list_entries.cuh"
#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/passes.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"

/// Batch entries, the query rows of an entry that share a kv head, and which of them are a block's.
namespace pagoda::tuned::wgmma {

using namespace ptx;

/// An entry: a pass over a batch entry (passes.hpp).
PAGODA_DEVICE EntryView entry_of(const Args& args, int index) {
  const int batch = args.passes.divide(index);
  EntryView entry = tuned::entry_of(args, batch);
  entry.tokens = tokens_of_pass(index - batch * args.passes.value, args.q_tokens_bound, args.num_q_tokens, entry.tokens,
                                args.hides_newer);
  entry.query_begin = index * args.q_tokens_bound, entry.queries = args.q_tokens_bound;
  return entry;
}
PAGODA_DEVICE EntryView entry_of(const RaggedArgs& args, int index) {
  const int batch = args.passes.divide(index), pass = index - batch * args.passes.value;
  EntryView entry   = tuned::entry_of(args, batch);
  const int begin   = args.cu_seqlens_q ? __ldg(args.cu_seqlens_q + batch) : batch * args.num_q_tokens;
  const int all     = args.cu_seqlens_q ? __ldg(args.cu_seqlens_q + batch + 1) - begin : args.num_q_tokens;
  entry.tokens      = tokens_of_pass(pass, args.q_tokens_bound, all, entry.tokens, args.hides_newer);
  entry.query_begin = begin + pass * args.q_tokens_bound;
  entry.queries     = queries_of_pass(pass, args.q_tokens_bound, all);
  return entry;
}
using tuned::entry_of;
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
  return BlocksPerHead == 1 ? 0 : static_cast<int>(blockIdx.y) * tile_rows;
}
/// Number of the block's query rows among `num_rows` that share a kv head.
template <int BlocksPerHead>
PAGODA_DEVICE int block_rows(int num_rows) {
  return BlocksPerHead == 1 ? num_rows : max(min(tile_rows, num_rows - first_row<BlocksPerHead>()), 0);
}

/// Row of q or out of an entry's query token. In a batch an entry's query tokens follow one another from query_begin
/// on. Lists have another type in place of query_begin, with an overload of this function.
PAGODA_DEVICE int token_row(int query_begin, int token) { return query_begin + token; }

/// The rows of a list's entry, which are those of partial states if it writes these.
struct ListRows {
  const ListArgs& args;
  int query_begin, state;
};
PAGODA_DEVICE int token_row(const ListRows& rows, int token) {
  return output_row(rows.args, list_query(rows.args, rows.query_begin + token).token, rows.state);
}
/// The same if they have been loaded to shared memory.
struct LoadedRows {
  const int* rows;
};
PAGODA_DEVICE int token_row(const LoadedRows& loaded, int token) { return loaded.rows[token]; }

/// Where the results of a batch entry go, and their rows.
PAGODA_DEVICE const Args& outputs_of(const Args& args, int /*batch*/) { return args; }
template <class Base>
PAGODA_DEVICE const OptionArgs<Base>& outputs_of(const OptionArgs<Base>& args, int /*batch*/) {
  return args;
}
PAGODA_DEVICE int rows_of(const Args& /*args*/, int /*batch*/, const EntryView& entry) { return entry.query_begin; }
PAGODA_DEVICE const Outputs& outputs_of(const ListArgs& args, int index) {
  return list_outputs(args, list_entry(args, index).state >= 0);
}
PAGODA_DEVICE ListRows rows_of(const ListArgs& args, int index, const EntryView& entry) {
  return {args, entry.query_begin, list_entry(args, index).state};
}

/// A query row. `token` counts from the first query token of the entry.
struct QueryRow {
  int token, head;
  /// r: among those that share the kv head.
  PAGODA_DEVICE QueryRow(const auto& args, int kv_head, int r)
      : token(args.heads.divide(r)), head(kv_head * args.heads.value + r - token * args.heads.value) {}
  /// Newest tokens that the row does not see. hidden_from_first: those that the entry's first query token does not see.
  PAGODA_DEVICE int hidden(int hidden_from_first) const { return max(hidden_from_first - token, 0); }
  /// Index of the row's first element in q or out. query_begin: see token_row.
  PAGODA_DEVICE std::int64_t offset(const Heads& h, const auto& query_begin) const {
    return token_row(query_begin, token) * h.token + head * h.head;
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
