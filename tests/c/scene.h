/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_TESTS_C_SCENE_H
#define PAGODA_TESTS_C_SCENE_H

#include <pagoda/pagoda.h>

/* A random cache with queries, in memory of the default execution space, and attention in double over the numbers that
   the cache holds. */
typedef struct Scene {
  /* set by the test */
  pagoda_type type;
  pagoda_layout layout;
  pagoda_order order;
  int scale_rank; /* of float scales: 0, 1 or 3; -1: none */
  int batch, q_heads, kv_heads, dim, dim_v, page_size, max_pages, query_len;
  pagoda_decode_options options; /* arrays in it: on the device */
  const double* sinks;           /* the same arrays on the host */
  const double* slopes;
  /* Whether query token q sees token t for this kv head, in the place of the masks of options; NULL: these masks. */
  int (*sees)(int q, int t, int kv_head);

  /* set by scene_make */
  pagoda_type io; /* of queries and outputs */
  pagoda_cache kv;
  pagoda_tensor q, out, lse;
  int* lengths;                    /* on the host */
  int* table;                      /* [batch * max_pages] */
  double *keys, *values, *queries; /* numbers, [batch][token][kv head][dim] and [token][head][dim] */
  void* memory[16];
  int num_memory;
} Scene;

void scene_make(Scene* s);
void scene_free(Scene* s);
/* Copies an array to the device; freed with the scene. */
void* scene_upload(Scene* s, const void* host, size_t bytes);
/* How many rows of out and lse are wrong after a decode. */
int scene_wrong_rows(const Scene* s);
/* Makes a plan, decodes, waits, and returns the wrong rows, or -1 after an error. */
int scene_decode(Scene* s, const pagoda_exec* exec);

/* Uniform in -1 to 1, the same numbers in every run. */
double random_number(void);

#endif
