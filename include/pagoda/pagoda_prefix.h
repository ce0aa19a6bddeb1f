/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_PAGODA_PREFIX_H
#define PAGODA_PAGODA_PREFIX_H

#include <pagoda/pagoda.h>

/**
 * @file
 * Decodes that read shared prefixes once, in C: pagoda::PrefixDecoder (prefix.hpp). What holds for all calls: pagoda.h.
 *
 *     pagoda_prefix_decoder* decoder = NULL;
 *     pagoda_prefix_create(NULL, &kv, &options, NULL, &decoder);            // once for a shape
 *     pagoda_batch_pages tables = {.struct_size = sizeof tables, .batch = 4, .num_sequences = 4, .page_size = 16,
 *                                  .seq_lens = lengths, .block_table = table, .max_pages = 8};   // on the host
 *     pagoda_prefix_update(NULL, decoder, &tables, NULL);                   // every step
 *     pagoda_prefix_decode(NULL, decoder, &q, &kv, &out, NULL);             // every layer; asynchronous
 *
 * pagoda_prefix_plan may run on another thread while decodes run, but not beside pagoda_prefix_install,
 * pagoda_prefix_update, pagoda_prefix_get_report and pagoda_prefix_set_rates.
 *
 * Not in C: the decoder's plans as objects; pagoda_prefix_describe has their text.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Plans and memory for decodes of one shape. */
typedef struct pagoda_prefix_decoder pagoda_prefix_decoder;

/** Most row tiles that rates have. */
#define PAGODA_MAX_ROW_TILES 16

/** Rate of a kernel with tiles of this many query rows. */
typedef struct pagoda_row_tile {
  int32_t rows;        /**< query rows: query tokens times the query heads of a kv head */
  int32_t reserved;    /**< 0 */
  double flops_per_us; /**< rate of the whole machine */
  double item_us;      /**< overhead of a work item with such tiles; 0: that of the rates */
} pagoda_row_tile;

/** Rates of a machine, from which planning predicts times: pagoda::DeviceRates (device_rates.hpp). All are required:
    start from those of pagoda_prefix_get_rates. */
typedef struct pagoda_device_rates {
  size_t struct_size;                                /**< sizeof(pagoda_device_rates) */
  double memory_bytes_per_us;                        /**< bandwidth of memory */
  double cache_bytes_per_us;                         /**< bandwidth of the last-level cache */
  double cache_bytes;                                /**< bytes that it keeps */
  double state_bytes_per_us;                         /**< bandwidth for partial states */
  double item_us;                                    /**< overhead of a work item in a team */
  double list_us;                                    /**< extra time of a decode with a list and a merge */
  int32_t teams;                                     /**< teams that run at the same time */
  int32_t num_tiles;                                 /**< entries of tiles */
  int32_t num_plain_tiles;                           /**< entries of plain_tiles; 0: those of tiles */
  int32_t reserved;                                  /**< 0 */
  pagoda_row_tile tiles[PAGODA_MAX_ROW_TILES];       /**< of kernels that decode lists, rows ascending */
  pagoda_row_tile plain_tiles[PAGODA_MAX_ROW_TILES]; /**< of plain decodes, which may run in another kernel */
  double chain_entry_us; /**< overhead, in a team, of each further entry of a chain (pagoda::Entry::chain) */
  int32_t chain_rows;    /**< most query rows of a chain, up to what the kernels carry out; 0: lists have no chains */
  int32_t chain_tokens;  /**< most tokens of its own, on average for each query head of a kv head, of a sequence in a
                            chain */
  int32_t unsplit_chain_tokens; /**< a second bound, for all query heads of a kv head together, in batches that have a
                                   full chain for at least 9/10 of teams (each kv head counts); the larger bound
                                   holds; 0: chain_tokens alone */
  int32_t reserved2;            /**< 0 */
} pagoda_device_rates;

/** Bounds of a decoder: pagoda::PrefixOptions. Zero selects the default that stands beside a field. */
typedef struct pagoda_prefix_options {
  size_t struct_size;     /**< sizeof(pagoda_prefix_options) */
  int32_t max_entries;    /**< bound on the entries of a list; default: 4 for each query token */
  int32_t max_states;     /**< bound on its partial states; default: 4 for each query token */
  pagoda_type state_type; /**< of partial states: PAGODA_FP32, PAGODA_FP16 or PAGODA_BF16; default: on GPUs that of
                               each decode's outputs, if it has 16 bits; otherwise PAGODA_FP32 */
  int32_t reserved;       /**< 0 */
  const pagoda_device_rates* rates; /**< read by the call; default: those of the machine */
} pagoda_prefix_options;

/** Tables, lengths and query counts of a batch in host memory: pagoda::BatchPages (batch_pages.hpp). They say what the
    device's copies hold when the decode runs. Page ids come in one of three forms: a dense table, CSR lists, or a
   pointer for each sequence; without any of them the cache is contiguous. */
typedef struct pagoda_batch_pages {
  size_t struct_size;              /**< sizeof(pagoda_batch_pages) */
  int32_t batch;                   /**< entries decoded by one call */
  int32_t num_sequences;           /**< entries of seq_lens */
  int32_t page_size;               /**< tokens in a page; 0 for a contiguous cache */
  int32_t query_len;               /**< query tokens of each batch entry, without cu_seqlens_q; default: 1 */
  const int32_t* seq_lens;         /**< [num_sequences] tokens held, this decode's query tokens included */
  const int32_t* sequence_ids;     /**< [batch]; default: batch entry b is sequence b */
  const int32_t* cu_seqlens_q;     /**< [batch + 1]; default: query_len for each */
  const int32_t* block_table;      /**< dense: page ids */
  int64_t max_pages;               /**< dense: entries of a row */
  int64_t block_table_stride[2];   /**< dense: of rows and entries, in integers; default: dense */
  const int32_t* page_indptr;      /**< CSR: [num_sequences + 1] */
  const int32_t* page_indices;     /**< CSR: [num_page_indices] page ids */
  int64_t num_page_indices;        /**< CSR: entries of page_indices */
  const int32_t* const* page_rows; /**< pointers: [num_sequences] page ids of each sequence, at least those it needs */
} pagoda_batch_pages;

/** What the last pagoda_prefix_plan or pagoda_prefix_update found. Fields that an older struct lacks are not written.
 */
typedef struct pagoda_prefix_report {
  size_t struct_size;        /**< set by the caller: sizeof(pagoda_prefix_report) */
  int32_t new_plan;          /**< 1: a new plan was made; 0: the plan before still holds */
  int32_t entries;           /**< entries of the list */
  int32_t states;            /**< partial states of the list */
  int32_t reserved;          /**< 0 */
  double planning_us;        /**< time that the call took on the host */
  double plain_us;           /**< predicted time of a plain decode; 0: no page is shared */
  double packed_us;          /**< predicted time of a decode of the list; 0: no page is shared */
  const char* plain_because; /**< why decodes are plain; NULL: they read a list. Valid until the next plan */
} pagoda_prefix_report;

/** Makes a decoder, and allocates all that its decodes need.
    @param exec     as for pagoda_plan_create
    @param kv       a cache of the shape to come
    @param options  what decodes compute; workspace and max_entries must be zero
    @param prefix   bounds and rates; NULL: the defaults
    @param decoder  receives the decoder; to be destroyed with pagoda_prefix_destroy */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_create(const pagoda_exec* exec, const pagoda_cache* kv,
                                                   const pagoda_decode_options* options,
                                                   const pagoda_prefix_options* prefix,
                                                   pagoda_prefix_decoder** decoder);
/** Destroys a decoder, after its decodes have run. NULL is allowed. */
PAGODA_C_EXPORT void pagoda_prefix_destroy(pagoda_prefix_decoder* decoder);

/** Plans for the batch of the next decodes, on the host alone, unless the last plan still holds. Sets *install (NULL:
   not wanted) to 1 if pagoda_prefix_install has to be called, and to 0 otherwise. After an error the last plan holds.
 */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_plan(pagoda_prefix_decoder* decoder, const pagoda_batch_pages* tables,
                                                 int32_t* install);
/** Makes later decodes follow the last plan; a list is copied asynchronously on exec. Sets *packed (NULL: not wanted)
   to 1 if decodes read a list, and to 0 if they are plain. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_install(const pagoda_exec* exec, pagoda_prefix_decoder* decoder,
                                                    int32_t* packed);
/** pagoda_prefix_plan and pagoda_prefix_install. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_update(const pagoda_exec* exec, pagoda_prefix_decoder* decoder,
                                                   const pagoda_batch_pages* tables, int32_t* packed);
/** Decodes the batch of the last pagoda_prefix_install; see pagoda_decode. kv has the tables of the plan, on the
   device. Asynchronous on exec; allocates nothing, can be captured in a graph. One decode may be in flight. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_decode(const pagoda_exec* exec, pagoda_prefix_decoder* decoder,
                                                   const pagoda_tensor* q, const pagoda_cache* kv,
                                                   const pagoda_tensor* out, const pagoda_tensor* lse);

/** Fills *report. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_get_report(const pagoda_prefix_decoder* decoder,
                                                       pagoda_prefix_report* report);
/** Sets *packed to 1 if decodes read a list, and to 0 if they are plain. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_packed(const pagoda_prefix_decoder* decoder, int32_t* packed);
/** Sets *key to the key of the launches of a decode: decodes of the same batch size and key may replay the same graph.
   0: a plain decode. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_graph_key(const pagoda_prefix_decoder* decoder, uint64_t* key);
/** pagoda_plan_describe of the plan of plain decodes (lists 0) or of lists (lists 1). Valid until the next call of this
    function for the decoder. NULL if there is no plan of lists; pagoda_last_error() then says why. */
PAGODA_C_EXPORT const char* pagoda_prefix_describe(pagoda_prefix_decoder* decoder, int32_t lists);
/** Fills *rates with the rates that planning predicts times from. Set rates->struct_size before the call. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_get_rates(const pagoda_prefix_decoder* decoder, pagoda_device_rates* rates);
/** Changes the rates. The next plan is a new one. */
PAGODA_C_EXPORT pagoda_status pagoda_prefix_set_rates(pagoda_prefix_decoder* decoder, const pagoda_device_rates* rates);

#ifdef __cplusplus
}
#endif

#endif
