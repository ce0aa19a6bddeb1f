// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/device_rates.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

/// Cost model of a list of entries. A decode is limited by reading keys and values, so the model counts
///  - each token once at the bandwidth of memory, and each further read of it at that of the second-level cache;
///  - products of whole tiles: a tile that is half full costs as much as a full one. A read that is faster than the
///    products of its tile is hidden by them;
///  - a fixed cost of each work item, and a smaller one of each further entry of a chain, which the teams share;
///  - partial states: written once and read once.
namespace pagoda::detail {

/// The heads of a decode.
struct DecodeHeads {
  int num_q_heads = 0, num_kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  double bytes_per_token = 0;  ///< key and value of one KV head, with scales
  int state_bytes        = 4;  ///< of a number of a partial state
};

/// Prices of entries, in microseconds of the whole machine. An entry of l tokens and q query tokens costs l * pass(q) +
/// item(q), and state() for each partial state of a query token.
class CostModel {
 public:
  /// Throws InvalidArgument if a count or a rate is not positive, or if tiles do not ascend.
  CostModel(const DecodeHeads& heads, const DeviceRates& device);

  /// Query tokens that fill the largest tile. More query tokens are divided into several entries.
  int queries_per_entry() const { return full_; }
  double pass(int queries) const { return price(prices_, full_, queries).pass; }
  double item(int queries) const { return price(prices_, full_, queries).item; }
  /// The same for a sequence of a plain decode.
  double plain_pass(int queries) const { return price(plain_prices_, plain_full_, queries).pass; }
  double plain_item(int queries) const { return price(plain_prices_, plain_full_, queries).item; }
  /// Cost of an entry that reads `tokens` weighted tokens and writes partial states.
  double entry(double tokens, int queries) const {
    const Price p = price(prices_, full_, queries);
    return tokens * p.pass + p.item + queries * state_;
  }
  double state() const { return state_; }
  /// Most query tokens of a chain: those that fit DeviceRates::chain_rows and the largest tile. 0: there are no chains,
  /// because the kernels carry out none or because only one query token fits.
  int queries_per_chain() const { return chain_full_; }
  /// Prices of a chain, whose tile does not depend on its query tokens: of a token, of the work item, and of each entry
  /// behind the first one.
  double chain_pass() const { return pass(chain_full_); }
  double chain_item() const { return item(chain_full_); }
  double chain_entry() const { return chain_entry_; }
  /// Whether memory limits chains: reading a token from it takes longer than the tile of a chain multiplies.
  bool memory_limits_chains() const { return read_ + first_read_ > chain_pass(); }
  /// Most tokens of its own that a sequence in a chain has, on average, in a batch of `queries` query tokens.
  std::int64_t chain_tokens(std::int64_t queries) const {
    return queries >= unsplit_queries_ ? std::max(chain_tokens_, unsplit_chain_tokens_) : chain_tokens_;
  }
  /// Whether entries of these numbers of query tokens, and of all between, have the same pass() and item().
  bool same_tile(int fewer, int more) const {
    return more <= full_ && prices_[fewer].pass == prices_[more].pass && prices_[fewer].item == prices_[more].item;
  }
  /// Extra cost of the first read of a token, from memory, over a read from the second-level cache.
  double first_read() const { return first_read_; }
  double list() const { return list_; }
  /// Tokens of a node, weighted for each read: more than the actual number if the second-level cache does not keep all.
  double weighted(std::int64_t tokens) const {
    const double kept = kept_in_cache(tokens);
    return kept + (static_cast<double>(tokens) - kept) * from_memory_;
  }
  /// Tokens of a node that the second-level cache keeps. Their first read costs first_read() more; the other tokens
  /// cost the same at each read.
  double kept_in_cache(std::int64_t tokens) const { return std::min(static_cast<double>(tokens), cached_tokens_); }
  /// Query counts up to queries_per_entry() at which the next tile begins. These are the best places to divide a list.
  const std::vector<int>& steps() const { return steps_; }

 private:
  struct Price {
    double pass, item;
  };
  /// prices: [0 .. full]. More query tokens take several entries.
  static Price price(const std::vector<Price>& prices, int most, int queries) {
    if (queries <= most) return prices[queries];
    const Price &full = prices[most], &rest = prices[queries % most];
    const int times = queries / most;
    return {times * full.pass + rest.pass, times * full.item + rest.item};
  }
  static std::vector<Price> prices_of(const DecodeHeads& heads, const DeviceRates& device,
                                      const std::vector<RowTile>& tiles);
  int full_ = 1, plain_full_ = 1;  ///< query tokens that fill the largest tile
  int chain_full_            = 0;
  std::int64_t chain_tokens_ = 0, unsplit_chain_tokens_ = 0;
  std::int64_t unsplit_queries_ = 0;  ///< query tokens of a batch that has full chains for most teams
  std::vector<Price> prices_, plain_prices_;
  std::vector<int> steps_;
  double read_  = 0;  ///< of a token, from the second-level cache
  double state_ = 0, first_read_ = 0, list_ = 0, cached_tokens_ = 0, from_memory_ = 1, chain_entry_ = 0;
};

}  // namespace pagoda::detail
