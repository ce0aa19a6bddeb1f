// SPDX-License-Identifier: Apache-2.0
#include "bench/baseline/cuda_three_kernels.hpp"
#include "bench/stream/gpu_runtime.hpp"

#include <cuda_runtime.h>

namespace pagoda::bench::cuda {

namespace {

/// Threads of a block, in all three kernels.
constexpr int threads = 128;

__device__ const float* row_of(const ContiguousRows&, const CacheRows& rows, int sequence, int token, int head) {
  return rows.data + sequence * rows.page + token * rows.token + head * rows.head;
}
/// Looks up the page of every token, as the study does.
__device__ const float* row_of(const PagedRows& kv, const CacheRows& rows, int sequence, int token, int head) {
  const int i    = token / kv.page_size;
  const int page = kv.page_indptr ? kv.block_table[kv.page_indptr[sequence] + i]
                                  : kv.block_table[sequence * kv.table_row + i * kv.table_page];
  return rows.data + page * rows.page + token % kv.page_size * rows.token + head * rows.head;
}

/// A row is a query head of a batch entry.
struct Row {
  int batch, head, kv_head, sequence, len;
  float* scores;

  __device__ Row(const Queries& q, float* all_scores, int row)
      : batch(row / q.num_q_heads),
        head(row % q.num_q_heads),
        kv_head(head / (q.num_q_heads / q.num_kv_heads)),
        sequence(q.sequence_ids ? q.sequence_ids[batch] : batch),
        len(q.seq_lens[sequence]),
        scores(all_scores + std::int64_t(row) * q.max_seq_len) {}
};

/// One thread per token.
template <class KV>
__global__ void __launch_bounds__(threads) score_tokens(Queries q, KV kv, float* all_scores, unsigned blocks_a_row) {
  const Row row(q, all_scores, static_cast<int>(blockIdx.x / blocks_a_row));
  const int t = static_cast<int>(blockIdx.x % blocks_a_row * threads + threadIdx.x);
  if (t >= row.len) return;
  const float* const query = q.q + row.batch * q.q_batch + row.head * q.q_head;
  const float* const key   = row_of(kv, kv.k, row.sequence, t, row.kv_head);
  float dot                = 0;
  for (int d = 0; d < q.head_dim; ++d) dot += query[d] * key[d];
  row.scores[t] = dot * q.softmax_scale;
}

/// Reduces over the threads of a block, by a tree in shared memory.
template <class Join>
__device__ float reduce(float x, const Join& join) {
  __shared__ float parts[threads];
  parts[threadIdx.x] = x;
  __syncthreads();
  for (unsigned n = threads / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) parts[threadIdx.x] = join(parts[threadIdx.x], parts[threadIdx.x + n]);
    __syncthreads();
  }
  const float all = parts[0];
  __syncthreads();
  return all;
}

/// One block per row.
__global__ void __launch_bounds__(threads) softmax(Queries q, float* all_scores) {
  const Row row(q, all_scores, static_cast<int>(blockIdx.x));
  const int first = static_cast<int>(threadIdx.x);
  float most = -INFINITY, sum = 0;
  for (int t = first; t < row.len; t += threads) most = fmaxf(most, row.scores[t]);
  most = reduce(most, [](float a, float b) { return fmaxf(a, b); });
  for (int t = first; t < row.len; t += threads) sum += row.scores[t] = expf(row.scores[t] - most);
  sum = reduce(sum, [](float a, float b) { return a + b; });
  for (int t = first; t < row.len; t += threads) row.scores[t] /= sum;
}

/// One thread per output element.
template <class KV>
__global__ void __launch_bounds__(threads, 1) weigh_values(Queries q, KV kv, float* all_scores) {
  const Row row(q, all_scores, static_cast<int>(blockIdx.x));
  for (int d = static_cast<int>(threadIdx.x); d < q.head_dim_v; d += threads) {
    float sum = 0;
    // Keeps several loads in flight, as three_kernels.hpp does. Otherwise this baseline is slower than the study's.
#pragma unroll 16
    for (int t = 0; t < row.len; ++t)
      sum += __ldg(row.scores + t) * __ldg(row_of(kv, kv.v, row.sequence, t, row.kv_head) + d);
    q.out[row.batch * q.out_batch + row.head * q.out_head + d] = sum;
  }
}

}  // namespace

template <class KV>
void three_kernels(const Queries& q, const KV& kv, float* scores, CUstream_st* stream) {
  const auto rows = static_cast<unsigned>(q.batch * q.num_q_heads);
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((q.max_seq_len + threads - 1) / threads);
  if (blocks > 0) score_tokens<<<rows * blocks, threads, 0, stream>>>(q, kv, scores, blocks);
  softmax<<<rows, threads, 0, stream>>>(q, scores);
  weigh_values<<<rows, threads, 0, stream>>>(q, kv, scores);
  gpu::check(cudaGetLastError(), "launching the three kernels");
}
template void three_kernels(const Queries&, const ContiguousRows&, float*, CUstream_st*);
template void three_kernels(const Queries&, const PagedRows&, float*, CUstream_st*);

}  // namespace pagoda::bench::cuda
