// SPDX-License-Identifier: Apache-2.0
// Four sequences of different lengths in one paged cache: each decodes one token, 32 query heads over 8 KV heads.
#include <Kokkos_Core.hpp>
#include <pagoda/pagoda.hpp>

#include <cmath>
#include <cstdio>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Kokkos::DefaultExecutionSpace exec;
  using pagoda::half_t;
  constexpr int batch = 4, pages_each = 8, pages = batch * pages_each, q_heads = 32, kv_heads = 8, dim = 128;

  const auto cache = pagoda::make_paged_cache<half_t>(
      exec, {.num_pages = pages, .page_size = 16, .num_kv_heads = kv_heads, .head_dim = dim});
  const auto k = cache.k, v = cache.v;  // (page, token, KV head, dim)
  const Kokkos::View<half_t***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const Kokkos::View<int**, Kokkos::LayoutRight> block_table("block_table", batch, pages_each);
  const Kokkos::View<int*> seq_lens("seq_lens", batch);
  // Your model writes all of this; here it is sines, and pages in reverse order.
  Kokkos::parallel_for(
      "fill_cache", Kokkos::MDRangePolicy<Kokkos::Rank<4>>({0, 0, 0, 0}, {pages, 16, kv_heads, dim}),
      KOKKOS_LAMBDA(int page, int token, int head, int d) {
        k(page, token, head, d) = half_t(Kokkos::sin(1.f * page + 3 * token + 5 * head + 7 * d));
        v(page, token, head, d) = half_t(Kokkos::cos(2.f * page + 4 * token + 6 * head + 8 * d));
      });
  Kokkos::parallel_for(
      "fill_batch", batch, KOKKOS_LAMBDA(int b) {
        seq_lens(b) = 10 + 30 * b;
        for (int i = 0; i < pages_each; ++i) block_table(b, i) = pages - 1 - (b * pages_each + i);
        for (int i = 0; i < q_heads * dim; ++i) q(b, i / dim, i % dim) = half_t(Kokkos::sin(b + 0.5f * i));
      });

  const pagoda::PagedKV kv{k, v, block_table, seq_lens};
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});  // once
  pagoda::decode(exec, plan, q, kv, out);                              // every step
  exec.fence();

  // The same in float64 on the host: out = sum exp(s_t) v_t / sum exp(s_t), where s_t = q . k_t / sqrt(dim).
  const auto on_host = [](const auto& view) { return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view); };
  const auto host_k = on_host(k), host_v = on_host(v);
  const pagoda::PagedKV host{host_k, host_v, on_host(block_table), on_host(seq_lens)};
  const auto queries = on_host(q), results = on_host(out);
  int wrong = 0;
  for (int row = 0; row < batch * q_heads; ++row) {
    const int b = row / q_heads, h = row % q_heads, kv_head = h / (q_heads / kv_heads);
    double sum = 0, right[dim] = {}, size[dim] = {};
    bool ok = true;
    for (int t = 0; t < host.seq_len(b); ++t) {
      double score = 0;
      for (int d = 0; d < dim; ++d) score += double(queries(b, h, d)) * host.key(b, t, kv_head, d) / std::sqrt(dim);
      sum += std::exp(score);
      for (int d = 0; d < dim; ++d) {
        const double x = std::exp(score) * host.value(b, t, kv_head, d);
        right[d] += x, size[d] += std::abs(x);
      }
    }
    for (int d = 0; d < dim; ++d)  // fp16 carries 11 bits
      ok = ok && std::abs(sum * results(b, h, d) - right[d]) <= 0x1p-9 * size[d];
    wrong += !ok;
  }
  std::printf("backend %s: %d of %d rows are wrong\n", plan.backend().c_str(), wrong, batch * q_heads);
  return wrong == 0 ? 0 : 1;
}
