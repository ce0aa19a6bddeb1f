// SPDX-License-Identifier: Apache-2.0
#include "bench/tune/device.hpp"

#include "backends/cuda/tuned/device_speed.hpp"
#include "bench/stream/gpu_graph.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace pagoda::tune {

namespace {

using bench::gpu::check;

constexpr std::size_t most_data = std::size_t(4) << 30;
constexpr int most_sequences    = 1 << 14;
constexpr int most_query_rows   = 1 << 18;  // query tokens times heads
constexpr std::size_t row_bytes = 576 * 4;

/// Random fp16 numbers between -1 and 1. Their bits are finite numbers of the other types too.
__global__ void fill(unsigned* words, std::size_t count) {
  for (std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x) {
    unsigned z = static_cast<unsigned>(i) * 0x9e3779b9u;
    z          = (z ^ (z >> 16)) * 0x85ebca6bu;
    words[i]   = ((z ^ (z >> 13)) & 0x83bf83bfu) | 0x38003800u;
  }
}

constexpr int page_tokens = 16;
constexpr int most_pages  = 1 << 20;

std::int64_t pages_of(const Batch& b) {
  const auto pages = [](std::int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; };
  return pages(b.first_tokens ? b.first_tokens : b.tokens) + (b.sequences - 1) * pages(b.tokens);
}

template <class T>
void allocate(T*& p, std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  p = static_cast<T*>(memory);
}

}  // namespace

Device::Device() : facts_(tuned::Device::current()) {
  int id = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  facts_.speed = tuned::built_in_speed(facts_, id);
  name_        = tuned::device_name(id);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  std::size_t unused = 0, all = 0;
  check(cudaMemGetInfo(&unused, &all), "cudaMemGetInfo");
  data_bytes_  = std::min(most_data, unused / 2) / 1024 * 1024;
  evict_bytes_ = 4 * bench::gpu::cache_bytes();
  allocate(data_, data_bytes_);
  allocate(evict_, evict_bytes_);
  allocate(small_, most_query_rows * row_bytes);
  allocate(out_, most_query_rows * row_bytes);
  allocate(lengths_, most_sequences * sizeof(int));
  allocate(page_indptr_, (most_sequences + 1) * sizeof(int));
  allocate(pages_, most_pages * sizeof(int));
  allocate(sink_, sizeof(unsigned));
  fill<<<1024, 256, 0, stream_>>>(reinterpret_cast<unsigned*>(data_), data_bytes_ / 4);
  fill<<<1024, 256, 0, stream_>>>(reinterpret_cast<unsigned*>(small_), most_query_rows * row_bytes / 4);
  check(cudaStreamSynchronize(stream_), "filling memory");
}

Device::~Device() {
  for (void* const p : {static_cast<void*>(data_), static_cast<void*>(evict_), static_cast<void*>(small_),
                        static_cast<void*>(out_), static_cast<void*>(workspace_), static_cast<void*>(lengths_),
                        static_cast<void*>(pages_), static_cast<void*>(page_indptr_), static_cast<void*>(sink_)})
    cudaFree(p);
  cudaStreamDestroy(stream_);
}

bench::gpu::Buffers Device::buffers() const { return {data_, data_bytes_, evict_, evict_bytes_, sink_}; }

double Device::read_us(std::size_t bytes) {
  return 1e6 * bench::gpu::time_read(buffers(), std::min(bytes, data_bytes_), 9, stream_).seconds;
}

tuned::Problem Device::problem_of(const Batch& b) const {
  const std::int64_t row = tuned::row_bytes(b.type, b.head_dim);
  tuned::Problem p{};
  p.type  = b.type;
  p.batch = b.sequences, p.num_q_heads = b.num_q_heads, p.num_kv_heads = b.num_kv_heads;
  p.head_dim = b.head_dim, p.head_dim_v = b.head_dim_v;
  p.max_seq_len = b.longest();
  p.page_size   = b.paged ? page_tokens : b.tokens;
  p.num_pages   = b.paged ? pages_of(b) : b.sequences;
  if (b.paged) {
    p.block_table = pages_, p.page_indptr = page_indptr_;
    p.table_page = 1, p.table_pages = p.table_entries = p.num_pages;
  }
  const std::int64_t in_page = p.page_size;
  p.k                        = {data_,
                                in_page * b.num_kv_heads * row,
         b.by_head ? row : b.num_kv_heads * row,
         b.by_head ? in_page * row : row,
                                nullptr,
                                0};
  p.v                        = p.k;
  if (!b.latent()) p.v.data = data_ + std::size_t(p.num_pages) * p.k.page;
  p.seq_lens     = lengths_;
  p.num_q_tokens = p.max_q_tokens = b.num_q_tokens;
  p.causal                        = true;
  const tuned::Type q             = tuned::query_type(b.type);
  const std::int64_t heads        = b.num_q_heads;
  p.q                             = {small_, q, heads * b.head_dim, b.head_dim};
  p.out                           = {out_, q, heads * b.head_dim_v, b.head_dim_v};
  p.softmax_scale                 = 1 / std::sqrt(double(b.head_dim));
  return p;
}

void Device::set_up(const Batch& b) {
  std::vector<int> lengths(static_cast<std::size_t>(b.sequences), b.tokens), starts{0};
  if (b.first_tokens) lengths[0] = b.first_tokens;
  check(cudaMemcpy(lengths_, lengths.data(), lengths.size() * sizeof(int), cudaMemcpyHostToDevice), "cudaMemcpy");
  if (!b.paged) return;
  for (const int length : lengths) starts.push_back(starts.back() + (length + page_tokens - 1) / page_tokens);
  std::vector<int> pages(static_cast<std::size_t>(starts.back()));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  check(cudaMemcpy(page_indptr_, starts.data(), starts.size() * sizeof(int), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaMemcpy(pages_, pages.data(), pages.size() * sizeof(int), cudaMemcpyHostToDevice), "cudaMemcpy");
}

double Device::time(const Batch& batch, const Launch& launch) {
  const tuned::Problem first = problem_of(batch);
  if (const char* const reason = tuned::why_not(first, facts_)) throw std::runtime_error(reason);
  const std::size_t bytes    = batch.cache_bytes();
  const std::size_t stored   = std::size_t(first.num_pages) * first.k.page * (batch.latent() ? 1 : 2);
  const std::size_t distance = (stored + 1023) / 1024 * 1024;
  if (distance > data_bytes_ || (batch.paged && first.num_pages > most_pages) || batch.sequences > most_sequences ||
      std::int64_t(batch.sequences) * batch.num_q_heads * batch.num_q_tokens > most_query_rows)
    throw std::runtime_error("the batch is too large for the memory of this device");
  set_up(batch);
  cudaFree(workspace_);
  workspace_ = nullptr;
  allocate(workspace_, tuned::workspace_bytes(first, facts_));
  tuned::prepare(first, facts_, workspace_, stream_);
  if (!launch(first)) throw std::runtime_error("the stream may use fewer multiprocessors than the device has");
  check(cudaStreamSynchronize(stream_), "a decode");

  const auto windows = static_cast<int>(data_bytes_ / distance);
  const auto calls   = static_cast<int>(std::clamp(1.5e9 / double(bytes), 4.0, 64.0));
  const bench::gpu::Graph graph(stream_, [&] {
    for (int i = 0; i < calls; ++i) {
      tuned::Problem p  = first;
      const auto window = static_cast<std::size_t>(i % windows) * distance;
      p.k.data          = static_cast<const std::byte*>(first.k.data) + window;
      p.v.data          = static_cast<const std::byte*>(first.v.data) + window;
      launch(p);
    }
  });
  return 1e6 * graph.median_seconds(9, [&] { bench::gpu::evict(buffers(), stream_); }) / calls;
}

double Device::decode_us(const Batch& batch, const tuned::LaunchShape& shape) {
  return time(batch,
              [&](const tuned::Problem& p) { return tuned::decode_with(shape, p, facts_, workspace_, stream_); });
}

}  // namespace pagoda::tune
