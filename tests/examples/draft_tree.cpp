// SPDX-License-Identifier: Apache-2.0
// Speculative decoding: the drafts behind a sequence are a tree, and one decode scores all of them. Each draft sees the
// sequence, its ancestors and itself.
#include "support.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  const Kokkos::DefaultExecutionSpace exec;
  const std::vector<int> parents{-1, 0, 0, 1, 1, 2, 4, 4};
  const int drafts      = static_cast<int>(parents.size());
  constexpr int context = 300, q_heads = 32, kv_heads = 8, dim = 128;

  // Pages of one token, so that the reference below can leave tokens out.
  const auto cache = pagoda::make_paged_cache<half_t>(
      exec, {.num_pages = context + drafts, .page_size = 1, .num_kv_heads = kv_heads, .head_dim = dim});
  using Rows = Kokkos::View<half_t***, Kokkos::LayoutRight>;
  const Rows q("q", drafts, q_heads, dim), out("out", drafts, q_heads, dim);
  const Kokkos::View<float**> lse("lse", drafts, q_heads);
  example::fill(cache.k, 1), example::fill(cache.v, 2), example::fill(q, 3);
  const pagoda::PagedKV kv{cache.k, cache.v, example::consecutive_pages(1, context + drafts),
                           example::integers({context + drafts})};

  // One entry: all tokens of sequence 0, for all drafts. Bit j of a draft's mask is for draft j.
  pagoda::EntryList list;
  list.entries     = {{.sequence = 0, .first = 0, .last = -1, .query_begin = 0, .num_queries = drafts, .state = -1}};
  list.max_queries = drafts;
  for (int i = 0; i < drafts; ++i) {
    const std::uint64_t ancestors = parents[i] < 0 ? 0 : list.masks[2 * parents[i]];
    list.masks.insert(list.masks.end(), {ancestors | std::uint64_t(1) << i, 0});
    list.queries.push_back({.token = i, .sequence = 0, .behind = drafts, .mask = 2 * i});
  }
  const pagoda::DeviceEntries<decltype(exec)::memory_space> entries{
      example::on_device(list.entries), example::on_device(list.queries), example::on_device(list.state_begin),
      example::on_device(list.masks)};

  const auto plan =
      pagoda::plan(exec, kv, {.num_q_heads = q_heads, .entries = {.max_entries = 1, .max_queries = drafts}});
  const pagoda::EntryStates no_states{Kokkos::View<float***>("none", 0, q_heads, dim),
                                      Kokkos::View<float**>("none", 0, q_heads)};
  pagoda::decode_entries(exec, plan, q, kv, entries, out, lse, no_states);
  exec.fence();

  // The reference sees a sequence for each draft: the context and the path to the draft.
  const Kokkos::View<int**, Kokkos::LayoutRight> paths("paths", drafts, context + drafts);
  const auto pages = Kokkos::create_mirror_view(paths);
  std::vector<int> lengths;
  for (int i = 0; i < drafts; ++i) {
    int n = 0;
    for (int token = 0; token < context + drafts; ++token)
      if (token < context || (list.masks[2 * i] >> (token - context) & 1) != 0) pages(i, n++) = token;
    lengths.push_back(n);
  }
  Kokkos::deep_copy(paths, pages);
  return example::compare(example::HostCache(pagoda::PagedKV{cache.k, cache.v, paths, example::integers(lengths)}).kv,
                          q, out);
}
