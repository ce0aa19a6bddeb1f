// SPDX-License-Identifier: Apache-2.0
#include "src/c/prefix_structs.hpp"

#include "src/c/boundary.hpp"
#include "src/c/tensors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace pagoda::c {

namespace {

std::vector<pagoda::RowTile> tiles_of(const char* who, const char* name, const pagoda_row_tile* tiles,
                                      std::int32_t count) {
  require(count >= 0 && count <= PAGODA_MAX_ROW_TILES, who, ": rates.num_", name, " is ", count, "; allowed: 0 to ",
          PAGODA_MAX_ROW_TILES);
  std::vector<pagoda::RowTile> to;
  to.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) to.push_back({tiles[i].rows, tiles[i].flops_per_us, tiles[i].item_us});
  return to;
}

constexpr std::size_t least_rates =
    offsetof(pagoda_device_rates, plain_tiles) + sizeof(pagoda_device_rates::plain_tiles);

std::int32_t copy_tiles(const std::vector<pagoda::RowTile>& from, pagoda_row_tile* to) {
  const std::size_t count = std::min<std::size_t>(from.size(), PAGODA_MAX_ROW_TILES);
  for (std::size_t i = 0; i < count; ++i) to[i] = {from[i].rows, 0, from[i].flops_per_us, from[i].item_us};
  return static_cast<std::int32_t>(count);
}

}  // namespace

DeviceRates rates_of(const char* who, const pagoda_device_rates* given) {
  const auto r = read_struct(who, "rates", given, least_rates);
  return {r.memory_bytes_per_us,
          r.cache_bytes_per_us,
          r.cache_bytes,
          r.state_bytes_per_us,
          tiles_of(who, "tiles", r.tiles, r.num_tiles),
          tiles_of(who, "plain_tiles", r.plain_tiles, r.num_plain_tiles),
          r.teams,
          r.item_us,
          r.list_us,
          r.chain_rows,
          r.chain_entry_us,
          r.chain_tokens,
          r.unsplit_chain_tokens};
}

PrefixOptions prefix_options_of(const char* who, const pagoda_prefix_options* given) {
  PrefixOptions to;
  if (!given) return to;
  const auto o   = read_struct(who, "prefix", given, offsetof(pagoda_prefix_options, rates));
  to.max_entries = o.max_entries, to.max_states = o.max_states;
  require(o.reserved == 0, who, ": prefix.reserved is ", o.reserved, "; allowed: 0");
  if (o.state_type != 0) {
    const DType* const type = find_type(o.state_type);
    require(type != nullptr, who, ": prefix.state_type is ", o.state_type,
            "; allowed: PAGODA_FP32, PAGODA_FP16 or PAGODA_BF16");
    to.state_type = *type;
  }
  if (o.rates) to.rates = rates_of(who, o.rates);
  return to;
}

void write_rates(const char* who, const DeviceRates& from, pagoda_device_rates* rates) {
  const std::size_t bytes = common_bytes(who, "rates", rates, least_rates);
  pagoda_device_rates to{};
  to.struct_size         = rates->struct_size;
  to.memory_bytes_per_us = from.memory_bytes_per_us, to.cache_bytes_per_us = from.cache_bytes_per_us;
  to.cache_bytes = from.cache_bytes, to.state_bytes_per_us = from.state_bytes_per_us;
  to.item_us = from.item_us, to.list_us = from.list_us, to.teams = from.teams;
  to.chain_rows = from.chain_rows, to.chain_tokens = from.chain_tokens, to.chain_entry_us = from.chain_entry_us;
  to.unsplit_chain_tokens = from.unsplit_chain_tokens;
  to.num_tiles            = copy_tiles(from.tiles, to.tiles);
  to.num_plain_tiles      = copy_tiles(from.plain_tiles, to.plain_tiles);
  std::memcpy(rates, &to, bytes);
}

void write_report(const char* who, const PrefixReport& from, pagoda_prefix_report* report) {
  const std::size_t bytes = common_bytes(who, "report", report, offsetof(pagoda_prefix_report, plain_because));
  pagoda_prefix_report to{};
  to.struct_size = report->struct_size;
  to.new_plan = from.new_plan ? 1 : 0, to.entries = from.entries, to.states = from.states;
  to.planning_us = from.planning_us, to.plain_us = from.plain_us, to.packed_us = from.packed_us;
  to.plain_because = from.plain_because;
  std::memcpy(report, &to, bytes);
}

}  // namespace pagoda::c
