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

/// The block's pass of a round over a batch entry.
struct Pass {
  int batch, index;
  int query_begin, all_queries;  ///< of the batch entry

  PAGODA_DEVICE Pass(const PassArgs& args, int entry)
      : batch(args.rounds.divide(entry)),
        index(
            pass_of_block(entry - batch * args.rounds.value, entry, static_cast<int>(blockIdx.y), args.side_by_side)) {
    query_begin = args.cu_seqlens_q ? __ldg(args.cu_seqlens_q + batch) : batch * args.num_q_tokens;
    all_queries = args.cu_seqlens_q ? __ldg(args.cu_seqlens_q + batch + 1) - query_begin : args.num_q_tokens;
  }
  PAGODA_DEVICE int queries(const PassArgs& args) const {
    return queries_of_pass(index, args.q_tokens_bound, all_queries);
  }
};
PAGODA_DEVICE EntryView entry_of(const PassArgs& args, int index) {
  const Pass pass(args, index);
  EntryView entry   = tuned::entry_of(args, pass.batch);
  entry.tokens      = tokens_of_pass(pass.index, args.q_tokens_bound, pass.all_queries, entry.tokens, args.hides_newer);
  entry.query_begin = pass.query_begin + pass.index * args.q_tokens_bound;
  entry.queries     = pass.queries(args);
  return entry;
}
/// Tokens of an entry behind its newest query token: those of later passes, if query tokens see newer tokens.
PAGODA_DEVICE int tokens_behind(const Args&, int) { return 0; }
PAGODA_DEVICE int tokens_behind(const PassArgs& args, int index) {
  if (args.hides_newer) return 0;
  const Pass pass(args, index);
  return pass.all_queries - pass.index * args.q_tokens_bound - pass.queries(args);
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

/// Waits until `Threads` threads of the block have arrived. All of them must execute the same instruction.
template <int Threads>
PAGODA_DEVICE void sync_block() {
  sync_threads<1, Threads>();
}
/// Two warpgroups take turns: barrier 2 + g is that of the turns of warpgroup g.
PAGODA_DEVICE void wait_for_turn(int warpgroup) {
  asm volatile("barrier.sync %0, 256;" ::"r"(2 + warpgroup) : "memory");
}
PAGODA_DEVICE void give_turn(int warpgroup) { asm volatile("barrier.arrive %0, 256;" ::"r"(2 + warpgroup) : "memory"); }
/// The same as sync_block where warps arrive from different places in the code.
template <int Threads>
PAGODA_DEVICE void sync_block_from_anywhere() {
  sync_threads_from_anywhere<1, Threads>();
}

}  // namespace pagoda::tuned::wgmma
