// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda_prefix.h>

#include "src/python/runtime.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

/// Rates and reports of shared prefixes as dicts, which decoders and pools have.
namespace pagoda::python {

/// Calls f with the name and the place of each rate that is a number.
template <class F>
void for_each_rate(pagoda_device_rates& r, F&& f) {
  f("memory_bytes_per_us", r.memory_bytes_per_us), f("cache_bytes_per_us", r.cache_bytes_per_us);
  f("cache_bytes", r.cache_bytes), f("state_bytes_per_us", r.state_bytes_per_us);
  f("item_us", r.item_us), f("list_us", r.list_us), f("teams", r.teams);
  f("chain_rows", r.chain_rows), f("chain_tokens", r.chain_tokens), f("chain_entry_us", r.chain_entry_us);
  f("unsplit_chain_tokens", r.unsplit_chain_tokens);
}

/// Sets those rates that a dict names.
inline void change_rates(const char* who, pagoda_device_rates& r, const nb::dict& to) {
  const auto tiles = [&](const char* name, nb::handle value, pagoda_row_tile* into, std::int32_t& count) {
    std::vector<std::vector<double>> given;
    const bool list = nb::try_cast(value, given) && std::all_of(given.begin(), given.end(), [](const auto& tile) {
                        return tile.size() == 2 || tile.size() == 3;
                      });
    if (!list)
      refuse(who, ": ", name, " is ", nb::repr(value).c_str(),
             "; allowed: a list of (rows, flops_per_us) or (rows, flops_per_us, item_us)");
    if (given.size() > PAGODA_MAX_ROW_TILES)
      refuse(who, ": ", name, " has ", given.size(), " entries; allowed: up to ", PAGODA_MAX_ROW_TILES);
    count = 0;
    for (const auto& tile : given)
      into[count++] = {static_cast<std::int32_t>(tile[0]), 0, tile[1], tile.size() == 3 ? tile[2] : 0};
  };
  for (const auto& [key, value] : to) {
    const std::string name = nb::cast<std::string>(key);
    bool known             = name == "tiles" || name == "plain_tiles";
    if (name == "tiles") tiles("tiles", value, r.tiles, r.num_tiles);
    if (name == "plain_tiles") tiles("plain_tiles", value, r.plain_tiles, r.num_plain_tiles);
    for_each_rate(r, [&](const char* one, auto& place) {
      if (name != one) return;
      known = true;
      if (!nb::try_cast<std::remove_reference_t<decltype(place)>>(value, place))
        refuse(who, ": ", one, " is ", nb::repr(value).c_str(), "; allowed: a number");
    });
    if (!known) refuse(who, ": there is no rate ", name);
  }
}

/// The rates as a dict.
inline nb::dict rates_as_dict(pagoda_device_rates r) {
  nb::dict all;
  for_each_rate(r, [&](const char* name, auto& value) { all[name] = value; });
  const auto tiles = [](const pagoda_row_tile* from, std::int32_t count) {
    nb::list to;
    for (int i = 0; i < count; ++i) to.append(nb::make_tuple(from[i].rows, from[i].flops_per_us, from[i].item_us));
    return to;
  };
  all["tiles"]       = tiles(r.tiles, r.num_tiles);
  all["plain_tiles"] = tiles(r.plain_tiles, r.num_plain_tiles);
  return all;
}

/// The report as a dict. because: a copy of plain_because.
inline nb::dict report_as_dict(const pagoda_prefix_report& r, const std::string& because) {
  nb::dict all;
  all["new_plan"]      = r.new_plan != 0;
  all["plain_because"] = r.plain_because ? nb::object(nb::str(because.c_str())) : nb::none();
  all["entries"] = r.entries, all["states"] = r.states, all["planning_us"] = r.planning_us;
  all["plain_us"] = r.plain_us, all["packed_us"] = r.packed_us;
  return all;
}

}  // namespace pagoda::python
