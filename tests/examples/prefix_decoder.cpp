// SPDX-License-Identifier: Apache-2.0
// Eight sequences begin with the same 2048 tokens. A PrefixDecoder finds the shared pages in the block table and reads
// them once for all sequences, while the sequences grow and one ends.
#include "support.hpp"

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using pagoda::half_t;
  const Kokkos::DefaultExecutionSpace exec;
  constexpr int max_batch = 8, shared_pages = 128, own_pages = 4, q_heads = 32, kv_heads = 8, dim = 128, page_size = 16;
  constexpr int pages_each = shared_pages + own_pages;

  const auto cache = pagoda::make_paged_cache<half_t>(exec, {.num_pages    = shared_pages + max_batch * own_pages,
                                                             .page_size    = page_size,
                                                             .num_kv_heads = kv_heads,
                                                             .head_dim     = dim});
  example::fill(cache.k, 1), example::fill(cache.v, 2);

  // The engine's tables on the host, and their copies on the device.
  std::vector<int> table, lengths;
  for (int s = 0; s < max_batch; ++s) {
    for (int i = 0; i < pages_each; ++i) table.push_back(i < shared_pages ? i : i + s * own_pages);
    lengths.push_back(shared_pages * page_size + 1 + 3 * s);
  }
  const Kokkos::View<int**, Kokkos::LayoutRight> device_table("block_table", max_batch, pages_each);
  Kokkos::deep_copy(Kokkos::View<int*>(device_table.data(), table.size()), example::integers(table));
  const pagoda::PagedKV all{cache.k, cache.v, device_table, example::integers(lengths)};
  pagoda::PrefixDecoder decoder(exec, all, {.num_q_heads = q_heads, .max_batch = max_batch});

  for (int step = 0; step < 3; ++step) {
    const int batch = step < 2 ? max_batch : max_batch - 1;
    for (int& length : lengths) ++length;
    pagoda::BatchPages tables;
    tables.batch = tables.num_sequences = batch;
    tables.page_size = page_size, tables.seq_lens = lengths.data();
    tables.block_table = table.data(), tables.max_pages = tables.row_stride = pages_each;
    const bool packed = decoder.update(exec, tables);  // on a CPU with few rows to share, a plain decode may be faster

    using Rows = Kokkos::View<half_t***, Kokkos::LayoutRight>;
    const Rows q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
    example::fill(q, 3 + static_cast<float>(step));
    const auto rows = Kokkos::subview(device_table, std::pair(0, batch), Kokkos::ALL);
    const std::vector<int> now(lengths.begin(), lengths.begin() + batch);
    const pagoda::PagedKV kv{cache.k, cache.v, rows, example::integers(now)};
    decoder.decode(exec, q, kv, out);
    exec.fence();

    const pagoda::PrefixReport& report = decoder.report();
    std::printf("step %d: %s, %s plan, %d entries, predicted %.0f us instead of %.0f\n", step,
                packed ? "packed" : report.plain_because, report.new_plan ? "new" : "kept", report.entries,
                report.packed_us, report.plain_us);
    if (const int wrong = example::compare(example::HostCache(kv).kv, q, out); wrong != 0) return wrong;
  }
}
