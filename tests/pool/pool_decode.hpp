// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/pool/pool_model.hpp"

#include <pagoda/reference.hpp>

#include <cmath>
#include <span>
#include <vector>

/// Decodes through a pool, against the reference over the pool's model.
namespace pagoda::test {

/// Queries, outputs and log-sum-exps of a decode over some slots.
template <class Pool>
struct PoolQueries {
  using Space  = typename Pool::execution_space;
  using T      = typename Pool::value_type;
  using Memory = typename Space::memory_space;

  int query_len, heads;
  std::vector<int> tokens;  ///< queries have rows like keys, of tokens that no sequence holds
  Kokkos::View<T***, Kokkos::LayoutRight, Memory> q, out;
  Kokkos::View<float**, Kokkos::LayoutRight, Memory> lse;

  PoolQueries(const Driven<Pool>& d, int batch, int query_tokens_each = 1)
      : query_len(query_tokens_each), heads(d.pool.plan().schedule().shape.num_q_heads) {
    for (int i = 0; i < batch * query_len; ++i) tokens.push_back(-1 - i);
    const auto o = d.pool.options();
    q            = make_rows<Space, T>(d.exec, tokens, heads, o.head_dim, false);
    out          = decltype(out)("out", tokens.size(), heads, o.head_dim_v);
    lse          = decltype(lse)("lse", tokens.size(), heads);
    // Poison shows rows that a decode does not write.
    Kokkos::deep_copy(d.exec, out, T(-77.0f));
    Kokkos::deep_copy(d.exec, lse, -77.0f);
    d.exec.fence();
  }

  void decode(Driven<Pool>& d, const std::vector<int>& slots) const { d.pool.decode(d.exec, slots, q, out, lse); }

  /// Compares the results of a decode over the slots with the reference, under the options of the pool's plan.
  void expect_right(const Driven<Pool>& d, const std::vector<int>& slots) const {
    d.exec.fence();
    const auto out_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
    const auto lse_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
    const auto o        = d.pool.options();
    const auto& plan    = d.pool.plan().schedule();
    const int group     = heads / o.num_kv_heads;
    const auto& score   = plan.options;
    const reference::RowOptions options{.softmax_scale      = score.softmax_scale,
                                        .causal             = score.causal,
                                        .window_left        = score.window_left,
                                        .num_initial_tokens = score.num_initial_tokens,
                                        .logit_soft_cap     = score.logit_soft_cap};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto b         = i / query_len;
      const auto& sequence = d.model.at(slots[b]);
      const int length     = static_cast<int>(sequence.size()),
                position   = length - query_len + static_cast<int>(i) % query_len;
      for (int h = 0; h < heads; ++h) {
        std::vector<double> query(o.head_dim);
        for (int x = 0; x < o.head_dim; ++x) query[x] = element(tokens[i], h, x, false);
        const auto read = [&](bool value) {
          return [&, value](int t, std::span<double> row) {
            for (std::size_t x = 0; x < row.size(); ++x)
              row[x] = element(sequence[t], h / group, static_cast<int>(x), value);
          };
        };
        const auto row = reference::attend(query, length, position, o.head_dim_v, read(false), read(true), options);
        // Sums of rows with few dims may exceed the tolerance, which counts the rounding of terms but not of additions.
        // It shows if outputs are as precise as sums.
        const DType arithmetic = dtype_v<accumulator_t<T>>;
        const double allowed   = reference::tolerance(row, dtype_v<T>, dtype_v<T>, arithmetic) +
                               2 * unit_roundoff(arithmetic) * std::sqrt(static_cast<double>(length));
        double error = 0;
        for (int x = 0; x < o.head_dim_v; ++x)
          error += std::pow(static_cast<double>(out_host(i, h, x)) - row.out[x], 2);
        EXPECT_LE(std::sqrt(error), allowed * row.norm)
            << "query token " << i << " head " << h << ": length " << length << ", position " << position << ", dims "
            << o.head_dim << " and " << o.head_dim_v << ", norm " << row.norm << ", scores' condition "
            << row.score_condition << ", scale " << options.softmax_scale << ", soft cap " << options.logit_soft_cap
            << ", window " << options.window_left << " after " << options.num_initial_tokens << " first";
        if (std::isinf(row.lse)) {
          EXPECT_EQ(static_cast<double>(lse_host(i, h)), row.lse) << "query token " << i << " head " << h;
        } else {
          EXPECT_NEAR(lse_host(i, h), row.lse, 1e-5 * (1 + std::abs(row.lse)) + allowed);
        }
      }
    }
  }
};

/// Rates with which sharing of any page pays.
inline DeviceRates eager_rates() {
  DeviceRates rates;
  rates.list_us = rates.item_us = 0;
  rates.state_bytes_per_us *= 100;
  return rates;
}

template <class Pool>
void expect_decodes(Driven<Pool>& d, const std::vector<int>& slots) {
  const PoolQueries<Pool> queries(d, static_cast<int>(slots.size()));
  queries.decode(d, slots);
  queries.expect_right(d, slots);
}

}  // namespace pagoda::test
