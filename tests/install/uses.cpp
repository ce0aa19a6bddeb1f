// SPDX-License-Identifier: Apache-2.0
// Zero queries weight all tokens equally, so the output is the mean of the values and the log-sum-exp is log(tokens).
#include "uses.hpp"

#include <pagoda/pagoda.hpp>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace {

using Exec = Kokkos::DefaultExecutionSpace;

constexpr int batch = 2, q_heads = 4, kv_heads = 2, dim = 16, page = 4, pages = 3, tokens = 10;

bool near(double a, double b) { return std::abs(a - b) < 1e-5; }

template <class View>
bool all_near(const View& view, double expected) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  for (std::size_t i = 0; i < host.size(); ++i)
    if (!near(host.data()[i], expected)) return false;
  return true;
}

/// A paged cache on the device in which every value is 3 and every key 0.
struct Cache {
  Kokkos::View<float****> k{"k", batch* pages, page, kv_heads, dim}, v{"v", batch* pages, page, kv_heads, dim};
  Kokkos::View<int**, Kokkos::LayoutRight> block_table{"block_table", batch, pages};
  Kokkos::View<int*> seq_lens{"seq_lens", batch};
  Cache() {
    Kokkos::deep_copy(v, 3.f);
    Kokkos::deep_copy(seq_lens, tokens);
    const auto table = Kokkos::create_mirror_view(block_table);
    for (int i = 0; i < batch * pages; ++i) table(i / pages, i % pages) = batch * pages - 1 - i;
    Kokkos::deep_copy(block_table, table);
  }
  auto paged() const { return pagoda::PagedKV{k, v, block_table, seq_lens}; }
};

template <class Pool>
bool pool_is_right(const Exec& exec) {
  Pool pool(exec, {.num_kv_heads  = kv_heads,
                   .head_dim      = dim,
                   .max_seq_len   = 12,
                   .max_sequences = 2,
                   .page_size     = page,
                   .num_q_heads   = q_heads});
  const Kokkos::View<float***, Kokkos::LayoutRight> k("k", tokens, kv_heads, dim), v("v", tokens, kv_heads, dim);
  const Kokkos::View<float***, Kokkos::LayoutRight> q("q", 1, q_heads, dim), out("out", 1, q_heads, dim);
  Kokkos::deep_copy(v, 5.f);
  const int slots[]  = {pool.admit(exec, k, v)};
  const int counts[] = {1};
  const auto row     = std::pair(0, 1);
  pool.append(exec, slots, Kokkos::subview(k, row, Kokkos::ALL, Kokkos::ALL),
              Kokkos::subview(v, row, Kokkos::ALL, Kokkos::ALL));
  pool.reserve(exec, slots, counts);
  const auto positions = pool.slot_mapping(slots[0], tokens + 1, 1);
  const Kokkos::View<std::int64_t*> mapping("mapping", 1);
  Kokkos::deep_copy(mapping, positions[0]);
  pool.write(exec, mapping, Kokkos::subview(k, row, Kokkos::ALL, Kokkos::ALL),
             Kokkos::subview(v, row, Kokkos::ALL, Kokkos::ALL));
  pool.decode(exec, slots, q, out);
  const bool right = all_near(out, 5) && pool.seq_len(slots[0]) == tokens + 2 && !pool.plan().describe().empty();
  pagoda::check(exec, pool.kv(exec, slots));
  pool.release(slots[0]);
  return right && pool.free_slots() == 2 && near(pool.waste(), 0);
}

bool merge_is_right(const Exec& exec) {
  const Kokkos::View<float****> outs("outs", 2, 1, q_heads, dim);
  const Kokkos::View<float***> lses("lses", 2, 1, q_heads);
  const Kokkos::View<float***> out("out", 1, q_heads, dim);
  const Kokkos::View<float**> lse("lse", 1, q_heads);
  Kokkos::deep_copy(outs, 2.f);
  pagoda::merge(exec, outs, lses, out, lse);
  return all_near(out, 2) && all_near(lse, std::log(2.));
}

bool write_kv_is_right(const Exec& exec) {
  const Kokkos::View<float****> k("k", 1, 1, 1, dim), v("v", 1, 1, 1, dim);
  const Kokkos::View<float***> new_k("new_k", 1, 1, dim), new_v("new_v", 1, 1, dim);
  const Kokkos::View<std::int64_t*> mapping("mapping", 1);
  Kokkos::deep_copy(new_k, 1.f), Kokkos::deep_copy(new_v, 2.f);
  pagoda::write_kv(exec, k, v, mapping, new_k, new_v);
  return all_near(k, 1) && all_near(v, 2);
}

bool reference_is_right() {
  const std::vector<double> q(dim, 0.);
  const auto three = [](int, std::span<double> row) { std::fill(row.begin(), row.end(), 3.); };
  const auto row   = pagoda::reference::attend(q, tokens, tokens - 1, dim, three, three, {});
  return near(row.out[0], 3) && near(row.lse, std::log(double(tokens))) &&
         pagoda::reference::tolerance(row, pagoda::DType::fp32, pagoda::DType::fp32) > 0;
}

}  // namespace

bool decode_is_right() {
  const Cache cache;
  const Kokkos::View<float***, Kokkos::LayoutRight> q("q", batch, q_heads, dim), out("out", batch, q_heads, dim);
  const Kokkos::View<float**> lse("lse", batch, q_heads);
  const Exec exec;
  const auto kv   = cache.paged();
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
  pagoda::decode(exec, plan, q, kv, out, lse);
  return all_near(out, 3) && all_near(lse, std::log(double(tokens)));
}

bool everything_else_is_right() {
  const Exec exec;
  const Cache cache;
  pagoda::check(exec, cache.paged());
  return pagoda::workspace_bytes(exec, cache.paged(), {.num_q_heads = q_heads}) > 0 && merge_is_right(exec) &&
         write_kv_is_right(exec) && reference_is_right() && pool_is_right<pagoda::PagedPool<float>>(exec) &&
         pool_is_right<pagoda::ContiguousPool<float>>(exec);
}

void provoke_invalid_argument() { pagoda::plan(Exec(), Cache().paged(), {.num_q_heads = 3}); }

void provoke_out_of_capacity() {
  const Exec exec;
  pagoda::PagedPool<float> pool(
      exec, {.num_kv_heads = kv_heads, .head_dim = dim, .max_seq_len = 8, .max_sequences = 2, .num_pages = 1});
  pool.admit(exec, 8);
  pool.admit(exec, 8);
}
