/* SPDX-License-Identifier: Apache-2.0 */
/* Every error has a status and a message that names the argument; versions of structs; the life of Kokkos. */
#include <pagoda/pagoda_pool.h>

#include "tests/c/check.h"
#include "tests/c/device.h"
#include "tests/c/scene.h"

#include <pthread.h>
#include <stdlib.h>

static Scene s;
static pagoda_plan* plan;

static pagoda_status decode(const pagoda_tensor* q, const pagoda_cache* kv, const pagoda_tensor* out,
                            const pagoda_tensor* lse) {
  return pagoda_decode(NULL, plan, q, kv, out, lse);
}

static pagoda_status make(const pagoda_cache* kv, const pagoda_decode_options* options) {
  pagoda_plan* none    = NULL;
  pagoda_status status = pagoda_plan_create(NULL, kv, options, &none);
  CHECK((none != NULL) == (status == PAGODA_SUCCESS));
  pagoda_plan_destroy(none);
  return status;
}

static void test_names_and_versions(void) {
  int32_t major = -1, minor = -1, patch = -1;
  char text[32];
  pagoda_version(&major, &minor, &patch);
  CHECK(major == PAGODA_VERSION_MAJOR && minor == PAGODA_VERSION_MINOR && patch == PAGODA_VERSION_PATCH);
  pagoda_version(NULL, NULL, NULL);
  snprintf(text, sizeof text, "%d.%d.%d", (int)major, (int)minor, (int)patch);
  CHECK(strcmp(pagoda_version_string(), text) == 0);
  CHECK(strstr(pagoda_configuration(), text) != NULL);
  CHECK(strcmp(pagoda_status_name(PAGODA_SUCCESS), "PAGODA_SUCCESS") == 0);
  CHECK(strcmp(pagoda_status_name(PAGODA_NOT_INITIALIZED), "PAGODA_NOT_INITIALIZED") == 0);
  CHECK(strcmp(pagoda_status_name(-7), "unknown status") == 0);
  CHECK(strcmp(pagoda_type_name(PAGODA_FP64), "fp64") == 0 && strcmp(pagoda_type_name(PAGODA_NVFP4), "nvfp4") == 0);
  CHECK(strcmp(pagoda_type_name(PAGODA_E8M0), "e8m0") == 0 && strcmp(pagoda_type_name(0), "unknown type") == 0);
  CHECK(pagoda_type_size(PAGODA_FP64) == 8 && pagoda_type_size(PAGODA_BF16) == 2 && pagoda_type_size(12) == 0);
  CHECK(pagoda_type_size(PAGODA_INT4) == 1 && !pagoda_type_is_enabled(PAGODA_E8M0) && !pagoda_type_is_enabled(-1));
}

static void test_before_initialization(void) {
  pagoda_exec* exec = NULL;
  pagoda_pool* pool = NULL;
  CHECK(strcmp(pagoda_last_error(), "") == 0);
  CHECK_ERROR(pagoda_exec_create(PAGODA_SPACE_DEFAULT, NULL, &exec), PAGODA_NOT_INITIALIZED,
              "pagoda_exec_create: Kokkos");
  CHECK_ERROR(pagoda_exec_fence(NULL), PAGODA_NOT_INITIALIZED, "not initialized");
  CHECK_ERROR(make(&s.kv, &s.options), PAGODA_NOT_INITIALIZED, "pagoda_plan_create");
  CHECK_INVALID(pagoda_pool_prepare(NULL, pool, NULL), "pool is NULL");
  CHECK_INVALID(pagoda_finalize(), "there was no pagoda_initialize");
}

static void test_null_handles(void) {
  size_t bytes = 0;
  CHECK_INVALID(pagoda_decode(NULL, NULL, &s.q, &s.kv, &s.out, NULL), "pagoda_decode: plan is NULL");
  CHECK_INVALID(decode(NULL, &s.kv, &s.out, NULL), "q is NULL");
  CHECK_INVALID(decode(&s.q, NULL, &s.out, NULL), "kv is NULL");
  CHECK_INVALID(decode(&s.q, &s.kv, NULL, NULL), "out is NULL");
  CHECK_INVALID(make(NULL, &s.options), "kv is NULL");
  CHECK_INVALID(make(&s.kv, NULL), "options is NULL");
  CHECK_INVALID(pagoda_plan_create(NULL, &s.kv, &s.options, NULL), "plan is NULL");
  CHECK_INVALID(pagoda_plan_workspace_bytes(NULL, &bytes), "plan is NULL");
  CHECK_INVALID(pagoda_plan_workspace_bytes(plan, NULL), "bytes is NULL");
  CHECK_INVALID(pagoda_exec_create(PAGODA_SPACE_DEFAULT, NULL, NULL), "exec is NULL");
  CHECK_INVALID(pagoda_check(NULL, &s.kv, plan, NULL), "q is NULL");
  CHECK(pagoda_plan_describe(NULL) == NULL && strstr(pagoda_last_error(), "pagoda_plan_describe") != NULL);
  CHECK(pagoda_plan_backend(NULL) == NULL);
  pagoda_plan_destroy(NULL), pagoda_exec_destroy(NULL);
}

static void test_tensors(void) {
  pagoda_tensor t = s.q;
  t.data          = NULL;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "pagoda_decode: q.data is NULL");
  t = s.q, t.data = (char*)t.data + 1;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "multiples of");
  t = s.q, t.type = 0;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.type is 0; allowed: a value of pagoda_type_code, 1 to 11");
  t = s.q, t.type = PAGODA_E8M0;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.type is 100");
  t = s.q, t.type = PAGODA_INT8;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q holds int8");
  t = s.q, t.rank = 2;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.rank is 2; allowed: 3");
  t = s.q, t.reserved = 1;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.reserved is 1");
  t = s.q, t.extent[0] = -1;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.extent[0] is -1");
  t = s.q, t.stride[1] = -64;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.stride[1] is -64");
  t = s.q, t.extent[1] = INT64_MAX / 2;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "2^57 elements");
  t = s.q, t.memory = 9;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q.memory is 9");
  t = s.q, t.extent[2] = 32;
  CHECK_INVALID(decode(&t, &s.kv, &s.out, NULL), "q has (heads, head_dim) = (6, 32)");
  t = s.out, t.extent[1] = 5;
  CHECK_INVALID(decode(&s.q, &s.kv, &t, NULL), "out is (3, 5, 64)");
  t = s.lse, t.type = PAGODA_FP16;
  CHECK_INVALID(decode(&s.q, &s.kv, &s.out, &t), "lse holds fp16; allowed: PAGODA_FP32 or PAGODA_FP64");
  t = s.lse, t.extent[0] = 1;
  CHECK_INVALID(decode(&s.q, &s.kv, &s.out, &t), "lse is (1, 6)");
}

static void test_caches(void) {
  pagoda_cache kv = s.kv;
  kv.k.data       = NULL;
  CHECK_INVALID(make(&kv, &s.options), "kv.k.data is NULL");
  kv = s.kv, kv.layout = 3;
  CHECK_INVALID(make(&kv, &s.options), "kv.layout is 3");
  kv = s.kv, kv.order = -1;
  CHECK_INVALID(make(&kv, &s.options), "kv.order is -1");
  kv = s.kv, kv.v.extent[1] = 7;
  CHECK_INVALID(make(&kv, &s.options), "v has (pages or sequences, tokens, kv heads)");
  kv = s.kv, kv.num_sequences = -1;
  CHECK_INVALID(make(&kv, &s.options), "kv.num_sequences is -1");
  kv = s.kv, kv.max_pages = -1;
  CHECK_INVALID(make(&kv, &s.options), "kv.max_pages is -1");
  kv = s.kv, kv.block_table_stride[0] = -1;
  CHECK_INVALID(make(&kv, &s.options), "kv.block_table_stride is {-1, 0}");
  kv = s.kv, kv.block_table = NULL;
  CHECK_INVALID(decode(&s.q, &kv, &s.out, NULL), "page table has a null pointer");
  kv = s.kv, kv.seq_lens = NULL;
  CHECK_INVALID(decode(&s.q, &kv, &s.out, NULL), "seq_lens has a null pointer");
  kv = s.kv, kv.layout = PAGODA_CONTIGUOUS;
  CHECK_INVALID(make(&kv, &s.options), "kv.num_sequences is 3; allowed: 15");
  kv = s.kv, kv.layout = PAGODA_PAGED_CSR;
  CHECK_INVALID(make(&kv, &s.options), "kv.page_indptr is NULL");
  kv.num_page_indices = -1;
  CHECK_INVALID(make(&kv, &s.options), "kv.num_page_indices is -1; allowed: 0 or more");
  kv = s.kv, kv.k.stride[0] = INT64_MAX;
  CHECK_INVALID(make(&kv, &s.options), "kv.k spans 2^57 elements or more; allowed: fewer");
  kv = s.kv, kv.k.extent[0] = 0, kv.k.stride[1] = INT64_MAX;
  CHECK_INVALID(make(&kv, &s.options), "kv.k spans 2^57 elements or more; allowed: fewer");
  kv = s.kv, kv.k.extent[3] = (int64_t)1 << 31;
  CHECK_INVALID(make(&kv, &s.options), "axis 3 of kv.k has extent 2147483648; allowed: below 2^31 dims");
  CHECK_INVALID(pagoda_write_kv(NULL, &s.kv.k, &s.kv.v, PAGODA_NHD, NULL, -1, &s.q, &s.q),
                "pagoda_write_kv: num_tokens is -1; allowed: 0 to 2^31 - 1");
  CHECK_INVALID(pagoda_write_kv(NULL, &s.kv.k, &s.kv.v, PAGODA_NHD, NULL, 1, &s.q, &s.q),
                "pagoda_write_kv: slot_mapping is NULL");
  kv = s.kv, kv.k_scale = pagoda_dense(s.q.data, PAGODA_FP32, 2, 1, 1, 0, 0);
  CHECK_INVALID(make(&kv, &s.options), "kv.k_scale.rank is 2");
  kv.k_scale = pagoda_dense(s.q.data, PAGODA_FP16, 1, 2, 0, 0, 0);
  CHECK_INVALID(make(&kv, &s.options), "(fp16); allowed: PAGODA_FP32");
  kv.k_scale = pagoda_dense(s.q.data, PAGODA_FP32, 1, 3, 0, 0, 0);
  CHECK_INVALID(make(&kv, &s.options), "axis 2 of scales.k");
  kv.k_scale = pagoda_dense(s.q.data, PAGODA_FP32, 1, 2, 0, 0, 0);
  CHECK_INVALID(make(&kv, &s.options), "k has scales and elements of");
  kv = s.kv, kv.v_block_scale = pagoda_dense(s.q.data, PAGODA_E8M0, 4, 15, 8, 2, 2);
  CHECK_INVALID(make(&kv, &s.options), "kv.v_block_scale is given");
  kv.scale_order = PAGODA_NHD;
  kv.k.type = kv.v.type = PAGODA_MXFP4, kv.k.extent[3] = kv.v.extent[3] = 32;
  kv.k_block_scale = kv.v_block_scale, kv.v_block_scale.extent[3] = 3;
  CHECK_INVALID(make(&kv, &s.options), "axis 3 of kv.v_block_scale");
  kv.k_block_scale.type = PAGODA_FP8_E4M3;
  CHECK_INVALID(make(&kv, &s.options), "kv.k_block_scale.type is 5 (fp8_e4m3); allowed: 100 (e8m0)");
  kv = s.kv, kv.k.type = kv.v.type = PAGODA_INT8;
  CHECK_INVALID(make(&kv, &s.options), "no scales");
}

static void test_options(void) {
  pagoda_decode_options o = s.options;
  o.num_q_heads           = 5;
  CHECK_INVALID(make(&s.kv, &o), "num_q_heads is 5");
  o = s.options, o.window = -2;
  CHECK_INVALID(make(&s.kv, &o), "options.window is -2");
  o = s.options, o.max_query_len = -1;
  CHECK_INVALID(make(&s.kv, &o), "options.max_query_len is -1");
  o = s.options, o.backend = "fastest";
  CHECK_INVALID(make(&s.kv, &o), "backend is \"fastest\"");
  o = s.options, o.cu_seqlens_q = s.kv.seq_lens, o.num_cu_seqlens_q = 0;
  CHECK_INVALID(make(&s.kv, &o), "options.num_cu_seqlens_q is 0");
  o.num_cu_seqlens_q = 3;
  CHECK_INVALID(make(&s.kv, &o), "cu_seqlens_q has 3 entries");
}

static void test_struct_sizes(void) {
  /* A struct of a newer header: more fields, which are zero, or not. */
  struct {
    pagoda_decode_options known;
    int64_t unknown;
  } newer;
  pagoda_decode_options o = s.options;
  o.struct_size           = 0;
  CHECK_INVALID(make(&s.kv, &o), "options.struct_size is 0; allowed: the size of the struct");
  o.struct_size = offsetof(pagoda_decode_options, max_batch) - 1;
  CHECK_INVALID(make(&s.kv, &o), "options.struct_size is");
  o.struct_size = ~(size_t)0;
  CHECK_INVALID(make(&s.kv, &o), "options.struct_size is");
  /* What is behind an older struct is not read: this would not be allowed. */
  o = s.options, o.window = -2, o.backend = (const char*)1;
  o.struct_size = offsetof(pagoda_decode_options, window);
  CHECK_OK(make(&s.kv, &o));
  memset(&newer, 0, sizeof newer);
  newer.known             = s.options;
  newer.known.struct_size = sizeof newer;
  CHECK_OK(make(&s.kv, &newer.known));
  newer.unknown = 1;
  CHECK_INVALID(make(&s.kv, &newer.known), "nonzero byte");
  pagoda_cache kv = s.kv;
  kv.struct_size  = 0;
  CHECK_INVALID(decode(&s.q, &kv, &s.out, NULL), "kv.struct_size is 0");
}

static void test_device_tables(void) {
  int32_t wrong[15] = {0};
  pagoda_cache kv   = s.kv;
  wrong[5]          = 15;
  CHECK_OK(pagoda_check(NULL, &s.kv, NULL, NULL));
  kv.block_table = scene_upload(&s, wrong, sizeof wrong);
  CHECK_INVALID(pagoda_check(NULL, &kv, NULL, NULL), "page 0 of sequence 1 (batch entry 1) is 15; allowed: 0 to 14");
}

static void test_spaces(void) {
  pagoda_exec *exec = NULL, *host = NULL;
  int stream = 0;
  CHECK_INVALID(pagoda_exec_create(2, NULL, &exec), "space is 2");
  CHECK_INVALID(pagoda_exec_create(PAGODA_SPACE_HOST, &stream, &exec), "stream is not NULL");
  CHECK(exec == NULL);
  CHECK_OK(pagoda_exec_create(PAGODA_SPACE_HOST, NULL, &host));
  CHECK_INVALID(pagoda_finalize(), "plans, pools and execution instances exist");
  pagoda_tensor q = s.q;
  q.memory        = PAGODA_MEMORY_HOST;
  if (pagoda_decode(host, plan, &q, &s.kv, &s.out, NULL) != PAGODA_SUCCESS) { /* the default space is not the host */
    CHECK(strstr(pagoda_last_error(), "another execution space") != NULL);
    CHECK_INVALID(decode(&q, &s.kv, &s.out, NULL), "q.memory is PAGODA_MEMORY_HOST");
  }
  CHECK_OK(pagoda_exec_fence(host));
  pagoda_exec_destroy(host);
}

static void* fail_in_another_thread(void* unused) {
  (void)unused;
  CHECK(strcmp(pagoda_last_error(), "") == 0);
  CHECK_INVALID(pagoda_plan_workspace_bytes(NULL, NULL), "bytes is NULL");
  return NULL;
}

/* Each thread has a message of its own. */
static void test_threads(void) {
  pthread_t thread;
  CHECK_INVALID(decode(NULL, &s.kv, &s.out, &s.lse), "q is NULL");
  CHECK(pthread_create(&thread, NULL, fail_in_another_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strstr(pagoda_last_error(), "q is NULL") != NULL);
}

int main(void) {
  test_names_and_versions();
  for (s.type = PAGODA_FP64; s.type < PAGODA_BF16 && !pagoda_type_is_enabled(s.type);) ++s.type;
  s.layout = PAGODA_PAGED, s.scale_rank = -1;
  s.batch = 3, s.q_heads = 6, s.kv_heads = 2, s.dim = 64, s.dim_v = 64, s.page_size = 8, s.max_pages = 5;
  s.query_len = 1;
  test_before_initialization();
  CHECK_OK(pagoda_initialize());
  CHECK_OK(pagoda_initialize()); /* a library in the same program */
  scene_make(&s);
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
  CHECK_OK(decode(&s.q, &s.kv, &s.out, &s.lse));
  test_null_handles();
  test_tensors();
  test_caches();
  test_options();
  test_struct_sizes();
  test_device_tables();
  test_threads();
  CHECK_OK(pagoda_finalize());
  test_spaces();
  pagoda_plan_destroy(plan);
  scene_free(&s);
  CHECK_OK(pagoda_finalize());
  CHECK_ERROR(pagoda_initialize(), PAGODA_NOT_INITIALIZED, "finalized");
  return failed_checks();
}
