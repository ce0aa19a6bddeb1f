/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes with shared prefixes through the C interface, against attention in double, and what the calls refuse. */
#include <pagoda/pagoda_prefix.h>

#include "tests/c/check.h"
#include "tests/c/device.h"
#include "tests/c/scene.h"

enum { batch = 6, q_heads = 8, kv_heads = 2, page = 16, pages_each = 8, shared = 6 };

static Scene s;
static pagoda_batch_pages tables;
static pagoda_prefix_decoder* decoder;

/* All sequences begin with the pages of sequence 0. The scene's numbers follow. */
static void share_pages(void) {
  const size_t row = (size_t)kv_heads * s.dim * page;
  for (int b = 1; b < batch; ++b)
    for (int i = 0; i < shared; ++i) {
      s.table[b * pages_each + i] = s.table[i];
      memcpy(s.keys + (b * pages_each + i) * row, s.keys + i * row, row * sizeof(double));
      memcpy(s.values + (b * pages_each + i) * row, s.values + i * row, row * sizeof(double));
    }
  s.kv.block_table = scene_upload(&s, s.table, batch * pages_each * sizeof(int));
}

/* Rates with which reading a page twice is expensive. */
static pagoda_device_rates slow_memory(const pagoda_device_rates* from) {
  pagoda_device_rates r = *from;
  r.memory_bytes_per_us = r.cache_bytes_per_us = 1, r.state_bytes_per_us = 1e9;
  r.item_us = r.list_us = 0;
  return r;
}

static void test_decodes(void) {
  pagoda_device_rates rates;
  pagoda_prefix_report report;
  int32_t install = -1, packed = -1;
  uint64_t key = 7;
  memset(&rates, 0, sizeof rates), memset(&report, 0, sizeof report);
  rates.struct_size = sizeof rates, report.struct_size = sizeof report;
  CHECK_OK(pagoda_prefix_get_rates(decoder, &rates));
  CHECK(rates.num_tiles > 0 && rates.memory_bytes_per_us > 0 && rates.teams > 0);
  CHECK(strstr(pagoda_prefix_describe(decoder, 0), "head_dim 64") != NULL);

  rates = slow_memory(&rates);
  CHECK_OK(pagoda_prefix_set_rates(decoder, &rates));
  CHECK_OK(pagoda_prefix_get_rates(decoder, &rates));
  CHECK(rates.memory_bytes_per_us == 1);
  CHECK_OK(pagoda_prefix_plan(decoder, &tables, &install));
  CHECK(install == 1);
  CHECK_OK(pagoda_prefix_install(NULL, decoder, &packed));
  CHECK_OK(pagoda_prefix_get_report(decoder, &report));
  CHECK(packed == 1 && report.new_plan == 1 && report.entries > 0 && (report.states > 0 || rates.chain_rows > 0) &&
        !report.plain_because);
  CHECK(report.packed_us < report.plain_us && report.planning_us > 0);
  CHECK_OK(pagoda_prefix_packed(decoder, &packed));
  CHECK_OK(pagoda_prefix_graph_key(decoder, &key));
  CHECK(packed == 1 && key != 0);
  CHECK(strstr(pagoda_prefix_describe(decoder, 1), "lists of entries") != NULL);
  CHECK_OK(pagoda_prefix_decode(NULL, decoder, &s.q, &s.kv, &s.out, &s.lse));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
  /* The same tables again, as CSR lists and as pointers. */
  CHECK_OK(pagoda_prefix_update(NULL, decoder, &tables, &packed));
  CHECK_OK(pagoda_prefix_get_report(decoder, &report));
  CHECK(packed == 1 && report.new_plan == 0);
  int32_t indptr[batch + 1];
  const int32_t* rows[batch];
  for (int b = 0; b <= batch; ++b) indptr[b] = b * pages_each;
  for (int b = 0; b < batch; ++b) rows[b] = s.table + b * pages_each;
  pagoda_batch_pages other = tables;
  other.block_table = NULL, other.page_indptr = indptr, other.page_indices = s.table;
  other.num_page_indices = batch * pages_each;
  CHECK_OK(pagoda_prefix_update(NULL, decoder, &other, &packed));
  CHECK(packed == 1);
  other.page_indptr = NULL, other.page_rows = rows;
  CHECK_OK(pagoda_prefix_update(NULL, decoder, &other, NULL));
  CHECK_OK(pagoda_prefix_decode(NULL, decoder, &s.q, &s.kv, &s.out, &s.lse));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
  /* Without page ids there is nothing to share. */
  other.page_rows = NULL, other.page_size = 0;
  CHECK_OK(pagoda_prefix_update(NULL, decoder, &other, &packed));
  CHECK_OK(pagoda_prefix_get_report(decoder, &report));
  CHECK(packed == 0 && report.plain_because != NULL);
  CHECK_OK(pagoda_prefix_decode(NULL, decoder, &s.q, &s.kv, &s.out, &s.lse));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
}

static void test_options(void) {
  pagoda_prefix_decoder* made = NULL;
  pagoda_prefix_options o;
  pagoda_device_rates rates;
  pagoda_prefix_report report;
  int32_t packed = -1;
  memset(&o, 0, sizeof o), memset(&rates, 0, sizeof rates), memset(&report, 0, sizeof report);
  o.struct_size = sizeof o, rates.struct_size = sizeof rates, report.struct_size = sizeof report;
  CHECK_OK(pagoda_prefix_get_rates(decoder, &rates));
  rates         = slow_memory(&rates);
  o.max_entries = 1, o.rates = &rates, o.state_type = PAGODA_FP16;
#define CREATE() pagoda_prefix_create(NULL, &s.kv, &s.options, &o, &made)
  CHECK_OK(CREATE());
  CHECK_OK(pagoda_prefix_update(NULL, made, &tables, &packed));
  CHECK_OK(pagoda_prefix_get_report(made, &report));
  CHECK(packed == 0 && report.plain_because && strstr(report.plain_because, "max_entries"));
  pagoda_prefix_destroy(made);
  made = NULL, o.max_entries = -1;
  CHECK_INVALID(CREATE(), "max_entries is -1");
  o.max_entries = 0, o.state_type = PAGODA_INT8;
  CHECK_INVALID(CREATE(), "state_type");
  o.state_type = 12;
  CHECK_INVALID(CREATE(), "prefix.state_type is 12");
  o.state_type = 0, o.reserved = 1;
  CHECK_INVALID(CREATE(), "prefix.reserved is 1");
  o.reserved = 0, rates.num_tiles = PAGODA_MAX_ROW_TILES + 1;
  CHECK_INVALID(CREATE(), "rates.num_tiles is 17; allowed: 0 to 16");
  rates.num_tiles = 1, rates.chain_rows = -1;
  CHECK_INVALID(CREATE(), "chain_rows is -1; allowed: 0 or more");
  rates.chain_rows = 1 << 20;
  CHECK_INVALID(CREATE(), "chain_rows of the rates is 1048576; allowed: 0 (no chains) to ");
  rates.chain_rows = 0, rates.unsplit_chain_tokens = -1;
  CHECK_INVALID(CREATE(), "unsplit_chain_tokens is -1; allowed: 0 or more");
  /* Older structs end before it, or have no rates of chains: lists of these have none. */
  rates.struct_size = offsetof(pagoda_device_rates, unsplit_chain_tokens);
  CHECK_OK(CREATE());
  pagoda_prefix_destroy(made), made = NULL;
  rates.chain_rows = 1 << 20, rates.struct_size = offsetof(pagoda_device_rates, chain_entry_us);
  CHECK_OK(CREATE());
  rates.struct_size = sizeof rates;
  CHECK_OK(pagoda_prefix_get_rates(made, &rates));
  CHECK(rates.chain_rows == 0);
  pagoda_prefix_destroy(made), made = NULL;
  o.rates = NULL, o.struct_size = 4;
  CHECK_INVALID(CREATE(), "prefix.struct_size is 4");
  o.struct_size                 = sizeof o;
  pagoda_decode_options options = s.options;
  options.max_entries           = 1;
  CHECK_INVALID(pagoda_prefix_create(NULL, &s.kv, &options, &o, &made), "options.max_entries is 1");
  options.max_entries = 0, options.workspace_bytes = 16;
  CHECK_INVALID(pagoda_prefix_create(NULL, &s.kv, &options, &o, &made), "options.workspace is given");
  CHECK_INVALID(pagoda_prefix_create(NULL, NULL, &s.options, &o, &made), "kv is NULL");
  CHECK_INVALID(pagoda_prefix_create(NULL, &s.kv, NULL, &o, &made), "options is NULL");
  CHECK_INVALID(pagoda_prefix_create(NULL, &s.kv, &s.options, &o, NULL), "decoder is NULL");
  CHECK(made == NULL);
}

static void test_errors(void) {
  pagoda_batch_pages t = tables;
  pagoda_device_rates rates;
  pagoda_prefix_report report;
  int32_t packed = -1;
  uint64_t key   = 0;
  memset(&rates, 0, sizeof rates), memset(&report, 0, sizeof report);
#define PLAN() pagoda_prefix_plan(decoder, &t, NULL)
  CHECK_INVALID(pagoda_prefix_plan(NULL, &t, NULL), "pagoda_prefix_plan: decoder is NULL");
  CHECK_INVALID(pagoda_prefix_plan(decoder, NULL, NULL), "tables is NULL");
  CHECK_INVALID(pagoda_prefix_install(NULL, NULL, NULL), "decoder is NULL");
  CHECK_INVALID(pagoda_prefix_update(NULL, NULL, &t, NULL), "decoder is NULL");
  CHECK_INVALID(pagoda_prefix_decode(NULL, NULL, &s.q, &s.kv, &s.out, NULL), "decoder is NULL");
  CHECK_INVALID(pagoda_prefix_decode(NULL, decoder, NULL, &s.kv, &s.out, NULL), "q is NULL");
  CHECK_INVALID(pagoda_prefix_decode(NULL, decoder, &s.q, NULL, &s.out, NULL), "kv is NULL");
  CHECK_INVALID(pagoda_prefix_decode(NULL, decoder, &s.q, &s.kv, NULL, NULL), "out is NULL");
  CHECK_INVALID(pagoda_prefix_get_report(decoder, NULL), "report is NULL");
  CHECK_INVALID(pagoda_prefix_get_report(decoder, &report), "report.struct_size is 0");
  CHECK_INVALID(pagoda_prefix_packed(decoder, NULL), "packed is NULL");
  CHECK_INVALID(pagoda_prefix_packed(NULL, &packed), "decoder is NULL");
  CHECK_INVALID(pagoda_prefix_graph_key(decoder, NULL), "key is NULL");
  CHECK_INVALID(pagoda_prefix_graph_key(NULL, &key), "decoder is NULL");
  CHECK_INVALID(pagoda_prefix_get_rates(decoder, &rates), "rates.struct_size is 0");
  CHECK_INVALID(pagoda_prefix_set_rates(decoder, NULL), "rates is NULL");
  CHECK(pagoda_prefix_describe(NULL, 0) == NULL && strstr(pagoda_last_error(), "decoder is NULL"));
  CHECK(pagoda_prefix_describe(decoder, 2) == NULL && strstr(pagoda_last_error(), "lists is 2; allowed: 0 or 1"));
  rates.struct_size = sizeof rates;
  CHECK_OK(pagoda_prefix_get_rates(decoder, &rates));
  rates.memory_bytes_per_us = 0;
  CHECK_INVALID(pagoda_prefix_set_rates(decoder, &rates), "memory_bytes_per_us");
  t.struct_size = 3;
  CHECK_INVALID(PLAN(), "tables.struct_size is 3");
  t = tables, t.batch = -1;
  CHECK_INVALID(PLAN(), "tables.batch is -1");
  t = tables, t.batch = batch + 1;
  CHECK_INVALID(PLAN(), "tables.batch is 7; allowed: up to the 6 sequences, without sequence_ids");
  t.num_sequences = batch + 1;
  CHECK_INVALID(PLAN(), "batch is 7; allowed: 0 to the decoder's max_batch = 6");
  t = tables, t.num_sequences = -2;
  CHECK_INVALID(PLAN(), "tables.num_sequences is -2");
  t = tables, t.page_size = 8;
  CHECK_INVALID(PLAN(), "page_size is 8; allowed: that of the decoder's cache, 16");
  t = tables, t.query_len = -1;
  CHECK_INVALID(PLAN(), "tables.query_len is -1");
  t = tables, t.max_pages = INT64_MAX;
  CHECK_INVALID(PLAN(), "tables.max_pages is");
  t = tables, t.num_page_indices = -1;
  CHECK_INVALID(PLAN(), "tables.num_page_indices is -1");
  t = tables, t.seq_lens = NULL;
  CHECK_INVALID(PLAN(), "tables.seq_lens is NULL; allowed: memory for 6 lengths");
  t = tables, t.page_indptr = s.table;
  CHECK_INVALID(PLAN(), "tables has page ids in 2 forms");
  t.block_table = NULL, t.num_page_indices = 3;
  CHECK_INVALID(PLAN(), "tables.page_indices is NULL");
  t = tables, t.block_table_stride[1] = -1;
  CHECK_INVALID(PLAN(), "tables.block_table_stride is {0, -1}");
  int32_t lengths[batch] = {page * pages_each + 1, 1, 1, 1, 1, 1};
  t = tables, t.seq_lens = lengths;
  CHECK_INVALID(PLAN(), "seq_lens");
}

int main(void) {
  s.type = PAGODA_FP32;
  for (pagoda_type type = PAGODA_BF16; type >= PAGODA_FP32; --type)
    if (pagoda_type_is_enabled(type)) s.type = type;
  s.layout = PAGODA_PAGED, s.scale_rank = -1;
  s.batch = batch, s.q_heads = q_heads, s.kv_heads = kv_heads, s.dim = s.dim_v = 64;
  s.page_size = page, s.max_pages = pages_each, s.query_len = 1;
  CHECK_OK(pagoda_initialize());
  scene_make(&s);
  for (int b = 0; b < batch; ++b) s.lengths[b] = page * pages_each - 3 * b;
  s.kv.seq_lens = scene_upload(&s, s.lengths, batch * sizeof(int));
  share_pages();
  tables.struct_size = sizeof tables, tables.batch = tables.num_sequences = batch, tables.page_size = page;
  tables.seq_lens = s.lengths, tables.block_table = s.table, tables.max_pages = pages_each;
  CHECK_OK(pagoda_prefix_create(NULL, &s.kv, &s.options, NULL, &decoder));
  test_errors();
  test_decodes();
  test_options();
  pagoda_prefix_destroy(decoder), pagoda_prefix_destroy(NULL);
  scene_free(&s);
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
