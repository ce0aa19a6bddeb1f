// SPDX-License-Identifier: Apache-2.0
#include "bench/decode/cases.hpp"

#include "bench/decode/conversation.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <set>
#include <utility>

namespace pagoda::bench {

namespace {

struct Heads {
  int q, kv;
};
constexpr Heads grouped{32, 8}, all{32, 32}, wide{64, 8}, few{16, 2};

constexpr std::size_t large   = 500'000'000;      // cases of this many bytes also run contiguous
constexpr std::size_t largest = 150'000'000'000;  // more than the memory of an H200

Case uniform(DType type, Heads heads, int batch, int length, int page_size, Bar bar = Bar::none) {
  Case c;
  c.type = type, c.num_q_heads = heads.q, c.num_kv_heads = heads.kv;
  c.lengths.assign(static_cast<std::size_t>(batch), length);
  c.length_name = pagoda::detail::concat("S", length);
  c.page_size   = page_size;
  c.bar         = bar;
  return c;
}

Bar bar_for(DType type, int batch) {
  return is_quantized(type) ? Bar::quantized : batch >= 16 ? Bar::batch : Bar::rows;
}

void add_row(std::vector<Case>& cases, DType type, Heads heads, int batch, int length) {
  cases.push_back(uniform(type, heads, batch, length, 16, bar_for(type, batch)));
  if (cases.back().bytes() >= large) cases.push_back(uniform(type, heads, batch, length, 0, bar_for(type, batch)));
}

/// These lengths, and the same number of tokens divided evenly. The difference is the cost of the skew.
void add_skewed(std::vector<Case>& cases, Heads heads, const std::vector<int>& lengths, const std::string& name) {
  Case c        = uniform(DType::fp16, heads, 1, 1, 16);
  c.lengths     = lengths;
  c.length_name = name;
  cases.push_back(c);
  const auto n = static_cast<std::int64_t>(lengths.size()), tokens = c.tokens();
  for (std::int64_t b = 0; b < n; ++b)
    c.lengths[static_cast<std::size_t>(b)] = static_cast<int>(tokens * (b + 1) / n - tokens * b / n);
  c.length_name = name + "-even";
  cases.push_back(c);
}

/// Lengths from 64 to 4096 tokens, log-uniform: short and long chats in one batch.
std::vector<int> mixed_lengths(int batch) {
  constexpr double golden = 0.6180339887498949;  // its multiples are spread evenly
  std::vector<int> lengths(static_cast<std::size_t>(batch));
  for (int b = 0; b < batch; ++b)
    lengths[static_cast<std::size_t>(b)] = static_cast<int>(std::exp2(6 + 6 * std::fmod(b * golden, 1.0)));
  return lengths;
}

/// KV rows of these head_dims; the last one also off an aligned address.
void add_row_lengths(std::vector<Case>& cases, DType type, std::initializer_list<int> head_dims) {
  Case c = uniform(type, grouped, 8, 2000, 16);
  for (const int head_dim : head_dims) {
    c.head_dim = c.head_dim_v = head_dim;
    cases.push_back(c);
  }
  c.offset = 1;
  cases.push_back(c);
}

/// Without and with examination of the tables: its cost.
void add_checked(std::vector<Case>& cases) {
  for (const auto& [batch, length] : {std::pair(1, 512), {1, 65536}, {32, 1024}})
    for (const bool checked : {false, true}) {
      Case c    = uniform(DType::fp16, grouped, batch, length, 16);
      c.checked = checked;
      cases.push_back(c);
    }
}

/// With splits that suit the machine and with fixed ones: their cost.
void add_exact(std::vector<Case>& cases, DType type, Heads heads) {
  const auto add_both = [&](Case c) {
    c.bar = Bar::none;
    for (const Exactness exactness : {Exactness::fast, Exactness::batch_invariant}) {
      c.exactness = exactness;
      cases.push_back(c);
    }
  };
  for (const auto& [batch, length] :
       {std::pair(1, 4096), {1, 131072}, {8, 16384}, {8, 32768}, {32, 4096}, {32, 8192}, {64, 4096}, {128, 2048}})
    add_both(uniform(type, heads, batch, length, 16));
  Case c        = uniform(type, heads, 256, 1, 16);
  c.lengths     = {std::begin(conversation_lengths), std::begin(conversation_lengths) + 256};
  c.length_name = "conversation";
  if (c.bytes() <= largest) add_both(c);
}

/// With each score option and with all of them: their cost beside the row without options.
void add_options(std::vector<Case>& cases, DType type, Heads heads, int query_tokens = 1) {
  constexpr CaseOptions each[] = {
      {},
      {.window_left = 4095, .num_initial_tokens = 4},
      {.logit_soft_cap = 30},
      {.alibi = true},
      {.sinks = true},
      {.window_left = 4095, .num_initial_tokens = 4, .logit_soft_cap = 30, .alibi = true, .sinks = true}};
  for (const auto& [batch, length] : {std::pair(1, 131072), {32, 1024}, {32, 8192}, {64, 16384}})
    for (const CaseOptions& options : each) {
      Case c         = uniform(type, heads, batch, length, 16);
      c.num_q_tokens = query_tokens;
      c.options      = options;
      cases.push_back(c);
    }
}

/// Removes cases that occur earlier in the list.
std::vector<Case> unique(std::vector<Case> cases) {
  std::set<std::string> seen;
  std::erase_if(cases, [&](const Case& c) { return !seen.insert(c.name({})).second; });
  return cases;
}

}  // namespace

std::optional<double> bar_us(const Case& c, std::string_view backend, double floor_us) {
  const bool tuned = backend == "tuned";
  switch (c.bar) {
    case Bar::batch:
      return tuned ? 1.01 * floor_us + 3 : 1.05 * floor_us + 4;
    case Bar::rows:
      return tuned ? 1.01 * floor_us + 4.5 : 1.05 * floor_us + 6;
    case Bar::small:
      return floor_us + (tuned ? 3 : 4);
    case Bar::quantized:
      return tuned ? 1.06 * floor_us + 3 : 1.12 * floor_us + 5;
    case Bar::scattered:
      return 1.10 * floor_us;
    case Bar::latent16:
      return (tuned ? 1.1 : 1.3) * floor_us;
    case Bar::latent32:
      if (tuned) break;
      return 1.6 * floor_us;
    case Bar::latent128:
      if (!tuned) break;
      return 2 * c.fmas() / 580e6;
    case Bar::streamed:
      return tuned ? 1.01 * floor_us + 3 : 1.05 * floor_us;
    case Bar::none:
      break;
  }
  return std::nullopt;
}

std::vector<Case> device_cases() {
  std::vector<Case> cases;
  const auto suite_s = [&](DType type, std::initializer_list<Heads> all_heads = {grouped, all, wide}) {
    constexpr std::pair<int, int> shapes[] = {{1, 4096},  {1, 16384}, {1, 65536},  {1, 131072}, {8, 4096},
                                              {8, 16384}, {8, 32768}, {32, 1024},  {32, 4096},  {32, 8192},
                                              {64, 1024}, {64, 4096}, {128, 1024}, {128, 2048}};
    for (const Heads heads : all_heads)
      for (const auto& [batch, length] : shapes) add_row(cases, type, heads, batch, length);
  };

  for (int batch = 256; batch >= 1; batch /= 2) add_row(cases, DType::fp16, few, batch, 65536 / batch);
  add_row(cases, DType::fp16, few, 1, 131072);
  suite_s(DType::fp16);
  for (const int page : {1, 4, 8, 16, 32, 64, 128, 256, 0})
    cases.push_back(uniform(DType::fp16, grouped, 32, 8192, page, page == 1 ? Bar::scattered : Bar::batch));
  for (const int page : {1, 8})
    for (const auto& [batch, length] : {std::pair(1, 512), {1, 4096}, {32, 1024}})
      cases.push_back(uniform(DType::fp16, grouped, batch, length, page));
  for (const Heads heads : {grouped, few})
    for (int batch = 1; batch <= 4; ++batch)
      for (const int length : {512, 1024}) cases.push_back(uniform(DType::fp16, heads, batch, length, 16, Bar::small));

  std::vector<int> one_long(64, 512);
  one_long[0] = 131072;
  add_skewed(cases, grouped, one_long, "one-long");
  for (const int batch : {64, 256}) {
    for (const Heads heads : {grouped, wide, Heads{64, 4}}) add_skewed(cases, heads, mixed_lengths(batch), "mixed");
    const std::vector<int> conversation{std::begin(conversation_lengths), std::begin(conversation_lengths) + batch};
    add_skewed(cases, grouped, conversation, "conversation");
  }

  suite_s(DType::bf16);
  for (const auto& [heads, bar] :
       {std::pair(16, Bar::latent16), {32, Bar::latent32}, {64, Bar::none}, {128, Bar::latent128}})
    for (const auto& [batch, length] : {std::pair(64, 4096), {128, 4096}, {16, 8192}, {1, 65536}})
      for (const DType type : {DType::bf16, DType::fp8_ds_mla}) {
        const bool has_bar = type == DType::bf16 && batch == 64;
        Case c             = uniform(type, {heads, 1}, batch, length, 64, has_bar ? bar : Bar::none);
        c.head_dim = 576, c.head_dim_v = 512;
        cases.push_back(c);
      }
  // Tokens in pages of their own, as where a decode reads chosen tokens alone.
  for (const int heads : {16, 32, 64, 128})
    for (const auto& [batch, length] : {std::pair(64, 4096), {16, 8192}, {128, 2048}, {1, 65536}})
      for (const DType type : {DType::bf16, DType::fp8_ds_mla}) {
        Case c     = uniform(type, {heads, 1}, batch, length, 1);
        c.head_dim = 576, c.head_dim_v = 512;
        cases.push_back(c);
      }
  // Query rows for each kv head (group times tokens): 16 to 512.
  for (const auto& [heads, query_tokens] : {std::pair(Heads{64, 4}, 1),
                                            {grouped, 4},
                                            {grouped, 8},
                                            {grouped, 16},
                                            {grouped, 32},
                                            {grouped, 64},
                                            {grouped, 128},
                                            {wide, 4}})
    for (const auto& [batch, length] : {std::pair(1, 131072), {32, 1024}, {32, 8192}}) {
      Case c         = uniform(DType::fp16, heads, batch, length, 16);
      c.num_q_tokens = query_tokens;
      cases.push_back(c);
    }
  // The same in small pages.
  for (const auto& [heads, query_tokens] : {std::pair(Heads{64, 4}, 1), {grouped, 4}})
    for (const int page : {1, 4})
      for (const int length : {1024, 8192}) {
        Case c         = uniform(DType::fp16, heads, 32, length, page);
        c.num_q_tokens = query_tokens;
        cases.push_back(c);
      }
  // Chunks of prompts among sequences that decode: different numbers of query tokens.
  for (const auto& [query_tokens, num_long] : {std::pair(4, 32), {16, 4}, {32, 4}, {32, 1}, {128, 4}})
    for (const int length : {1024, 4096}) {
      Case c         = uniform(DType::fp16, grouped, 64, length, 16);
      c.num_q_tokens = query_tokens, c.num_long = num_long;
      cases.push_back(c);
    }
  suite_s(DType::fp8_e4m3);
  for (const DType type : {DType::int8, DType::int4}) suite_s(type, {grouped});
  for (const DType type : {DType::mxfp4, DType::nvfp4}) suite_s(type, {grouped});
  // Cost of the order in memory where KV rows are short.
  for (const DType type : {DType::fp16, DType::fp8_e4m3, DType::int8, DType::int4, DType::mxfp4, DType::nvfp4})
    for (const auto& [batch, length] : {std::pair(1, 131072), {32, 1024}, {32, 8192}}) {
      Case c    = uniform(type, grouped, batch, length, 16);
      c.by_head = true;
      cases.push_back(c);
    }
  for (const auto& [batch, length] : {std::pair(1, 65536), {32, 4096}, {64, 1024}})
    cases.push_back(uniform(DType::fp32, grouped, batch, length, 16));
  cases.push_back(uniform(DType::fp32, few, 32, 4096, 16));
  cases.push_back(uniform(DType::fp32, all, 32, 1024, 16));
  for (int length = 4096; length <= 2097152; length *= 2)
    cases.push_back(uniform(DType::fp32, {1, 1}, 1, length, 0, length == 2097152 ? Bar::streamed : Bar::none));
  add_row_lengths(cases, DType::fp16, {33, 40, 48, 72, 80, 96, 100, 112, 120, 128});
  for (const DType type : {DType::fp32, DType::fp8_e4m3, DType::int8}) add_row_lengths(cases, type, {100, 112, 128});
  add_checked(cases);
  for (const DType type : {DType::fp16, DType::bf16, DType::fp8_e4m3, DType::fp32, DType::fp64})
    for (const Heads heads : {grouped, all, wide}) add_exact(cases, type, heads);
  for (const DType type : {DType::fp16, DType::fp8_e4m3, DType::fp32}) add_options(cases, type, grouped);
  add_options(cases, DType::fp16, {64, 4});  // many query rows to a kv head
  for (const int query_tokens : {4, 16}) add_options(cases, DType::fp16, grouped, query_tokens);
  return unique(std::move(cases));
}

std::vector<Case> host_cases() {
  std::vector<Case> cases;
  for (const DType type : {DType::fp32, DType::fp16, DType::bf16, DType::int8})
    for (const Heads heads : {grouped, all, wide, few})
      for (const auto& [batch, length] : {std::pair(1, 4096), {1, 65536}, {32, 1024}, {32, 4096}})
        for (const int page : {0, 16}) cases.push_back(uniform(type, heads, batch, length, page));
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int4, DType::mxfp4, DType::nvfp4})
    for (const Heads heads : {grouped, all, few}) cases.push_back(uniform(type, heads, 32, 1024, 16));
  for (const int length : {4096, 65536, 1048576}) cases.push_back(uniform(DType::fp32, {1, 1}, 1, length, 0));
  for (const DType type : {DType::fp32, DType::fp16}) add_row_lengths(cases, type, {72, 80, 100, 112, 120, 128});
  add_checked(cases);
  for (const auto& [batch, length] : {std::pair(1, 65536), {32, 1024}, {32, 4096}})
    for (const Exactness exactness : {Exactness::fast, Exactness::batch_invariant}) {
      Case c      = uniform(DType::fp16, grouped, batch, length, 16);
      c.exactness = exactness;
      cases.push_back(c);
    }
  return unique(std::move(cases));
}

std::vector<Case> of_types(std::vector<Case> cases, const std::vector<DType>& types) {
  std::erase_if(cases, [&](const Case& c) { return std::find(types.begin(), types.end(), c.type) == types.end(); });
  return cases;
}

}  // namespace pagoda::bench
