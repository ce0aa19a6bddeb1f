// SPDX-License-Identifier: Apache-2.0
#include "tests/tuned/list_scene.hpp"

#include <pagoda/types.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace pagoda::tuned {
namespace {

constexpr std::uint32_t untouched = 0x41414141u;  // every word of the results before a decode

float convert(Type type, std::uint16_t bits) {
  const auto byte = static_cast<std::uint8_t>(bits);
  switch (type) {
    case Type::int8:
      return static_cast<float>(static_cast<std::int8_t>(byte));
    case Type::fp8_e4m3:
      return std::bit_cast<fp8_e4m3_t>(byte);
    case Type::fp8_e5m2:
      return std::bit_cast<fp8_e5m2_t>(byte);
    case Type::bf16:
      return std::bit_cast<bfloat16_t>(bits);
    default:
      return std::bit_cast<half_t>(bits);
  }
}
/// The same from a table: the reference converts most of the time.
float to_float(Type type, std::uint16_t bits) {
  static const auto tables = [] {
    std::array<std::vector<float>, 7> all;
    for (const Type of : {Type::fp16, Type::bf16, Type::fp8_e4m3, Type::fp8_e5m2, Type::int8})
      for (std::size_t i = 0; i < std::size_t(1) << bits_of(of); ++i)
        all[static_cast<std::size_t>(of)].push_back(convert(of, static_cast<std::uint16_t>(i)));
    return all;
  }();
  return tables[static_cast<std::size_t>(type)][bits];
}
std::uint16_t to_bits(Type type, float x) {
  if (!std::isfinite(x)) {  // conversions to 8 bits saturate
    if (type == Type::fp8_e4m3) return 0x7f;
    if (type == Type::fp8_e5m2) return half_t(x).bits >> 8;
  }
  switch (type) {
    case Type::int8:
      return static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(std::nearbyint(x), -128.0f, 127.0f)));
    case Type::fp8_e4m3:
      return fp8_e4m3_t(x).bits;
    case Type::fp8_e5m2:
      return fp8_e5m2_t(x).bits;
    case Type::bf16:
      return bfloat16_t(x).bits;
    default:
      return half_t(x).bits;
  }
}

CUstream_st* stream() {
#if defined(KOKKOS_ENABLE_CUDA)
  return Kokkos::Cuda().cuda_stream();
#else
  return nullptr;
#endif
}

template <class T>
void upload(OnDevice<T>& to, const std::vector<T>& from) {
  const std::size_t count = std::max<std::size_t>(from.size(), 1);
  if (to.extent(0) != count) to = OnDevice<T>(Kokkos::ViewAllocateWithoutInitializing("list"), count);
  const Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host(from.data(), from.size());
  Kokkos::deep_copy(Kokkos::subview(to, std::pair<std::size_t, std::size_t>(0, from.size())), host);
}
template <class T>
std::vector<T> download(const OnDevice<T>& from) {
  std::vector<T> to(from.extent(0));
  Kokkos::deep_copy(Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(to.data(), to.size()), from);
  return to;
}

/// Element i of results.
float element(Type type, const std::vector<std::uint32_t>& words, std::size_t i) {
  if (type == Type::fp32) {
    float x;
    std::memcpy(&x, &words[i], sizeof x);
    return x;
  }
  return to_float(type, static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16)));
}
double lse_at(bool is_double, const std::vector<std::uint32_t>& words, std::size_t i) {
  if (!is_double) return element(Type::fp32, words, i);
  double x;
  std::memcpy(&x, &words[2 * i], sizeof x);
  return x;
}
bool same(double got, double right, double tolerance) {
  if (std::isnan(right)) return std::isnan(got);
  if (std::isinf(right)) return got == right;
  return std::abs(got - right) <= tolerance * (1 + std::abs(right));
}

}  // namespace

const char* name_of(Type type) {
  const char* const names[] = {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp32", "int8", "int4"};
  return names[static_cast<int>(type)];
}

std::string describe(const ListCase& c) {
  const char* const places[] = {"paged", "csr", "contiguous"};
  return std::string(name_of(c.type)) + ", head_dim " + std::to_string(c.head_dim) + ", heads " +
         std::to_string(c.q_heads) + "/" + std::to_string(c.kv_heads) + ", " + std::to_string(c.max_queries) +
         " queries, " + places[static_cast<int>(c.place)] + " " + std::to_string(c.page_size) +
         (c.heads_first ? ", HND" : "") + ", scales " + std::to_string(static_cast<int>(c.scales)) + ", seed " +
         std::to_string(c.seed);
}

ListScene::ListScene(const ListCase& c) : case_(c), random_(c.seed), lengths_(c.lengths) {
  const int sequences = static_cast<int>(lengths_.size());
  const int longest   = std::max(*std::max_element(lengths_.begin(), lengths_.end()), c.capacity);
  if (case_.place == Place::contiguous) case_.page_size = (longest + 7) / 8 * 8;
  pages_each_ = std::max((longest + case_.page_size - 1) / case_.page_size, 1);
  num_pages_  = sequences * pages_each_;
  table_.resize(static_cast<std::size_t>(num_pages_));
  std::iota(table_.begin(), table_.end(), 0);
  if (case_.place != Place::contiguous) std::shuffle(table_.begin(), table_.end(), random_);
  for (int s = 0; s <= sequences; ++s) indptr_.push_back(s * pages_each_);

  const auto row = static_cast<std::size_t>(c.kv_heads * c.head_dim);
  q_             = normal(q_type(), static_cast<std::size_t>(c.tokens * c.q_heads * c.head_dim));
  k_             = normal(c.type, static_cast<std::size_t>(num_pages_ * case_.page_size) * row);
  v_             = normal(c.type, k_.size());
  for (int s = 0; s < (c.rising ? sequences : 0); ++s)
    for (int token = 0; token < pages_each_ * case_.page_size; ++token)
      for (int head = 0; head < c.kv_heads; ++head)
        for (std::size_t d = 0, at = row_of(s, token, head) * static_cast<std::size_t>(c.head_dim);
             d < static_cast<std::size_t>(c.head_dim); ++d)
          k_[at + d] = to_bits(c.type, to_float(c.type, k_[at + d]) * (1 + static_cast<float>(token) / 64));
  k_scales_ = make_scales(), v_scales_ = make_scales();
  std::normal_distribution<float> draw(0, 3);
  for (int head = 0; head < (c.sinks ? c.q_heads : 0); ++head) sinks_.push_back(draw(random_));
  make_list();
  upload(k_scales_d_, k_scales_), upload(v_scales_d_, v_scales_);
  upload(sinks_d_, sinks_), upload(table_d_, table_), upload(indptr_d_, indptr_), upload(q_d_, q_);
  set_lengths(lengths_);
  upload_list();
  const Problem p = problem();
  workspace_      = OnDevice<char>(Kokkos::ViewAllocateWithoutInitializing("workspace"),
                                   std::max<std::size_t>(workspace_bytes(p, Device::current()), 1));
  prepare(p, Device::current(), workspace_.data(), stream());
  Kokkos::fence("the workspace is set up");
}

/// Integers with scales take all of their range.
std::vector<std::uint16_t> ListScene::normal(Type type, std::size_t count) {
  std::normal_distribution<float> draw(0, type == Type::int8 && case_.scales != Scales::none ? 50.0f : 1.0f);
  std::vector<std::uint16_t> x(count);
  for (std::uint16_t& bits : x) bits = to_bits(type, draw(random_));
  return x;
}
std::vector<float> ListScene::make_scales() {
  std::uniform_real_distribution<float> draw(0.5f, 1.5f);
  const int count = case_.scales == Scales::none ? 0 : case_.scales == Scales::one ? 1 : case_.kv_heads;
  std::vector<float> scales;
  for (int i = 0; i < count; ++i) scales.push_back(draw(random_) / (case_.type == Type::int8 ? 50.0f : 1.0f));
  return scales;
}
float ListScene::scale_of(const std::vector<float>& scales, int kv_head) const {
  return scales.empty() ? 1.0f : scales[case_.scales == Scales::one ? 0 : static_cast<std::size_t>(kv_head)];
}

std::size_t ListScene::row_of(int sequence, int token, int kv_head) const {
  const int page    = table_[static_cast<std::size_t>(sequence * pages_each_ + token / case_.page_size)];
  const int in_page = token % case_.page_size, heads = case_.kv_heads;
  return static_cast<std::size_t>(page * case_.page_size * heads) +
         static_cast<std::size_t>(case_.heads_first ? kv_head * case_.page_size + in_page : in_page * heads + kv_head);
}

/// Tokens behind a sequence's last are NaN on the device, or the largest integers.
void ListScene::upload_cache() {
  std::vector<std::uint16_t> k = k_, v = v_;
  const auto dims = static_cast<std::size_t>(case_.head_dim);
  const std::uint16_t nan =
      case_.type == Type::int8 ? std::uint16_t{127} : to_bits(case_.type, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t s = 0; s < lengths_.size(); ++s)
    for (int token = lengths_[s]; token < pages_each_ * case_.page_size; ++token)
      for (int head = 0; head < case_.kv_heads; ++head) {
        const auto at = static_cast<std::ptrdiff_t>(row_of(static_cast<int>(s), token, head) * dims);
        std::fill_n(k.begin() + at, dims, nan);
        std::fill_n(v.begin() + at, dims, nan);
      }
  if (is_quantized(case_.type))
    for (auto* const all : {&k, &v}) {  // two elements to a word
      for (std::size_t i = 0; i < all->size() / 2; ++i)
        (*all)[i] = static_cast<std::uint16_t>((*all)[2 * i] | (*all)[2 * i + 1] << 8);
      all->resize(all->size() / 2);
    }
  upload(k_d_, k), upload(v_d_, v);
}

void ListScene::set_lengths(const std::vector<int>& lengths) {
  lengths_ = lengths;
  upload(lengths_d_, lengths_);
  upload_cache();
}

void ListScene::set_value(int sequence, int token, int dim, float x) {
  for (int head = 0; head < case_.kv_heads; ++head)
    v_[row_of(sequence, token, head) * static_cast<std::size_t>(case_.head_dim) + static_cast<std::size_t>(dim)] =
        to_bits(case_.type, x);
  upload_cache();
}

void ListScene::set_scales(int kv_head, float k, float v) {
  k_scales_[static_cast<std::size_t>(kv_head)] = k, v_scales_[static_cast<std::size_t>(kv_head)] = v;
  upload(k_scales_d_, k_scales_), upload(v_scales_d_, v_scales_);
}

/// Each level divides the query tokens with partial states, in random order, into entries; one more level is of those
/// that write the output.
void ListScene::make_list() {
  const ListCase& c = case_;
  const int direct = c.tokens / 3, sequences = static_cast<int>(lengths_.size());
  const auto range = [&](Entry& e, int own) {
    e.sequence     = random_below(2) ? own : random_below(sequences);
    const int len  = lengths_[static_cast<std::size_t>(e.sequence)];
    const int unit = c.place == Place::contiguous ? 8 : c.page_size;
    e.first        = random_below(2) ? 0 : random_below(len / unit + 1) * unit;
    e.last =
        random_below(3) == 0 ? -1 : std::min(e.first + random_below(std::min(len - e.first, c.entry_tokens) + 1), len);
    if (c.empty && random_below(8) == 0) e.last = e.first;
  };
  for (int level = 0; level <= c.levels; ++level) {
    std::vector<int> tokens;
    for (int t = 0; t < c.tokens; ++t)
      if ((t >= c.tokens - direct) == (level == c.levels)) tokens.push_back(t);
    std::shuffle(tokens.begin(), tokens.end(), random_);
    for (std::size_t begin = 0; begin < tokens.size();) {
      // Narrow and wide entries, and those in between.
      const int width = random_below(3) == 0 ? c.max_queries : 1 + random_below(random_below(2) ? c.max_queries : 2);
      const std::size_t end = std::min(tokens.size(), begin + static_cast<std::size_t>(std::min(width, c.max_queries)));
      Entry e{0,
              0,
              0,
              static_cast<int>(list_.queries.size()),
              static_cast<int>(end - begin),
              level == c.levels ? -1 : level};
      for (std::size_t i = begin; i < end; ++i) list_.queries.push_back(make_query(tokens[i], tokens[i] % sequences));
      const int heads = c.per_head && random_below(2) ? c.kv_heads : 1;  // entries, one for each kv head
      for (int head = 0; head < heads; ++head) {
        range(e, tokens[begin] % sequences);
        e.kv_head = heads > 1 ? head : -1;
        if (c.chains && random_below(4) != 0)
          add_chain(e, [&](Entry& more) { range(more, tokens[begin] % sequences); });
        else
          list_.entries.push_back(e);
      }
      if (c.empty && random_below(6) == 0) {
        Entry nobody       = e;
        nobody.num_queries = 0, nobody.first = 0, nobody.last = -1, nobody.sequence = 1 << 30;
        list_.entries.push_back(nobody);
      }
      begin = end;
    }
  }
  for (int t = 0; t <= c.tokens; ++t) list_.state_begin.push_back(std::min(t, c.tokens - direct) * c.levels);
  list_.max_queries = c.max_queries;
}

/// Adds a chain. Its other entries have any of its query tokens; two of three have one or two, as sequences have.
void ListScene::add_chain(const Entry& first, const std::function<void(Entry&)>& set_range) {
  const std::size_t index = list_.entries.size();
  list_.entries.push_back(first);
  if (first.last < 0) list_.entries[index].last = lengths_[static_cast<std::size_t>(first.sequence)];
  const int more = 1 + random_below(random_below(6) == 0 ? 80 : 6);
  for (int i = 1; i <= more; ++i) {
    Entry e = first;
    set_range(e);
    e.num_queries = 1 + random_below(random_below(3) == 0 ? first.num_queries : std::min(first.num_queries, 2));
    e.query_begin += random_below(first.num_queries - e.num_queries + 1);
    e.chain = -i;
    list_.entries.push_back(e);
  }
  list_.entries[index].chain = more;
}

EntryQuery ListScene::make_query(int token, int sequence) {
  if (case_.chains) return {token, sequence, 1};
  if (!case_.masks || random_below(4) == 0) return {token, sequence, 1 + random_below(4)};
  const int mask = static_cast<int>(list_.masks.size());
  for (int word = 0; word < 2; ++word) list_.masks.push_back(std::uint64_t(random_()) << 32 | random_());
  return {token, sequence, 1 + random_below(random_below(2) ? 128 : 20), mask};
}

void ListScene::upload_list() {
  upload(entries_d_, list_.entries), upload(queries_d_, list_.queries), upload(state_begin_d_, list_.state_begin);
  upload(masks_d_, list_.masks);
}

Problem ListScene::problem() const {
  const ListCase& c      = case_;
  const std::int64_t row = row_bytes(c.type, c.head_dim), heads = c.q_heads, size = case_.page_size;
  const std::int64_t page   = row * c.kv_heads * size;
  const std::int64_t length = std::int64_t(pages_each_) * case_.page_size;
  Problem p{};
  p.type        = c.type;
  p.num_q_heads = c.q_heads, p.num_kv_heads = c.kv_heads, p.head_dim = p.head_dim_v = c.head_dim;
  p.page_size = case_.page_size, p.max_seq_len = length, p.num_pages = num_pages_;
  p.k = c.heads_first ? Cache{k_d_.data(), page, row, row * size, nullptr, 0}
                      : Cache{k_d_.data(), page, row * c.kv_heads, row, nullptr, 0};
  p.v = p.k, p.v.data = v_d_.data();
  if (c.scales != Scales::none) p.k.scale = k_scales_d_.data(), p.v.scale = v_scales_d_.data();
  if (c.scales == Scales::of_heads) p.k.scale_head = p.v.scale_head = 1;
  p.seq_lens = lengths_d_.data();
  if (c.place != Place::contiguous) {
    p.block_table = table_d_.data(), p.table_row = pages_each_, p.table_page = 1;
    p.table_pages = p.table_entries = num_pages_;
    if (c.place == Place::csr) {
      p.page_indptr = indptr_d_.data();
    } else {
      p.table_pages = pages_each_;
    }
  }
  p.num_q_tokens = p.max_q_tokens = c.max_queries;
  p.total_q_tokens                = c.tokens;
  p.causal                        = c.causal;
  p.q                             = {q_d_.data(), q_type(), heads * c.head_dim, c.head_dim};
  p.out                           = {out_d_.data(), c.out_type, heads * c.head_dim, c.head_dim};
  p.lse                           = lse_d_.data();
  p.lse_double = c.lse_double, p.lse_token = heads, p.lse_head = 1;
  p.softmax_scale = 1 / std::sqrt(double(c.head_dim));
  p.list          = {static_cast<int>(list_.entries.size()) + 7,
                     static_cast<int>(list_.entries.size()),
                     entries_d_.data(),
                     queries_d_.data(),
                     state_begin_d_.data(),
            list_.masks.empty() ? nullptr : masks_d_.data(),
            c.sinks ? sinks_d_.data() : nullptr,
                     c.chains,
                     {state_d_.data(), c.state_type, heads * c.head_dim, c.head_dim},
                     {state_lse_d_.data(), c.lse_double, heads, 1},
                     c.few_rows};
  return p;
}

bool ListScene::decode() {
  const auto rows  = static_cast<std::size_t>(case_.tokens * case_.q_heads);
  const auto state = static_cast<std::size_t>(list_.num_states() * case_.q_heads);
  const auto words = [&](Type type, std::size_t n) {
    return n * static_cast<std::size_t>(row_bytes(type, case_.head_dim) / 4);
  };
  upload(out_d_, std::vector<std::uint32_t>(words(case_.out_type, rows), untouched));
  upload(state_d_, std::vector<std::uint32_t>(words(case_.state_type, state), untouched));
  upload(lse_d_, std::vector<std::uint32_t>(2 * rows, untouched));
  upload(state_lse_d_, std::vector<std::uint32_t>(2 * state, untouched));
  Kokkos::fence("the problem is on the device");
  const Problem p     = problem();
  const Device device = Device::current();
  if (why_not(p, device)) return false;
  const bool launched = tuned::decode(p, device, workspace_.data(), stream());
  Kokkos::fence("the list is decoded");
  return launched;
}

std::vector<std::uint32_t> ListScene::bits() const {
  std::vector<std::uint32_t> all;
  for (const auto* words : {&out_d_, &state_d_, &lse_d_, &state_lse_d_}) {
    const std::vector<std::uint32_t> part = download(*words);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// The entries with the results of entry `index` that a query token of its run sees: itself, or those of its chain.
std::vector<Entry> ListScene::seen_entries(std::size_t index, int query) const {
  const auto& all = list_.entries;
  std::vector<Entry> seen{all[index]};
  for (std::size_t i = index + 1; i <= index + static_cast<std::size_t>(all[index].chain); ++i)
    if (query >= all[i].query_begin && query < all[i].query_begin + all[i].num_queries) seen.push_back(all[i]);
  return seen;
}

std::string ListScene::row_difference(const std::vector<Entry>& entries, const EntryQuery& query, int head,
                                      const std::vector<float>& row, double lse) const {
  const ListCase& c = case_;
  const auto dims   = static_cast<std::size_t>(c.head_dim);
  const int kv_head = head / (c.q_heads / c.kv_heads);
  std::vector<double> scores, values(dims);
  std::vector<std::size_t> rows;  // of keys and values, of the tokens that the query token sees
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  const double factor   = double(scale_of(k_scales_, kv_head)) / std::sqrt(double(dims));
  const double of_value = double(scale_of(v_scales_, kv_head));
  for (const Entry& e : entries) {
    const int length = lengths_[static_cast<std::size_t>(e.sequence)];
    const bool own = e.last < 0 && query.sequence == e.sequence, masked = own && query.mask >= 0;
    const int end   = e.last >= 0 ? e.last : own && !masked && c.causal ? length - (query.behind - 1) : length;
    const auto sees = [&](int t) {
      const int bit = t - (length - query.behind);
      if (!masked || bit < 0) return true;
      return (list_.masks[static_cast<std::size_t>(query.mask + bit / 64)] >> bit % 64 & 1) != 0;
    };
    for (int t = e.first; t < end; ++t) {
      if (!sees(t)) continue;
      rows.push_back(row_of(e.sequence, t, kv_head) * dims);
      double s = 0;
      for (std::size_t d = 0; d < dims; ++d)
        s += double(to_float(q_type(), q_[static_cast<std::size_t>(query.token * c.q_heads + head) * dims + d])) *
             double(to_float(c.type, k_[rows.back() + d]));
      scores.push_back(s * factor);
      largest = std::max(largest, scores.back());
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    sum += weight;
    for (std::size_t d = 0; d < dims; ++d) values[d] += weight * of_value * double(to_float(c.type, v_[rows[i] + d]));
  }
  const Entry& e = entries.front();
  if (c.sinks && e.state < 0) {
    const double sink = sinks_[static_cast<std::size_t>(head)], base = std::max(largest, sink);
    const double old = std::exp(largest - base);  // 0 if there are no tokens
    for (double& x : values) x *= old;
    sum = sum * old + std::exp(sink - base), largest = base;
  }
  const double right_lse = sum == 0 ? -std::numeric_limits<double>::infinity() : largest + std::log(sum);
  if (!same(lse, right_lse, 1e-4)) return "lse " + std::to_string(lse) + ", right " + std::to_string(right_lse);
  const Type type        = e.state < 0 ? c.out_type : c.state_type;
  const double tolerance = c.type == Type::bf16 || type == Type::bf16 ? 1e-2 : 2e-3;
  for (std::size_t d = 0; d < dims; ++d) {
    const double right = sum == 0 ? 0 : values[d] / sum;
    if (!same(row[d], right, tolerance))
      return "dim " + std::to_string(d) + " is " + std::to_string(row[d]) + ", right " + std::to_string(right);
  }
  return "";
}

std::string ListScene::difference() const {
  if (std::ranges::any_of(download(workspace_), [](char byte) { return byte != '\xff'; }))
    return "the decode has left partial results in the workspace";
  const ListCase& c              = case_;
  std::vector<std::uint32_t> out = download(out_d_), states = download(state_d_), lse = download(lse_d_),
                             state_lse = download(state_lse_d_);
  const auto dims                      = static_cast<std::size_t>(c.head_dim);
  std::vector<float> row(dims);
  for (std::size_t i = 0; i < list_.entries.size(); ++i) {
    const Entry& e  = list_.entries[i];
    const int group = c.q_heads / c.kv_heads;
    if (e.chain < 0) continue;  // its chain's first entry has the results
    for (int j = 0; j < e.num_queries; ++j) {
      const EntryQuery& query = list_.queries[static_cast<std::size_t>(e.query_begin + j)];
      const bool to_state     = e.state >= 0;
      const int token_row = to_state ? list_.state_begin[static_cast<std::size_t>(query.token)] + e.state : query.token;
      auto &words = to_state ? states : out, &sums = to_state ? state_lse : lse;
      const Type type = to_state ? c.state_type : c.out_type;
      const int begin = e.kv_head < 0 ? 0 : e.kv_head * group, end = e.kv_head < 0 ? c.q_heads : begin + group;
      for (int head = begin; head < end; ++head) {
        const auto r = static_cast<std::size_t>(token_row * c.q_heads + head);
        for (std::size_t d = 0; d < dims; ++d) row[d] = element(type, words, r * dims + d);
        if (const std::string found =
                row_difference(seen_entries(i, e.query_begin + j), query, head, row, lse_at(c.lse_double, sums, r));
            !found.empty())
          return describe(c) + ": entry " + std::to_string(i) + " of " + std::to_string(list_.entries.size()) + " (" +
                 std::to_string(e.sequence) + ", " + std::to_string(e.first) + " to " + std::to_string(e.last) + ", " +
                 std::to_string(e.num_queries) + " queries, state " + std::to_string(e.state) + "), query " +
                 std::to_string(j) + ", head " + std::to_string(head) + ": " + found;
        // Each row is written once. What remains must be untouched.
        const std::size_t of_row = dims * static_cast<std::size_t>(bits_of(type)) / 32, of_lse = c.lse_double ? 2 : 1;
        std::fill_n(words.begin() + static_cast<std::ptrdiff_t>(r * of_row), of_row, untouched);
        std::fill_n(sums.begin() + static_cast<std::ptrdiff_t>(r * of_lse), of_lse, untouched);
      }
    }
  }
  // Without rows an array has one element, which is not set.
  for (const auto* words : {&out, &states, &lse, &state_lse})
    for (const std::uint32_t word : *words)
      if (words->size() > 1 && word != untouched) return describe(c) + ": a row was written that no entry has";
  return "";
}

}  // namespace pagoda::tuned
