// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned_problem.hpp"
#include "src/plan/backend_choice.hpp"
#include "tests/tuned/cards.hpp"

#include <pagoda/pagoda.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

/// pagoda_features                 prints which backend supports which feature, as a Markdown table
/// pagoda_features --check PAGE    fails if the table in PAGE (backends/README.md) is another one
/// pagoda_features --write PAGE    writes it
///
/// Nothing is decoded and no GPU is used: plans are made on the host, and the hand-tuned kernels are asked about cards.
/// A cell is "?" if this build does not know it (no CUDA, or no kernels for the type); --check then accepts any text.
namespace {

using namespace pagoda;
using Host    = Kokkos::DefaultHostExecutionSpace;
using Options = DecodeOptions<Host::memory_space>;

/// The base problem; a row of the table changes some of it.
struct Ask {
  DType type      = DType::fp16;
  int num_q_heads = 32, num_kv_heads = 8, head_dim = 128, head_dim_v = 128;
  int page_size = 16;  ///< 0: contiguous
  KVOrder order = KVOrder::NHD;
  bool dense    = true;   ///< the dims of a row are adjacent
  bool latent   = false;  ///< values are the first dims of the keys
  char scale    = 0;      ///< 't'ensor, 'h'ead, 'r'ow
  bool csr      = false;
  bool masks    = false;  ///< of a list: its query tokens have masks
  Options options{};
};

struct Row {
  const char* name;
  std::function<void(Ask&)> change;
};

alignas(256) std::byte memory[1024];  // an address; it is never read
template <class T>
T* somewhere() {
  return reinterpret_cast<T*>(memory);
}
template <class T>
Kokkos::View<const T*, Host::memory_space> some(int entries) {
  return Kokkos::View<const T*, Host::memory_space>(somewhere<const T>(), static_cast<std::size_t>(entries));
}

constexpr int batch = 4, pages_each = 64;

TensorRef rows_of(const Ask& a, int dims) {
  const int row_bytes         = row_format_of(a.type).bytes;
  const std::int64_t elements = row_bytes > 0 ? row_bytes : dims / dims_per_element(a.type), heads = a.num_kv_heads;
  const std::int64_t all    = a.latent && row_bytes == 0 ? a.head_dim / dims_per_element(a.type) : elements;
  const std::int64_t row    = all * (a.dense ? 1 : 2);
  const std::int64_t tokens = a.page_size > 0 ? a.page_size : 1024;
  const bool nhd            = a.order == KVOrder::NHD;
  return {somewhere<void>(),
          a.type,
          4,
          {a.page_size > 0 ? batch * pages_each : batch, tokens, heads, elements},
          {tokens * heads * row, nhd ? heads * row : row, nhd ? row : tokens * row, a.dense ? 1 : 2}};
}

CacheRef cache_of(const Ask& a) {
  CacheRef kv;
  kv.k = rows_of(a, a.head_dim), kv.v = rows_of(a, a.head_dim_v);
  if (a.scale) {
    const std::int64_t heads = a.num_kv_heads, tokens = kv.k.extent[1];
    const ScaleRef by_row{somewhere<const float>(), {tokens * heads, heads, 1}};
    const ScaleRef by_head{somewhere<const float>(), {0, 0, 1}}, of_all{somewhere<const float>(), {0, 0, 0}};
    kv.k_scale = kv.v_scale = a.scale == 'r' ? by_row : a.scale == 'h' ? by_head : of_all;
  }
  kv.seq_lens = somewhere<const int>(), kv.num_sequences = kv.batch = batch;
  kv.max_seq_len = 1024;
  if (a.page_size > 0) {
    kv.paged = true, kv.block_table = somewhere<const int>();
    kv.table_row_stride = pages_each, kv.table_pages = a.csr ? batch * pages_each : pages_each;
    if (a.csr) kv.page_indptr = somewhere<const int>();
  }
  return kv;
}

void make_latent(Ask& a) {
  a.num_q_heads = 16, a.num_kv_heads = 1, a.head_dim = 576, a.head_dim_v = 512;
  a.latent = true, a.page_size = 64;
}
void make_list(Ask& a) { a.options.entries = {.max_entries = 64, .max_queries = 8}; }

const std::vector<Row> rows{
    {"fp16, bf16", [](Ask&) {}},
    {"fp64", [](Ask& a) { a.type = DType::fp64; }},
    {"fp32", [](Ask& a) { a.type = DType::fp32; }},
    {"fp8_e4m3, fp8_e5m2", [](Ask& a) { a.type = DType::fp8_e4m3; }},
    {"int8", [](Ask& a) { a.type = DType::int8, a.scale = 'r'; }},
    {"int4", [](Ask& a) { a.type = DType::int4, a.scale = 'r'; }},
    {"fp8 with scales per head", [](Ask& a) { a.type = DType::fp8_e4m3, a.scale = 'h'; }},
    {"fp8 with scales per token and head", [](Ask& a) { a.type = DType::fp8_e4m3, a.scale = 'r'; }},
    {"contiguous cache", [](Ask& a) { a.page_size = 0; }},
    {"CSR page lists", [](Ask& a) { a.csr = true; }},
    {"pages of 1 token", [](Ask& a) { a.page_size = 1; }},
    {"pages of 24 tokens", [](Ask& a) { a.page_size = 24; }},
    {"pages of 1 token, batch_invariant",
     [](Ask& a) { a.page_size = 1, a.options.exactness = Exactness::batch_invariant; }},
    {"pages of 1 token, 16 query heads to a KV head", [](Ask& a) { a.page_size = 1, a.num_kv_heads = 2; }},
    {"HND order", [](Ask& a) { a.order = KVOrder::HND; }},
    {"dims that are not adjacent", [](Ask& a) { a.dense = false; }},
    {"head_dim 64", [](Ask& a) { a.head_dim = a.head_dim_v = 64; }},
    {"head_dim 96", [](Ask& a) { a.head_dim = a.head_dim_v = 96; }},
    {"head_dim 256", [](Ask& a) { a.head_dim = a.head_dim_v = 256; }},
    {"values of 64 dims", [](Ask& a) { a.head_dim_v = 64; }},
    {"latent cache 576/512, 16 heads", make_latent},
    {"latent cache 576/512, 16 heads, pages of 1 token", [](Ask& a) { make_latent(a), a.page_size = 1; }},
    {"latent cache of fp8_ds_mla, 16 heads", [](Ask& a) { make_latent(a), a.type = DType::fp8_ds_mla; }},
    {"16 query heads to a KV head", [](Ask& a) { a.num_kv_heads = 2; }},
    {"16 query heads to a KV head, fp32", [](Ask& a) { a.num_kv_heads = 2, a.type = DType::fp32; }},
    {"4 query tokens", [](Ask& a) { a.options.max_query_len = 4; }},
    {"4 query tokens, causal = false", [](Ask& a) { a.options.max_query_len = 4, a.options.causal = false; }},
    {"64 query tokens", [](Ask& a) { a.options.max_query_len = 64; }},
    {"ragged query tokens (cu_seqlens_q)",
     [](Ask& a) { a.options.max_query_len = 4, a.options.cu_seqlens_q = some<int>(batch + 1); }},
    {"ragged query tokens, 1 at most", [](Ask& a) { a.options.cu_seqlens_q = some<int>(batch + 1); }},
    {"ragged query tokens, 1 at most, sliding window",
     [](Ask& a) { a.options.cu_seqlens_q = some<int>(batch + 1), a.options.window_left = 127; }},
    {"ragged query tokens, 1 at most, batch_invariant",
     [](Ask& a) { a.options.cu_seqlens_q = some<int>(batch + 1), a.options.exactness = Exactness::batch_invariant; }},
    {"sliding window, initial tokens", [](Ask& a) { a.options.window_left = 127, a.options.num_initial_tokens = 4; }},
    {"logit soft cap", [](Ask& a) { a.options.logit_soft_cap = 30; }},
    {"ALiBi slopes", [](Ask& a) { a.options.alibi_slopes = some<float>(a.num_q_heads); }},
    {"sink logits", [](Ask& a) { a.options.sinks = some<float>(a.num_q_heads); }},
    {"logit soft cap, 16 query heads to a KV head", [](Ask& a) { a.num_kv_heads = 2, a.options.logit_soft_cap = 30; }},
    {"sliding window, 4 query tokens", [](Ask& a) { a.options.window_left = 127, a.options.max_query_len = 4; }},
    {"sliding window, ragged query tokens",
     [](Ask& a) {
       a.options.window_left = 127, a.options.max_query_len = 4, a.options.cu_seqlens_q = some<int>(batch + 1);
     }},
    {"logit soft cap, latent cache 576/512, 16 heads", [](Ask& a) { make_latent(a), a.options.logit_soft_cap = 30; }},
    {"logit soft cap, batch_invariant",
     [](Ask& a) { a.options.logit_soft_cap = 30, a.options.exactness = Exactness::batch_invariant; }},
    {"list of entries", make_list},
    {"list of entries, with masks", [](Ask& a) { make_list(a), a.masks = true; }},
    {"list of entries, fp8", [](Ask& a) { make_list(a), a.type = DType::fp8_e4m3; }},
    {"list of entries of one query token, fp8",
     [](Ask& a) { make_list(a), a.type = DType::fp8_e4m3, a.options.entries.max_queries = 1; }},
    {"list of entries, int8 with scales per head", [](Ask& a) { make_list(a), a.type = DType::int8, a.scale = 'h'; }},
    {"list of entries, int8 with scales per token and head",
     [](Ask& a) { make_list(a), a.type = DType::int8, a.scale = 'r'; }},
    {"list of entries, int4", [](Ask& a) { make_list(a), a.type = DType::int4, a.scale = 'r'; }},
    {"list of entries, latent cache 576/512, 16 heads", [](Ask& a) { make_list(a), make_latent(a); }},
    {"list of entries, pages of 1 token", [](Ask& a) { make_list(a), a.page_size = 1; }},
    {"list of entries, contiguous cache", [](Ask& a) { make_list(a), a.page_size = 0; }},
    {"list of entries, sink logits", [](Ask& a) { make_list(a), a.options.sinks = some<float>(a.num_q_heads); }},
    {"list of entries, logit soft cap", [](Ask& a) { make_list(a), a.options.logit_soft_cap = 30; }},
};

struct Cells {
  std::string name, generic, tuned;
  std::string line() const { return "| " + name + " | " + generic + " | " + tuned + " |"; }
};

/// "yes", the cards that say yes, or the reason of the newest card.
std::string tuned_cell([[maybe_unused]] const tuned::Problem& problem) {
#if defined(PAGODA_HAS_TUNED)
  std::string cards, reason;
  bool all = true;
  for (const tuned::Card& card : tuned::cards) {
    tuned::Device device = card.device;
    device.sm90a         = device.sm == 90;
    if (const char* const no = tuned::why_not(problem, device)) {
      all = false, reason = no;
    } else {
      cards += (cards.empty() ? "" : ", ") + std::string(card.name);
    }
  }
  return all ? "yes" : cards.empty() ? "no: " + reason : "on " + cards;
#else
  return "?";
#endif
}

Cells cells_of(const Row& row) {
  Ask ask;
  row.change(ask);
  ask.options.num_q_heads = ask.num_q_heads;
  ask.options.backend     = "generic";
  const CacheRef kv       = cache_of(ask);
  try {
    const auto state       = detail::make_schedule(Host(), kv, ask.options);
    detail::Problem decode = detail::usual_problem(state, kv);
    if (ask.masks) decode.entries.num_mask_words = 2;
    tuned::Problem problem{};
    const char* const reason = detail::tuned_problem(state, decode, problem);
    return {row.name, "yes", reason ? std::string("no: ") + reason : tuned_cell(problem)};
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    const bool unknown     = what.find("allowed in this build") != std::string::npos;
    return {row.name, unknown ? "?" : "no: " + what, unknown ? "?" : "no"};
  }
}

std::string read(const char* file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(std::string(file) + ": cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int run(const std::string& mode, const char* page) {
  std::vector<Cells> found{{"feature", "generic", "tuned"}, {"---", "---", "---"}};
  for (const Row& row : rows) found.push_back(cells_of(row));
  std::string table;
  for (const Cells& cells : found) table += cells.line() + "\n";
  if (mode.empty()) return std::fputs(table.c_str(), stdout) < 0;

  const std::string begin = "<!-- features -->\n", text = read(page);
  const std::size_t from = text.find(begin), to = text.find("<!-- end -->", from);
  if (from == std::string::npos || to == std::string::npos)
    throw std::runtime_error(std::string(page) + " has no table between " + begin + " and <!-- end -->");
  const std::size_t first = from + begin.size();
  if (mode == "--write") {
    if (table.find("| ? |") != std::string::npos)
      throw std::runtime_error("this build does not know all features: use one with CUDA and all types");
    std::ofstream(page) << text.substr(0, first) << table << text.substr(to);
    return 0;
  }
  std::istringstream lines(text.substr(first, to - first));
  int wrong = 0;
  for (const Cells& cells : found) {
    std::string line;
    std::getline(lines, line);
    const auto known    = [](const std::string& cell, const std::string& other) { return cell == "?" ? other : cell; };
    const std::size_t a = line.find(" | "), b = a == std::string::npos ? a : line.find(" | ", a + 3);
    const bool three = b != std::string::npos && line.size() > b + 5;
    const Cells there =
        three ? Cells{line.substr(2, a - 2), line.substr(a + 3, b - a - 3), line.substr(b + 3, line.size() - b - 5)}
              : Cells{};
    const std::string right =
        Cells{cells.name, known(cells.generic, there.generic), known(cells.tuned, there.tuned)}.line();
    if (line == right) continue;
    ++wrong;
    std::fprintf(stderr, "%s has    %s\nthe library %s\n", page, line.c_str(), cells.line().c_str());
  }
  if (std::string rest; std::getline(lines, rest))
    ++wrong, std::fprintf(stderr, "%s has also %s\n", page, rest.c_str());
  return wrong > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc > 3 || (argc > 1 && (argc < 3 || (mode != "--check" && mode != "--write")))) {
    std::fprintf(stderr, "usage: pagoda_features [--check PAGE | --write PAGE]\n");
    return 2;
  }
  const Kokkos::ScopeGuard kokkos;
  try {
    return run(mode, argc > 2 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pagoda_features: %s\n", error.what());
    return 1;
  }
}
