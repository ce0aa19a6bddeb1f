// SPDX-License-Identifier: Apache-2.0
// Sparse attention: each KV head of a sequence reads only the pages whose mean key fits its queries best. Kernels score
// the pages, choose some, and write page lists and entries in device memory. The decode reads these when it runs, so
// the host knows neither the pages nor their number, and one plan serves for all steps.
#include "support.hpp"

namespace {

using pagoda::half_t;
constexpr int max_batch = 4, q_heads = 32, kv_heads = 8, group = q_heads / kv_heads, dim = 128;
constexpr int page_size = 16, pages_each = 64, kept = 8;  // pages of a sequence, and how many of them are read
constexpr int rows = max_batch * kv_heads;                // row s * kv_heads + h: KV head h of sequence s

using Queries = Kokkos::View<half_t***, Kokkos::LayoutRight>;
using Table   = Kokkos::View<int**, Kokkos::LayoutRight>;
using Means   = Kokkos::View<float***, Kokkos::LayoutRight>;  // (page, KV head, dim)

/// Mean keys. The keys of a full page do not change, so an engine computes its mean once.
template <class Keys>
void average(const Keys& k, const Means& means) {
  const int pages = static_cast<int>(k.extent(0));
  Kokkos::parallel_for(
      "average", Kokkos::MDRangePolicy<Kokkos::Rank<3>>({0, 0, 0}, {pages, kv_heads, dim}),
      KOKKOS_LAMBDA(int page, int head, int d) {
        float sum = 0;
        for (int t = 0; t < page_size; ++t) sum += static_cast<float>(k(page, t, head, d));
        means(page, head, d) = sum / page_size;
      });
}

/// What a decode reads.
struct Choice {
  Table pages{"chosen pages", rows, kept};
  Kokkos::View<int*> lengths{"lengths of rows", rows};
  Kokkos::View<pagoda::Entry*> entries{"entries", rows};
  Kokkos::View<pagoda::EntryQuery*> queries{"entry queries", rows};
};

/// For each row: the newest page, which need not be full, and the other pages of the highest scores, in ascending
/// order. Entries of sequences behind the batch have no query tokens, so a decode skips them.
void choose(const Queries& q, const Means& means, const Table& table, const Kokkos::View<int*>& seq_lens,
            const Choice& choice) {
  const int batch    = static_cast<int>(q.extent(0));
  const auto pages   = choice.pages;
  const auto lengths = choice.lengths;
  const auto entries = choice.entries;
  const auto queries = choice.queries;
  Kokkos::parallel_for(
      "choose", rows, KOKKOS_LAMBDA(int row) {
        const int s = row / kv_heads, head = row % kv_heads;
        entries(row) = {row, 0, -1, row, s < batch ? 1 : 0, -1, head};
        queries(row) = {s, row, 1};
        lengths(row) = 0;
        if (s >= batch) return;
        const int newest = (seq_lens(s) - 1) / page_size;
        float scores[pages_each];
        for (int p = 0; p < newest; ++p) {
          scores[p] = 0;
          for (int i = 0; i < group * dim; ++i)
            scores[p] += static_cast<float>(q(s, head * group + i / dim, i % dim)) * means(table(s, p), head, i % dim);
        }
        int n = 0;
        for (int p = 0; p < newest; ++p) {
          int better = 0;
          for (int other = 0; other < newest; ++other)
            better += scores[other] > scores[p] || (scores[other] == scores[p] && other < p);
          if (better < kept - 1) pages(row, n++) = table(s, p);
        }
        pages(row, n) = table(s, newest);
        lengths(row)  = n * page_size + seq_lens(s) - newest * page_size;
      });
}

/// Row r as a sequence of one KV head, for the reference.
struct RowsOfOneHead {
  struct {
    static constexpr int extent(int) { return 1; }
  } k{};
  const pagoda::PagedKV<half_t, Kokkos::HostSpace>& kv;
  int used;

  int batch() const { return used; }
  int seq_len(int row) const { return kv.seq_len(row); }
  double key(int row, int t, int, int d) const { return kv.key(row, t, row % kv_heads, d); }
  double value(int row, int t, int, int d) const { return kv.value(row, t, row % kv_heads, d); }
};

}  // namespace

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Kokkos::DefaultExecutionSpace exec;
  const auto cache = pagoda::make_paged_cache<half_t>(
      exec, {.num_pages = max_batch * pages_each, .page_size = page_size, .num_kv_heads = kv_heads, .head_dim = dim});
  example::fill(cache.k, 1), example::fill(cache.v, 2);
  const Means means("mean keys", max_batch * pages_each, kv_heads, dim);
  average(cache.k, means);
  const Table table = example::consecutive_pages(max_batch, pages_each);

  // A cache of `rows` sequences. Its page lists and lengths are those that the kernel writes.
  const Choice choice;
  const pagoda::PagedKV kv{cache.k, cache.v, choice.pages, choice.lengths};
  const pagoda::DeviceEntries<decltype(exec)::memory_space> entries(choice.entries, choice.queries);
  const auto plan =
      pagoda::plan(exec, kv, {.num_q_heads = q_heads, .entries = {.max_entries = rows, .max_queries = 1}});
  const pagoda::EntryStates no_states{Kokkos::View<float***>("none", 0, q_heads, dim),
                                      Kokkos::View<float**>("none", 0, q_heads)};

  for (int step = 0; step < 3; ++step) {
    const int batch    = step == 1 ? max_batch : max_batch - 1;
    const auto lengths = example::integers({900 + step, 17 + step, 336 + step, 1024});
    const Queries q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
    const Kokkos::View<float**> lse("lse", batch, q_heads);
    example::fill(q, 3 + static_cast<float>(step));
    choose(q, means, table, lengths, choice);
    pagoda::decode_entries(exec, plan, q, kv, entries, out, lse, no_states);
    exec.fence();

    const example::HostCache chosen(kv);
    const RowsOfOneHead each{.kv = chosen.kv, .used = batch * kv_heads};
    std::printf("step %d: KV head 0 of sequence 0 reads %d of %d tokens\n", step, each.seq_len(0), 900 + step);
    const Queries q_of_rows(q.data(), each.used, group, dim), out_of_rows(out.data(), each.used, group, dim);
    if (const int wrong = example::compare(each, q_of_rows, out_of_rows); wrong != 0) return wrong;
  }
}
