/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes through the C interface, against attention in double: types, layouts, scales, options, instances, merges. */
#include "tests/c/check.h"
#include "tests/c/device.h"
#include "tests/c/scene.h"

#include <math.h>
#include <stdlib.h>

static Scene scene(pagoda_type type, pagoda_layout layout, pagoda_order order) {
  Scene s;
  memset(&s, 0, sizeof s);
  s.type = type, s.layout = layout, s.order = order, s.scale_rank = -1;
  s.batch = 3, s.q_heads = 6, s.kv_heads = 2, s.dim = 64, s.dim_v = 64, s.page_size = 8, s.max_pages = 5;
  s.query_len = 1;
  return s;
}

/* A type of the build that tests of options can use. */
static pagoda_type plain_type(void) {
  for (pagoda_type type = PAGODA_FP64; type <= PAGODA_BF16; ++type)
    if (pagoda_type_is_enabled(type)) return type;
  return 0;
}

static void test_types_and_layouts(void) {
  int tried = 0;
  for (pagoda_type type = PAGODA_FP64; type <= PAGODA_NVFP4; ++type) {
    if (!pagoda_type_is_enabled(type)) continue;
    for (pagoda_layout layout = PAGODA_CONTIGUOUS; layout <= PAGODA_PAGED_CSR; ++layout)
      for (pagoda_order order = PAGODA_NHD; order <= PAGODA_HND; ++order) {
        Scene s = scene(type, layout, order);
        if (type == PAGODA_NVFP4) s.scale_rank = 0;
        if (type == PAGODA_INT8 || type == PAGODA_INT4) s.scale_rank = layout == PAGODA_CONTIGUOUS ? 3 : order;
        if (type == PAGODA_FP8_E4M3) s.scale_rank = 1;
        scene_make(&s);
        const int wrong = scene_decode(&s, NULL);
        if (wrong != 0)
          printf("%s, layout %d, order %d: %d wrong rows\n", pagoda_type_name(type), layout, order, wrong);
        CHECK(wrong == 0);
        scene_free(&s);
        ++tried;
      }
  }
  CHECK(tried > 0);
}

/* Rows of 656 bytes with their scales, of a latent cache: k and v are the same tensor. */
static void test_rows_with_scales(void) {
  enum { sequences = 2, tokens = 40, heads = 3, row = 656, dim = 576, dim_v = 512 };
  static unsigned char rows[sequences * tokens * row];
  static float q[sequences * heads * dim], out[sequences * heads * dim_v];
  static double query[sequences * heads * dim];
  const int32_t lengths[sequences] = {37, 5};
  Scene s;
  pagoda_plan* plan = NULL;
  if (!pagoda_type_is_enabled(PAGODA_FP8_DS_MLA)) return;
  memset(&s, 0, sizeof s);
  for (int t = 0; t < sequences * tokens; ++t) {
    for (int block = 0; block < 4; ++block) {
      const float scale = (float)(0.02 * (1 + block) * (1.5 + random_number()));
      memcpy(rows + t * row + 512 + 4 * block, &scale, sizeof scale);
    }
    for (int d = 0; d < dim; ++d) store_dim(PAGODA_FP8_DS_MLA, rows + t * row, d, random_number());
  }
  for (int i = 0; i < sequences * heads * dim; ++i) q[i] = (float)random_number(), query[i] = q[i];

  pagoda_cache kv;
  memset(&kv, 0, sizeof kv);
  kv.struct_size = sizeof kv, kv.num_sequences = sequences;
  kv.k        = pagoda_dense(scene_upload(&s, rows, sizeof rows), PAGODA_FP8_DS_MLA, 4, sequences, tokens, 1, row);
  kv.v        = kv.k;
  kv.seq_lens = scene_upload(&s, lengths, sizeof lengths);
  pagoda_decode_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options, options.num_q_heads = heads;
  void* const there        = scene_upload(&s, out, sizeof out);
  const pagoda_tensor from = pagoda_dense(scene_upload(&s, q, sizeof q), PAGODA_FP32, 3, sequences, heads, dim, 0);
  const pagoda_tensor to   = pagoda_dense(there, PAGODA_FP32, 3, sequences, heads, dim_v, 0);
  CHECK_OK(pagoda_plan_create(NULL, &kv, &options, &plan));
  CHECK(strcmp(pagoda_plan_backend(plan), "generic") == 0);
  CHECK_OK(pagoda_decode(NULL, plan, &from, &kv, &to, NULL));
  CHECK_OK(pagoda_exec_fence(NULL));
  copy_to_host(out, there, sizeof out);
  for (int r = 0; r < sequences * heads; ++r) {
    const unsigned char* const first = rows + r / heads * tokens * row;
    static double right[dim_v];
    double sum = 0, worst = 0;
    memset(right, 0, sizeof right);
    for (int t = 0; t < lengths[r / heads]; ++t) {
      double score = 0;
      for (int d = 0; d < dim; ++d)
        score += query[r * dim + d] * load_dim(PAGODA_FP8_DS_MLA, first + t * row, d) / sqrt(dim);
      sum += exp(score);
      for (int d = 0; d < dim_v; ++d) right[d] += exp(score) * load_dim(PAGODA_FP8_DS_MLA, first + t * row, d);
    }
    for (int d = 0; d < dim_v; ++d) worst = fmax(worst, fabs(out[r * dim_v + d] - right[d] / sum));
    CHECK(worst < 2e-5);
  }
  pagoda_plan_destroy(plan);

  pagoda_cache wrong = kv;
  wrong.k_scale      = pagoda_dense(there, PAGODA_FP32, 0, 0, 0, 0, 0);
  CHECK_INVALID(pagoda_plan_create(NULL, &wrong, &options, &plan),
                "k has scales and elements of fp8_ds_mla; allowed: scales of fp8_e4m3, fp8_e5m2, int8, int4 or nvfp4");
  wrong = kv, wrong.v_block_scale = pagoda_dense(there, PAGODA_E8M0, 4, sequences, tokens, 1, 16);
  CHECK_INVALID(pagoda_plan_create(NULL, &wrong, &options, &plan),
                "kv.v_block_scale is given, and kv.v holds fp8_ds_mla; allowed: no block scales for this type");
  wrong = kv, wrong.k.extent[3] = wrong.v.extent[3] = 576;
  CHECK_INVALID(pagoda_plan_create(NULL, &wrong, &options, &plan), "axis 3 of k has extent 576; allowed: 656");
  wrong = kv, wrong.k.extent[1] = wrong.v.extent[1] = tokens / 2, wrong.k.extent[2] = wrong.v.extent[2] = 2;
  CHECK_INVALID(pagoda_plan_create(NULL, &wrong, &options, &plan), "k has 2 kv heads; allowed: 1");
  wrong = kv, wrong.v.data = (char*)wrong.v.data + row;
  CHECK_INVALID(pagoda_plan_create(NULL, &wrong, &options, &plan), "v is not the rows of k");
  wrong = kv, wrong.v.type = PAGODA_FP8_E4M3;
  CHECK_INVALID(pagoda_plan_create(NULL, &wrong, &options, &plan), "v is not the rows of k");
  scene_free(&s);
}

static void test_scales_of_tokens_in_pages(void) {
  if (!pagoda_type_is_enabled(PAGODA_INT8)) return;
  Scene s      = scene(PAGODA_INT8, PAGODA_PAGED, PAGODA_NHD);
  s.scale_rank = 3;
  scene_make(&s);
  CHECK(scene_decode(&s, NULL) == 0);
  scene_free(&s);
}

static void test_options(void) {
  enum { heads = 6 };
  const double sinks[heads] = {0.5, -1, 2, 0, 1, -0.25}, slopes[heads] = {0.5, 0.25, 0.125, 1, 0, 0.0625};
  float array[heads];
  for (int option = 0; option < 10; ++option) {
    Scene s     = scene(plain_type(), PAGODA_PAGED, PAGODA_NHD);
    s.query_len = option == 0 ? 1 : 3;
    scene_make(&s);
    if (option == 1) s.options.not_causal = 1;
    if (option == 2) s.options.window = 5, s.options.num_initial_tokens = 2;
    if (option == 3) s.options.logit_soft_cap = 0.75;
    if (option == 4 || option == 5) {
      for (int h = 0; h < heads; ++h) array[h] = (float)(option == 4 ? sinks[h] : slopes[h]);
      const float* there = scene_upload(&s, array, sizeof array);
      if (option == 4) s.sinks = sinks, s.options.sinks = there;
      if (option == 5) s.slopes = slopes, s.options.alibi_slopes = there;
    }
    if (option == 6) s.options.softmax_scale = 0.3, s.options.backend = "generic";
    if (option == 7) {
      const int32_t counts[4]    = {0, 3, 6, 9};
      s.options.cu_seqlens_q     = scene_upload(&s, counts, sizeof counts);
      s.options.num_cu_seqlens_q = 4;
    }
    if (option == 8) s.options.exactness = PAGODA_BATCH_INVARIANT;
    if (option == 9) s.options.exactness = PAGODA_REPRODUCIBLE;
    const int wrong = scene_decode(&s, NULL);
    if (wrong != 0) printf("option %d: %d wrong rows\n", option, wrong);
    CHECK(wrong == 0);
    scene_free(&s);
  }
}

static void test_instance_and_workspace(void) {
  Scene s           = scene(plain_type(), PAGODA_PAGED, PAGODA_NHD);
  pagoda_exec* exec = NULL;
  pagoda_plan* plan = NULL;
  size_t bytes = 0, same = 0;
  scene_make(&s);
  CHECK_OK(pagoda_exec_create(PAGODA_SPACE_DEFAULT, NULL, &exec));
  CHECK_OK(pagoda_workspace_bytes(exec, &s.kv, &s.options, &bytes));
  s.options.workspace       = device_alloc(bytes);
  s.options.workspace_bytes = bytes;
  CHECK(scene_decode(&s, exec) == 0);
  CHECK_OK(pagoda_plan_create(exec, &s.kv, &s.options, &plan));
  CHECK_OK(pagoda_plan_workspace_bytes(plan, &same));
  CHECK(same == bytes);
  CHECK_OK(pagoda_plan_persistent_bytes(plan, &same));
  CHECK(strstr(pagoda_plan_describe(plan), pagoda_type_name(s.type)) != NULL);
  CHECK(strcmp(pagoda_plan_backend(plan), "generic") == 0 || strcmp(pagoda_plan_backend(plan), "tuned") == 0);
  pagoda_plan_destroy(plan);
  s.options.workspace_bytes = bytes - 1;
  CHECK_INVALID(pagoda_plan_create(exec, &s.kv, &s.options, &plan), "workspace");
  device_free(s.options.workspace);
  scene_free(&s);
  pagoda_exec_destroy(exec);
}

/* A batch that selects sequences, without the log-sum-exp, in padded memory, from an older struct without scales. */
static void test_selection_and_strides(void) {
  Scene s          = scene(plain_type(), PAGODA_CONTIGUOUS, PAGODA_NHD);
  const int32_t id = 1;
  const size_t row = 64 + 4, size = pagoda_type_size(s.type);
  pagoda_plan* plan = NULL;
  scene_make(&s);
  CHECK(scene_decode(&s, NULL) == 0);
  unsigned char *whole = calloc(3 * 6 * 64, size), *one = malloc(6 * row * size);
  copy_to_host(whole, s.out.data, 3 * 6 * 64 * size);

  pagoda_cache kv = s.kv;
  kv.sequence_ids = scene_upload(&s, &id, sizeof id), kv.batch = 1;
  kv.struct_size = offsetof(pagoda_cache, k_scale);
  memset(&kv.k_scale, 0xff, sizeof kv.k_scale); /* behind the older struct */
  memset(one, 0, 6 * row * size);
  void* there       = scene_upload(&s, one, 6 * row * size);
  pagoda_tensor out = pagoda_dense(there, s.type, 3, 1, 6, 64, 0), q = s.q;
  out.stride[0] = (int64_t)(6 * row), out.stride[1] = (int64_t)row, out.stride[2] = 1;
  q.data = (char*)q.data + 6 * 64 * size, q.extent[0] = 1;
  CHECK_OK(pagoda_plan_create(NULL, &kv, &s.options, &plan));
  CHECK_OK(pagoda_decode(NULL, plan, &q, &kv, &out, NULL));
  CHECK_OK(pagoda_exec_fence(NULL));
  copy_to_host(one, there, 6 * row * size);
  for (int h = 0; h < 6; ++h) {
    for (int d = 0; d < 64; ++d)
      CHECK(fabs(load_dim(s.type, one + h * row * size, d) - load_dim(s.type, whole + (6 + h) * 64 * size, d)) < 1e-2);
    for (int d = 64; d < (int)row; ++d) CHECK(load_dim(s.type, one + h * row * size, d) == 0);
  }
  pagoda_plan_destroy(plan);
  free(whole), free(one);
  scene_free(&s);
}

/* The host space, where it is another one than the default. Memory on the host is that of the C program. */
static void test_host_space(void) {
  enum { tokens = 4, dim = 16 };
  if (!pagoda_type_is_enabled(PAGODA_FP32)) return;
  float k[tokens * dim] = {0}, v[tokens * dim], q[dim] = {0}, out[dim], lse[1];
  const int32_t length = tokens;
  pagoda_cache kv;
  pagoda_decode_options options;
  pagoda_exec* host = NULL;
  pagoda_plan* plan = NULL;
  for (int i = 0; i < tokens * dim; ++i) v[i] = (float)(i / dim);
  memset(&kv, 0, sizeof kv), memset(&options, 0, sizeof options);
  kv.struct_size = sizeof kv, options.struct_size = sizeof options;
  kv.k = pagoda_dense(k, PAGODA_FP32, 4, 1, tokens, 1, dim), kv.v = pagoda_dense(v, PAGODA_FP32, 4, 1, tokens, 1, dim);
  kv.k.memory = PAGODA_MEMORY_HOST, kv.v.memory = PAGODA_MEMORY_HOST;
  kv.seq_lens = &length, kv.num_sequences = 1;
  options.num_q_heads        = 1;
  const pagoda_tensor to     = pagoda_dense(out, PAGODA_FP32, 3, 1, 1, dim, 0);
  const pagoda_tensor from   = pagoda_dense(q, PAGODA_FP32, 3, 1, 1, dim, 0);
  const pagoda_tensor to_lse = pagoda_dense(lse, PAGODA_FP32, 2, 1, 1, 0, 0);
  CHECK_OK(pagoda_exec_create(PAGODA_SPACE_HOST, NULL, &host));
  CHECK_OK(pagoda_plan_create(host, &kv, &options, &plan));
  CHECK_OK(pagoda_decode(NULL, plan, &from, &kv, &to, &to_lse));
  CHECK_OK(pagoda_exec_fence(host));
  for (int d = 0; d < dim; ++d) CHECK(fabs(out[d] - 1.5) < 1e-5);
  CHECK(fabs(lse[0] - log(tokens)) < 1e-5);
  pagoda_plan_destroy(plan);
  pagoda_exec_destroy(host);
}

/* Two halves of the tokens, merged, are the whole. */
static void test_merge(void) {
  enum { heads = 6, dim = 64 };
  Scene s           = scene(plain_type(), PAGODA_CONTIGUOUS, PAGODA_NHD);
  pagoda_plan* plan = NULL;
  scene_make(&s);
  const size_t out_bytes = (size_t)3 * heads * dim * pagoda_type_size(s.type), lse_bytes = 3 * heads * sizeof(double);
  s.options.not_causal = 1;
  char* const outs     = device_alloc(2 * out_bytes);
  char* const lses     = device_alloc(2 * lse_bytes);
  int32_t first[3], rest[3];
  for (int b = 0; b < 3; ++b) first[b] = s.lengths[b] / 2, rest[b] = s.lengths[b] - first[b];
  CHECK_OK(pagoda_plan_create(NULL, &s.kv, &s.options, &plan));
  /* The second half is a cache of its own per sequence: its lengths differ, so each sequence is decoded alone. */
  for (int b = 0; b < 3; ++b)
    for (int half = 0; half < 2; ++half) {
      pagoda_cache kv = s.kv;
      pagoda_tensor q = s.q, out = s.out, lse = s.lse;
      const int32_t from = half ? first[b] : 0;
      const size_t size  = pagoda_type_size(s.type);
      kv.k.data = (char*)kv.k.data + (b * 40 + from) * 2 * dim * size, kv.k.extent[0] = 1, kv.k.extent[1] = 40 - from;
      kv.v.data = (char*)kv.v.data + (b * 40 + from) * 2 * dim * size, kv.v.extent[0] = 1, kv.v.extent[1] = 40 - from;
      kv.num_sequences = 1;
      int32_t* length  = device_alloc(sizeof *length);
      copy_to_device(length, half ? &rest[b] : &first[b], sizeof *length);
      kv.seq_lens = length;
      q.data = (char*)q.data + b * heads * dim * size, q.extent[0] = 1;
      out.data = outs + half * out_bytes + b * heads * dim * size, out.extent[0] = 1;
      lse.data = lses + half * lse_bytes + b * heads * sizeof(double), lse.extent[0] = 1;
      CHECK_OK(pagoda_decode(NULL, plan, &q, &kv, &out, &lse));
      CHECK_OK(pagoda_exec_fence(NULL));
      device_free(length);
    }
  const pagoda_tensor all_outs = pagoda_dense(outs, s.type, 4, 2, 3, heads, dim);
  const pagoda_tensor all_lses = pagoda_dense(lses, PAGODA_FP64, 3, 2, 3, heads, 0);
  CHECK_OK(pagoda_merge(NULL, &all_outs, &all_lses, &s.out, &s.lse));
  CHECK_OK(pagoda_exec_fence(NULL));
  CHECK(scene_wrong_rows(&s) == 0);
  pagoda_tensor a = s.out, b = s.out, lse_a = s.lse, lse_b = s.lse;
  a.data = outs, b.data = outs + out_bytes, lse_a.data = lses, lse_b.data = lses + lse_bytes;
  CHECK_OK(pagoda_merge_pair(NULL, &a, &lse_a, &b, &lse_b, &a, &lse_a));
  CHECK_OK(pagoda_exec_fence(NULL));
  s.out.data = outs, s.lse.data = lses;
  CHECK(scene_wrong_rows(&s) == 0);
  CHECK_OK(pagoda_merge(NULL, &all_outs, &all_lses, &s.out, NULL));
  CHECK_INVALID(pagoda_merge(NULL, &s.out, &all_lses, &s.out, NULL), "outs.rank is 3; allowed: 4");
  CHECK_INVALID(pagoda_merge(NULL, &all_outs, &all_lses, NULL, NULL), "out is NULL");
  pagoda_plan_destroy(plan);
  device_free(outs), device_free(lses);
  scene_free(&s);
}

/* A row written into a page of a HND cache lies where the mapping says, and nothing else changes. */
static void test_write_kv(void) {
  enum { pages = 3, page = 4, heads = 2, dim = 8, rows = 2 };
  if (!pagoda_type_is_enabled(PAGODA_FP32)) return;
  float cache[pages * heads * page * dim], row[rows * heads * dim];
  const int64_t mapping[rows] = {2 * page + 1, -1};
  memset(cache, 0, sizeof cache);
  for (int i = 0; i < rows * heads * dim; ++i) row[i] = (float)(i + 1);
  float *k = device_alloc(sizeof cache), *v = device_alloc(sizeof cache), *from = device_alloc(sizeof row);
  int64_t* positions = device_alloc(sizeof mapping);
  copy_to_device(k, cache, sizeof cache), copy_to_device(v, cache, sizeof cache);
  copy_to_device(from, row, sizeof row), copy_to_device(positions, mapping, sizeof mapping);
  const pagoda_tensor to_k     = pagoda_dense(k, PAGODA_FP32, 4, pages, heads, page, dim);
  const pagoda_tensor to_v     = pagoda_dense(v, PAGODA_FP32, 4, pages, heads, page, dim);
  const pagoda_tensor new_rows = pagoda_dense(from, PAGODA_FP32, 3, rows, heads, dim, 0);
  CHECK_OK(pagoda_write_kv(NULL, &to_k, &to_v, PAGODA_HND, positions, rows, &new_rows, &new_rows));
  CHECK_OK(pagoda_exec_fence(NULL));
  copy_to_host(cache, v, sizeof cache);
  for (int i = 0; i < pages * heads * page * dim; ++i) {
    const int d = i % dim, token = i / dim % page, head = i / dim / page % heads, p = i / dim / page / heads;
    CHECK(cache[i] == (p == 2 && token == 1 ? row[head * dim + d] : 0));
  }
  CHECK_INVALID(pagoda_write_kv(NULL, &to_k, &to_v, 2, positions, rows, &new_rows, &new_rows), "order is 2");
  CHECK_INVALID(pagoda_write_kv(NULL, &to_k, &to_v, PAGODA_HND, NULL, rows, &new_rows, &new_rows), "slot_mapping");
  CHECK_INVALID(pagoda_write_kv(NULL, &to_k, &to_v, PAGODA_HND, positions, 1, &new_rows, &new_rows), "write_kv: k is");
  device_free(k), device_free(v), device_free(from), device_free(positions);
}

int main(void) {
  CHECK_OK(pagoda_initialize());
  test_types_and_layouts();
  test_rows_with_scales();
  test_scales_of_tokens_in_pages();
  test_options();
  test_instance_and_workspace();
  test_selection_and_strides();
  test_host_space();
  test_merge();
  test_write_kv();
  CHECK_OK(pagoda_finalize());
  return failed_checks();
}
