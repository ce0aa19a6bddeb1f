/* SPDX-License-Identifier: Apache-2.0 */
/* Both pools through the C interface. Keys are zero and the values of a token are one number, so a decode gives the
   mean of the numbers of a sequence's tokens, and the log-sum-exp is the logarithm of their count. */
#include <pagoda/pagoda_pool.h>

#include "tests/c/check.h"
#include "tests/c/device.h"

#include <math.h>
#include <stdlib.h>

enum { kv_heads = 2, q_heads = 4, dim = 16, page = 4, max_len = 12 };

static pagoda_type type;
static void* zeros; /* keys and queries */

/* Rows whose values are first, first + 1, ... */
static pagoda_tensor rows_of(int tokens, double first) {
  const size_t size = pagoda_type_size(type);
  char* host        = calloc((size_t)tokens * kv_heads * dim, size);
  for (int i = 0; i < tokens * kv_heads * dim; ++i) store_dim(type, host + i * size, 0, first + i / (kv_heads * dim));
  void* device = device_alloc((size_t)tokens * kv_heads * dim * size);
  copy_to_device(device, host, (size_t)tokens * kv_heads * dim * size);
  free(host);
  return pagoda_dense(device, type, 3, tokens, kv_heads, dim, 0);
}

static pagoda_tensor keys(int tokens) { return pagoda_dense(zeros, type, 3, tokens, kv_heads, dim, 0); }

/* Decodes the sequences, by the pool or by a plan for its cache, and checks means and counts. */
static void check_means(pagoda_pool* pool, const pagoda_plan* plan, int n, const int32_t* slots, const double* means,
                        const int* counts) {
  const size_t size       = pagoda_type_size(type);
  const pagoda_tensor q   = pagoda_dense(zeros, type, 3, n, q_heads, dim, 0);
  const pagoda_tensor out = pagoda_dense(device_alloc((size_t)n * q_heads * dim * size), type, 3, n, q_heads, dim, 0);
  const pagoda_tensor lse = pagoda_dense(device_alloc(n * q_heads * sizeof(float)), PAGODA_FP32, 2, n, q_heads, 0, 0);
  char* row               = malloc((size_t)n * q_heads * dim * size);
  float* logs             = malloc(n * q_heads * sizeof(float));
  if (plan) {
    pagoda_cache kv;
    memset(&kv, 0, sizeof kv);
    kv.struct_size = sizeof kv;
    CHECK_OK(pagoda_pool_kv(NULL, pool, n, slots, &kv));
    CHECK(kv.struct_size == sizeof kv && kv.batch == n);
    CHECK_OK(pagoda_check(NULL, &kv, plan, &q));
    CHECK_OK(pagoda_decode(NULL, plan, &q, &kv, &out, &lse));
  } else {
    CHECK_OK(pagoda_pool_decode(NULL, pool, n, slots, &q, &out, &lse));
  }
  CHECK_OK(pagoda_exec_fence(NULL));
  copy_to_host(row, out.data, (size_t)n * q_heads * dim * size);
  copy_to_host(logs, lse.data, n * q_heads * sizeof(float));
  for (int i = 0; i < n * q_heads; ++i) {
    CHECK(fabs(logs[i] - log(counts[i / q_heads])) < 1e-5);
    for (int d = 0; d < dim; ++d)
      CHECK(fabs(load_dim(type, row + (i * dim + d) * size, 0) - means[i / q_heads]) < 0.02);
  }
  device_free(out.data), device_free(lse.data);
  free(row), free(logs);
}

static void test_pool(pagoda_layout layout) {
  pagoda_pool_options options;
  pagoda_pool_stats stats;
  pagoda_pool* pool = NULL;
  int32_t a = -1, b = -1, c = -1, number = -1, number_of_pages = -1;
  const int32_t* pages = NULL;
  memset(&options, 0, sizeof options), memset(&stats, 0, sizeof stats);
  options.struct_size = sizeof options, stats.struct_size = sizeof stats;
  options.layout = layout, options.type = type, options.num_kv_heads = kv_heads, options.head_dim = dim;
  options.max_seq_len = max_len, options.max_sequences = 3, options.page_size = page, options.num_pages = 6;
  options.num_q_heads = q_heads;
  CHECK_OK(pagoda_pool_create(NULL, &options, &pool));
  CHECK(strstr(pagoda_pool_describe(pool), pagoda_type_name(type)) != NULL);

  const pagoda_tensor prompt = rows_of(5, 1), next = rows_of(2, 6), k5 = keys(5), k2 = keys(2), k1 = keys(1);
  CHECK_OK(pagoda_pool_admit(NULL, pool, &k5, &prompt, &a)); /* 1 .. 5 */
  CHECK_OK(pagoda_pool_fork(NULL, pool, a, 3, &b));          /* 1 .. 3 */
  const int32_t both[2] = {a, b}, counts[2] = {2, 0};
  CHECK_OK(pagoda_pool_append(NULL, pool, 1, &a, counts, &k2, &next)); /* 1 .. 7 */
  pagoda_tensor one_each = next;
  CHECK_OK(pagoda_pool_append(NULL, pool, 2, both, NULL, &k2, &one_each)); /* a: 1 .. 7, 6; b: 1 .. 3, 7 */
  const double means[2] = {34 / 8., 13 / 4.};
  const int lengths[2]  = {8, 4};
  check_means(pool, NULL, 2, both, means, lengths);

  /* The same by a plan over the pool's cache. */
  pagoda_cache kv;
  pagoda_decode_options decode_options;
  pagoda_plan* plan = NULL;
  memset(&kv, 0, sizeof kv), memset(&decode_options, 0, sizeof decode_options);
  kv.struct_size = sizeof kv, decode_options.struct_size = sizeof decode_options;
  decode_options.num_q_heads = q_heads;
  CHECK_OK(pagoda_pool_kv(NULL, pool, 2, both, &kv));
  CHECK(kv.layout == layout && kv.k.type == type);
  CHECK_OK(pagoda_plan_create(NULL, &kv, &decode_options, &plan));
  check_means(pool, plan, 2, both, means, lengths);
  pagoda_plan_destroy(plan);

  /* A reserved token, written later. */
  int64_t position  = -1;
  const int32_t one = 1;
  CHECK_OK(pagoda_pool_reserve(NULL, pool, 1, &b, &one));
  CHECK_OK(pagoda_pool_slot_mapping(pool, b, 4, 1, &position));
  int64_t* there = device_alloc(sizeof position);
  copy_to_device(there, &position, sizeof position);
  pagoda_tensor row = next;
  row.extent[0]     = 1; /* 6 */
  CHECK_OK(pagoda_pool_write(NULL, pool, there, 1, &k1, &row));
  const double mean_b = 19 / 5.;
  const int length_b  = 5;
  check_means(pool, NULL, 1, &b, &mean_b, &length_b);

  CHECK_OK(pagoda_pool_seq_len(pool, b, &number));
  CHECK(number == 5);
  CHECK_OK(pagoda_pool_holds(pool, b, &number));
  CHECK(number == 1);
  CHECK_OK(pagoda_pool_block_table(pool, b, &pages, &number_of_pages));
  CHECK(number_of_pages == (layout == PAGODA_PAGED ? 2 : 1));
  CHECK_OK(pagoda_pool_page_ref_count(pool, pages[0], &number));
  CHECK(number == 1);
  CHECK_OK(pagoda_pool_get_stats(pool, &stats));
  CHECK(stats.tokens_held == 13 && stats.free_slots == 1 && stats.bytes_per_token > 0);
  CHECK(stats.bytes_used == 13 * stats.bytes_per_token && stats.waste > 0 && stats.waste < 1);
  pagoda_pool_stats older;
  memset(&older, 0xff, sizeof older);
  older.struct_size = offsetof(pagoda_pool_stats, bytes_used);
  CHECK_OK(pagoda_pool_get_stats(pool, &older));
  CHECK(older.tokens_held == 13 && older.bytes_used == -1);

  /* Errors leave the pool as it is. */
  CHECK_OK(pagoda_pool_admit_tokens(NULL, pool, 2, &c));
  CHECK_OK(pagoda_pool_can_admit(pool, 1, &number));
  CHECK(number == 0);
  CHECK_ERROR(pagoda_pool_admit_tokens(NULL, pool, 2, &number), PAGODA_OUT_OF_CAPACITY, "admit");
  CHECK(number == 0);
  CHECK_INVALID(pagoda_pool_release(pool, 7), "slot");
  CHECK_INVALID(pagoda_pool_admit(NULL, pool, &k5, &next, &number), "admit: v is");
  CHECK_INVALID(pagoda_pool_append(NULL, pool, 1, NULL, NULL, &k1, &row), "slots is NULL");
  CHECK_INVALID(pagoda_pool_append(NULL, pool, -1, &a, NULL, &k1, &row), "num_slots is -1");
  CHECK_INVALID(pagoda_pool_slot_mapping(pool, b, 4, 2, &position), "slot_mapping");
  CHECK_INVALID(pagoda_pool_slot_mapping(pool, b, 4, 1, NULL), "positions is NULL");
  CHECK_INVALID(pagoda_pool_write(NULL, pool, NULL, 1, &k1, &row), "slot_mapping is NULL");
  CHECK_INVALID(pagoda_pool_write(NULL, pool, NULL, -1, &k1, &row), "num_tokens is -1; allowed: 0 or more");
  CHECK_INVALID(pagoda_pool_kv(NULL, pool, 1, &b, NULL), "kv is NULL");
  CHECK_INVALID(pagoda_pool_get_stats(NULL, &stats), "pool is NULL");
  decode_options.programmatic_launch = 1;
  CHECK_INVALID(pagoda_pool_prepare(NULL, pool, &decode_options), "programmatic_launch");
  decode_options.programmatic_launch = 0, decode_options.workspace = zeros;
  CHECK_INVALID(pagoda_pool_prepare(NULL, pool, &decode_options), "options.workspace");
  check_means(pool, NULL, 1, &b, &mean_b, &length_b);
  decode_options.workspace = NULL, decode_options.window = 2;
  CHECK_OK(pagoda_pool_prepare(NULL, pool, &decode_options));
  const double mean_of_window = (7 + 6) / 2.;
  const int window            = 2;
  check_means(pool, NULL, 1, &b, &mean_of_window, &window);
  CHECK_OK(pagoda_pool_release(pool, a));
  CHECK_OK(pagoda_pool_release(pool, b));
  CHECK_OK(pagoda_pool_release(pool, c));
  CHECK_OK(pagoda_pool_get_stats(pool, &stats));
  CHECK(stats.tokens_held == 0 && stats.free_slots == 3 && stats.free_pages == stats.num_pages);
  pagoda_pool_destroy(pool);
  device_free(prompt.data), device_free(next.data), device_free(there);
}

static void test_creation(void) {
  pagoda_pool_options options;
  pagoda_pool* pool = NULL;
  memset(&options, 0, sizeof options);
  CHECK_INVALID(pagoda_pool_create(NULL, &options, &pool), "options.struct_size is 0");
  options.struct_size = sizeof options, options.layout = PAGODA_PAGED;
  CHECK_INVALID(pagoda_pool_create(NULL, &options, &pool), "options.type is 0");
  options.type = PAGODA_INT8;
  CHECK_INVALID(pagoda_pool_create(NULL, &options, &pool), "int8");
  options.type = type;
  CHECK_INVALID(pagoda_pool_create(NULL, &options, &pool), "num_kv_heads is 0");
  options.num_kv_heads = kv_heads, options.head_dim = dim, options.max_seq_len = max_len, options.max_sequences = 1;
  options.layout = PAGODA_PAGED_CSR;
  CHECK_INVALID(pagoda_pool_create(NULL, &options, &pool), "options.layout is 2");
  CHECK(pool == NULL);
  /* An older struct, without what is optional. */
  options.layout = PAGODA_PAGED, options.num_q_heads = -1;
  options.struct_size = offsetof(pagoda_pool_options, head_dim_v);
  CHECK_OK(pagoda_pool_create(NULL, &options, &pool));
  CHECK(pagoda_pool_describe(pool) == NULL && strstr(pagoda_last_error(), "there is no plan") != NULL);
  pagoda_pool_destroy(pool);
  pagoda_pool_destroy(NULL);
}

int main(void) {
  for (type = PAGODA_FP64; type < PAGODA_BF16 && !pagoda_type_is_enabled(type);) ++type;
  CHECK_OK(pagoda_initialize());
  const size_t bytes = (size_t)max_len * q_heads * dim * sizeof(double);
  void* host         = calloc(1, bytes);
  zeros              = device_alloc(bytes);
  copy_to_device(zeros, host, bytes);
  test_creation();
  test_pool(PAGODA_CONTIGUOUS);
  test_pool(PAGODA_PAGED);
  device_free(zeros);
  free(host);
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
