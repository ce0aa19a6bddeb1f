// SPDX-License-Identifier: Apache-2.0
// A serving loop: requests wait until the pool has room, every step appends a token to each running sequence and
// decodes all of them in one call, and a complete sequence is released.
#include "support.hpp"

#include <deque>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  using Rows = Kokkos::View<half_t***, Kokkos::LayoutRight>;
  const Kokkos::DefaultExecutionSpace exec;
  constexpr int q_heads = 8, kv_heads = 2, dim = 64, max_running = 4, stop_at = 40;

  pagoda::PagedPool<half_t> pool(exec, {.num_kv_heads  = kv_heads,
                                        .head_dim      = dim,
                                        .max_seq_len   = stop_at,
                                        .max_sequences = max_running,
                                        .num_pages     = 9,  // too few for four sequences of 40 tokens
                                        .num_q_heads   = q_heads});
  std::deque<int> prompts{5, 30, 17, 25, 33, 9};  // lengths
  std::vector<int> running;                       // slots
  int status = 0, finished = 0, step = 0;
  while (!prompts.empty() || !running.empty()) {
    // A sequence is admitted where its last token will fit, so that append never runs out of pages.
    const int pages_each = (stop_at + pool.page_size() - 1) / pool.page_size();
    while (!prompts.empty() && (static_cast<int>(running.size()) + 1) * pages_each <= pool.num_pages()) {
      const Rows k("k", prompts.front(), kv_heads, dim), v("v", prompts.front(), kv_heads, dim);
      example::fill(k, prompts.front()), example::fill(v, prompts.front() + 1);
      running.push_back(pool.admit(exec, k, v));
      prompts.pop_front();
    }
    const int batch = static_cast<int>(running.size());
    const Rows k_new("k_new", batch, kv_heads, dim), v_new("v_new", batch, kv_heads, dim);
    const Rows q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
    example::fill(k_new, step + 0.1f), example::fill(v_new, step + 0.2f), example::fill(q, step + 0.3f);
    pool.append(exec, running, k_new, v_new);
    pool.decode(exec, running, q, out);
    exec.fence();
    if (++step % 8 == 0) status |= example::compare(example::HostCache(pool.kv(exec, running)).kv, q, out);

    std::erase_if(running, [&](int slot) {
      if (pool.seq_len(slot) < stop_at) return false;
      pool.release(slot);
      return ++finished > 0;
    });
  }
  std::printf("%d sequences in %d steps, %d pages free\n", finished, step, pool.free_pages());
  return status != 0 || finished != 6 || pool.free_pages() != pool.num_pages() ? 1 : 0;
}
