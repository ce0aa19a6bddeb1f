// SPDX-License-Identifier: Apache-2.0
// Requests that begin with the same system prompt, served through the prefix index of a pool: only the first one
// computes the keys and values of the system prompt. Its pages stay cached when no sequence holds them.
#include "support.hpp"

#include <numeric>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  using Rows = Kokkos::View<half_t***, Kokkos::LayoutRight>;
  const Kokkos::DefaultExecutionSpace exec;
  constexpr int q_heads = 8, kv_heads = 2, dim = 64, system_tokens = 100, requests = 6;

  pagoda::PagedPool<half_t> pool(exec, {.num_kv_heads  = kv_heads,
                                        .head_dim      = dim,
                                        .max_seq_len   = 160,
                                        .max_sequences = 2,
                                        .num_pages     = 20,
                                        .num_q_heads   = q_heads});
  int status = 0, computed = 0;
  for (int request = 0; request < requests; ++request) {
    std::vector<int> ids(system_tokens + 20 + request);
    std::iota(ids.begin(), ids.begin() + system_tokens, 1000);          // the system prompt
    std::fill(ids.begin() + system_tokens, ids.end(), 5000 + request);  // the request's own tokens
    const pagoda::Prompt prompt{.token_ids = ids};

    // A model computes keys and values of the tokens that the index does not have.
    const int missing = static_cast<int>(ids.size()) - pool.match(prompt);
    const Rows k("k", missing, kv_heads, dim), v("v", missing, kv_heads, dim);
    example::fill(k, request + 0.1f), example::fill(v, request + 0.2f);
    const std::vector<int> slots{pool.admit(exec, prompt, k, v)};
    computed += missing;

    // A generated token: its name lets the next turn of this conversation find it.
    const Rows k_new("k_new", 1, kv_heads, dim), v_new("v_new", 1, kv_heads, dim);
    const Rows q("q", 1, q_heads, dim), out("out", 1, q_heads, dim);
    example::fill(k_new, request + 0.3f), example::fill(v_new, request + 0.4f), example::fill(q, request + 0.5f);
    pool.append(exec, slots, k_new, v_new);
    pool.name(slots[0], std::vector<int>{7});
    pool.decode(exec, slots, q, out);
    exec.fence();
    status |= example::compare(example::HostCache(pool.kv(exec, slots)).kv, q, out);
    pool.release(slots[0]);
  }
  const auto stats = pool.prefix_stats();
  std::printf(
      "%d tokens computed, %.0f%% of the prompts' tokens shared, %lld bytes saved, %d of %d free pages cached\n",
      computed, 100 * stats.hit_rate(), static_cast<long long>(stats.saved_bytes), pool.evictable_pages(),
      pool.free_pages());
  // All requests but the first share the 6 full pages of the system prompt.
  return status != 0 || stats.hit_pages != 6 * (requests - 1) || pool.free_pages() != pool.num_pages() ? 1 : 0;
}
