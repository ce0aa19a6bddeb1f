// SPDX-License-Identifier: Apache-2.0
// A query sees its own token and the 63 before it, and the first 4 tokens of the sequence, which keep the softmax
// stable once the window has left them behind. Besides, each head has a sink: the logit of one extra token without a
// value.
#include "support.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  const Kokkos::DefaultExecutionSpace exec;
  constexpr int batch = 3, max_len = 512, q_heads = 16, kv_heads = 2, dim = 64, window_left = 63, initial = 4;

  // A contiguous cache: one row of max_len tokens for each sequence.
  const auto cache = pagoda::make_contiguous_cache<half_t>(
      exec, {.num_sequences = batch, .max_seq_len = max_len, .num_kv_heads = kv_heads, .head_dim = dim});
  const Kokkos::View<half_t***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const Kokkos::View<float*> sinks("sinks", q_heads);
  example::fill(cache.k, 1), example::fill(cache.v, 2), example::fill(q, 3), example::fill(sinks, 4);

  const auto lengths = example::integers({500, 66, 3});
  const pagoda::ContiguousKV kv{cache.k, cache.v, lengths};
  const auto plan = pagoda::plan(
      exec, kv, {.num_q_heads = q_heads, .window_left = window_left, .num_initial_tokens = initial, .sinks = sinks});
  pagoda::decode(exec, plan, q, kv, out);
  exec.fence();

  const auto k = example::on_host(cache.k), v = example::on_host(cache.v);
  const pagoda::ContiguousKV host{k, v, example::on_host(lengths)};
  const auto host_sinks = example::on_host(sinks);
  return example::compare(host, q, out, [&](int head) {
    return pagoda::reference::RowOptions{
        .window_left = window_left, .num_initial_tokens = initial, .sink = host_sinks(head)};
  });
}
