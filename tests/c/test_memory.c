/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for caches and the arithmetic of sizes through the C interface. */
#include <pagoda/pagoda_memory.h>

#include "tests/c/check.h"
#include "tests/c/device.h"

static pagoda_cache_shape paged(pagoda_type type, pagoda_order order) {
  pagoda_cache_shape s;
  memset(&s, 0, sizeof s);
  s.struct_size = sizeof s, s.layout = PAGODA_PAGED, s.type = type, s.order = order;
  s.num_pages = 6, s.page_size = 4, s.num_kv_heads = 2, s.head_dim = 64, s.head_dim_v = 32;
  return s;
}

static void test_shapes(void) {
  for (pagoda_type type = PAGODA_FP64; type <= PAGODA_NVFP4; ++type)
    for (pagoda_order order = PAGODA_NHD; order <= PAGODA_HND; ++order) {
      const pagoda_cache_shape s  = paged(type, order);
      pagoda_cache_memory* memory = NULL;
      pagoda_tensor k, v;
      const int per_element = type == PAGODA_INT4 || type == PAGODA_MXFP4 || type == PAGODA_NVFP4 ? 2 : 1;
      unsigned char last    = 1;
      CHECK_OK(pagoda_cache_memory_create(NULL, &s, &memory, &k, &v));
      CHECK(memory != NULL && k.type == type && v.type == type && k.rank == 4 && v.rank == 4);
      CHECK(k.extent[0] == 6 && k.extent[order == PAGODA_NHD ? 1 : 2] == 4 &&
            k.extent[order == PAGODA_NHD ? 2 : 1] == 2);
      CHECK(k.extent[3] == 64 / per_element && v.extent[3] == 32 / per_element && k.stride[3] == 1);
      CHECK((uintptr_t)k.data % 1024 == 0 && (uintptr_t)v.data % 1024 == 0 && k.memory != PAGODA_MEMORY_UNSPECIFIED);
      CHECK_OK(pagoda_exec_fence(NULL));
      copy_to_host(&last, (char*)k.data + 6 * 4 * 2 * k.extent[3] * pagoda_type_size(type) - 1, 1);
      CHECK(last == 0);
      pagoda_cache_memory_destroy(memory);
    }
  pagoda_cache_shape s        = paged(PAGODA_FP32, PAGODA_NHD);
  pagoda_cache_memory* memory = NULL;
  pagoda_tensor k, v;
  s.layout = PAGODA_CONTIGUOUS, s.struct_size = offsetof(pagoda_cache_shape, head_dim_v); /* an older struct */
  CHECK_OK(pagoda_cache_memory_create(NULL, &s, &memory, &k, &v));
  CHECK(v.extent[3] == 64);
  pagoda_cache_memory_destroy(memory), pagoda_cache_memory_destroy(NULL);
}

/* Sanitizers end the program where an allocation fails. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PAGODA_TEST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PAGODA_TEST_SANITIZED
#endif

static void test_too_much_memory(void) {
#ifndef PAGODA_TEST_SANITIZED
  pagoda_cache_shape s        = paged(PAGODA_FP32, PAGODA_NHD);
  pagoda_cache_memory* memory = NULL;
  pagoda_tensor k, v;
  s.num_pages = 1 << 30, s.page_size = 1 << 12, s.num_kv_heads = 16, s.head_dim = s.head_dim_v = 128; /* 2^55 bytes */
  CHECK_ERROR(pagoda_cache_memory_create(NULL, &s, &memory, &k, &v), PAGODA_OUT_OF_MEMORY, "failed to allocate");
  CHECK(memory == NULL);
#endif
}

static void test_errors(void) {
  const pagoda_cache_shape good = paged(PAGODA_INT4, PAGODA_NHD);
  pagoda_cache_shape s          = good;
  pagoda_cache_memory* memory   = NULL;
  pagoda_tensor k, v;
#define CREATE() pagoda_cache_memory_create(NULL, &s, &memory, &k, &v)
  CHECK_INVALID(pagoda_cache_memory_create(NULL, NULL, &memory, &k, &v), "shape is NULL");
  CHECK_INVALID(pagoda_cache_memory_create(NULL, &s, NULL, &k, &v), "memory is NULL");
  CHECK_INVALID(pagoda_cache_memory_create(NULL, &s, &memory, NULL, &v), "k is NULL");
  CHECK_INVALID(pagoda_cache_memory_create(NULL, &s, &memory, &k, NULL), "v is NULL");
  s.struct_size = 8;
  CHECK_INVALID(CREATE(), "shape.struct_size is 8");
  s = good, s.layout = 3;
  CHECK_INVALID(CREATE(), "shape.layout is 3");
  s = good, s.type = PAGODA_E8M0;
  CHECK_INVALID(CREATE(), "shape.type is 100; allowed: a value of pagoda_type_code, 1 to 11");
  s = good, s.order = 2;
  CHECK_INVALID(CREATE(), "shape.order is 2");
  s = good, s.num_pages = 0;
  CHECK_INVALID(CREATE(), "make_paged_cache: num_pages is 0; allowed: 1 or more");
  s = good, s.page_size = -1, s.layout = PAGODA_CONTIGUOUS;
  CHECK_INVALID(CREATE(), "make_contiguous_cache: max_seq_len is -1; allowed: 1 or more");
  s = good, s.type = PAGODA_FP8_DS_MLA;
  CHECK_INVALID(CREATE(),
                "head_dim is 64, head_dim_v 32 and num_kv_heads 2; allowed: 576, 512 and 1 for rows of fp8_ds_mla");
  s.head_dim = 576, s.head_dim_v = 512, s.num_kv_heads = 1;
  CHECK_OK(CREATE());
  CHECK(k.extent[3] == 656 && k.data == v.data && v.extent[3] == 656 && k.type == PAGODA_FP8_DS_MLA);
  pagoda_cache_memory_destroy(memory), memory = NULL;
  s = good, s.head_dim = 63;
  CHECK_INVALID(CREATE(), "head_dim is 63 and head_dim_v 32; allowed: multiples of 2");
  CHECK(memory == NULL);
}

static void test_capacity(void) {
  int64_t n       = -1;
  double fraction = -1;
  CHECK_OK(pagoda_bytes_per_token(8, 128, 0, PAGODA_FP16, &n));
  CHECK(n == 8 * 2 * 128 * 2);
  CHECK_OK(pagoda_bytes_per_token(8, 128, 64, PAGODA_INT4, &n));
  CHECK(n == 8 * 192 / 2);
  CHECK_OK(pagoda_latent_bytes_per_token(512, 64, PAGODA_BF16, &n));
  CHECK(n == 1152);
  CHECK_OK(pagoda_reserved_tokens(17, 16, &n));
  CHECK(n == 32);
  CHECK_OK(pagoda_waste_fraction(512, 2048, &fraction));
  CHECK(fraction == 0.75);
  CHECK_OK(pagoda_sequences_that_fit(1 << 20, 16, 100, 16, &n));
  CHECK(n == (1 << 20) / (16 * 16) / 7);
  CHECK_INVALID(pagoda_bytes_per_token(-1, 128, 0, PAGODA_FP16, &n), "num_kv_heads is -1; allowed: 0 or more");
  CHECK_INVALID(pagoda_bytes_per_token(1, 128, 0, 12, &n), "pagoda_bytes_per_token: type is 12");
  CHECK_INVALID(pagoda_bytes_per_token(1, 128, 0, PAGODA_FP16, NULL), "bytes is NULL");
  CHECK_INVALID(pagoda_latent_bytes_per_token(512, -1, PAGODA_BF16, &n), "rope_dim is -1");
  CHECK_INVALID(pagoda_latent_bytes_per_token(INT32_MAX, 1, PAGODA_BF16, &n), "a sum below 2^31");
  CHECK_INVALID(pagoda_latent_bytes_per_token(512, 64, PAGODA_BF16, NULL), "bytes is NULL");
  CHECK_INVALID(pagoda_reserved_tokens(1, 0, &n), "page_size is 0; allowed: 1 or more");
  CHECK_INVALID(pagoda_reserved_tokens(1, 1, NULL), "tokens is NULL");
  CHECK_INVALID(pagoda_waste_fraction(-1, 1, &fraction), "seq_len is -1");
  CHECK_INVALID(pagoda_waste_fraction(1, 1, NULL), "fraction is NULL");
  CHECK_INVALID(pagoda_sequences_that_fit(-1, 1, 1, 1, &n), "budget_bytes is -1");
  CHECK_INVALID(pagoda_sequences_that_fit(1, 1, 1, 1, NULL), "sequences is NULL");
}

int main(void) {
  test_capacity();
  const pagoda_cache_shape s  = paged(PAGODA_FP32, PAGODA_NHD);
  pagoda_cache_memory* memory = NULL;
  pagoda_tensor k, v;
  CHECK_ERROR(pagoda_cache_memory_create(NULL, &s, &memory, &k, &v), PAGODA_NOT_INITIALIZED, "not initialized");
  CHECK_OK(pagoda_initialize());
  test_shapes();
  test_too_much_memory();
  test_errors();
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
