/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_PAGODA_MEMORY_H
#define PAGODA_PAGODA_MEMORY_H

#include <pagoda/pagoda.h>

/**
 * @file
 * Memory for caches in C, allocated for the fastest decodes (kv_cache.hpp), and arithmetic for the size of a pool
 * (kv_capacity.hpp). What holds for all calls: pagoda.h.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Shape of a cache. Zero selects the default that stands beside a field. */
typedef struct pagoda_cache_shape {
  size_t struct_size;   /**< sizeof(pagoda_cache_shape) */
  pagoda_layout layout; /**< PAGODA_CONTIGUOUS, PAGODA_PAGED or PAGODA_PAGED_CSR, which has the same memory */
  pagoda_type type;     /**< required: of the elements; any type of pagoda_type_code but PAGODA_E8M0 */
  int32_t num_pages;    /**< required. PAGODA_CONTIGUOUS: num_sequences, the sequences that it holds */
  int32_t page_size;    /**< required: tokens in a page. PAGODA_CONTIGUOUS: max_seq_len, the tokens of a sequence */
  int32_t num_kv_heads; /**< required */
  int32_t head_dim;     /**< required; even where an element holds two dims */
  int32_t head_dim_v;   /**< of values; default: head_dim */
  pagoda_order order;   /**< default: PAGODA_NHD */
} pagoda_cache_shape;

/** Memory of keys and values. */
typedef struct pagoda_cache_memory pagoda_cache_memory;

/** Allocates memory for keys and values and sets it to zero by a kernel on exec. Rows are dense, the first is aligned
   to 1024 bytes, and on hosts huge pages are requested.
    @param exec    whose memory space; NULL: that of the default space
    @param shape   extents, order and type
    @param memory  receives the memory; to be destroyed with pagoda_cache_memory_destroy
    @param k       receives the description of the keys, for pagoda_cache
    @param v       receives that of the values */
PAGODA_C_EXPORT pagoda_status pagoda_cache_memory_create(const pagoda_exec* exec, const pagoda_cache_shape* shape,
                                                         pagoda_cache_memory** memory, pagoda_tensor* k,
                                                         pagoda_tensor* v);
/** Frees the memory, after what uses it has run. NULL is allowed. */
PAGODA_C_EXPORT void pagoda_cache_memory_destroy(pagoda_cache_memory* memory);

/** Sets *bytes to the size of one token in a cache: a key and a value for each kv head, without scales. head_dim_v: 0
    selects head_dim. For one layer of a model, as all counts here. */
PAGODA_C_EXPORT pagoda_status pagoda_bytes_per_token(int32_t num_kv_heads, int32_t head_dim, int32_t head_dim_v,
                                                     pagoda_type type, int64_t* bytes);
/** Sets *bytes to the size of one token in a latent cache: a row of kv_lora_rank + rope_dim elements. */
PAGODA_C_EXPORT pagoda_status pagoda_latent_bytes_per_token(int32_t kv_lora_rank, int32_t rope_dim, pagoda_type type,
                                                            int64_t* bytes);
/** Sets *tokens to the tokens of memory that a sequence of seq_len tokens occupies, in whole pages. Contiguous caches:
    page_size is max_seq_len. */
PAGODA_C_EXPORT pagoda_status pagoda_reserved_tokens(int64_t seq_len, int64_t page_size, int64_t* tokens);
/** Sets *fraction to the unused part of that memory: 0.75 for 512 tokens in pages of 2048. */
PAGODA_C_EXPORT pagoda_status pagoda_waste_fraction(int64_t seq_len, int64_t page_size, double* fraction);
/** Sets *sequences to the number of sequences of seq_len tokens that fit into budget_bytes, in pages that are not
    shared. */
PAGODA_C_EXPORT pagoda_status pagoda_sequences_that_fit(int64_t budget_bytes, int64_t token_bytes, int64_t seq_len,
                                                        int64_t page_size, int64_t* sequences);

#ifdef __cplusplus
}
#endif

#endif
