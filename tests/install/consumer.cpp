// A program of a user's, built against an installed Pagoda and with Pagoda as a sub-project: zero queries see all
// tokens alike, so the output is the mean of the values and the log-sum-exp is log(tokens).
#include <pagoda/pagoda.hpp>
#include <pagoda/version.hpp>

#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  constexpr int batch = 2, q_heads = 4, kv_heads = 2, dim = 16, page = 4, pages = 3, tokens = 10;

  const Kokkos::View<float****> k_pages("k_pages", batch * pages, page, kv_heads, dim);
  const Kokkos::View<float****> v_pages("v_pages", batch * pages, page, kv_heads, dim);
  const Kokkos::View<int**, Kokkos::LayoutRight> block_table("block_table", batch, pages);
  const Kokkos::View<int*> seq_lens("seq_lens", batch);
  const Kokkos::View<float***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const Kokkos::View<float**> lse("lse", batch, q_heads);
  Kokkos::deep_copy(v_pages, 3.f);
  Kokkos::deep_copy(seq_lens, tokens);
  const auto table = Kokkos::create_mirror_view(block_table);
  for (int i = 0; i < batch * pages; ++i) table(i / pages, i % pages) = batch * pages - 1 - i;
  Kokkos::deep_copy(block_table, table);

  const Kokkos::DefaultExecutionSpace exec;
  const pagoda::PagedKV kv{k_pages, v_pages, block_table, seq_lens};
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
  pagoda::decode(exec, plan, q, kv, out, lse);

  const auto out_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
  const auto lse_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
  bool right          = std::strcmp(pagoda::version(), PAGODA_VERSION_STRING) == 0;
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < q_heads; ++h) {
      right = right && std::abs(lse_host(b, h) - std::log(float(tokens))) < 1e-5f;
      for (int d = 0; d < dim; ++d) right = right && std::abs(out_host(b, h, d) - 3.f) < 1e-5f;
    }
  std::printf("Pagoda %s: %s\n", pagoda::version(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
