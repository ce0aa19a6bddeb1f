// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/prefix/prefix_batch.hpp"

#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// The problems of pagoda_bench_prefix. Independent of the device.
namespace pagoda::bench {

/// How a batch is decoded.
enum class Way {
  plain,     ///< decode
  packed,    ///< PrefixDecoder
  packed32,  ///< PrefixDecoder, partial states in fp32
  per_head,  ///< decode_entries: each sequence of the tables is one kv head of a query token
  tree,      ///< decode_entries: the newest tokens of each sequence are a tree of drafts
  chain      ///< decode of the same tokens as one causal chain
};
const char* name_of(Way way);

struct PrefixCase {
  std::string name;  ///< "tree4"
  int num_q_heads = 32, num_kv_heads = 8, head_dim = 128;
  int page_size = 32;
  int drafts    = 0;  ///< newest tokens of each sequence that are query tokens; 0: the newest one is
  std::function<test::PrefixBatch()> batch{};
  std::vector<Way> ways = {Way::plain, Way::packed};
  bool warm             = false;  ///< also with one cache, which is read again and again

  /// prefix/packed/fp16/32x8x128/tree4/page32, and .../warm
  std::string full_name(DType type, Way way, bool is_warm) const;
};

/// Bytes of a batch, and products.
struct PrefixWork {
  std::int64_t pages         = 0;              ///< ids in use are smaller
  std::int64_t unique_tokens = 0, tokens = 0;  ///< each token once, and as often as sequences hold it
};
PrefixWork work_of(const test::PrefixBatch& batch);

/// Trees of PAT with its four pairs of heads, a cascade, chosen pages, trees of drafts.
std::vector<PrefixCase> device_prefix_cases();
/// A few of them, scaled down for CPUs.
std::vector<PrefixCase> host_prefix_cases();
/// Very small problems of all kinds, for tests.
std::vector<PrefixCase> small_prefix_cases();
/// Live batches of a request trace: `sequences` at a time, at several steps. scale: divides lengths.
std::vector<PrefixCase> trace_cases(const std::string& file, int sequences, int scale);

}  // namespace pagoda::bench
