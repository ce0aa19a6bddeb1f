/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_PAGODA_H
#define PAGODA_PAGODA_H

#include <pagoda/c_export.h>
#include <pagoda/version_numbers.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/**
 * @file
 * The C interface, in C99; also valid C++. Link Pagoda::c. It describes arrays by pointer, type, extents and strides,
 * and never copies or owns them. What a decode computes: pagoda::decode (decode.hpp). Other headers: pagoda_lists.h
 * (decodes of lists of entries), pagoda_prefix.h (shared prefixes), pagoda_memory.h (memory for caches), pagoda_pool.h.
 * Not in C: the float64 reference (reference.hpp), Kokkos Views of layouts (kv_layout.hpp), MPI (mpi.hpp).
 *
 *     pagoda_tensor k = pagoda_dense(k_pages, PAGODA_FP16, 4, pages, page_size, kv_heads, head_dim);  // v, q, out too
 *     pagoda_cache kv = {.struct_size = sizeof kv, .layout = PAGODA_PAGED, .k = k, .v = v, .seq_lens = seq_lens,
 *                        .num_sequences = 4, .block_table = table, .max_pages = 8};
 *     pagoda_decode_options options = {.struct_size = sizeof options, .num_q_heads = 32};
 *     pagoda_plan* plan = NULL;
 *     if (pagoda_plan_create(NULL, &kv, &options, &plan)) puts(pagoda_last_error());   // once for a shape
 *     pagoda_decode(NULL, plan, &q, &kv, &out, NULL);          // every step; asynchronous
 *
 * Structs: A struct that begins with struct_size may get more fields at its end. Set struct_size to sizeof the struct
 * and the rest to zero before you set fields. A smaller struct, of an older header, is accepted, and the fields that it
 * lacks have their defaults. A larger struct, of a newer header, is accepted if the bytes behind the known fields are
 * zero. pagoda_tensor has a fixed layout.
 *
 * Errors: Calls return PAGODA_SUCCESS (0) or another pagoda_status; pagoda_last_error() then has the message. No
 * exception leaves a call. After an error nothing has been launched and nothing has changed, and outputs are not
 * written.
 *
 * Memory: Pointers to elements, lengths and tables must be readable by the execution space that the call runs on:
 * device memory for CUDA and HIP. Structs, slots and outputs such as `int32_t* slot` are in host memory; a call reads
 * structs before it returns, so they may be temporary.
 *
 * Threads: Calls on different handles may come from different threads. One decode may be in flight on a plan. A pool
 * has one owner at a time. pagoda_last_error() belongs to the calling thread.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Result of a call: a value of pagoda_status_code. */
typedef int32_t pagoda_status;
/** Values of pagoda_status. */
enum pagoda_status_code {
  PAGODA_SUCCESS          = 0, /**< the call did its work, or launched it */
  PAGODA_INVALID_ARGUMENT = 1, /**< the message names the argument, its value and what is allowed */
  PAGODA_OUT_OF_MEMORY    = 2, /**< an allocation failed */
  PAGODA_OUT_OF_CAPACITY  = 3, /**< a pool has no free slot or not enough free pages now */
  PAGODA_NOT_INITIALIZED  = 4, /**< Kokkos is not initialized; see pagoda_initialize */
  PAGODA_RUNTIME_ERROR    = 5  /**< Kokkos, CUDA or HIP reported an error; the message is theirs */
};

/** The name of a status, such as "PAGODA_INVALID_ARGUMENT", or "unknown status". */
PAGODA_C_EXPORT const char* pagoda_status_name(pagoda_status status);
/** Message of the last call that failed in this thread, at most 1023 characters; "" if none did. It stays valid until
    the next call that fails in this thread. */
PAGODA_C_EXPORT const char* pagoda_last_error(void);

/** The version of the linked library. The version of the header: PAGODA_VERSION_MAJOR and so on. Pointers may be NULL.
 */
PAGODA_C_EXPORT void pagoda_version(int32_t* major, int32_t* minor, int32_t* patch);
/** The version of the linked library as text, such as "0.1.0". */
PAGODA_C_EXPORT const char* pagoda_version_string(void);
/** How the linked library was built, as one line of text for reports: pagoda::configuration (version.hpp). */
PAGODA_C_EXPORT const char* pagoda_configuration(void);

/** Initializes Kokkos if it is not initialized. Kokkos reads its settings from the environment (KOKKOS_NUM_THREADS,
    KOKKOS_DEVICE_ID, KOKKOS_MAP_DEVICE_ID_BY). Calls may be repeated; each needs a pagoda_finalize. */
PAGODA_C_EXPORT pagoda_status pagoda_initialize(void);
/** Undoes one pagoda_initialize. The last one finalizes Kokkos if pagoda_initialize initialized it. Returns
    PAGODA_INVALID_ARGUMENT if there was no pagoda_initialize, or if Kokkos would be finalized while plans, pools or
    execution instances of this interface exist. */
PAGODA_C_EXPORT pagoda_status pagoda_finalize(void);

/* ---- execution instances */

/** An instance of an execution space: where kernels run, and in which order. */
typedef struct pagoda_exec pagoda_exec;
/** An execution space: a value of pagoda_space_code. */
typedef int32_t pagoda_space;
/** Values of pagoda_space. */
enum pagoda_space_code {
  PAGODA_SPACE_DEFAULT = 0, /**< Kokkos' default execution space: the GPU if Kokkos was built for one */
  PAGODA_SPACE_HOST    = 1  /**< Kokkos' default host execution space */
};

/** Makes an execution instance. Where a call takes an instance, NULL stands for the default instance of the default
    space (or of the space that the plan or pool was made for).
    @param space   where kernels run
    @param stream  a cudaStream_t or hipStream_t, which must outlive the instance and is not being captured; NULL:
   Kokkos' default instance, the only value for a space on the host.
    @param exec    receives the instance; to be destroyed with pagoda_exec_destroy */
PAGODA_C_EXPORT pagoda_status pagoda_exec_create(pagoda_space space, void* stream, pagoda_exec** exec);
/** Destroys an instance, not its stream. NULL is allowed. */
PAGODA_C_EXPORT void pagoda_exec_destroy(pagoda_exec* exec);
/** Waits until all work on the instance is done. */
PAGODA_C_EXPORT pagoda_status pagoda_exec_fence(const pagoda_exec* exec);

/* ---- arrays */

/** An element type: a value of pagoda_type_code. What the types hold: README.md. */
typedef int32_t pagoda_type;
/** Values of pagoda_type. Two dims of PAGODA_INT4, PAGODA_MXFP4 and PAGODA_NVFP4 make one element of a byte. */
enum pagoda_type_code {
  PAGODA_FP64       = 1,  /**< double */
  PAGODA_FP32       = 2,  /**< float */
  PAGODA_FP16       = 3,  /**< IEEE binary16 */
  PAGODA_BF16       = 4,  /**< the upper half of a float */
  PAGODA_FP8_E4M3   = 5,  /**< OCP E4M3; also block scales of PAGODA_NVFP4 */
  PAGODA_FP8_E5M2   = 6,  /**< OCP E5M2 */
  PAGODA_INT8       = 7,  /**< int8_t, with scales */
  PAGODA_INT4       = 8,  /**< two dims in a byte, the even one in the lower half, with scales */
  PAGODA_MXFP4      = 9,  /**< two dims in a byte, with a block scale of PAGODA_E8M0 for 32 dims */
  PAGODA_NVFP4      = 10, /**< two dims in a byte, with block scales of PAGODA_FP8_E4M3 for 16 dims, and a scale */
  PAGODA_FP8_DS_MLA = 11, /**< a byte of a row of 656, a token of a latent cache with its scales (row_formats.hpp) */
  PAGODA_E8M0       = 100 /**< a power of two in a byte; only for block scales */
};
/** The short name of a type, such as "fp16", or "unknown type". */
PAGODA_C_EXPORT const char* pagoda_type_name(pagoda_type type);
/** Bytes of one element; 0 for an unknown type. */
PAGODA_C_EXPORT size_t pagoda_type_size(pagoda_type type);
/** Nonzero if this build has kernels for caches of this type (PAGODA_TYPES of CMake). */
PAGODA_C_EXPORT int32_t pagoda_type_is_enabled(pagoda_type type);

/** Where an array lies: a value of pagoda_memory_code. */
typedef int32_t pagoda_memory;
/** Values of pagoda_memory. Calls refuse memory that the execution space cannot reach. */
enum pagoda_memory_code {
  PAGODA_MEMORY_UNSPECIFIED = 0, /**< is not checked */
  PAGODA_MEMORY_HOST        = 1, /**< pageable memory of the host */
  PAGODA_MEMORY_DEVICE      = 2, /**< memory of Kokkos' default execution space */
  PAGODA_MEMORY_SHARED      = 3  /**< both reach it: pinned or managed memory */
};

/** An array of up to four axes. Its layout does not change between versions. */
typedef struct pagoda_tensor {
  void* data;           /**< the first element, aligned to the size of an element. NULL: there is no array */
  int64_t extent[4];    /**< of each axis, 0 or more */
  int64_t stride[4];    /**< of each axis in elements, 0 or more. All zero: dense, the last axis is the fastest */
  pagoda_type type;     /**< of an element */
  int32_t rank;         /**< number of axes, 0 to 4 */
  pagoda_memory memory; /**< where it lies */
  int32_t reserved;     /**< 0 */
} pagoda_tensor;

/** A dense tensor whose last axis is the fastest. Extents of axes that it lacks are ignored. */
static inline pagoda_tensor pagoda_dense(void* data, pagoda_type type, int32_t rank, int64_t extent0, int64_t extent1,
                                         int64_t extent2, int64_t extent3) {
  pagoda_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data, t.type = type, t.rank = rank;
  t.extent[0] = extent0, t.extent[1] = extent1, t.extent[2] = extent2, t.extent[3] = extent3;
  return t;
}

/* ---- caches */

/** Order of the token and head axes: a value of pagoda_order_code. */
typedef int32_t pagoda_order;
/** Values of pagoda_order. */
enum pagoda_order_code {
  PAGODA_NHD = 0, /**< (page or sequence, token, kv head, dim) */
  PAGODA_HND = 1  /**< (page or sequence, kv head, token, dim) */
};
/** How a cache is arranged: a value of pagoda_layout_code. */
typedef int32_t pagoda_layout;
/** Values of pagoda_layout. */
enum pagoda_layout_code {
  PAGODA_CONTIGUOUS = 0, /**< one block of memory for each sequence */
  PAGODA_PAGED      = 1, /**< pages, and a dense block table */
  PAGODA_PAGED_CSR  = 2  /**< pages, and CSR page lists */
};

/** A cache of keys and values. Fields are required unless a default stands beside them. Lengths, ids and tables are
   read on the device when a decode runs, so their contents may change between decodes. */
typedef struct pagoda_cache {
  size_t struct_size;   /**< sizeof(pagoda_cache) */
  pagoda_layout layout; /**< default: PAGODA_CONTIGUOUS */
  pagoda_order order;   /**< of k and v; default: PAGODA_NHD */
  pagoda_tensor k; /**< (page or sequence, token, kv head, head_dim) in PAGODA_NHD, any strides. The last extent counts
                        elements: head_dim / 2 where an element holds two dims */
  pagoda_tensor v; /**< the same axes with head_dim_v. It may be a prefix of k in the same memory (latent caches). With
                        PAGODA_FP8_DS_MLA, v is k, of extents (page or sequence, token, 1, 656): 576 and 512 dims */

  const int32_t* seq_lens; /**< [num_sequences] tokens that each sequence holds */
  int32_t num_sequences;   /**< entries of seq_lens; contiguous: k.extent[0] */
  int32_t batch;           /**< entries of sequence_ids; unused without it */

  const int32_t* block_table;    /**< PAGODA_PAGED: (sequence, page of the sequence), page ids */
  int64_t max_pages;             /**< PAGODA_PAGED: entries of a row of block_table */
  int64_t block_table_stride[2]; /**< PAGODA_PAGED: of rows and entries, in integers; default: dense */
  const int32_t* page_indptr;    /**< PAGODA_PAGED_CSR: [num_sequences + 1]: where each sequence's list begins */
  const int32_t* page_indices;   /**< PAGODA_PAGED_CSR: [num_page_indices] page ids */
  int64_t num_page_indices;      /**< PAGODA_PAGED_CSR: entries of page_indices */
  int32_t max_seq_len;           /**< PAGODA_PAGED_CSR: tokens of the longest sequence that the lists will hold */
  pagoda_order scale_order;      /**< of scales and block scales; default: PAGODA_NHD */
  const int32_t* sequence_ids; /**< [batch] the sequence that each batch entry decodes; default: entry b is sequence b,
                                    and the batch is num_sequences */

  pagoda_tensor k_scale;       /**< scales of a quantized cache, PAGODA_FP32, of rank 0 (one for all), 1 (kv head) or 3
                                    (page or sequence, token, kv head), of extent 1 where one serves all; default: none */
  pagoda_tensor v_scale;       /**< as k_scale, for the values */
  pagoda_tensor k_block_scale; /**< block scales: (page or sequence, token, kv head, block); default: none */
  pagoda_tensor v_block_scale; /**< as k_block_scale, for the values */
} pagoda_cache;

/* ---- plans and decodes */

/** What the bits of results may depend on (pagoda::Exactness). */
typedef enum pagoda_exactness {
  PAGODA_FAST            = 0, /**< on the rest of the batch and on the machine */
  PAGODA_BATCH_INVARIANT = 1, /**< on a sequence's own queries, tokens and options only */
  PAGODA_REPRODUCIBLE    = 2  /**< the same in every run, for any number of multiprocessors or threads */
} pagoda_exactness;

/** What a decode computes. Zero selects the default of every field but num_q_heads. Arrays are read on the device by
   each decode and must live as long as the plan. */
typedef struct pagoda_decode_options {
  size_t struct_size;          /**< sizeof(pagoda_decode_options) */
  int32_t num_q_heads;         /**< required; a multiple of the cache's kv heads */
  int32_t max_batch;           /**< bound on the batch of later decodes; default: the cache's batch */
  int32_t max_seq_len;         /**< bound on every seq_len, for tuning; default: what the cache can hold */
  int32_t max_query_len;       /**< bound on the query tokens of one sequence; default: 1 */
  int32_t max_query_tokens;    /**< bound on q.extent[0]; default: max_batch * max_query_len */
  int32_t num_cu_seqlens_q;    /**< entries of cu_seqlens_q, at least max_batch + 1 */
  const int32_t* cu_seqlens_q; /**< ragged query counts: tokens cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q belong
                                  to batch entry b; default: every entry has as many */
  double softmax_scale;        /**< default: 1 / sqrt(head_dim) */
  double logit_soft_cap;       /**< score becomes cap * tanh(score / cap); default: off */
  int32_t not_causal;         /**< nonzero: every query token sees every token; default: those up to its own position */
  int32_t window;             /**< sliding window: how many tokens up to and with its own position a query token sees;
                                   default: all. (window_left + 1 of the C++ interface) */
  int32_t num_initial_tokens; /**< first tokens that stay visible besides the window */
  int32_t programmatic_launch; /**< nonzero: see programmatic_launch of pagoda::DecodeOptions */
  const float* alibi_slopes;   /**< [num_q_heads], adds slope * (token - query position); default: off */
  const float* sinks;          /**< [num_q_heads], logit of one extra token with value 0; default: off */
  const char* backend;    /**< "tuned" or "generic"; default: the environment variable PAGODA_BACKEND, or the faster
                               one that supports the problem */
  void* workspace;        /**< scratch memory aligned to 16 bytes, which must live as long as the plan; default: the
                               plan allocates it */
  size_t workspace_bytes; /**< bytes at workspace, at least those of pagoda_workspace_bytes */
  int32_t max_entries;    /**< bound on the entries of a list: the plan is for pagoda_decode_entries (pagoda_lists.h).
                             Default: the plan is for pagoda_decode */
  int32_t max_entry_queries;  /**< bound on the query tokens of an entry, for tuning; default: 1 */
  int32_t max_listed_queries; /**< bound on the sum of the query tokens of all entries, for tuning; default:
                                 max_entries * max_entry_queries */
  int32_t exactness;          /**< a pagoda_exactness; default: PAGODA_FAST */
  int32_t checked;      /**< nonzero: each decode examines lengths, ids and tables on the device first; see checked of
                           pagoda::DecodeOptions, and pagoda_plan_read_faults */
  int32_t entry_chains; /**< nonzero: lists may have chains (pagoda_lists.h). Only the hand-tuned kernels of sm_90
                           carry these out; other plans are refused */
} pagoda_decode_options;

/** Made once for a shape, used by every decode of that shape. */
typedef struct pagoda_plan pagoda_plan;

/** Bytes of workspace that a plan for this cache and these options needs. */
PAGODA_C_EXPORT pagoda_status pagoda_workspace_bytes(const pagoda_exec* exec, const pagoda_cache* kv,
                                                     const pagoda_decode_options* options, size_t* bytes);
/** Makes a plan from the shape, types and strides of the cache and from bounds. Reads no device memory.
    @param exec     decodes run on this instance, or on another one of its device
    @param kv       a cache of the shape to come; decodes may pass other caches of the same shape
    @param options  what decodes compute
    @param plan     receives the plan; to be destroyed with pagoda_plan_destroy */
PAGODA_C_EXPORT pagoda_status pagoda_plan_create(const pagoda_exec* exec, const pagoda_cache* kv,
                                                 const pagoda_decode_options* options, pagoda_plan** plan);
/** Destroys a plan, after its decodes have run. NULL is allowed. */
PAGODA_C_EXPORT void pagoda_plan_destroy(pagoda_plan* plan);
/** One line to read: shape, tiles, bounds, and why the plan is slow if it is. Valid as long as the plan. NULL if plan
   is NULL. */
PAGODA_C_EXPORT const char* pagoda_plan_describe(const pagoda_plan* plan);
/** The backend that runs, "tuned" or "generic". Valid as long as the plan. NULL if plan is NULL. */
PAGODA_C_EXPORT const char* pagoda_plan_backend(const pagoda_plan* plan);
/** Bytes of workspace that a decode of the plan may write. */
PAGODA_C_EXPORT pagoda_status pagoda_plan_workspace_bytes(const pagoda_plan* plan, size_t* bytes);
/** Bytes of device memory that the plan owns besides the workspace. */
PAGODA_C_EXPORT pagoda_status pagoda_plan_persistent_bytes(const pagoda_plan* plan, size_t* bytes);

/** Computes attention of the newest query tokens of each sequence over its cached keys and values. Asynchronous on
   exec; allocates nothing, can be captured in a graph. What it reads and writes must live until it has run.
    @param exec  instance of the plan's space; NULL: its default instance
    @param plan  made for a cache of this shape
    @param q     (query token, q head, head_dim), a plain type. Tokens of a sequence are adjacent, in batch order
    @param kv    the cache
    @param out   (query token, q head, head_dim_v), a plain type
    @param lse   (query token, q head), PAGODA_FP32 or PAGODA_FP64: natural logarithm of the sum of exp(score).
   NULL, or a tensor without data: not wanted. Plain types: PAGODA_FP64, PAGODA_FP32, PAGODA_FP16 and PAGODA_BF16. Any
   strides are allowed. */
PAGODA_C_EXPORT pagoda_status pagoda_decode(const pagoda_exec* exec, const pagoda_plan* plan, const pagoda_tensor* q,
                                            const pagoda_cache* kv, const pagoda_tensor* out, const pagoda_tensor* lse);

/** Checks lengths, ids and page tables as they are on the device now, which a decode reads without checking. Waits for
    exec. Returns PAGODA_INVALID_ARGUMENT with the array, the entry, its value and what is allowed.
    @param exec  where the check runs
    @param kv    the cache
    @param plan  NULL, or a plan whose cu_seqlens_q is checked too
    @param q     the queries of that decode; not read without a plan */
PAGODA_C_EXPORT pagoda_status pagoda_check(const pagoda_exec* exec, const pagoda_cache* kv, const pagoda_plan* plan,
                                           const pagoda_tensor* q);

/** What a decode of a plan with the option checked found wrong with a batch entry: its first fault. Fields that an
   older struct lacks are not written. */
typedef struct pagoda_table_fault {
  size_t struct_size;  /**< set by the caller: sizeof(pagoda_table_fault) */
  int32_t entry;       /**< batch entry */
  int32_t sequence;    /**< the sequence it names; -1 if its range in cu_seqlens_q is wrong */
  int32_t page;        /**< position in the sequence's page list of a page id outside of the cache; otherwise -1 */
  int32_t reserved;    /**< 0 */
  int64_t value;       /**< what the array held */
  const char* message; /**< the array, the position, the value and what is allowed. Valid until the next
                          pagoda_plan_read_faults of the plan */
} pagoda_table_fault;

/** Copies the faults of the plan's last decode with query tokens from the device, for pagoda_plan_get_fault: at most
   one for each batch entry, in their order. Waits for exec; not during a capture. pagoda::faults (checked.hpp) says
   more.
    @param exec   an instance on which that decode has been queued, or which waits for it
    @param plan   a plan with the option checked
    @param count  receives the number of faults; 0 before the first decode */
PAGODA_C_EXPORT pagoda_status pagoda_plan_read_faults(const pagoda_exec* exec, pagoda_plan* plan, int32_t* count);
/** Fills *fault with fault number `index`, from 0, of the last pagoda_plan_read_faults. Set fault->struct_size before
   the call. */
PAGODA_C_EXPORT pagoda_status pagoda_plan_get_fault(const pagoda_plan* plan, int32_t index, pagoda_table_fault* fault);

/** Merges n >= 1 results over disjoint tokens into the result over all of them. Asynchronous on exec.
    @param exec  where the kernel runs
    @param outs  (state, token, head, dim)
    @param lses  (state, token, head), PAGODA_FP32 or PAGODA_FP64; -infinity: an empty state
    @param out   (token, head, dim); may be the memory of state 0
    @param lse   (token, head); NULL: not wanted */
PAGODA_C_EXPORT pagoda_status pagoda_merge(const pagoda_exec* exec, const pagoda_tensor* outs,
                                           const pagoda_tensor* lses, const pagoda_tensor* out,
                                           const pagoda_tensor* lse);

/** Merges two results, each of (token, head, dim) and (token, head); see pagoda_merge. out and lse may be the memory of
    the first one. */
PAGODA_C_EXPORT pagoda_status pagoda_merge_pair(const pagoda_exec* exec, const pagoda_tensor* out_a,
                                                const pagoda_tensor* lse_a, const pagoda_tensor* out_b,
                                                const pagoda_tensor* lse_b, const pagoda_tensor* out,
                                                const pagoda_tensor* lse);

/** Writes row i of k and v to position slot_mapping[i] of a cache of yours, converted to its type. Asynchronous on
   exec.
    @param exec          where the kernel runs
    @param k_cache       keys of a cache, as in pagoda_cache, of a plain type
    @param v_cache       values of that cache
    @param order         of k_cache and v_cache
    @param slot_mapping  [num_tokens] page * page_size + token in the page, or sequence * max_seq_len + token; negative:
   the row is skipped. In memory of the execution space
    @param num_tokens    rows of k and v
    @param k             (token, kv head, head_dim), a plain type, any strides
    @param v             (token, kv head, head_dim_v) */
PAGODA_C_EXPORT pagoda_status pagoda_write_kv(const pagoda_exec* exec, const pagoda_tensor* k_cache,
                                              const pagoda_tensor* v_cache, pagoda_order order,
                                              const int64_t* slot_mapping, int64_t num_tokens, const pagoda_tensor* k,
                                              const pagoda_tensor* v);

#ifdef __cplusplus
}
#endif

#endif
