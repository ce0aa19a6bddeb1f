// SPDX-License-Identifier: Apache-2.0
// An int8 cache with one scale for each token and KV head, which a kernel of the caller's computes: s = max |x| / 127
// over the dims of the row, stored = round(x / s). A decode multiplies by s, so s is the cache's scale.
#include "support.hpp"

template <class From, class To, class Scale>
void quantize(const From& from, const To& to, const Scale& scale) {
  const int dims = static_cast<int>(from.extent(3));
  Kokkos::parallel_for(
      "quantize",
      Kokkos::MDRangePolicy<Kokkos::Rank<3>>({0, 0, 0},
                                             {int(from.extent(0)), int(from.extent(1)), int(from.extent(2))}),
      KOKKOS_LAMBDA(int page, int token, int head) {
        float largest = 0;
        for (int d = 0; d < dims; ++d) largest = Kokkos::fmax(largest, Kokkos::fabs(from(page, token, head, d)));
        const float s            = largest > 0 ? largest / 127 : 1;
        scale(page, token, head) = s;
        for (int d = 0; d < dims; ++d)
          to(page, token, head, d) = static_cast<std::int8_t>(Kokkos::round(from(page, token, head, d) / s));
      });
}

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Kokkos::DefaultExecutionSpace exec;
  constexpr int batch = 3, pages_each = 6, pages = batch * pages_each, q_heads = 32, kv_heads = 8, dim = 128;

  using Keys = Kokkos::View<float****, Kokkos::LayoutRight>;
  const Keys k("k", pages, 16, kv_heads, dim), v("v", pages, 16, kv_heads, dim);
  const Kokkos::View<float***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  example::fill(k, 1), example::fill(v, 2), example::fill(q, 3);

  const auto cache = pagoda::make_paged_cache<std::int8_t>(
      exec, {.num_pages = pages, .page_size = 16, .num_kv_heads = kv_heads, .head_dim = dim});
  const Kokkos::View<float***, Kokkos::LayoutRight> k_scale("k_scale", pages, 16, kv_heads),
      v_scale("v_scale", pages, 16, kv_heads);
  quantize(k, cache.k, k_scale);
  quantize(v, cache.v, v_scale);

  const auto table   = example::consecutive_pages(batch, pages_each);
  const auto lengths = example::integers({96, 50, 1});
  const auto kv      = pagoda::PagedKV{cache.k, cache.v, table, lengths}.with_scales(
      pagoda::per_token_and_head_scales(k_scale, v_scale));
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
  pagoda::decode(exec, plan, q, kv, out);
  exec.fence();

  // The decode computes with stored * s, which is within s / 2 of the original.
  const auto host_k_scale = example::on_host(k_scale), host_v_scale = example::on_host(v_scale);
  const auto original = example::on_host(k);
  const example::HostCache copy(kv);
  const auto host = copy.kv.with_scales(pagoda::per_token_and_head_scales(host_k_scale, host_v_scale));
  for (int d = 0; d < dim; ++d) {  // token 20 of sequence 1: page 7, offset 4
    const float s = host_k_scale(7, 4, 3);
    if (!(std::abs(host.key(1, 20, 3, d) - original(7, 4, 3, d)) <= 0.501f * s)) return 1;
  }
  return example::compare(host, q, out);
}
