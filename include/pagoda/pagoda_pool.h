/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_PAGODA_POOL_H
#define PAGODA_PAGODA_POOL_H

#include <pagoda/pagoda_prefix.h>

/**
 * @file
 * Pools in C: memory for the keys and values of many sequences, the bookkeeping of who holds which part of it, and
 * decodes over it. Each call is that of pagoda::KVPool (kv_pool.hpp). What holds for all calls: pagoda.h.
 *
 *     pagoda_pool_options options = {.struct_size = sizeof options, .layout = PAGODA_PAGED, .type = PAGODA_FP16};
 *     options.num_kv_heads = 8, options.head_dim = 128, options.max_seq_len = 4096, options.max_sequences = 64;
 *     options.num_q_heads = 32;
 *     pagoda_pool* pool = NULL;
 *     pagoda_pool_create(NULL, &options, &pool);
 *     int32_t slot;
 *     pagoda_pool_admit(NULL, pool, &k, &v, &slot);                  // a prompt
 *     pagoda_pool_append(NULL, pool, 1, &slot, NULL, &k1, &v1);      // every step: a token
 *     pagoda_pool_decode(NULL, pool, 1, &slot, &q, &out, NULL);
 *
 * A sequence is identified by its slot. Calls that take exec are asynchronous on it; use one instance for all calls of
 * a pool, or order the instances yourself. A pool has one owner at a time. After an error the pool is as it was before
 * the call.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** A pool of one layout and type. */
typedef struct pagoda_pool pagoda_pool;

/** How decodes of a pool read pages that several of its sequences hold: a value of pagoda_share_prefixes_code. */
typedef int32_t pagoda_share_prefixes;
/** Values of pagoda_share_prefixes. */
enum pagoda_share_prefixes_code {
  PAGODA_SHARE_AUTOMATIC = 0, /**< once for all of them where that is predicted to be faster */
  PAGODA_SHARE_NEVER     = 1  /**< once for each sequence */
};

/** Shape of a pool. Zero selects the default that stands beside a field. Lengths are in tokens. */
typedef struct pagoda_pool_options {
  size_t struct_size;    /**< sizeof(pagoda_pool_options) */
  pagoda_layout layout;  /**< PAGODA_CONTIGUOUS or PAGODA_PAGED */
  pagoda_type type;      /**< required: PAGODA_FP64, PAGODA_FP32, PAGODA_FP16 or PAGODA_BF16 */
  int32_t num_kv_heads;  /**< required */
  int32_t head_dim;      /**< required */
  int32_t max_seq_len;   /**< required: the longest sequence */
  int32_t max_sequences; /**< required: slots, the most sequences held at a time */
  int32_t head_dim_v;    /**< of values; default: head_dim */
  int32_t page_size;     /**< PAGODA_PAGED only: tokens in a page; default: 16 */
  int32_t num_pages;     /**< PAGODA_PAGED only; default: enough for max_sequences of max_seq_len */
  pagoda_order order;    /**< default: PAGODA_NHD */
  int32_t num_q_heads;   /**< of the plan made at once; default: none, call pagoda_pool_prepare before decodes */
  pagoda_share_prefixes share_prefixes; /**< PAGODA_PAGED only; default: PAGODA_SHARE_AUTOMATIC */
  /** PAGODA_PAGED only: how plans read shared pages; read by pagoda_pool_create. Default: the defaults. */
  const pagoda_prefix_options* prefix;
} pagoda_pool_options;

/** How full a pool is. Fields that an older struct lacks are not written. */
typedef struct pagoda_pool_stats {
  size_t struct_size;      /**< set by the caller: sizeof(pagoda_pool_stats) */
  int32_t free_slots;      /**< sequences that could be added now, given the pages */
  int32_t page_size;       /**< contiguous: max_seq_len */
  int32_t num_pages;       /**< contiguous: max_sequences */
  int32_t free_pages;      /**< that calls can take: unused ones and evictable_pages */
  int64_t tokens_held;     /**< sum of the lengths of all sequences */
  int64_t tokens_stored;   /**< those of shared pages count once */
  int64_t bytes_per_token; /**< of a key and a value for each kv head */
  int64_t bytes_allocated; /**< keys and values of all pages */
  int64_t bytes_reserved;  /**< of the pages that sequences hold */
  int64_t bytes_used;      /**< of tokens_stored */
  double waste;            /**< unused fraction of bytes_reserved */
  int32_t evictable_pages; /**< those of free_pages that the prefix index caches and gives up when a call needs them */
  int32_t reserved;        /**< 0 */
} pagoda_pool_stats;

/** A prompt, named by its token ids, or by a hash for each of its full pages: pagoda::Prompt (prefix_index.hpp). */
typedef struct pagoda_prompt {
  size_t struct_size;          /**< sizeof(pagoda_prompt) */
  const int32_t* token_ids;    /**< [num_tokens] ids, 0 or more each; NULL: page_hashes name the prompt */
  const uint64_t* page_hashes; /**< [num_page_hashes] hashes, with token_ids NULL */
  int32_t num_tokens;          /**< tokens of the prompt */
  int32_t num_page_hashes;     /**< with page_hashes: num_tokens / page_size */
  uint64_t salt;               /**< prompts of different salts share nothing */
} pagoda_prompt;

/** What the prefix index has saved: pagoda::PrefixStats. Fields that an older struct lacks are not written. */
typedef struct pagoda_prefix_stats {
  size_t struct_size;    /**< set by the caller: sizeof(pagoda_prefix_stats) */
  int64_t prompts;       /**< prompts that were admitted */
  int64_t hit_tokens;    /**< their tokens whose pages were shared */
  int64_t miss_tokens;   /**< their other tokens, which had to be computed */
  int64_t hit_pages;     /**< pages that were shared */
  int64_t miss_pages;    /**< full pages that had to be computed */
  int64_t saved_bytes;   /**< keys and values of the tokens that were shared */
  int64_t evicted_pages; /**< pages that the index gave up */
  int32_t indexed_pages; /**< pages in the index now; not reset */
  int32_t reserved;      /**< 0 */
  double hit_rate;       /**< fraction of the tokens of prompts that were shared */
} pagoda_prefix_stats;

/** Allocates a pool on exec.
    @param exec     the pool's space; NULL: the default space
    @param options  its shape
    @param pool     receives the pool; to be destroyed with pagoda_pool_destroy */
PAGODA_C_EXPORT pagoda_status pagoda_pool_create(const pagoda_exec* exec, const pagoda_pool_options* options,
                                                 pagoda_pool** pool);
/** Destroys a pool, after what was launched with it has run. NULL is allowed. */
PAGODA_C_EXPORT void pagoda_pool_destroy(pagoda_pool* pool);
/** Makes the plan of later decodes. The default of max_batch is max_sequences; programmatic_launch, workspace and
    workspace_bytes must be zero. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_prepare(const pagoda_exec* exec, pagoda_pool* pool,
                                                  const pagoda_decode_options* options);
/** Fills *options with those that the pool was made with, and their defaults, and options->prefix with NULL. Set
    options->struct_size before the call. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_get_options(const pagoda_pool* pool, pagoda_pool_options* options);
/** pagoda_plan_describe of the pool's plan. Valid until the pool is prepared again. NULL if there is no plan. */
PAGODA_C_EXPORT const char* pagoda_pool_describe(pagoda_pool* pool);

/** Adds a sequence that holds these rows: k (token, kv head, head_dim), v the same with head_dim_v, plain types, any
    strides. Sets *slot. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_admit(const pagoda_exec* exec, pagoda_pool* pool, const pagoda_tensor* k,
                                                const pagoda_tensor* v, int32_t* slot);
/** Adds a sequence of num_tokens tokens, whose rows pagoda_pool_write sets later. Sets *slot. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_admit_tokens(const pagoda_exec* exec, pagoda_pool* pool, int32_t num_tokens,
                                                       int32_t* slot);
/** Adds a sequence that starts with the first num_tokens tokens (-1: all) of another one. Paged pools share the pages
    until one of both writes into a page that is not full. Sets *child. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_fork(const pagoda_exec* exec, pagoda_pool* pool, int32_t slot,
                                               int32_t num_tokens, int32_t* child);
/** Removes a sequence. Its slot, and the pages that no other sequence holds, are free at once. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_release(pagoda_pool* pool, int32_t slot);

/** Sets *num_tokens to the tokens with which a sequence of this prompt would begin now, because the prefix index has
   their pages: a multiple of page_size, less than the prompt. A contiguous pool finds nothing. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_match(const pagoda_pool* pool, const pagoda_prompt* prompt,
                                                int32_t* num_tokens);
/** Adds a sequence that holds this prompt, shares the pages that the index has, and names its tokens. k and v: rows of
    the last tokens of the prompt, at least of those behind pagoda_pool_match. Sets *slot. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_admit_prompt(const pagoda_exec* exec, pagoda_pool* pool,
                                                       const pagoda_prompt* prompt, const pagoda_tensor* k,
                                                       const pagoda_tensor* v, int32_t* slot);
/** Adds a sequence of the tokens of pagoda_pool_match alone. Append the others, and name them. Sets *slot. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_admit_matched(const pagoda_exec* exec, pagoda_pool* pool,
                                                        const pagoda_prompt* prompt, int32_t* slot);
/** Sets *can_admit to 1 if pagoda_pool_admit_prompt would succeed now with the right rows, and to 0 otherwise. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_can_admit_prompt(const pagoda_pool* pool, const pagoda_prompt* prompt,
                                                           int32_t* can_admit);
/** Names the next num_tokens tokens of a sequence by ids, whose rows have been written and will not be written again.
 */
PAGODA_C_EXPORT pagoda_status pagoda_pool_name_tokens(pagoda_pool* pool, int32_t slot, int32_t num_tokens,
                                                      const int32_t* token_ids);
/** Names the next num_pages full pages of a sequence by hashes. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_name_pages(pagoda_pool* pool, int32_t slot, int32_t num_pages,
                                                     const uint64_t* page_hashes);
/** Sets *num_tokens to the number of first tokens of a sequence that have names. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_named_tokens(const pagoda_pool* pool, int32_t slot, int32_t* num_tokens);
/** Sets *indexed to 1 if the page is in the prefix index, and to 0 otherwise. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_is_indexed(const pagoda_pool* pool, int32_t page, int32_t* indexed);
/** Evicts up to num_pages pages that the index caches and no sequence needs. Sets *evicted to their number. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_evict(pagoda_pool* pool, int32_t num_pages, int32_t* evicted);
/** Fills *stats. A contiguous pool counts misses only. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_get_prefix_stats(const pagoda_pool* pool, pagoda_prefix_stats* stats);
/** Sets all counts of pagoda_pool_get_prefix_stats to 0, except indexed_pages. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_reset_prefix_stats(pagoda_pool* pool);

/** Appends counts[i] tokens to the sequence in slots[i]; counts NULL: one token each. k and v: (token, kv head, dim),
   the rows of one sequence after those of the one before. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_append(const pagoda_exec* exec, pagoda_pool* pool, int32_t num_slots,
                                                 const int32_t* slots, const int32_t* counts, const pagoda_tensor* k,
                                                 const pagoda_tensor* v);
/** Lengthens sequences as pagoda_pool_append does, without rows: pagoda_pool_write sets them later. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_reserve(const pagoda_exec* exec, pagoda_pool* pool, int32_t num_slots,
                                                  const int32_t* slots, const int32_t* counts);
/** Writes row i of k and v to position slot_mapping[i]; see pagoda_write_kv. Lengths do not change. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_write(const pagoda_exec* exec, pagoda_pool* pool, const int64_t* slot_mapping,
                                                int64_t num_tokens, const pagoda_tensor* k, const pagoda_tensor* v);

/** Decodes these sequences in this order. q, out and lse (NULL: not wanted): see pagoda_decode. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_decode(const pagoda_exec* exec, pagoda_pool* pool, int32_t num_slots,
                                                 const int32_t* slots, const pagoda_tensor* q, const pagoda_tensor* out,
                                                 const pagoda_tensor* lse);
/** Fills *report with what the pool found about the batch of its last decode; see pagoda_prefix_get_report. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_get_prefix_report(const pagoda_pool* pool, pagoda_prefix_report* report);
/** Fills *rates with the rates that the pool predicts times from. Set rates->struct_size before the call. Returns
    PAGODA_INVALID_ARGUMENT with the reason if decodes of the pool are always plain. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_get_rates(const pagoda_pool* pool, pagoda_device_rates* rates);
/** Changes the rates. The next decode makes a new plan. As pagoda_pool_get_rates. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_set_rates(pagoda_pool* pool, const pagoda_device_rates* rates);
/** Fills *tables with the tables of these sequences on the host, for planners: query_len query tokens of each (0: one).
   It refers to `slots` and to the pool, and is valid until the next call of this function, pagoda_pool_decode, or a
   function that changes a sequence. Contiguous: without pages. Set tables->struct_size before the call. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_batch_pages(const pagoda_pool* pool, int32_t num_slots, const int32_t* slots,
                                                      int32_t query_len, pagoda_batch_pages* tables);
/** Describes the cache in which batch entry b is the sequence in slots[b], for pagoda_decode with a plan of yours. It
    refers to the pool's memory; the next call of this function changes the selected sequences of all caches that it
    returned. Set kv->struct_size before the call. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_kv(const pagoda_exec* exec, pagoda_pool* pool, int32_t num_slots,
                                             const int32_t* slots, pagoda_cache* kv);

/** Sets *holds to 1 if a sequence is in this slot, and to 0 otherwise. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_holds(const pagoda_pool* pool, int32_t slot, int32_t* holds);
/** Sets *seq_len to the tokens of a sequence. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_seq_len(const pagoda_pool* pool, int32_t slot, int32_t* seq_len);
/** Sets *can_admit to 1 if pagoda_pool_admit_tokens of num_tokens would succeed now, and to 0 otherwise. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_can_admit(const pagoda_pool* pool, int32_t num_tokens, int32_t* can_admit);
/** Sets *pages to the page ids of a sequence in host memory, valid until the sequence changes, and *num_pages to their
    number. Contiguous: its slot. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_block_table(const pagoda_pool* pool, int32_t slot, const int32_t** pages,
                                                      int32_t* num_pages);
/** Sets *count to the number of sequences that hold a page. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_page_ref_count(const pagoda_pool* pool, int32_t page, int32_t* count);
/** Writes the positions of tokens `first` to first + count - 1 of a sequence to positions[0 .. count - 1], on the host:
    entries of a slot mapping. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_slot_mapping(const pagoda_pool* pool, int32_t slot, int32_t first,
                                                       int32_t count, int64_t* positions);
/** Fills *stats. Takes time in the number of pages. */
PAGODA_C_EXPORT pagoda_status pagoda_pool_get_stats(const pagoda_pool* pool, pagoda_pool_stats* stats);

#ifdef __cplusplus
}
#endif

#endif
