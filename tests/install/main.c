/* SPDX-License-Identifier: Apache-2.0 */
/* A program in C, linked with Pagoda::c alone. It decodes on the host, from its own memory: zero queries see all tokens
   alike, so the output is the mean of the values. Then it gets an error and its message. */
#include <pagoda/pagoda.h>
#include <pagoda/pagoda_lists.h>
#include <pagoda/pagoda_memory.h>
#include <pagoda/pagoda_pool.h>
#include <pagoda/pagoda_prefix.h>

#include <stdio.h>

enum { tokens = 4, dim = 16 };

static int decode(pagoda_exec* host) {
  static float k[tokens * dim], v[tokens * dim], q[dim], out[dim];
  const int32_t seq_len = tokens;
  pagoda_cache kv       = {.struct_size = sizeof kv};
  pagoda_tensor from    = pagoda_dense(q, PAGODA_FP32, 3, 1, 1, dim, 0);
  pagoda_tensor to      = pagoda_dense(out, PAGODA_FP32, 3, 1, 1, dim, 0);
  pagoda_plan* plan     = NULL;
  int i, right = 1;
  pagoda_decode_options options = {.struct_size = sizeof options, .num_q_heads = 1};
  for (i = 0; i < tokens * dim; ++i) v[i] = (float)(i / dim);
  kv.k        = pagoda_dense(k, PAGODA_FP32, 4, 1, tokens, 1, dim);
  kv.v        = pagoda_dense(v, PAGODA_FP32, 4, 1, tokens, 1, dim);
  kv.seq_lens = &seq_len, kv.num_sequences = 1;
  if (pagoda_plan_create(host, &kv, &options, &plan) || pagoda_decode(host, plan, &from, &kv, &to, NULL) ||
      pagoda_exec_fence(host)) {
    printf("%s\n", pagoda_last_error());
    right = 0;
  }
  for (i = 0; i < dim; ++i) right = right && out[i] > 1.49999f && out[i] < 1.50001f;
  pagoda_plan_destroy(plan);
  return right;
}

/* A list of one entry, of tokens 2 and 3 alone, in memory of the library. Then a decoder for shared prefixes. */
static int lists(pagoda_exec* host) {
  static float q[dim], out[dim];
  /* Entries are aligned to 16 bytes: an array of the library's memory is. */
  const int32_t seq_len         = tokens;
  pagoda_cache_shape shape      = {.struct_size  = sizeof shape,
                                   .type         = PAGODA_FP32,
                                   .num_pages    = 1,
                                   .page_size    = tokens,
                                   .num_kv_heads = 1,
                                   .head_dim     = dim};
  pagoda_cache kv               = {.struct_size = sizeof kv, .seq_lens = &seq_len, .num_sequences = 1};
  pagoda_decode_options options = {.struct_size = sizeof options, .num_q_heads = 1};
  pagoda_entries list           = {.struct_size = sizeof list, .num_entries = 1, .num_queries = 1};
  pagoda_batch_pages tables     = {.struct_size = sizeof tables, .batch = 1, .num_sequences = 1, .seq_lens = &seq_len};
  pagoda_tensor from            = pagoda_dense(q, PAGODA_FP32, 3, 1, 1, dim, 0);
  pagoda_tensor to              = pagoda_dense(out, PAGODA_FP32, 3, 1, 1, dim, 0);
  pagoda_tensor k1, v1;
  pagoda_cache_memory *memory = NULL, *room = NULL;
  pagoda_prefix_decoder* decoder = NULL;
  pagoda_plan* plan              = NULL;
  int32_t packed                 = -1;
  int i, right = 0;
  if (pagoda_cache_memory_create(host, &shape, &memory, &kv.k, &kv.v) ||
      pagoda_cache_memory_create(host, &shape, &room, &k1, &v1) || pagoda_exec_fence(host))
    return 0;
  for (i = 0; i < tokens * dim; ++i) ((float*)kv.v.data)[i] = (float)(i / dim);
  *(pagoda_entry*)k1.data       = pagoda_make_entry(0, 2, 4, 0, 1);
  *(pagoda_entry_query*)v1.data = pagoda_make_entry_query(0, 0, 1);
  list.entries = k1.data, list.queries = v1.data;
  options.max_entries = 1;
  if (pagoda_plan_create(host, &kv, &options, &plan) || pagoda_check_entries(host, plan, &from, &kv, &list, 0) ||
      pagoda_decode_entries(host, plan, &from, &kv, &list, &to, NULL, NULL, NULL) || pagoda_exec_fence(host)) {
    printf("%s\n", pagoda_last_error());
  } else {
    right = out[0] > 2.49999f && out[0] < 2.50001f;
  }
  options.max_entries = 0;
  if (pagoda_prefix_create(host, &kv, &options, NULL, &decoder) ||
      pagoda_prefix_update(host, decoder, &tables, &packed) ||
      pagoda_prefix_decode(host, decoder, &from, &kv, &to, NULL) || pagoda_exec_fence(host)) {
    printf("%s\n", pagoda_last_error());
    right = 0;
  }
  right = right && packed == 0 && out[0] > 1.49999f && out[0] < 1.50001f;
  pagoda_prefix_destroy(decoder), pagoda_plan_destroy(plan);
  pagoda_cache_memory_destroy(memory), pagoda_cache_memory_destroy(room);
  return right;
}

static int refuses(pagoda_exec* host) {
  pagoda_pool_options options = {
      .struct_size = sizeof options, .layout = PAGODA_PAGED, .type = PAGODA_FP32, .num_kv_heads = -1};
  pagoda_pool* pool = NULL;
  if (pagoda_pool_create(host, &options, &pool) != PAGODA_INVALID_ARGUMENT) return 0;
  printf("as it should be: %s\n", pagoda_last_error());
  return pool == NULL && pagoda_last_error()[0] != '\0';
}

/* What a pool describes is a cache for pagoda_decode. */
static int pools(pagoda_exec* host, pagoda_layout layout) {
  pagoda_pool_options options = {.struct_size   = sizeof options,
                                 .layout        = layout,
                                 .type          = PAGODA_FP32,
                                 .num_kv_heads  = 1,
                                 .head_dim      = dim,
                                 .max_seq_len   = tokens,
                                 .max_sequences = 1};
  pagoda_cache kv             = {.struct_size = sizeof kv};
  pagoda_pool* pool           = NULL;
  const int32_t ids[tokens]   = {1, 2, 3, 4};
  pagoda_prompt prompt        = {.struct_size = sizeof prompt, .token_ids = ids, .num_tokens = tokens};
  int32_t slot = -1, matched = -1;
  int right = 0;
  if (pagoda_pool_create(host, &options, &pool) || pagoda_pool_admit_tokens(host, pool, tokens, &slot) ||
      pagoda_pool_kv(host, pool, 1, &slot, &kv) || pagoda_check(host, &kv, NULL, NULL) ||
      pagoda_pool_match(pool, &prompt, &matched)) {
    printf("%s\n", pagoda_last_error());
  } else {
    right = kv.layout == layout && kv.k.type == PAGODA_FP32 && kv.batch == 1 && matched == 0;
  }
  pagoda_pool_destroy(pool);
  return right;
}

int main(void) {
  pagoda_exec* host = NULL;
  int right         = pagoda_initialize() == PAGODA_SUCCESS;
  right             = right && pagoda_exec_create(PAGODA_SPACE_HOST, NULL, &host) == PAGODA_SUCCESS;
  right             = right && decode(host) && lists(host) && refuses(host);
  right             = right && pools(host, PAGODA_CONTIGUOUS) && pools(host, PAGODA_PAGED);
  pagoda_exec_destroy(host);
  right = pagoda_finalize() == PAGODA_SUCCESS && right;
  printf("Pagoda %s from C: %s\n", pagoda_version_string(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
