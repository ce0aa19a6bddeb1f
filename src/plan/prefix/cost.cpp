// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/cost.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <limits>

namespace pagoda::detail {

namespace {

void require_positive(const char* name, double value) {
  require(value > 0, "pagoda::CostModel: ", name, " is ", value, "; allowed: more than 0");
}

void check_tiles(const char* name, const std::vector<RowTile>& tiles) {
  int rows = 0;
  for (const RowTile& tile : tiles) {
    require(tile.rows > rows, "pagoda::CostModel: a tile of ", name, " has ", tile.rows, " rows; allowed: more than ",
            rows, ", those of the tile before it");
    require_positive("flops_per_us of a tile", tile.flops_per_us);
    require(tile.item_us >= 0, "pagoda::CostModel: item_us of a tile is ", tile.item_us, "; allowed: 0 or more");
    rows = tile.rows;
  }
}

void check(const DecodeHeads& h, const DeviceRates& d) {
  require_positive("num_q_heads", h.num_q_heads);
  require_positive("num_kv_heads", h.num_kv_heads);
  require(h.num_q_heads % h.num_kv_heads == 0, "pagoda::CostModel: num_q_heads is ", h.num_q_heads,
          "; allowed: a multiple of num_kv_heads = ", h.num_kv_heads);
  require_positive("head_dim", h.head_dim);
  require_positive("head_dim_v", h.head_dim_v);
  require_positive("bytes_per_token", h.bytes_per_token);
  require_positive("state_bytes", h.state_bytes);
  require_positive("memory_bytes_per_us", d.memory_bytes_per_us);
  require(d.cache_bytes_per_us >= d.memory_bytes_per_us, "pagoda::CostModel: cache_bytes_per_us is ",
          d.cache_bytes_per_us, "; allowed: at least memory_bytes_per_us = ", d.memory_bytes_per_us);
  require_positive("state_bytes_per_us", d.state_bytes_per_us);
  require_positive("teams", d.teams);
  require(d.cache_bytes >= 0, "pagoda::CostModel: cache_bytes is ", d.cache_bytes, "; allowed: 0 or more");
  require(d.item_us >= 0, "pagoda::CostModel: item_us is ", d.item_us, "; allowed: 0 or more");
  require(d.list_us >= 0, "pagoda::CostModel: list_us is ", d.list_us, "; allowed: 0 or more");
  require(d.chain_rows >= 0, "pagoda::CostModel: chain_rows is ", d.chain_rows, "; allowed: 0 or more");
  require(d.chain_tokens >= 0, "pagoda::CostModel: chain_tokens is ", d.chain_tokens, "; allowed: 0 or more");
  require(d.unsplit_chain_tokens >= 0, "pagoda::CostModel: unsplit_chain_tokens is ", d.unsplit_chain_tokens,
          "; allowed: 0 or more");
  require(d.chain_entry_us >= 0, "pagoda::CostModel: chain_entry_us is ", d.chain_entry_us, "; allowed: 0 or more");
  require(!d.tiles.empty(), "pagoda::CostModel: tiles is empty; allowed: at least one tile");
  check_tiles("tiles", d.tiles);
  check_tiles("plain_tiles", d.plain_tiles);
}

}  // namespace

std::vector<CostModel::Price> CostModel::prices_of(const DecodeHeads& heads, const DeviceRates& device,
                                                   const std::vector<RowTile>& tiles) {
  const int group = heads.num_q_heads / heads.num_kv_heads, largest = tiles.back().rows;
  const double read = heads.num_kv_heads * heads.bytes_per_token / device.cache_bytes_per_us;
  // Price of the cheapest tile of this many rows. A token costs the slower of reading and multiplying.
  const auto tile_price = [&](int rows) {
    Price cheapest{std::numeric_limits<double>::infinity(), 0};
    for (const RowTile& tile : tiles) {
      if (tile.rows < rows) continue;
      const double flops = 2.0 * tile.rows * (heads.head_dim + heads.head_dim_v) * heads.num_kv_heads;
      const double pass  = std::max(read, flops / tile.flops_per_us);
      const double item  = tile.item_us > 0 ? tile.item_us : device.item_us;
      if (pass < cheapest.pass) cheapest = {pass, heads.num_kv_heads * item / device.teams};
    }
    return cheapest;
  };
  std::vector<Price> prices;
  for (int q = 0; q <= std::max(largest / group, 1); ++q) {
    const int rows = q * group, full = rows / largest, rest = rows % largest;
    const Price most = tile_price(largest), last = rest > 0 ? tile_price(rest) : Price{0, 0};
    prices.push_back({full * most.pass + last.pass, full * most.item + last.item});
  }
  return prices;
}

CostModel::CostModel(const DecodeHeads& heads, const DeviceRates& device) {
  check(heads, device);
  prices_       = prices_of(heads, device, device.tiles);
  plain_prices_ = device.plain_tiles.empty() ? prices_ : prices_of(heads, device, device.plain_tiles);
  full_         = static_cast<int>(prices_.size()) - 1;
  plain_full_   = static_cast<int>(plain_prices_.size()) - 1;
  for (int q = 2; q <= full_; ++q)
    if (prices_[q].pass > prices_[q - 1].pass || prices_[q].item > prices_[q - 1].item) steps_.push_back(q - 1);
  steps_.push_back(full_);
  const int group    = heads.num_q_heads / heads.num_kv_heads;
  const int of_chain = std::min(device.chain_rows / group, full_);
  chain_tokens_      = std::int64_t(device.chain_tokens) * group;
  chain_full_        = of_chain >= 2 ? of_chain : 0;
  const std::int64_t chains =
      (std::int64_t(9) * device.teams + 10 * heads.num_kv_heads - 1) / (10 * heads.num_kv_heads);
  unsplit_chain_tokens_ = device.unsplit_chain_tokens, unsplit_queries_ = chains * chain_full_;
  chain_entry_ = heads.num_kv_heads * device.chain_entry_us / device.teams;
  read_        = heads.num_kv_heads * heads.bytes_per_token / device.cache_bytes_per_us;
  state_       = heads.num_q_heads * (double(heads.head_dim_v) * heads.state_bytes + sizeof(float)) * 2 /
           device.state_bytes_per_us;
  from_memory_   = device.cache_bytes_per_us / device.memory_bytes_per_us;
  first_read_    = read_ * (from_memory_ - 1);
  list_          = device.list_us;
  cached_tokens_ = device.cache_bytes / (heads.num_kv_heads * heads.bytes_per_token);
}

}  // namespace pagoda::detail
