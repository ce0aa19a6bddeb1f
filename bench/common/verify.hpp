// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/caches.hpp"

#include <pagoda/error.hpp>
#include <pagoda/reference.hpp>

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pagoda::bench {

/// Says what is wrong with `out`, the output of a decode of cache 0 with queries `q` into memory that was all NaN: an
/// element that was not written, or a row, of a few chosen at random, that is not what the reference gives. Empty if
/// nothing is. Long sequences are left out of the rows: the reference takes its time.
template <class ExecutionSpace, class T, class Rows>
std::string find_fault(const Case& c, const Caches<ExecutionSpace, T>& caches, const Rows& q, const Rows& out,
                       int& rows_checked) {
  for (std::size_t b = 0; b < out.extent(0); ++b)
    for (std::size_t h = 0; h < out.extent(1); ++h)
      for (std::size_t d = 0; d < out.extent(2); ++d)
        if (!std::isfinite(static_cast<double>(out(b, h, d))))
          return pagoda::detail::concat("out(", b, ", ", h, ", ", d, ") is not a finite number");

  constexpr int longest = 8192, rows = 3;
  std::vector<int> entries;
  for (int b = 0; b < c.batch(); ++b)
    if (c.lengths[b] <= longest) entries.push_back(b);
  if (entries.empty()) return {};
  for (int i = 0; i < rows; ++i, ++rows_checked) {
    const std::uint64_t x = mix(static_cast<std::uint64_t>(i) + 1);
    const int b           = entries[x % entries.size()];
    const int head        = static_cast<int>((x >> 32) % static_cast<std::uint64_t>(c.num_q_heads));
    const int kv_head     = head / (c.num_q_heads / c.num_kv_heads);
    const int num_tokens  = c.query_tokens(b);
    const int token       = static_cast<int>((x >> 48) % static_cast<std::uint64_t>(num_tokens));
    const int q_row       = c.query_begin(b) + token;
    std::vector<double> query(static_cast<std::size_t>(c.head_dim));
    for (int d = 0; d < c.head_dim; ++d) query[d] = static_cast<double>(q(q_row, head, d));
    reference::RowOptions options;
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    options.window_left = c.options.window_left, options.num_initial_tokens = c.options.num_initial_tokens;
    options.logit_soft_cap = c.options.logit_soft_cap;
    if (c.options.alibi) options.alibi_slope = c.options.alibi_slope(head);
    if (c.options.sinks) options.sink = c.options.sink(head);
    const auto right = reference::attend(
        query, c.lengths[b], c.lengths[b] - num_tokens + token, c.head_dim_v,
        [&](int t, std::span<double> row) { caches.read_key(b, t, kv_head, row); },
        [&](int t, std::span<double> row) { caches.read_value(b, t, kv_head, row); }, options);
    constexpr DType io = dtype_v<typename Rows::value_type>;  // probabilities are of the same
    double error       = 0;
    for (int d = 0; d < c.head_dim_v; ++d)
      error += std::pow(static_cast<double>(out(q_row, head, d)) - right.out[d], 2);
    error                = std::sqrt(error) / right.norm;
    const double allowed = reference::tolerance(right, io, io, dtype_v<accumulator_t<T>>);
    if (!(error <= allowed))
      return pagoda::detail::concat("out(", q_row, ", ", head, ") is off by ", error, "; allowed: ", allowed);
  }
  return {};
}

}  // namespace pagoda::bench
