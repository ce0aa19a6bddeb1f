// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include "backends/cuda/tuned/speed.hpp"

#include <cstddef>
#include <cstdint>

struct CUstream_st;

/// Decode attention by hand-tuned CUDA kernels, without Kokkos: pointers, strides and a stream.
///  - One query token for each entry, or with cu_seqlens_q one or none, up to 8 query heads to a kv head; keys and
///    values of 32, 16 or 8 bits, and integers of 8 or 4 bits; pages of any size; all score options. `fixed_splits`
///    allows no score options, no cu_seqlens_q, no integers, and only pages of multiples of 16 tokens; integers allow
///    no cu_seqlens_q and only such pages, too. Latent caches and lists need pages of multiples of 8 tokens.
///  - On sm_90, in 16 bits, up to 128 query heads to a kv head and any number of query tokens, with all score options;
///    more than 128 query rows (heads times tokens) take several passes over the cache in one launch. Also latent
///    caches (head_dim 576, head_dim_v 512 of the same memory), without score options, also as rows of fp8_ds_mla
///    (pagoda/row_formats.hpp), whose numbers times scales are rounded to bf16. Entries may have different numbers of
///    query tokens. Here scores are sums of head_dim / 16 steps, each of which the hardware truncates instead of
///    rounding: log-sum-exps have errors of up to head_dim / 16 * 2^-23 of the largest score.
///  - There too: lists of entries (pagoda/entry.hpp), with and without masks and sinks, but no other score options, of
///    up to 128 query rows to a kv head; keys and values of 16 bits and 64 or 128 dims, or of 8 bits and 128 dims
///    without scales of single tokens.
/// `why_not` says which problems the kernels support.
namespace pagoda::tuned {

/// int4: a byte holds two dims, the even one in its lower half. fp8_ds_mla: a byte of a row of 656.
enum class Type { fp16, bf16, fp8_e4m3, fp8_e5m2, fp32, int8, int4, fp8_ds_mla };
constexpr bool is_integer(Type type) { return type == Type::int8 || type == Type::int4; }
/// Types of 8 or 4 bits, which only keys and values have.
constexpr bool is_quantized(Type type) {
  return type == Type::fp8_e4m3 || type == Type::fp8_e5m2 || type == Type::fp8_ds_mla || is_integer(type);
}
/// The type of queries for keys of a type.
constexpr Type query_type(Type keys) {
  return keys == Type::fp8_ds_mla ? Type::bf16 : is_quantized(keys) ? Type::fp16 : keys;
}
constexpr int bits_of(Type type) {
  return type == Type::fp32 ? 32 : type == Type::int4 ? 4 : is_quantized(type) ? 8 : 16;
}
constexpr int row_bytes(Type type, int head_dim) {
  return type == Type::fp8_ds_mla ? 656 : head_dim * bits_of(type) / 8;
}

/// Keys or values: rows of head_dim dense elements. The strides are in bytes.
struct Cache {
  const void* data;
  std::int64_t page, token, head;
  const float* scale;       ///< scales of quantized elements; null: 1
  std::int64_t scale_head;  ///< from one kv head's scale to the next, in floats; 0: one for all
  /// The same from page to page and from token to token, for integers whose tokens have scales of their own.
  std::int64_t scale_page = 0, scale_token = 0;
};
constexpr bool has_token_scales(const Cache& c) { return c.scale && (c.scale_page != 0 || c.scale_token != 0); }

/// Queries or outputs: rows of dense elements, indexed [query token][head]. Strides are in elements.
struct Heads {
  void* data;
  Type type;
  std::int64_t token, head;
};

/// Log-sum-exps, indexed [query token][head]. Strides are in elements.
struct LogSumExps {
  void* data;  ///< null: not wanted
  bool is_double;
  std::int64_t token, head;
};

/// Options that change scores or hide tokens (pagoda::DecodeOptions). The arrays are read when the kernel runs.
struct ScoreOptions {
  int window_left           = -1;       ///< tokens before the query token that it sees; -1: all
  int num_initial_tokens    = 0;        ///< first tokens that it sees besides the window
  double logit_soft_cap     = 0;        ///< a score becomes cap * tanh(score / cap); 0: off
  const float* alibi_slopes = nullptr;  ///< [num_q_heads] adds slope * (token - query position); null: none
  const float* sinks        = nullptr;  ///< [num_q_heads] logit of an extra token without value; null: none
  constexpr bool any() const { return window_left >= 0 || logit_soft_cap > 0 || alibi_slopes || sinks; }
};

/// A list of entries (pagoda/entry.hpp), which a problem has instead of a batch. Its arrays are read when the kernel
/// runs. In a paged cache Entry::first is a multiple of 8 and of the page size, in a contiguous one of 8.
struct List {
  int max_entries;  ///< bound on num_entries; 0: the problem has a batch, and the rest is unused
  int num_entries;
  const Entry* entries;
  const EntryQuery* queries;
  const int* state_begin;      ///< null: no entry writes partial states
  const std::uint64_t* masks;  ///< null: no query token has a mask
  /// [num_q_heads] logits of attention sinks, which results in the output have and partial states do not; null: none
  const float* sinks;
  bool chains;      ///< entries may form chains
  Heads state_out;  ///< partial states, indexed [state][head]; data is null: no entry writes any
  LogSumExps state_lse;
  /// Whether entries of up to 8 query rows may stand alone, without a chain. If not, a kernel without a role for them
  /// carries out the list, which takes 1 to 4% less time. Results are right in either case.
  bool has_few_rows = true;
};

struct Problem {
  Type type;  ///< type of keys and values
  int batch, num_q_heads, num_kv_heads, head_dim, head_dim_v;
  int page_size;                       ///< tokens; contiguous: capacity of one sequence
  std::int64_t max_seq_len;            ///< bound on every length; used for tuning only
  std::int64_t num_pages;              ///< contiguous: sequences
  Cache k, v;                          ///< the same data and strides: values are the first dims of the keys
  const int* seq_lens;                 ///< [sequences], read when the kernel runs, like all of the below
  const int* sequence_ids;             ///< [batch]; null: batch entry b is sequence b
  const int* block_table;              ///< page ids; null: contiguous, page = sequence
  const int* page_indptr;              ///< first entry of a sequence in block_table; null: sequence * table_row
  std::int64_t table_row, table_page;  ///< strides in block_table, in elements
  std::int64_t table_pages;            ///< entries of a row (page_indptr: of the table): what may be read
  std::int64_t table_entries;          ///< number from the first to the last that may be read
  int num_q_tokens;                    ///< query tokens of each batch entry, the newest of its sequence
  int max_q_tokens;                    ///< bound on the query tokens of an entry, for every decode on a workspace
  /// [batch + 1]: the query tokens of entry b are cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, from 0 to max_q_tokens of
  /// them, and num_q_tokens is unused. Null: they are b * num_q_tokens to (b + 1) * num_q_tokens - 1.
  const int* cu_seqlens_q;
  std::int64_t total_q_tokens;  ///< with cu_seqlens_q or a list: query tokens in q
  bool causal;                  ///< query token i of an entry does not see newer ones; otherwise it sees every token
  Heads q, out;
  void* lse;  ///< log-sum-exps; null: not wanted
  bool lse_double;
  std::int64_t lse_token, lse_head;
  double softmax_scale;
  ScoreOptions options;  ///< a list has its sinks in `list`
  /// sm_90: may start while the kernel before it on the stream still runs (CUDA's programmatic dependent launch). As
  /// the launch is cooperative, CUDA 13.0 does so in graphs only.
  ///  - The kernel before may write the queries and the newest 16 tokens of each sequence. The decode waits until that
  ///    kernel has completed and its writes are visible before it reads these or writes anything.
  ///  - Lengths, sequence ids, tables, cu_seqlens_q and older tokens are read without waiting. Kernels that completed
  ///    before the kernel before the decode began must have written them.
  ///  - The decode waits for that one kernel only. If that kernel was itself launched programmatically, it must execute
  ///    griddepcontrol.wait (cudaGridDependencySynchronize), at the latest before it ends: otherwise what its own
  ///    predecessor wrote is not ordered before the decode. The decode's kernels do so themselves, before they let the
  ///    kernel behind start.
  /// No effect on older cards, beyond 8 query rows to a kv head, on latent caches, with stream-K, and with pages that
  /// are no multiple of 16 tokens.
  bool programmatic;
  /// A list: `batch`, `sequence_ids`, `num_q_tokens` and `cu_seqlens_q` are unused, max_q_tokens is the bound on the
  /// query tokens of an entry, and total_q_tokens is the number in q. Entries' units of work (common/
  /// list_work.hpp) are fewer than 2^31: that is 10^10 tokens times kv heads.
  List list;
  /// The splits of a batch head follow from its length and the shape alone, so that results do not depend on the rest
  /// of the batch or the number of multiprocessors (warp/fixed_splits.cuh). For batch heads of up to max_seq_len
  /// tokens. sm_90, up to 8 query rows to a kv head. `programmatic` has no effect.
  bool fixed_splits;
  int max_batch;  ///< with fixed_splits: bound on `batch`, for every decode on a workspace
};

/// Query heads that share a kv head.
constexpr int group_size_of(const Problem& p) { return p.num_q_heads / p.num_kv_heads; }
constexpr bool is_list(const Problem& p) { return p.list.max_entries > 0; }

/// What the kernels are tuned to.
struct Device {
  int sm;  ///< 80, 86, 90: the card's, or the one that the code was compiled for if that is older
  int num_sms;
  int shared_per_sm, shared_per_block;  ///< bytes
  bool sm90a = false;                   ///< there is code for sm_90a, which runs only on sm_90 cards, and this is one
  Speed speed{};                        ///< built in or measured; only the choice of launch shapes depends on it
  static Device current();
};

/// Returns null if `decode` supports the problem on the device, else the reason as text. Does not read through
/// pointers.
const char* why_not(const Problem& problem, const Device& device);

/// Bytes of device memory that decodes of such heads and query tokens write besides their outputs, for any batch. Here
/// and below, only the problem's type, num_q_heads, num_kv_heads, head_dim, head_dim_v, max_q_tokens, list.max_entries,
/// causal, whether it has options or cu_seqlens_q, fixed_splits and, with these, max_batch and max_seq_len count.
std::size_t workspace_bytes(const Problem& problem, const Device& device);

/// Sets a workspace up, once, and loads the kernels. Every decode leaves the workspace as it was; one decode may be in
/// flight on it.
void prepare(const Problem& problem, const Device& device, void* workspace, CUstream_st* stream);

/// One kernel, asynchronous on the stream. It is launched cooperatively: blocks that share a row wait for each other's
/// results, so all of them must be running. Returns false, with nothing launched, where the stream may use fewer
/// multiprocessors than device.num_sms and the blocks do not fit them. Throws std::runtime_error where CUDA reports
/// another error.
bool decode(const Problem& problem, const Device& device, void* workspace, CUstream_st* stream);

}  // namespace pagoda::tuned
