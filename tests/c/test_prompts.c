/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts and the prefix index of pools through the C interface. Keys are zero and the values of a token are one
   number, so a decode gives the mean of the numbers of a sequence's tokens. */
#include <pagoda/pagoda_pool.h>

#include "tests/c/check.h"
#include "tests/c/device.h"

#include <math.h>
#include <stdlib.h>

enum { dim = 16, page = 4, max_len = 12 };

static pagoda_type type;
static void* zeros; /* keys and queries */

/* Values first, first + 1, ... of `tokens` tokens. */
static pagoda_tensor rows_of(int tokens, double first) {
  const size_t size = pagoda_type_size(type);
  char* host        = calloc((size_t)tokens * dim, size);
  for (int i = 0; i < tokens * dim; ++i) store_dim(type, host + i * size, 0, first + i / dim);
  void* device = device_alloc((size_t)tokens * dim * size);
  copy_to_device(device, host, (size_t)tokens * dim * size);
  free(host);
  return pagoda_dense(device, type, 3, tokens, 1, dim, 0);
}

static pagoda_tensor keys(int tokens) { return pagoda_dense(zeros, type, 3, tokens, 1, dim, 0); }

static pagoda_pool* make(pagoda_layout layout) {
  pagoda_pool_options o;
  pagoda_pool* pool = NULL;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o, o.layout = layout, o.type = type, o.num_kv_heads = 1, o.head_dim = dim;
  o.max_seq_len = max_len, o.max_sequences = 3, o.num_q_heads = 1;
  if (layout == PAGODA_PAGED) o.page_size = page, o.num_pages = 5;
  CHECK_OK(pagoda_pool_create(NULL, &o, &pool));
  return pool;
}

static pagoda_prompt prompt_of(const int32_t* ids, int tokens) {
  pagoda_prompt p;
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p, p.token_ids = ids, p.num_tokens = tokens;
  return p;
}

static double mean_of(pagoda_pool* pool, int32_t slot) {
  char row[dim * sizeof(double)];
  const pagoda_tensor q = pagoda_dense(zeros, type, 3, 1, 1, dim, 0);
  pagoda_tensor out     = q;
  out.data              = device_alloc(sizeof row);
  CHECK_OK(pagoda_pool_decode(NULL, pool, 1, &slot, &q, &out, NULL));
  CHECK_OK(pagoda_exec_fence(NULL));
  copy_to_host(row, out.data, dim * pagoda_type_size(type));
  device_free(out.data);
  return load_dim(type, row, 0);
}

static pagoda_prefix_stats stats_of(pagoda_pool* pool) {
  pagoda_prefix_stats s;
  memset(&s, 0xff, sizeof s);
  s.struct_size = sizeof s;
  CHECK_OK(pagoda_pool_get_prefix_stats(pool, &s));
  return s;
}

static void test_tokens(void) {
  const int32_t ids[10]    = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  pagoda_pool* pool        = make(PAGODA_PAGED);
  pagoda_prompt p          = prompt_of(ids, 9);
  const pagoda_tensor nine = rows_of(9, 1), last = rows_of(1, 9), k9 = keys(9), k1 = keys(1);
  const int32_t* pages = NULL;
  int32_t a = -1, b = -1, c = -1, n = -1, first_page;
  CHECK_OK(pagoda_pool_match(pool, &p, &n));
  CHECK(n == 0);
  CHECK_OK(pagoda_pool_admit_prompt(NULL, pool, &p, &k9, &nine, &a)); /* 1 .. 9 */
  CHECK_OK(pagoda_pool_match(pool, &p, &n));
  CHECK(n == 8);
  CHECK_OK(pagoda_pool_can_admit_prompt(pool, &p, &n));
  CHECK(n == 1);
  CHECK_OK(pagoda_pool_admit_prompt(NULL, pool, &p, &k1, &last, &b)); /* shares 1 .. 8 */
  CHECK(fabs(mean_of(pool, a) - 5) < 0.02 && fabs(mean_of(pool, b) - 5) < 0.02);
  CHECK_OK(pagoda_pool_named_tokens(pool, b, &n));
  CHECK(n == 9);
  pagoda_prefix_stats s = stats_of(pool);
  CHECK(s.struct_size == sizeof s && s.prompts == 2 && s.hit_tokens == 8 && s.miss_tokens == 10 && s.hit_pages == 2);
  CHECK(s.indexed_pages == 2 && s.saved_bytes == (int64_t)(8 * 2 * dim * pagoda_type_size(type)));
  CHECK(fabs(s.hit_rate - 8 / 18.) < 1e-12 && s.reserved == 0);

  /* A sequence of the shared tokens alone; the rest is appended and named. */
  CHECK_OK(pagoda_pool_admit_matched(NULL, pool, &p, &c));
  CHECK_OK(pagoda_pool_seq_len(pool, c, &n));
  CHECK(n == 8);
  CHECK_OK(pagoda_pool_append(NULL, pool, 1, &c, NULL, &k1, &last));
  CHECK_OK(pagoda_pool_name_tokens(pool, c, 1, ids + 8));
  CHECK_OK(pagoda_pool_named_tokens(pool, c, &n));
  CHECK(n == 9);
  CHECK_INVALID(pagoda_pool_name_tokens(pool, c, 1, ids), "token_ids has 1");
  CHECK_OK(pagoda_pool_block_table(pool, c, &pages, &n));
  first_page = pages[0];
  CHECK_OK(pagoda_pool_is_indexed(pool, first_page, &n));
  CHECK(n == 1);

  /* Pages stay in the index behind their sequences, until they are evicted. */
  CHECK_OK(pagoda_pool_release(pool, a));
  CHECK_OK(pagoda_pool_release(pool, b));
  CHECK_OK(pagoda_pool_release(pool, c));
  pagoda_pool_stats full;
  memset(&full, 0, sizeof full);
  full.struct_size = sizeof full;
  CHECK_OK(pagoda_pool_get_stats(pool, &full));
  CHECK(full.evictable_pages == 2 && full.free_pages == 5);
  CHECK_OK(pagoda_pool_evict(pool, 9, &n));
  CHECK(n == 2 && stats_of(pool).evicted_pages == 2);
  CHECK_OK(pagoda_pool_reset_prefix_stats(pool));
  s = stats_of(pool);
  CHECK(s.prompts == 0 && s.evicted_pages == 0 && s.hit_rate == 0);
  pagoda_prefix_stats older;
  memset(&older, 0xff, sizeof older);
  older.struct_size = offsetof(pagoda_prefix_stats, saved_bytes);
  CHECK_OK(pagoda_pool_get_prefix_stats(pool, &older));
  CHECK(older.prompts == 0 && older.saved_bytes == -1);
  pagoda_pool_destroy(pool);
  device_free(nine.data), device_free(last.data);
}

static void test_hashes(void) {
  const uint64_t hashes[2] = {11, UINT64_C(1) << 63};
  pagoda_pool* pool        = make(PAGODA_PAGED);
  pagoda_prompt p          = prompt_of(NULL, 9);
  const pagoda_tensor nine = rows_of(9, 1), k9 = keys(9);
  int32_t a = -1, n = -1;
  CHECK_OK(pagoda_pool_admit(NULL, pool, &k9, &nine, &a));
  CHECK_OK(pagoda_pool_name_pages(pool, a, 2, hashes));
  p.page_hashes = hashes, p.num_page_hashes = 2;
  CHECK_OK(pagoda_pool_match(pool, &p, &n));
  CHECK(n == 8);
  p.salt = 3;
  CHECK_OK(pagoda_pool_match(pool, &p, &n));
  CHECK(n == 0);
  CHECK_INVALID(pagoda_pool_name_pages(pool, a, 1, hashes), "page_hashes has 1");
  p.num_page_hashes = 1;
  CHECK_INVALID(pagoda_pool_match(pool, &p, &n), "prompt.page_hashes has 1");
  pagoda_pool_destroy(pool);
  device_free(nine.data);
}

static void test_errors(void) {
  const int32_t ids[3] = {1, 2, -3};
  const uint64_t hash  = 1;
  pagoda_pool *pool = make(PAGODA_PAGED), *contiguous = make(PAGODA_CONTIGUOUS);
  pagoda_prompt p         = prompt_of(ids, 2);
  const pagoda_tensor two = rows_of(2, 1), k2 = keys(2), k1 = keys(1);
  pagoda_prefix_stats stats;
  int32_t n = -1;
  memset(&stats, 0, sizeof stats);
#define ADMIT() pagoda_pool_admit_prompt(NULL, pool, &p, &k2, &two, &n)
  CHECK_INVALID(pagoda_pool_match(NULL, &p, &n), "pool is NULL");
  CHECK_INVALID(pagoda_pool_match(pool, NULL, &n), "prompt is NULL");
  CHECK_INVALID(pagoda_pool_match(pool, &p, NULL), "num_tokens is NULL");
  CHECK_INVALID(pagoda_pool_admit_prompt(NULL, pool, NULL, &k2, &two, &n), "prompt is NULL");
  CHECK_INVALID(pagoda_pool_admit_prompt(NULL, pool, &p, NULL, &two, &n), "k is NULL");
  CHECK_INVALID(pagoda_pool_admit_prompt(NULL, pool, &p, &k2, NULL, &n), "v is NULL");
  CHECK_INVALID(pagoda_pool_admit_prompt(NULL, pool, &p, &k2, &two, NULL), "slot is NULL");
  pagoda_tensor one = two;
  one.extent[0]     = 1;
  CHECK_INVALID(pagoda_pool_admit_prompt(NULL, pool, &p, &k1, &one, &n), "k has 1 tokens, the last of a prompt of 2");
  CHECK_INVALID(pagoda_pool_admit_matched(NULL, pool, NULL, &n), "prompt is NULL");
  CHECK_INVALID(pagoda_pool_admit_matched(NULL, pool, &p, NULL), "slot is NULL");
  CHECK_INVALID(pagoda_pool_can_admit_prompt(pool, &p, NULL), "can_admit is NULL");
  CHECK_INVALID(pagoda_pool_can_admit_prompt(NULL, &p, &n), "pool is NULL");
  p.struct_size = 1;
  CHECK_INVALID(ADMIT(), "prompt.struct_size is 1");
  p = prompt_of(ids, -1);
  CHECK_INVALID(ADMIT(), "prompt.num_tokens is -1");
  p = prompt_of(ids, 3);
  CHECK_INVALID(ADMIT(), "prompt.token_ids[2] is -3");
  p = prompt_of(ids, 2), p.page_hashes = &hash;
  CHECK_INVALID(ADMIT(), "prompt has token_ids and page_hashes; allowed: one of them");
  p = prompt_of(NULL, 4), p.num_page_hashes = 1;
  CHECK_INVALID(ADMIT(), "prompt.page_hashes is NULL; allowed: memory for 1 entries");
  p.num_page_hashes = -1;
  CHECK_INVALID(ADMIT(), "prompt.num_page_hashes is -1");
  CHECK_INVALID(pagoda_pool_name_tokens(pool, 0, 1, NULL), "token_ids is NULL");
  CHECK_INVALID(pagoda_pool_name_tokens(pool, 0, -1, ids), "num_tokens is -1");
  CHECK_INVALID(pagoda_pool_name_tokens(pool, 0, 1, ids), "slot is 0");
  CHECK_INVALID(pagoda_pool_name_pages(pool, 0, 1, NULL), "page_hashes is NULL");
  CHECK_INVALID(pagoda_pool_name_pages(pool, 0, -1, &hash), "num_pages is -1");
  CHECK_INVALID(pagoda_pool_named_tokens(pool, 0, &n), "slot is 0");
  CHECK_INVALID(pagoda_pool_named_tokens(pool, 0, NULL), "num_tokens is NULL");
  CHECK_INVALID(pagoda_pool_is_indexed(pool, 5, &n), "page is 5; allowed: 0 to 4");
  CHECK_INVALID(pagoda_pool_is_indexed(pool, 0, NULL), "indexed is NULL");
  CHECK_INVALID(pagoda_pool_evict(pool, -1, &n), "num_pages is -1; allowed: 0 or more");
  CHECK_INVALID(pagoda_pool_evict(pool, 1, NULL), "evicted is NULL");
  CHECK_INVALID(pagoda_pool_get_prefix_stats(pool, NULL), "stats is NULL");
  CHECK_INVALID(pagoda_pool_get_prefix_stats(pool, &stats), "stats.struct_size is 0");
  CHECK_INVALID(pagoda_pool_reset_prefix_stats(NULL), "pool is NULL");
  CHECK(stats_of(pool).prompts == 0);

  /* The options of a pool with their defaults. */
  pagoda_pool_options o;
  memset(&o, 0, sizeof o);
  CHECK_INVALID(pagoda_pool_get_options(pool, NULL), "options is NULL");
  CHECK_INVALID(pagoda_pool_get_options(pool, &o), "options.struct_size is 0");
  o.struct_size = sizeof o;
  CHECK_OK(pagoda_pool_get_options(pool, &o));
  CHECK(o.layout == PAGODA_PAGED && o.type == type && o.num_pages == 5 && o.head_dim_v == dim && o.num_q_heads == 1);
  CHECK_OK(pagoda_pool_get_options(contiguous, &o));
  CHECK(o.layout == PAGODA_CONTIGUOUS && o.max_seq_len == max_len);

  /* A contiguous pool finds nothing. */
  p = prompt_of(ids, 2);
  CHECK_OK(pagoda_pool_admit_prompt(NULL, contiguous, &p, &k2, &two, &n));
  CHECK_OK(pagoda_pool_match(contiguous, &p, &n));
  CHECK(n == 0 && stats_of(contiguous).miss_tokens == 2);
  CHECK_OK(pagoda_exec_fence(NULL));
  pagoda_pool_destroy(pool), pagoda_pool_destroy(contiguous);
  device_free(two.data);
}

int main(void) {
  for (type = PAGODA_FP64; type < PAGODA_BF16 && !pagoda_type_is_enabled(type);) ++type;
  CHECK_OK(pagoda_initialize());
  const size_t bytes = (size_t)max_len * dim * sizeof(double);
  void* host         = calloc(1, bytes);
  zeros              = device_alloc(bytes);
  copy_to_device(zeros, host, bytes);
  free(host);
  test_tokens();
  test_hashes();
  test_errors();
  device_free(zeros);
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
