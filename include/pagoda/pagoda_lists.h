/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_PAGODA_LISTS_H
#define PAGODA_PAGODA_LISTS_H

#include <pagoda/pagoda.h>

/**
 * @file
 * Decodes of lists of entries in C. A list says which tokens are read for which query tokens: trees of draft tokens
 * with a mask for each, pages chosen for each sequence and kv head, prefixes that sequences share, a range of a
 * context. Each call is that of entries.hpp; entry.hpp describes lists in full. What holds for all calls: pagoda.h.
 *
 *     pagoda_entry entry[2] = {pagoda_make_entry(0, 0, -1, 0, 1), pagoda_make_entry(1, 0, -1, 1, 1)};
 *     pagoda_entry_query query[2] = {pagoda_make_entry_query(0, 0, 1), pagoda_make_entry_query(1, 1, 1)};
 *     // copied to memory of the execution space
 *     pagoda_entries list = {.struct_size = sizeof list, .entries = entries, .num_entries = 2,
 *                            .queries = queries, .num_queries = 2};
 *     options.max_entries = 2;                                                           // of pagoda_plan_create
 *     pagoda_decode_entries(NULL, plan, &q, &kv, &list, &out, NULL, NULL, NULL);         // asynchronous
 *
 * Lists with partial states: pass state_out and state_lse, and call pagoda_merge_entries behind the decode.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Tokens first to last - 1 of a sequence, read once for a run of query tokens: pagoda::Entry. Aligned to 16 bytes.
   Zero in kv_head selects kv head 0: use pagoda_make_entry. Its layout does not change between versions. */
typedef struct pagoda_entry {
  int32_t sequence;    /**< whose pages are read: an index into seq_lens */
  int32_t first;       /**< first token: a multiple of the page size; in a contiguous cache any token */
  int32_t last;        /**< one past the last token; negative: the sequence's length when the kernel runs */
  int32_t query_begin; /**< first of its query tokens in the list's queries */
  int32_t num_queries; /**< number of its query tokens; 0: the entry is skipped */
  int32_t state;   /**< index of the partial state that it writes for each of its query tokens: 0, 1, ... in the order
                      of `first`. Negative: its query tokens have no other entry, so the result goes to out */
  int32_t kv_head; /**< the only kv head that is read, for its query heads; negative: all kv heads */
  int32_t chain; /**< 0: the entry stands alone. n > 0: it begins a chain of this entry and the next n (pagoda::Entry),
                    which plans with entry_chains in their options carry out. -k: the k-th entry behind the first */
} pagoda_entry;

/** A query token: pagoda::EntryQuery. Aligned to 16 bytes. Zero in mask selects a mask: use pagoda_make_entry_query.
   Its layout does not change between versions. */
typedef struct pagoda_entry_query {
  int32_t token;    /**< row of q */
  int32_t sequence; /**< sequence to which it belongs */
  int32_t behind;   /**< 1 for the newest token of the sequence; with a mask: number of newest tokens that it covers, up
                       to 128 */
  int32_t mask;     /**< index of the first of its two words in the list's masks, whose bit j says whether it sees token
                       seq_len - behind + j; negative: no mask */
} pagoda_entry_query;

/** An entry for all kv heads that writes out. */
static inline pagoda_entry pagoda_make_entry(int32_t sequence, int32_t first, int32_t last, int32_t query_begin,
                                             int32_t num_queries) {
  pagoda_entry e;
  e.sequence = sequence, e.first = first, e.last = last;
  e.query_begin = query_begin, e.num_queries = num_queries;
  e.state = -1, e.kv_head = -1, e.chain = 0;
  return e;
}

/** A query token without a mask. */
static inline pagoda_entry_query pagoda_make_entry_query(int32_t token, int32_t sequence, int32_t behind) {
  pagoda_entry_query q;
  q.token = token, q.sequence = sequence, q.behind = behind, q.mask = -1;
  return q;
}

/** A list of entries. The arrays are in memory of the execution space and are read when a decode runs. */
typedef struct pagoda_entries {
  size_t struct_size;                /**< sizeof(pagoda_entries) */
  const pagoda_entry* entries;       /**< [num_entries], all of them are carried out */
  const pagoda_entry_query* queries; /**< [num_queries], what query_begin refers to */
  const int32_t* state_begin; /**< [query tokens + 1]: query token t has state_begin[t + 1] - state_begin[t] partial
                                 states, from state_begin[t] on; NULL: no entry writes partial states */
  const uint64_t* masks;      /**< [num_mask_words], two for each query token with a mask; NULL: there are none */
  int32_t num_entries;        /**< entries of `entries`, up to max_entries of the plan's options */
  int32_t num_queries;        /**< entries of `queries` */
  int32_t num_state_begin;    /**< entries of `state_begin` */
  int32_t num_mask_words;     /**< entries of `masks` */
} pagoda_entries;

/** Decodes a list of entries. Asynchronous on exec; allocates nothing, can be captured in a graph. The contents of the
    list are not checked: pagoda_check_entries does.
    @param exec       instance of the plan's space; NULL: its default instance
    @param plan       made with max_entries in its options
    @param q          as for pagoda_decode; rows belong to sequences through the list alone
    @param kv         the cache
    @param list       what is read for which query tokens
    @param out        as for pagoda_decode; written by entries with a negative state
    @param lse        as for pagoda_decode; NULL: not wanted
    @param state_out  partial states (state, q head, head_dim_v), a plain type; required with state_begin
    @param state_lse  (state, q head), PAGODA_FP32 or PAGODA_FP64; required with state_begin */
PAGODA_C_EXPORT pagoda_status pagoda_decode_entries(const pagoda_exec* exec, const pagoda_plan* plan,
                                                    const pagoda_tensor* q, const pagoda_cache* kv,
                                                    const pagoda_entries* list, const pagoda_tensor* out,
                                                    const pagoda_tensor* lse, const pagoda_tensor* state_out,
                                                    const pagoda_tensor* state_lse);

/** Merges the partial states of each query token that has any into its row of out and lse (NULL: not wanted), and adds
    the plan's sinks. Other rows are left as they are. Asynchronous on exec. */
PAGODA_C_EXPORT pagoda_status pagoda_merge_entries(const pagoda_exec* exec, const pagoda_plan* plan,
                                                   const pagoda_entries* list, const pagoda_tensor* state_out,
                                                   const pagoda_tensor* state_lse, const pagoda_tensor* out,
                                                   const pagoda_tensor* lse);

/** Checks a list, the lengths and the page table as they are on the device now, for a decode of these queries. Waits
   for exec. num_states: extent of the partial states. */
PAGODA_C_EXPORT pagoda_status pagoda_check_entries(const pagoda_exec* exec, const pagoda_plan* plan,
                                                   const pagoda_tensor* q, const pagoda_cache* kv,
                                                   const pagoda_entries* list, int32_t num_states);

#ifdef __cplusplus
}
#endif

#endif
