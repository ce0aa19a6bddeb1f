/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with the option checked through the C interface: NaN for a sequence with a fault, and the report. */
#include "tests/c/check.h"
#include "tests/c/device.h"
#include "tests/c/scene.h"

#include <math.h>
#include <stdlib.h>

enum { heads = 6, dim = 64 };

/* Whether all dims and log-sum-exps of a batch entry are NaN. */
static int all_nan(const Scene* s, int entry) {
  const size_t size = pagoda_type_size(s->io), row = (size_t)heads * dim * size;
  char* out = malloc(row);
  double lse[heads];
  int nan = 1;
  copy_to_host(out, (char*)s->out.data + entry * row, row);
  copy_to_host(lse, (double*)s->lse.data + entry * heads, sizeof lse);
  for (int i = 0; i < heads * dim; ++i) nan = nan && isnan(load_dim(s->io, out + i * size, 0));
  for (int h = 0; h < heads; ++h) nan = nan && isnan(lse[h]);
  free(out);
  return nan;
}

int main(void) {
  Scene s;
  pagoda_plan *plan = NULL, *unchecked = NULL;
  pagoda_table_fault fault;
  int32_t count       = -1;
  const int32_t huge  = 1 << 30;
  const int32_t below = -3;
  const int32_t ids[] = {0, 2, 1};
  memset(&s, 0, sizeof s), memset(&fault, 0, sizeof fault);
  fault.struct_size = sizeof fault;
  for (s.type = PAGODA_FP64; s.type < PAGODA_BF16 && !pagoda_type_is_enabled(s.type);) ++s.type;
  s.layout = PAGODA_PAGED, s.scale_rank = -1, s.batch = 3, s.q_heads = heads, s.kv_heads = 2, s.dim = dim;
  s.dim_v = dim, s.page_size = 8, s.max_pages = 5, s.query_len = 1;
  CHECK_OK(pagoda_initialize());
  scene_make(&s);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &unchecked));
  s.options.checked = 1;
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
  CHECK_OK(pagoda_plan_read_faults(NULL, plan, &count));
  CHECK(count == 0);
  CHECK_OK(pagoda_decode(NULL, plan, &s.q, &s.kv, &s.out, &s.lse));
  CHECK_OK(pagoda_plan_read_faults(NULL, plan, &count));
  CHECK(count == 0 && scene_wrong_rows(&s) == 0);

  /* A page id of sequence 1, which is batch entry 2, and the length of sequence 2, which is batch entry 1. */
  int32_t* const table   = scene_upload(&s, s.table, (size_t)s.batch * s.max_pages * sizeof(int32_t));
  int32_t* const lengths = scene_upload(&s, s.lengths, s.batch * sizeof(int32_t));
  s.kv.block_table = table, s.kv.seq_lens = lengths;
  s.kv.sequence_ids = scene_upload(&s, ids, sizeof ids), s.kv.batch = s.batch;
  copy_to_device(table + s.max_pages, &huge, sizeof huge);
  copy_to_device(lengths + 2, &below, sizeof below);
  CHECK_OK(pagoda_decode(NULL, plan, &s.q, &s.kv, &s.out, &s.lse));
  CHECK_OK(pagoda_plan_read_faults(NULL, plan, &count));
  CHECK(count == 2 && !all_nan(&s, 0) && all_nan(&s, 1) && all_nan(&s, 2));
  CHECK(scene_wrong_rows(&s) == 2 * heads);
  CHECK_OK(pagoda_plan_get_fault(plan, 0, &fault));
  CHECK(fault.entry == 1 && fault.sequence == 2 && fault.page == -1 && fault.value == below);
  CHECK(strstr(fault.message, "pagoda::decode: seq_lens(2) is -3; allowed: 0 to 40") != NULL);
  CHECK_OK(pagoda_plan_get_fault(plan, 1, &fault));
  CHECK(fault.entry == 2 && fault.sequence == 1 && fault.page == 0 && fault.value == huge);
  CHECK(strstr(fault.message, "pagoda::decode: page 0 of sequence 1 (batch entry 2) is 1073741824; allowed: 0 to 14"));

  CHECK_INVALID(pagoda_plan_get_fault(plan, 2, &fault), "index is 2; allowed: 0 or more, and less than the 2 faults");
  CHECK_INVALID(pagoda_plan_get_fault(plan, -1, &fault), "index is -1");
  CHECK_INVALID(pagoda_plan_get_fault(unchecked, 0, &fault), "less than the 0 faults");
  CHECK_INVALID(pagoda_plan_get_fault(NULL, 0, &fault), "plan is NULL");
  CHECK_INVALID(pagoda_plan_get_fault(plan, 0, NULL), "fault is NULL");
  CHECK_INVALID(pagoda_plan_read_faults(NULL, unchecked, &count), "checked is false");
  CHECK_INVALID(pagoda_plan_read_faults(NULL, plan, NULL), "count is NULL");
  CHECK_INVALID(pagoda_plan_read_faults(NULL, NULL, &count), "plan is NULL");
  fault.struct_size = 8;
  CHECK_INVALID(pagoda_plan_get_fault(plan, 0, &fault), "fault.struct_size is 8");
  /* An older struct has no such field. */
  pagoda_plan* never_made = NULL;
  s.options.struct_size   = offsetof(pagoda_decode_options, checked);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &never_made));
  CHECK_INVALID(pagoda_plan_read_faults(NULL, never_made, &count), "checked is false");
  pagoda_plan_destroy(never_made);
  pagoda_plan_destroy(plan), pagoda_plan_destroy(unchecked);
  scene_free(&s);
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
