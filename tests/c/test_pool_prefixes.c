/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that read shared pages once, through the C interface. Keys are zero and the values of a token are one number,
   so a decode gives the mean of the numbers of a sequence's tokens. */
#include <pagoda/pagoda_pool.h>

#include "tests/c/check.h"
#include "tests/c/device.h"

#include <math.h>
#include <stdlib.h>

enum { kv_heads = 2, q_heads = 8, dim = 64, page = 16, tokens = 64, sequences = 4 };

static pagoda_type type;

static pagoda_pool* make_pool(pagoda_layout layout, pagoda_share_prefixes share, const pagoda_prefix_options* prefix) {
  pagoda_pool_options o;
  pagoda_pool* pool = NULL;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o, o.layout = layout, o.type = type, o.num_kv_heads = kv_heads, o.head_dim = dim;
  o.max_seq_len = tokens, o.max_sequences = sequences, o.page_size = page, o.num_q_heads = q_heads;
  o.share_prefixes = share, o.prefix = prefix;
  CHECK_OK(pagoda_pool_create(NULL, &o, &pool));
  memset(&o, 0, sizeof o), o.struct_size = sizeof o;
  CHECK_OK(pagoda_pool_get_options(pool, &o));
  CHECK(o.share_prefixes == share && o.prefix == NULL);
  return pool;
}

/* A prompt of 1, 2, ... and forks of it: all share its pages. Decodes them all. */
static void decode_forks(pagoda_pool* pool, int32_t* slots) {
  const size_t size = pagoda_type_size(type), rows = (size_t)tokens * kv_heads * dim;
  char* host  = calloc(rows, size);
  void *zeros = device_alloc(rows * size), *values = device_alloc(rows * size), *outs = device_alloc(rows * size);
  copy_to_device(zeros, host, rows * size);
  for (size_t i = 0; i < rows; ++i) store_dim(type, host + i * size, 0, 1 + (double)(i / (kv_heads * dim)));
  copy_to_device(values, host, rows * size);
  const pagoda_tensor k = pagoda_dense(zeros, type, 3, tokens, kv_heads, dim, 0);
  const pagoda_tensor v = pagoda_dense(values, type, 3, tokens, kv_heads, dim, 0);
  const pagoda_tensor q = pagoda_dense(zeros, type, 3, sequences, q_heads, dim, 0);
  pagoda_tensor out     = q;
  out.data              = outs;
  CHECK_OK(pagoda_pool_admit(NULL, pool, &k, &v, &slots[0]));
  for (int i = 1; i < sequences; ++i) CHECK_OK(pagoda_pool_fork(NULL, pool, slots[0], -1, &slots[i]));
  CHECK_OK(pagoda_pool_decode(NULL, pool, sequences, slots, &q, &out, NULL));
  CHECK_OK(pagoda_exec_fence(NULL));
  copy_to_host(host, outs, (size_t)sequences * q_heads * dim * size);
  int wrong = 0;
  for (int i = 0; i < sequences * q_heads * dim; ++i)
    wrong += !(fabs(load_dim(type, host + i * size, 0) - (tokens + 1) / 2.) < 0.1);
  CHECK(wrong == 0);
  device_free(zeros), device_free(values), device_free(outs);
  free(host);
}

static void test_sharing(void) {
  int32_t slots[sequences];
  pagoda_device_rates rates;
  pagoda_prefix_report report;
  pagoda_pool* pool = make_pool(PAGODA_PAGED, PAGODA_SHARE_AUTOMATIC, NULL);
  memset(&rates, 0, sizeof rates), memset(&report, 0, sizeof report);
  rates.struct_size = sizeof rates, report.struct_size = sizeof report;
  CHECK_OK(pagoda_pool_get_prefix_report(pool, &report));
  CHECK(report.plain_because && strcmp(report.plain_because, "there was no decode yet") == 0);
  CHECK_OK(pagoda_pool_get_rates(pool, &rates));
  CHECK(rates.num_tiles > 0 && rates.teams > 0);
  rates.memory_bytes_per_us = rates.cache_bytes_per_us = 1, rates.state_bytes_per_us = 1e9;
  rates.item_us = rates.list_us = 0;
  CHECK_OK(pagoda_pool_set_rates(pool, &rates));
  CHECK_OK(pagoda_pool_get_rates(pool, &rates));
  CHECK(rates.memory_bytes_per_us == 1);
  decode_forks(pool, slots);
  CHECK_OK(pagoda_pool_get_prefix_report(pool, &report));
  CHECK(type == PAGODA_FP64 || (report.plain_because == NULL && report.entries > 0 && report.new_plan == 1));

  /* The same tables for a planner of the caller's. One sequence gets a third page of its own. */
  CHECK_OK(pagoda_pool_release(pool, slots[3]));
  CHECK_OK(pagoda_pool_fork(NULL, pool, slots[0], 2 * page, &slots[3]));
  CHECK_OK(pagoda_pool_reserve(NULL, pool, 1, &slots[3], NULL));
  pagoda_batch_pages t;
  const int32_t* pages = NULL;
  int32_t num_pages    = 0;
  memset(&t, 0, sizeof t), t.struct_size = sizeof t;
  CHECK_OK(pagoda_pool_batch_pages(pool, 2, slots + 2, 3, &t));
  CHECK(t.struct_size == sizeof t && t.batch == 2 && t.page_size == page && t.query_len == 3 && !t.block_table &&
        t.page_rows);
  CHECK(t.sequence_ids == slots + 2 && t.seq_lens[slots[2]] == tokens && t.seq_lens[slots[3]] == 2 * page + 1);
  CHECK_OK(pagoda_pool_block_table(pool, slots[2], &pages, &num_pages));
  CHECK(num_pages == tokens / page && memcmp(t.page_rows[slots[2]], pages, num_pages * sizeof *pages) == 0);
  CHECK_OK(pagoda_pool_block_table(pool, slots[3], &pages, &num_pages));
  CHECK(num_pages == 3 && memcmp(t.page_rows[slots[3]], pages, num_pages * sizeof *pages) == 0);
  CHECK_OK(pagoda_pool_batch_pages(pool, 2, slots, 0, &t));
  CHECK(t.query_len == 1);
  CHECK_INVALID(pagoda_pool_batch_pages(pool, 1, NULL, 1, &t), "slots is NULL");
  CHECK_INVALID(pagoda_pool_batch_pages(pool, 1, slots, -1, &t), "query_len is -1");
  CHECK_INVALID(pagoda_pool_batch_pages(pool, 1, slots, 1, NULL), "tables is NULL");
  CHECK_INVALID(pagoda_pool_get_prefix_report(pool, NULL), "report is NULL");
  CHECK_INVALID(pagoda_pool_set_rates(pool, NULL), "rates is NULL");
  t.struct_size = 8;
  CHECK_INVALID(pagoda_pool_batch_pages(pool, 1, slots, 1, &t), "tables.struct_size is 8");
  pagoda_pool_destroy(pool);
}

/* Bounds and rates of a pool's lists. */
static void test_options(void) {
  int32_t slots[sequences];
  pagoda_device_rates rates;
  pagoda_prefix_report report;
  pagoda_prefix_options prefix;
  pagoda_pool* pool = make_pool(PAGODA_PAGED, PAGODA_SHARE_AUTOMATIC, NULL);
  memset(&rates, 0, sizeof rates), memset(&report, 0, sizeof report), memset(&prefix, 0, sizeof prefix);
  rates.struct_size = sizeof rates, report.struct_size = sizeof report, prefix.struct_size = sizeof prefix;
  CHECK_OK(pagoda_pool_get_rates(pool, &rates));
  pagoda_pool_destroy(pool);
  rates.memory_bytes_per_us = rates.cache_bytes_per_us = 1, rates.state_bytes_per_us = 1e9;
  rates.item_us = rates.list_us = 0;
  prefix.rates = &rates, prefix.state_type = PAGODA_FP16;
  for (prefix.max_entries = 0; prefix.max_entries < 2; ++prefix.max_entries) {
    pool = make_pool(PAGODA_PAGED, PAGODA_SHARE_AUTOMATIC, &prefix);
    decode_forks(pool, slots);
    CHECK_OK(pagoda_pool_get_prefix_report(pool, &report));
    if (type != PAGODA_FP64 && prefix.max_entries == 0)
      CHECK(report.plain_because == NULL && (report.states > 0 || rates.chain_rows > 0));
    if (type != PAGODA_FP64 && prefix.max_entries == 1)
      CHECK(report.plain_because && strstr(report.plain_because, "max_entries") != NULL);
    pagoda_pool_destroy(pool);
  }
}

static void test_never(pagoda_layout layout, const char* because) {
  int32_t slots[sequences];
  pagoda_device_rates rates;
  pagoda_prefix_report report;
  pagoda_batch_pages t;
  pagoda_pool* pool = make_pool(layout, PAGODA_SHARE_NEVER, NULL);
  memset(&rates, 0, sizeof rates), memset(&report, 0, sizeof report), memset(&t, 0, sizeof t);
  rates.struct_size = sizeof rates, report.struct_size = sizeof report, t.struct_size = sizeof t;
  decode_forks(pool, slots);
  CHECK_OK(pagoda_pool_get_prefix_report(pool, &report));
  CHECK(report.plain_because != NULL && strstr(report.plain_because, because) != NULL && report.entries == 0);
  CHECK_INVALID(pagoda_pool_get_rates(pool, &rates), because);
  CHECK_OK(pagoda_pool_batch_pages(pool, sequences, slots, 1, &t));
  CHECK(t.batch == sequences && (t.page_rows != NULL) == (layout == PAGODA_PAGED));
  pagoda_pool_destroy(pool);
}

int main(void) {
  for (type = PAGODA_BF16; type > PAGODA_FP64 && !pagoda_type_is_enabled(type);) --type;
  CHECK_OK(pagoda_initialize());
  test_sharing();
  test_options();
  test_never(PAGODA_PAGED, "share_prefixes is never");
  test_never(PAGODA_CONTIGUOUS, "the cache is contiguous");
  pagoda_pool_options o;
  pagoda_pool* pool = NULL;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o, o.layout = PAGODA_PAGED, o.type = type, o.num_kv_heads = kv_heads, o.head_dim = dim;
  o.max_seq_len = tokens, o.max_sequences = 1, o.share_prefixes = 2;
  CHECK_INVALID(pagoda_pool_create(NULL, &o, &pool), "share_prefixes is 2; allowed: automatic (0) or never (1)");
  pagoda_prefix_options prefix;
  memset(&prefix, 0, sizeof prefix);
  o.share_prefixes = PAGODA_SHARE_AUTOMATIC, o.prefix = &prefix, o.num_q_heads = q_heads;
  CHECK_INVALID(pagoda_pool_create(NULL, &o, &pool), "pagoda_pool_create: prefix.struct_size is 0");
  prefix.struct_size = sizeof prefix, prefix.state_type = 99;
  CHECK_INVALID(pagoda_pool_create(NULL, &o, &pool), "pagoda_pool_create: prefix.state_type is 99");
  prefix.state_type = 0, prefix.max_states = -1;
  CHECK_INVALID(pagoda_pool_create(NULL, &o, &pool), "max_states is -1");
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
