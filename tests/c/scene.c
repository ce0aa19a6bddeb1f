/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/c/scene.h"

#include "tests/c/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 1;

double random_number(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(state >> 11) / (double)(UINT64_C(1) << 52) - 1;
}

static int capacity(const Scene* s) { return s->page_size * s->max_pages; }

static void* keep(Scene* s, void* memory) {
  s->memory[s->num_memory++] = memory;
  return memory;
}

void* scene_upload(Scene* s, const void* host, size_t bytes) {
  void* device = keep(s, device_alloc(bytes));
  copy_to_device(device, host, bytes);
  return device;
}

static int dims_per_element(pagoda_type type) {
  return type == PAGODA_INT4 || type == PAGODA_MXFP4 || type == PAGODA_NVFP4 ? 2 : 1;
}

static int is_plain(pagoda_type type) { return type <= PAGODA_BF16; }

static int block_dims(pagoda_type type) { return type == PAGODA_MXFP4 ? 32 : type == PAGODA_NVFP4 ? 16 : 0; }

/* Pages of a contiguous cache are its sequences. */
static int pages(const Scene* s) { return s->layout == PAGODA_CONTIGUOUS ? s->batch : s->batch * s->max_pages; }
static int page_tokens(const Scene* s) { return s->layout == PAGODA_CONTIGUOUS ? capacity(s) : s->page_size; }

/* Index of the row of a token in memory. */
static size_t row_of(const Scene* s, pagoda_order order, int b, int token, int head) {
  const int tokens = page_tokens(s);
  const int page   = s->layout == PAGODA_CONTIGUOUS ? b : s->table[b * s->max_pages + token / s->page_size];
  const int offset = s->layout == PAGODA_CONTIGUOUS ? token : token % s->page_size;
  return order == PAGODA_NHD ? ((size_t)page * tokens + offset) * s->kv_heads + head
                             : ((size_t)page * s->kv_heads + head) * tokens + offset;
}

static pagoda_tensor rows_tensor(const Scene* s, pagoda_order order, void* data, pagoda_type type, int rank, int last) {
  const int tokens = page_tokens(s);
  return order == PAGODA_NHD ? pagoda_dense(data, type, rank, pages(s), tokens, s->kv_heads, last)
                             : pagoda_dense(data, type, rank, pages(s), s->kv_heads, tokens, last);
}

/* Keys or values: fills the memory, its scales, and the numbers that they mean. */
static void make_side(Scene* s, int dim, double** numbers, pagoda_tensor* cache, pagoda_tensor* scale,
                      pagoda_tensor* block_scale) {
  const size_t rows  = (size_t)pages(s) * page_tokens(s) * s->kv_heads;
  const int elements = dim / dims_per_element(s->type), block = block_dims(s->type);
  const int blocks                = block ? (dim + block - 1) / block : 1;
  const size_t row_bytes          = elements * pagoda_type_size(s->type);
  unsigned char* bytes            = calloc(rows, row_bytes);
  unsigned char* scales_of_blocks = calloc(rows, blocks);
  float* scales                   = calloc(rows, sizeof(float));
  const double spread = is_plain(s->type) ? 1 : s->type == PAGODA_INT8 ? 100 : s->type == PAGODA_INT4 ? 7 : 5;
  *numbers            = calloc((size_t)s->batch * capacity(s) * s->kv_heads * dim, sizeof(double));
  for (size_t row = 0; row < rows; ++row) scales[row] = (float)((1.5 + random_number()) / spread);
  for (size_t i = 0; i < rows * blocks; ++i)
    scales_of_blocks[i] = (unsigned char)(s->type == PAGODA_MXFP4 ? 124 + i % 3 : 0x28 + i % 16);
  for (int b = 0; b < s->batch; ++b)
    for (int t = 0; t < capacity(s); ++t)
      for (int h = 0; h < s->kv_heads; ++h) {
        const size_t row = row_of(s, s->order, b, t, h), at = ((size_t)b * capacity(s) + t) * s->kv_heads + h;
        const double by_row = s->scale_rank == 3   ? scales[row_of(s, s->kv.scale_order, b, t, h)]
                              : s->scale_rank == 1 ? scales[h]
                              : s->scale_rank == 0 ? scales[0]
                                                   : 1;
        for (int d = 0; d < dim; ++d) {
          const double stored      = store_dim(s->type, bytes + row * row_bytes, d, spread * random_number());
          const size_t in_block    = row_of(s, s->kv.scale_order, b, t, h) * blocks + (block ? d / block : 0);
          const double by_block    = block ? block_scale_of(s->type, scales_of_blocks[in_block]) : 1;
          (*numbers)[at * dim + d] = stored * by_row * by_block;
        }
      }
  *cache = rows_tensor(s, s->order, scene_upload(s, bytes, rows * row_bytes), s->type, 4, elements);
  if (s->scale_rank == 0) *scale = pagoda_dense(scene_upload(s, scales, sizeof(float)), PAGODA_FP32, 0, 0, 0, 0, 0);
  if (s->scale_rank == 1)
    *scale = pagoda_dense(scene_upload(s, scales, s->kv_heads * sizeof(float)), PAGODA_FP32, 1, s->kv_heads, 0, 0, 0);
  if (s->scale_rank == 3)
    *scale = rows_tensor(s, s->kv.scale_order, scene_upload(s, scales, rows * sizeof(float)), PAGODA_FP32, 3, 0);
  if (block)
    *block_scale = rows_tensor(s, s->kv.scale_order, scene_upload(s, scales_of_blocks, rows * blocks),
                               s->type == PAGODA_MXFP4 ? PAGODA_E8M0 : PAGODA_FP8_E4M3, 4, blocks);
  free(bytes), free(scales_of_blocks), free(scales);
}

void scene_make(Scene* s) {
  const int tokens = s->batch * s->query_len, total = s->batch * s->max_pages;
  s->io = is_plain(s->type) ? s->type : PAGODA_FP16;
  if (!pagoda_type_is_enabled(s->io)) s->io = PAGODA_FP32;
  s->kv.struct_size   = sizeof s->kv;
  s->kv.layout        = s->layout;
  s->kv.order         = s->order;
  s->kv.scale_order   = s->order == PAGODA_NHD ? PAGODA_HND : PAGODA_NHD;
  s->kv.num_sequences = s->batch;
  s->lengths          = calloc(s->batch, sizeof(int));
  s->table            = calloc(total, sizeof(int));
  for (int b = 0; b < s->batch; ++b) s->lengths[b] = capacity(s) - (b * 7) % (capacity(s) - s->query_len);
  for (int i = 0; i < total; ++i) s->table[i] = total - 1 - i;
  s->kv.seq_lens = scene_upload(s, s->lengths, s->batch * sizeof(int));
  if (s->layout == PAGODA_PAGED) {
    s->kv.block_table = scene_upload(s, s->table, total * sizeof(int));
    s->kv.max_pages   = s->max_pages;
  } else if (s->layout == PAGODA_PAGED_CSR) {
    int* indptr = calloc(s->batch + 1, sizeof(int));
    for (int b = 0; b <= s->batch; ++b) indptr[b] = b * s->max_pages;
    s->kv.page_indptr      = scene_upload(s, indptr, (s->batch + 1) * sizeof(int));
    s->kv.page_indices     = scene_upload(s, s->table, total * sizeof(int));
    s->kv.num_page_indices = total;
    s->kv.max_seq_len      = capacity(s);
    free(indptr);
  }
  make_side(s, s->dim, &s->keys, &s->kv.k, &s->kv.k_scale, &s->kv.k_block_scale);
  make_side(s, s->dim_v, &s->values, &s->kv.v, &s->kv.v_scale, &s->kv.v_block_scale);

  const size_t elements = (size_t)tokens * s->q_heads * s->dim, size = pagoda_type_size(s->io);
  unsigned char* bytes = calloc(elements, size);
  s->queries           = calloc(elements, sizeof(double));
  for (size_t i = 0; i < elements; ++i) s->queries[i] = store_dim(s->io, bytes + i * size, 0, random_number());
  s->q   = pagoda_dense(scene_upload(s, bytes, elements * size), s->io, 3, tokens, s->q_heads, s->dim, 0);
  s->out = pagoda_dense(keep(s, device_alloc((size_t)tokens * s->q_heads * s->dim_v * size)), s->io, 3, tokens,
                        s->q_heads, s->dim_v, 0);
  s->lse = pagoda_dense(keep(s, device_alloc((size_t)tokens * s->q_heads * sizeof(double))), PAGODA_FP64, 2, tokens,
                        s->q_heads, 0, 0);
  free(bytes);
  s->options.struct_size   = sizeof s->options;
  s->options.num_q_heads   = s->q_heads;
  s->options.max_query_len = s->query_len;
}

void scene_free(Scene* s) {
  for (int i = 0; i < s->num_memory; ++i) device_free(s->memory[i]);
  free(s->lengths), free(s->table), free(s->keys), free(s->values), free(s->queries);
}

/* Row (query token, head) in double: the numbers of out, the log-sum-exp, and per dim the sum of |p v|. */
static double attend(const Scene* s, int token, int head, double* out, double* sizes) {
  const pagoda_decode_options* o = &s->options;
  const int b = token / s->query_len, length = s->lengths[b], kv_head = head / (s->q_heads / s->kv_heads);
  const int own      = length - s->query_len + token % s->query_len;
  const double scale = o->softmax_scale != 0 ? o->softmax_scale : 1 / sqrt(s->dim);
  double sum         = s->sinks ? exp(s->sinks[head]) : 0;
  for (int d = 0; d < s->dim_v; ++d) out[d] = sizes[d] = 0;
  for (int t = 0; t < length; ++t) {
    if (s->sees && !s->sees(token, t, kv_head)) continue;
    if (!s->sees && !o->not_causal && t > own) continue;
    if (o->window > 0 && t <= own - o->window && t >= o->num_initial_tokens) continue;
    const size_t row = ((size_t)b * capacity(s) + t) * s->kv_heads + kv_head;
    double score     = 0;
    for (int d = 0; d < s->dim; ++d)
      score += s->queries[((size_t)token * s->q_heads + head) * s->dim + d] * s->keys[row * s->dim + d];
    score *= scale;
    if (o->logit_soft_cap > 0) score = o->logit_soft_cap * tanh(score / o->logit_soft_cap);
    if (s->slopes) score += s->slopes[head] * (t - own);
    sum += exp(score);
    for (int d = 0; d < s->dim_v; ++d) {
      const double x = exp(score) * s->values[row * s->dim_v + d];
      out[d] += x, sizes[d] += fabs(x);
    }
  }
  for (int d = 0; d < s->dim_v; ++d) out[d] /= sum, sizes[d] /= sum;
  return log(sum);
}

int scene_wrong_rows(const Scene* s) {
  const int tokens = s->batch * s->query_len, rows = tokens * s->q_heads;
  const size_t size  = pagoda_type_size(s->io);
  unsigned char* out = calloc((size_t)rows * s->dim_v, size);
  double *lse = calloc(rows, sizeof(double)), *right = calloc(s->dim_v, sizeof(double)),
         *sizes          = calloc(s->dim_v, sizeof(double));
  const double tolerance = s->io == PAGODA_FP64 ? 1e-12 : s->io == PAGODA_FP32 && is_plain(s->type) ? 1e-5 : 0.01;
  int wrong              = 0;
  copy_to_host(out, s->out.data, rows * s->dim_v * size);
  copy_to_host(lse, s->lse.data, rows * sizeof(double));
  for (int row = 0; row < rows; ++row) {
    const double right_lse = attend(s, row / s->q_heads, row % s->q_heads, right, sizes);
    int ok                 = fabs(lse[row] - right_lse) <= tolerance;
    for (int d = 0; d < s->dim_v; ++d)
      ok = ok && fabs(load_dim(s->io, out + ((size_t)row * s->dim_v + d) * size, 0) - right[d]) <= tolerance * sizes[d];
    wrong += !ok;
  }
  free(out), free(lse), free(right), free(sizes);
  return wrong;
}

int scene_decode(Scene* s, const pagoda_exec* exec) {
  pagoda_plan* plan = NULL;
  int wrong         = -1;
  if (pagoda_plan_create(exec, &s->kv, &s->options, &plan) == PAGODA_SUCCESS &&
      pagoda_check(exec, &s->kv, plan, &s->q) == PAGODA_SUCCESS &&
      pagoda_decode(exec, plan, &s->q, &s->kv, &s->out, &s->lse) == PAGODA_SUCCESS &&
      pagoda_exec_fence(exec) == PAGODA_SUCCESS)
    wrong = scene_wrong_rows(s);
  pagoda_plan_destroy(plan);
  return wrong;
}
