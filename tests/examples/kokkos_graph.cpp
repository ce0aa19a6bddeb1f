// SPDX-License-Identifier: Apache-2.0
// A decode as a node of a Kokkos graph, which is submitted while the sequences grow: lengths and block tables are read
// on the device by each submission. On HIP the node is hip_capture.
#include "support.hpp"

#include <Kokkos_Graph.hpp>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  const Kokkos::Cuda exec = Kokkos::Experimental::partition_space(Kokkos::Cuda(), 1)[0];
  constexpr int batch = 3, pages_each = 32, q_heads = 32, kv_heads = 8, dim = 128;

  const auto cache = pagoda::make_paged_cache<half_t>(
      exec, {.num_pages = batch * pages_each, .page_size = 16, .num_kv_heads = kv_heads, .head_dim = dim});
  const Kokkos::View<half_t***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const auto seq_lens = example::integers({100, 7, 300});
  exec.fence();  // the cache is zeroed on exec; the fills run on the default instance
  example::fill(cache.k, 1), example::fill(cache.v, 2), example::fill(q, 3);
  const pagoda::PagedKV kv{cache.k, cache.v, example::consecutive_pages(batch, pages_each), seq_lens};
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
  Kokkos::fence();

  Kokkos::Experimental::Graph<Kokkos::Cuda> step(exec);
  const auto grown = step.root_node().then_parallel_for(
      "grow", Kokkos::RangePolicy<Kokkos::Cuda>(exec, 0, batch), KOKKOS_LAMBDA(int b) { ++seq_lens(b); });
  grown.cuda_capture(exec, [&](const Kokkos::Cuda& on) { pagoda::decode(on, plan, q, kv, out); });
  step.instantiate();

  int status = 0;
  for (int i = 0; i < 3; ++i) {
    step.submit(exec);
    exec.fence();
    status |= example::compare(example::HostCache(kv).kv, q, out);
  }
  return status | (example::on_host(seq_lens)(0) != 103);
}
