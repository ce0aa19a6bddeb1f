// SPDX-License-Identifier: Apache-2.0
// A decode captured in a CUDA graph once and replayed while the sequences grow: lengths and block tables are read on
// the device by each replay.
#include "support.hpp"

#include <cuda_runtime.h>

#include <stdexcept>

void must(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

int run(cudaStream_t stream) {
  using pagoda::half_t;
  const Kokkos::Cuda exec(stream);
  constexpr int batch = 3, pages_each = 32, q_heads = 32, kv_heads = 8, dim = 128;

  const auto cache = pagoda::make_paged_cache<half_t>(
      exec, {.num_pages = batch * pages_each, .page_size = 16, .num_kv_heads = kv_heads, .head_dim = dim});
  const Kokkos::View<half_t***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const auto seq_lens = example::integers({100, 7, 300});
  exec.fence();  // the cache is zeroed on the stream; the fills run on the default instance
  example::fill(cache.k, 1), example::fill(cache.v, 2), example::fill(q, 3);
  const pagoda::PagedKV kv{cache.k, cache.v, example::consecutive_pages(batch, pages_each), seq_lens};
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
  Kokkos::fence();

  cudaGraph_t graph;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Kokkos::parallel_for(
      "grow", Kokkos::RangePolicy<Kokkos::Cuda>(exec, 0, batch), KOKKOS_LAMBDA(int b) { ++seq_lens(b); });
  pagoda::decode(exec, plan, q, kv, out);
  must(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t step;
  must(cudaGraphInstantiateWithFlags(&step, graph, 0));

  int status = 0;
  for (int i = 0; i < 3; ++i) {
    must(cudaGraphLaunch(step, stream));
    exec.fence();
    status |= example::compare(example::HostCache(kv).kv, q, out);
  }
  must(cudaGraphExecDestroy(step));
  must(cudaGraphDestroy(graph));
  return status | (example::on_host(seq_lens)(0) != 103);
}

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  cudaStream_t stream;
  must(cudaStreamCreate(&stream));
  const int status = run(stream);
  must(cudaStreamDestroy(stream));
  return status;
}
