/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of entries through the C interface, against attention in double: ranges that are merged, draft trees, pages
   chosen for each kv head, and what the calls refuse. */
#include <pagoda/pagoda_lists.h>

#include "tests/c/check.h"
#include "tests/c/device.h"
#include "tests/c/scene.h"

#include <stdlib.h>

enum { batch = 3, kv_heads = 2, q_heads = 6, page = 8, pages_each = 5, drafts = 70, most_entries = 16 };

static pagoda_type type;

static Scene scene(int query_len) {
  Scene s;
  memset(&s, 0, sizeof s);
  s.type = type, s.layout = PAGODA_PAGED, s.scale_rank = -1;
  s.batch = batch, s.q_heads = q_heads, s.kv_heads = kv_heads, s.dim = 64, s.dim_v = 64;
  s.page_size = page, s.max_pages = pages_each, s.query_len = query_len;
  return s;
}

/* A list on the host, and its copy on the device. */
typedef struct List {
  pagoda_entry entries[most_entries];
  pagoda_entry_query queries[batch * drafts];
  int32_t state_begin[batch * drafts + 1];
  uint64_t masks[2 * batch * drafts];
  int num_entries, num_queries, num_state_begin, num_mask_words;
} List;

static pagoda_entries upload(Scene* s, const List* l) {
  pagoda_entries to;
  memset(&to, 0, sizeof to);
  to.struct_size = sizeof to;
  to.entries     = scene_upload(s, l->entries, sizeof l->entries);
  to.queries     = scene_upload(s, l->queries, sizeof l->queries);
  if (l->num_state_begin) to.state_begin = scene_upload(s, l->state_begin, sizeof l->state_begin);
  if (l->num_mask_words) to.masks = scene_upload(s, l->masks, sizeof l->masks);
  to.num_entries = l->num_entries, to.num_queries = l->num_queries;
  to.num_state_begin = l->num_state_begin, to.num_mask_words = l->num_mask_words;
  return to;
}

static void bounds(Scene* s, const List* l, int max_queries) {
  s->options.max_entries = l->num_entries + 1, s->options.max_entry_queries = max_queries;
}

/* Two entries for each sequence, cut behind its first page, with partial states. */
static List cut_list(void) {
  List l;
  memset(&l, 0, sizeof l);
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < 2; ++i) {
      l.entries[l.num_entries]         = pagoda_make_entry(b, i * page, i == 0 ? page : -1, b, 1);
      l.entries[l.num_entries++].state = i;
    }
    l.queries[b]         = pagoda_make_entry_query(b, b, 1);
    l.state_begin[b + 1] = 2 * (b + 1);
  }
  l.num_queries = batch, l.num_state_begin = batch + 1;
  return l;
}

static void states_of(Scene* s, int count, pagoda_tensor* out, pagoda_tensor* lse) {
  double* zeros = calloc((size_t)count * q_heads * 64, sizeof *zeros);
  *out          = pagoda_dense(scene_upload(s, zeros, (size_t)count * q_heads * 64 * sizeof *zeros),
                      type == PAGODA_FP64 ? PAGODA_FP64 : PAGODA_FP32, 3, count, q_heads, 64, 0);
  *lse = pagoda_dense(scene_upload(s, zeros, (size_t)count * q_heads * sizeof *zeros), PAGODA_FP64, 2, count, q_heads,
                      0, 0);
  free(zeros);
}

static void test_ranges(void) {
  Scene s = scene(1);
  scene_make(&s);
  const double sinks[q_heads] = {0.5, -1, 2, 0, 1, 3};
  float narrow[q_heads];
  for (int h = 0; h < q_heads; ++h) narrow[h] = (float)sinks[h];
  s.sinks = sinks, s.options.sinks = scene_upload(&s, narrow, sizeof narrow);
  const List l              = cut_list();
  const pagoda_entries list = upload(&s, &l);
  pagoda_plan* plan         = NULL;
  pagoda_tensor out, lse;
  states_of(&s, 2 * batch, &out, &lse);
  bounds(&s, &l, 1);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
  CHECK(strstr(pagoda_plan_describe(plan), "lists of entries") != NULL);
  CHECK_OK(pagoda_check_entries(NULL, plan, &s.q, &s.kv, &list, 2 * batch));
  CHECK_OK(pagoda_decode_entries(NULL, plan, &s.q, &s.kv, &list, &s.out, &s.lse, &out, &lse));
  CHECK_OK(pagoda_merge_entries(NULL, plan, &list, &out, &lse, &s.out, &s.lse));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
  pagoda_plan_destroy(plan);
  scene_free(&s);
}

/* The same cuts as chains, which write out. Only kernels of some GPUs carry these out. */
static void test_chains(void) {
  Scene s = scene(1);
  scene_make(&s);
  List l = cut_list();
  for (int b = 0; b < batch; ++b) {
    l.entries[2 * b].state = l.entries[2 * b + 1].state = -1;
    l.entries[2 * b].chain = 1, l.entries[2 * b + 1].chain = -1;
  }
  l.num_state_begin         = 0;
  const pagoda_entries list = upload(&s, &l);
  pagoda_plan* plan         = NULL;
  bounds(&s, &l, 1);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
  CHECK_INVALID(pagoda_check_entries(NULL, plan, &s.q, &s.kv, &list, 0), "has chain 1; allowed: 0 (entries.chains");
  pagoda_plan_destroy(plan), plan = NULL;
  s.options.entry_chains = 1;
  if (pagoda_plan_create(NULL, &s.kv, &s.options, &plan) == PAGODA_SUCCESS) {
    CHECK_OK(pagoda_check_entries(NULL, plan, &s.q, &s.kv, &list, 0));
    CHECK_OK(pagoda_decode_entries(NULL, plan, &s.q, &s.kv, &list, &s.out, &s.lse, NULL, NULL));
    CHECK_OK(pagoda_exec_fence(NULL));
    CHECK(scene_wrong_rows(&s) == 0);
    pagoda_plan_destroy(plan);
  } else {
    CHECK(strstr(pagoda_last_error(), "only hand-tuned kernels carry out chains") != NULL);
    CHECK(plan == NULL);
  }
  scene_free(&s);
}

/* Query token i of a sequence is a draft whose parent is (i - 1) / 2, or the context. */
static int draft_lengths[batch], num_drafts;
static int is_ancestor(int i, int j) {
  for (; i > j; i = (i - 1) / 2) {
  }
  return i == j;
}
static int sees_draft(int q, int t, int kv_head) {
  const int context = draft_lengths[q / num_drafts] - num_drafts;
  (void)kv_head;
  return t < context || is_ancestor(q % num_drafts, t - context);
}

static void test_drafts(int count, int max_pages) {
  Scene s    = scene(count);
  List* l    = calloc(1, sizeof *l);
  num_drafts = count, s.max_pages = max_pages, s.sees = sees_draft;
  scene_make(&s);
  memcpy(draft_lengths, s.lengths, sizeof draft_lengths);
  for (int b = 0; b < batch; ++b) {
    l->entries[b] = pagoda_make_entry(b, 0, -1, b * count, count);
    for (int i = 0; i < count; ++i) {
      const int token        = b * count + i;
      l->queries[token]      = pagoda_make_entry_query(token, b, count);
      l->queries[token].mask = 2 * token;
      for (int j = 0; j < count; ++j) l->masks[2 * token + j / 64] |= (uint64_t)is_ancestor(i, j) << j % 64;
    }
  }
  l->num_entries = batch, l->num_queries = batch * count, l->num_mask_words = 2 * batch * count;
  const pagoda_entries list = upload(&s, l);
  pagoda_plan* plan         = NULL;
  bounds(&s, l, count);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
  CHECK_OK(pagoda_check_entries(NULL, plan, &s.q, &s.kv, &list, 0));
  CHECK_OK(pagoda_decode_entries(NULL, plan, &s.q, &s.kv, &list, &s.out, &s.lse, NULL, NULL));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
  pagoda_plan_destroy(plan);
  scene_free(&s);
  free(l);
}

/* Of each sequence, kv head 0 reads pages 0 and 2, kv head 1 pages 3 and 1. */
static const int chosen[kv_heads][2] = {{0, 2}, {3, 1}};
static int sees_chosen(int q, int t, int kv_head) {
  (void)q;
  return t / page == chosen[kv_head][0] || t / page == chosen[kv_head][1];
}

static void test_chosen_pages(void) {
  Scene s = scene(1);
  List l;
  int table[batch * kv_heads][2];
  int32_t lengths[batch * kv_heads];
  memset(&l, 0, sizeof l);
  s.sees = sees_chosen;
  scene_make(&s);
  for (int b = 0; b < batch; ++b) {
    CHECK(s.lengths[b] >= 3 * page);
    for (int h = 0; h < kv_heads; ++h) {
      const int row = b * kv_heads + h;
      for (int i = 0; i < 2; ++i) table[row][i] = s.table[b * pages_each + chosen[h][i]];
      /* Page 3 may be the last one: the order in a list is free, so a page that is not full comes last. */
      lengths[row] = 2 * page;
      if (h == 1 && s.lengths[b] < 4 * page) {
        lengths[row] -= 4 * page - s.lengths[b];
        const int swap = table[row][0];
        table[row][0] = table[row][1], table[row][1] = swap;
      }
      l.entries[row]         = pagoda_make_entry(row, 0, -1, row, 1);
      l.entries[row].kv_head = h;
      l.queries[row]         = pagoda_make_entry_query(b, row, 1);
    }
  }
  l.num_entries = l.num_queries = batch * kv_heads;
  const pagoda_entries list     = upload(&s, &l);
  pagoda_cache kv               = s.kv;
  pagoda_plan* plan             = NULL;
  kv.block_table = scene_upload(&s, table, sizeof table), kv.max_pages = 2;
  kv.seq_lens = scene_upload(&s, lengths, sizeof lengths), kv.num_sequences = batch * kv_heads;
  bounds(&s, &l, 1);
  CHECK_OK(pagoda_plan_create(NULL, &kv, &s.options, &plan));
  CHECK_OK(pagoda_check_entries(NULL, plan, &s.q, &kv, &list, 0));
  CHECK_OK(pagoda_decode_entries(NULL, plan, &s.q, &kv, &list, &s.out, &s.lse, NULL, NULL));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
  pagoda_plan_destroy(plan);
  scene_free(&s);
}

static void test_errors(void) {
  Scene s = scene(1);
  scene_make(&s);
  List l              = cut_list();
  pagoda_entries list = upload(&s, &l), given = list;
  pagoda_plan *plan = NULL, *of_batches = NULL;
  pagoda_tensor out, lse, wrong;
  states_of(&s, 2 * batch, &out, &lse);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &of_batches));
  bounds(&s, &l, 1);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
#define DECODE(list) pagoda_decode_entries(NULL, plan, &s.q, &s.kv, list, &s.out, &s.lse, &out, &lse)
#define MERGE(list) pagoda_merge_entries(NULL, plan, list, &out, &lse, &s.out, &s.lse)
#define CHECK_LIST(list, states) pagoda_check_entries(NULL, plan, &s.q, &s.kv, list, states)
  CHECK_OK(DECODE(&list));
  CHECK_INVALID(pagoda_decode_entries(NULL, NULL, &s.q, &s.kv, &list, &s.out, NULL, &out, &lse),
                "pagoda_decode_entries: plan is NULL");
  CHECK_INVALID(pagoda_decode_entries(NULL, plan, NULL, &s.kv, &list, &s.out, NULL, &out, &lse), "q is NULL");
  CHECK_INVALID(pagoda_decode_entries(NULL, plan, &s.q, NULL, &list, &s.out, NULL, &out, &lse), "kv is NULL");
  CHECK_INVALID(pagoda_decode_entries(NULL, plan, &s.q, &s.kv, &list, NULL, NULL, &out, &lse), "out is NULL");
  CHECK_INVALID(pagoda_decode_entries(NULL, plan, &s.q, &s.kv, &list, &s.out, NULL, NULL, NULL),
                "pagoda_decode_entries: state_out is NULL");
  CHECK_INVALID(pagoda_decode_entries(NULL, of_batches, &s.q, &s.kv, &list, &s.out, NULL, &out, &lse),
                "entries.max_entries = 0");
  CHECK_INVALID(pagoda_decode(NULL, plan, &s.q, &s.kv, &s.out, NULL), "decode_entries");
  CHECK_INVALID(DECODE(NULL), "list is NULL");
  CHECK_INVALID(MERGE(NULL), "pagoda_merge_entries: list is NULL");
  CHECK_INVALID(CHECK_LIST(NULL, 6), "pagoda_check_entries: list is NULL");
  CHECK_INVALID(CHECK_LIST(&list, -1), "num_states is -1; allowed: 0 or more");
  given.struct_size = sizeof given - 8;
  CHECK_INVALID(DECODE(&given), "list.struct_size is");
  given = list, given.num_entries = -1;
  CHECK_INVALID(DECODE(&given), "list.num_entries is -1");
  given = list, given.num_queries = -1;
  CHECK_INVALID(DECODE(&given), "list.num_queries is -1");
  given = list, given.num_state_begin = -1;
  CHECK_INVALID(DECODE(&given), "list.num_state_begin is -1");
  given = list, given.num_mask_words = 2;
  CHECK_INVALID(DECODE(&given), "list.masks is NULL; allowed: memory for 2 elements");
  given = list, given.entries = NULL;
  CHECK_INVALID(DECODE(&given), "entries have a null pointer");
  CHECK_INVALID(CHECK_LIST(&given, 6), "list.entries is NULL");
  given = list, given.queries = NULL;
  CHECK_INVALID(CHECK_LIST(&given, 6), "list.queries is NULL");
  given = list, given.entries = (const pagoda_entry*)((const char*)list.entries + 4);
  CHECK_INVALID(DECODE(&given), "allowed: multiples of 16");
  given = list, given.state_begin = (const int32_t*)((const char*)list.state_begin + 2);
  CHECK_INVALID(DECODE(&given), "list.state_begin is ");
  given = list, given.num_entries = 8;
  CHECK_INVALID(DECODE(&given), "8 entries");
  given = list, given.num_state_begin = 3;
  CHECK_INVALID(DECODE(&given), "state_begin has 3 elements");
  CHECK_INVALID(CHECK_LIST(&given, 6), "state_begin has 3 elements");
  wrong = out, wrong.extent[1] = 5;
  CHECK_INVALID(pagoda_decode_entries(NULL, plan, &s.q, &s.kv, &list, &s.out, NULL, &wrong, &lse), "states.out is");
  CHECK_INVALID(pagoda_merge_entries(NULL, plan, &list, &wrong, &lse, &s.out, NULL), "axis 1 of states.out");
  wrong = lse, wrong.type = PAGODA_FP16;
  CHECK_INVALID(pagoda_merge_entries(NULL, plan, &list, &out, &wrong, &s.out, NULL),
                "state_lse holds fp16; allowed: PAGODA_FP32 or PAGODA_FP64");
  CHECK_INVALID(pagoda_merge_entries(NULL, plan, &list, NULL, &lse, &s.out, NULL), "state_out is NULL");
  CHECK_INVALID(CHECK_LIST(&list, 5), "all of them within the 5 states");
  l.entries[1].kv_head = kv_heads, given = upload(&s, &l);
  CHECK_INVALID(CHECK_LIST(&given, 6), "entry 1 of the list has kv_head 2; allowed: below 2");
  pagoda_plan* none           = NULL;
  s.options.max_entry_queries = -1;
  CHECK_INVALID(pagoda_plan_create(NULL, &s.kv, &s.options, &none), "options.max_entry_queries is -1");
  s.options.max_entry_queries = 1, s.options.exactness = 3;
  CHECK_INVALID(pagoda_plan_create(NULL, &s.kv, &s.options, &none), "options.exactness is 3");
  s.options.exactness = PAGODA_BATCH_INVARIANT;
  CHECK_INVALID(pagoda_plan_create(NULL, &s.kv, &s.options, &none), "exactness is batch_invariant");
  s.options.exactness = PAGODA_FAST, s.options.max_listed_queries = -2;
  CHECK_INVALID(pagoda_plan_create(NULL, &s.kv, &s.options, &none), "entries.max_listed is -2");
  s.options.max_listed_queries = 0, s.options.window = 3;
  CHECK_INVALID(pagoda_plan_create(NULL, &s.kv, &s.options, &none), "window_left is 2 in a plan for lists");
  pagoda_plan_destroy(plan), pagoda_plan_destroy(of_batches);
  scene_free(&s);
}

int main(void) {
  for (type = PAGODA_FP64; type < PAGODA_BF16 && !pagoda_type_is_enabled(type);) ++type;
  CHECK_OK(pagoda_initialize());
  test_ranges();
  test_chains();
  test_drafts(5, pages_each);
  test_drafts(drafts, 12);
  test_chosen_pages();
  test_errors();
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
