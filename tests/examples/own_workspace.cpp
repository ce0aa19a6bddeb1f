// SPDX-License-Identifier: Apache-2.0
// Two layers decode on an execution-space instance and in a workspace that belong to the caller. One plan serves both
// layers: their caches have one shape, and on one instance their decodes run one after the other.
#include "support.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using Exec = Kokkos::DefaultExecutionSpace;
  using pagoda::half_t;
  constexpr int batch = 2, pages_each = 64, q_heads = 32, kv_heads = 8, dim = 128;

  // With CUDA, an instance on a stream of yours is Kokkos::Cuda(stream).
  const Exec exec = Kokkos::Experimental::partition_space(Exec(), 1)[0];

  const pagoda::PagedCacheShape shape{
      .num_pages = batch * pages_each, .page_size = 16, .num_kv_heads = kv_heads, .head_dim = dim};
  const auto first  = pagoda::make_paged_cache<half_t>(exec, shape);
  const auto second = pagoda::make_paged_cache<half_t>(exec, shape);
  const Kokkos::View<half_t***, Kokkos::LayoutRight> q("q", batch, q_heads, dim);
  const Kokkos::View<half_t***, Kokkos::LayoutRight> first_out("first_out", batch, q_heads, dim);
  const Kokkos::View<half_t***, Kokkos::LayoutRight> second_out("second_out", batch, q_heads, dim);
  exec.fence();  // the caches are zeroed on exec; the fills below run elsewhere
  example::fill(first.k, 1), example::fill(first.v, 2), example::fill(second.k, 3), example::fill(second.v, 4);
  example::fill(q, 5);

  const auto table   = example::consecutive_pages(batch, pages_each);
  const auto lengths = example::integers({1000, 300});
  const pagoda::PagedKV first_kv{first.k, first.v, table, lengths}, second_kv{second.k, second.v, table, lengths};
  const pagoda::DecodeOptions<Exec::memory_space> options{.num_q_heads = q_heads};

  const Kokkos::View<std::byte*> workspace(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "workspace"),
                                           pagoda::workspace_bytes(exec, first_kv, options));
  const auto plan = pagoda::plan(exec, first_kv, options, workspace);
  Kokkos::fence();  // what ran on other instances is done
  pagoda::decode(exec, plan, q, first_kv, first_out);
  pagoda::decode(exec, plan, q, second_kv, second_out);
  exec.fence();

  std::printf("%zu bytes of workspace, %zu more that the plan owns\n", workspace.size(), plan.persistent_bytes());
  return example::compare(example::HostCache(first_kv).kv, q, first_out) |
         example::compare(example::HostCache(second_kv).kv, q, second_out);
}
