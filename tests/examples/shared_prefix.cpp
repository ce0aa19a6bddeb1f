// SPDX-License-Identifier: Apache-2.0
// Four sequences begin with the same 256 tokens. One decode reads these once for all of them: a batch entry with a
// query token of each sequence and causal = false. A second decode reads the rest of each sequence, and merge joins the
// two states.
#include "support.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  const Kokkos::DefaultExecutionSpace exec;
  constexpr int batch = 4, prefix_pages = 16, own_pages = 4, q_heads = 32, kv_heads = 8, dim = 128, page_size = 16;

  const auto cache = pagoda::make_paged_cache<half_t>(exec, {.num_pages    = prefix_pages + batch * own_pages,
                                                             .page_size    = page_size,
                                                             .num_kv_heads = kv_heads,
                                                             .head_dim     = dim});
  using Rows       = Kokkos::View<half_t***, Kokkos::LayoutRight>;
  using States     = Kokkos::View<float***, Kokkos::LayoutRight>;  // partial results stay fp32
  const Rows q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const States prefix_out("prefix_out", batch, q_heads, dim), own_out("own_out", batch, q_heads, dim);
  const Kokkos::View<float**> prefix_lse("prefix_lse", batch, q_heads), own_lse("own_lse", batch, q_heads);
  const Kokkos::View<float**> lse("lse", batch, q_heads);
  example::fill(cache.k, 1), example::fill(cache.v, 2), example::fill(q, 3);

  const auto prefix_table = example::consecutive_pages(1, prefix_pages);
  const auto own_table    = example::consecutive_pages(batch, own_pages, prefix_pages);
  const pagoda::PagedKV prefix{cache.k, cache.v, prefix_table, example::integers({prefix_pages * page_size})};
  const pagoda::PagedKV own{cache.k, cache.v, own_table, example::integers({1, 20, 33, 64})};

  const auto prefix_plan =
      pagoda::plan(exec, prefix, {.num_q_heads = q_heads, .max_query_len = batch, .causal = false});
  const auto own_plan = pagoda::plan(exec, own, {.num_q_heads = q_heads});
  pagoda::decode(exec, prefix_plan, q, prefix, prefix_out, prefix_lse);
  pagoda::decode(exec, own_plan, q, own, own_out, own_lse);
  pagoda::merge(exec, prefix_out, prefix_lse, own_out, own_lse, out, lse);
  exec.fence();

  // The reference sees each sequence whole: the prefix's pages, then its own.
  const Kokkos::View<int**, Kokkos::LayoutRight> whole("whole", batch, prefix_pages + own_pages);
  for (int b = 0; b < batch; ++b) {
    const auto row  = Kokkos::subview(whole, b, Kokkos::ALL);
    const auto part = [&](int first, int last) { return Kokkos::subview(row, std::pair(first, last)); };
    Kokkos::deep_copy(part(0, prefix_pages), Kokkos::subview(prefix_table, 0, Kokkos::ALL));
    Kokkos::deep_copy(part(prefix_pages, prefix_pages + own_pages), Kokkos::subview(own_table, b, Kokkos::ALL));
  }
  const auto lengths = example::integers({257, 276, 289, 320});
  return example::compare(example::HostCache(pagoda::PagedKV{cache.k, cache.v, whole, lengths}).kv, q, out);
}
