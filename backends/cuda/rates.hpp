// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/device_rates.hpp>

#include "backends/cuda/tuned/warp/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_tuning.hpp"
#include "backends/cuda/tuned_problem.hpp"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

/// Rates of an H200, from which decodes of shared prefixes are planned. Needs no CUDA.
namespace pagoda::detail {

inline bool is_tuned(const Schedule& schedule) { return std::string_view(schedule.backend.name) == "tuned"; }

/// Whether decodes of lists take the hand-tuned kernel for few query rows.
inline bool has_few_rows_kernel(const Schedule& lists, int page_size) {
  return is_tuned(lists) && page_size % tuned::warp::tile_tokens == 0 &&
         tuned::warp::has_list_kernel(tuned_shape(lists));
}
/// Whether decodes of lists take the hand-tuned kernel for entries of many query rows and of few.
inline bool has_mixed_kernel(const Schedule& lists, int page_size) {
  return is_tuned(lists) && page_size % tuned::warp::tile_tokens == 0 &&
         tuned::wgmma::grouped::has_mixed_kernel(tuned_shape(lists));
}
/// The most query tokens of the entries of few rows that this kernel carries out beside the others; 0: lists take
/// another kernel.
inline int mixed_few_queries(const Schedule& lists, int page_size) {
  return has_mixed_kernel(lists, page_size) ? tuned::wgmma::grouped::mixed_few_queries(tuned_shape(lists)) : 0;
}
/// Whether decodes of lists can have chains of entries of up to 64 query rows: those of the hand-tuned kernel that has
/// two blocks on a multiprocessor.
inline bool has_chains(const Schedule& lists, int page_size) {
  return is_tuned(lists) && page_size % tuned::wgmma::copy_tokens == 0 && !has_few_rows_kernel(lists, page_size) &&
         lists.bounds.max_entry_queries * lists.shape.group() <= tuned::wgmma::tile_rows;
}
/// Whether entries that both plans can carry out run faster with the plan for fewer query rows. Schedule::kernel is the
/// generic kernel's.
inline bool is_faster_part(const Schedule& fewer, const Schedule& more, int page_size) {
  if (is_tuned(fewer) != is_tuned(more)) return is_tuned(fewer);
  if (!is_tuned(fewer)) return fewer.kernel.row_tile != more.kernel.row_tile;
  const auto rows = [](const Schedule& s) { return s.bounds.max_entry_queries * s.shape.group(); };
  return (has_few_rows_kernel(fewer, page_size) && !has_few_rows_kernel(more, page_size)) ||
         (rows(fewer) <= 64 && rows(more) > 64);  // two blocks on a multiprocessor instead of one
}

/// Whether `entries` entries of few query rows are worth a launch of their own kernel beside one for the other entries,
/// which takes some 10 us. mixed: that one carries out both kinds at the same time (bench/NOTES.md, "Late shares").
inline bool are_worth_a_launch(int entries, int num_kv_heads, bool mixed) {
  return !mixed && entries >= std::max(2048 / num_kv_heads, 1);
}

/// Whether an element of keys and values is a byte.
inline bool has_bytes(const Schedule& s) {
  return size_of(s.shape.kv_type) == 1 && dims_per_element(s.shape.kv_type) == 1;
}

/// The tile of the generic kernel: every pass multiplies row_tile query rows, so more rows take several passes.
inline std::vector<RowTile> generic_tiles(const Schedule& s) {
  const int rows    = s.kernel.row_tile;
  const bool matrix = size_of(s.kernel.probability_type) == 2;
  if (matrix && has_bytes(s)) return {{rows, std::min(rows * 1.25e7, 4e8)}};  // 6 TB/s of bytes, converted
  if (matrix) return {{rows, rows > 8 ? 4e8 : 3e8}};
  return {{rows, rows > 4 ? 4e7 : rows > 1 ? 3e7 : 1e7}};
}

/// Rates fitted to plain decodes and to lists of 18 trees with four kinds of heads, in fp16, fp8_e4m3 and int8
/// (bench/NOTES.md, "Rates after the faster merge", "States of 16 bits" and "Lists of 8-bit caches"). plain, parts: the
/// schedules of plain decodes and of the parts of a list, which may have different kernels. state_bytes: of a number of
/// a partial state.
inline DeviceRates h200_rates(const Schedule& plain, std::span<const Schedule* const> parts, int page_size,
                              int state_bytes) {
  DeviceRates r;
  r.cache_bytes_per_us = 1.2e7;
  r.state_bytes_per_us = state_bytes == 2 ? 1.5e6 : 2.2e6;  // half of the bytes take 0.73 of the time
  r.list_us            = 18;
  if (!is_tuned(plain)) {
    r.plain_tiles = generic_tiles(plain);
  } else if (has_bytes(plain)) {
    // 6 TB/s of keys and values in fp8, converted; 9 TB/s in int8.
    r.plain_tiles = {{8, plain.shape.kv_type == DType::int8 ? 1.4e8 : 1e8}};
  } else {
    r.plain_tiles = {{8, 2e9}, {64, 6e8}, {128, 6e8}};
  }
  r.tiles.clear();
  for (const Schedule* lists : parts)
    if (has_chains(*lists, page_size)) r.chain_rows = lists->bounds.max_entry_queries * lists->shape.group();
  // With one query head to a kv head, chains are faster than entries that stand alone for sequences with 32 tokens of
  // their own, and slower for those with 256; so they are with four in 8 bits, and not in 16 (bench/NOTES.md,
  // "Chains"). In 16 bits, where no chain is split, they are faster for those with 256, too ("Long chains").
  r.chain_tokens = has_bytes(plain) ? 32 : 64, r.unsplit_chain_tokens = has_bytes(plain) ? 0 : 256;
  r.chain_entry_us = 0.05;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {  // those of few rows first
    const Schedule& lists = **part;
    if (has_few_rows_kernel(lists, page_size)) {
      // Eight warps on a multiprocessor multiply 10 TB/s of 16-bit keys and values, 9 of those of 8 bits.
      r.tiles.push_back({8, has_bytes(lists) ? 1.4e8 : 8e7, 0.4});
    } else if (is_tuned(lists)) {
      if (r.tiles.empty() || r.tiles.back().rows < 64) r.tiles.push_back({64, has_bytes(lists) ? 5e8 : 6e8, 1.0});
    } else {
      for (RowTile tile : generic_tiles(lists)) {
        if (!r.tiles.empty() && tile.rows <= r.tiles.back().rows)
          tile.rows = 2 * r.tiles.back().rows;  // several passes
        r.tiles.push_back(tile);
      }
    }
  }
  return r;
}

}  // namespace pagoda::detail
