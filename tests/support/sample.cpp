// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sample.hpp"

#include "tests/support/elements.hpp"
#include "tests/support/spaces.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

namespace pagoda::test {

namespace {

/// Fast N(0, 1): 16 bits of a counter's hash select among samples drawn once, so that numbers take less time than the
/// reference.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u) {}
  float operator()() {
    if (left_ == 0) bits_ = next(), left_ = 4;
    const float x = table()[bits_ & 0xffffu];
    bits_ >>= 16, --left_;
    return x;
  }

 private:
  static const std::vector<float>& table() {
    static const std::vector<float> samples = [] {
      std::mt19937_64 engine(20240501);
      std::normal_distribution<float> normal;
      std::vector<float> s(1 << 16);
      for (float& x : s) x = normal(engine);
      return s;
    }();
    return samples;
  }
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z               = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z               = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_, bits_ = 0;
  int left_ = 0;
};

std::string list(const std::vector<int>& values) {
  std::ostringstream text;
  text << "{";
  for (std::size_t i = 0; i < values.size() && i < 12; ++i) text << (i ? ", " : "") << values[i];
  if (values.size() > 12) text << ", ... (" << values.size() << ")";
  text << "}";
  return text.str();
}

}  // namespace

std::string describe(const Shape& s) {
  std::ostringstream text;
  text << "lengths " << list(s.lengths) << ", heads " << s.num_q_heads << "/" << s.num_kv_heads << ", head_dim "
       << s.head_dim;
  if (s.head_dim_v > 0) text << "/" << s.head_dim_v << (s.values_in_keys ? " (values in keys)" : "");
  if (!s.query_lens.empty()) text << ", query_lens " << list(s.query_lens);
  if (!s.same_as.empty()) text << ", sequences of entries " << list(s.same_as);
  if (s.softmax_scale) text << ", softmax_scale " << *s.softmax_scale;
  if (!s.causal) text << ", not causal";
  if (s.window_left >= 0) text << ", window_left " << s.window_left;
  if (s.num_initial_tokens > 0) text << ", num_initial_tokens " << s.num_initial_tokens;
  if (s.logit_soft_cap > 0) text << ", logit_soft_cap " << s.logit_soft_cap;
  if (s.alibi) text << ", alibi";
  if (s.sinks) text << ", sinks";
  const auto name = [](Scales scales) {
    return scales == Scales::none         ? "none"
           : scales == Scales::per_tensor ? "per tensor"
           : scales == Scales::per_head   ? "per head"
           : scales == Scales::per_token  ? "per token"
                                          : "per token and head";
  };
  if (s.k_scales != s.v_scales || s.k_scales != Scales::per_token_and_head)
    text << ", scales of keys " << name(s.k_scales) << ", of values " << name(s.v_scales);
  if (s.value_size != 1) text << ", value_size " << s.value_size;
  if (s.key_size != 1) text << ", key_size " << s.key_size;
  if (s.score_shift != 0) text << ", score_shift " << s.score_shift;
  if (s.q_type) text << ", q " << pagoda::name_of(*s.q_type);
  return text.str();
}

template <class T>
Sample<T>::Sample(const Shape& shape) : shape_(shape), query_begin_{0} {
  for (int b = 0; b < batch(); ++b) query_begin_.push_back(query_begin_[b] + query_len(b));
  constexpr bool in_blocks = block_dims_v<T> > 0;
  if constexpr (in_blocks)  // besides, they have a per-tensor float or nothing
    shape_.k_scales = shape_.v_scales =
        facts_of(dtype_v<T>).scales == ScaleUse::required ? Scales::per_tensor : Scales::none;
  if constexpr (has_row_format_v<T>) shape_.k_scales = shape_.v_scales = Scales::none;

  // Large, and exact in every type. The keys' part is rounded, and equal for all tokens.
  const double shift_q = 32, shift_k = shape_.score_shift / (softmax_scale() * shift_q);
  const int last = shape_.head_dim - 1;
  Normal normal(shape_.seed);
  q_.resize(static_cast<std::size_t>(query_tokens()) * shape_.num_q_heads * shape_.head_dim);
  for (double& x : q_) x = rounded(normal(), q_type());
  if (shape_.score_shift != 0)
    for (std::size_t i = last; i < q_.size(); i += shape_.head_dim) q_[i] = shift_q;

  // Quantized numbers are first drawn for a common scale; then each token gets its own scale.
  constexpr double range = facts_of(dtype_v<T>).deviation;
  const auto unit        = [&](Scales scales, double size) {
    return !is_quantized_v<T> || has_row_format_v<T> ? size : scales == Scales::none && !in_blocks ? 1 : range;
  };
  const double key_unit = unit(shape_.k_scales, shape_.key_size), value_unit = unit(shape_.v_scales, 1);
  std::size_t tokens = 0;
  for (const int length : shape_.lengths) first_row_.push_back(tokens), tokens += length;
  constexpr double block_size = 16;  // size of block scales beside a per-tensor scale
  const auto make_scales      = [&](Scales scales, double size, unsigned seed) {
    const std::size_t rows = std::max<std::size_t>(tokens, 1);
    std::vector<float> all(scales == Scales::per_head             ? shape_.num_kv_heads
                                : scales == Scales::per_token          ? rows
                                : scales == Scales::per_token_and_head ? rows * shape_.num_kv_heads
                                                                       : 1,
                           1.0f);
    Normal spread(seed);
    for (float& x : all)
      if (is_quantized_v<T> && scales != Scales::none)
        x = static_cast<float>(size / range * std::exp2(std::tanh(spread()) / 2));
    if (in_blocks && scales != Scales::none) all[0] /= block_size;
    return all;
  };
  // Each block has another scale. Together with the tensor's scale, if there is one, it makes numbers of `size`.
  [[maybe_unused]] const auto make_blocks = [&](std::vector<BlockScale>& blocks, std::size_t n, Scales scales,
                                                double size, unsigned seed) {
    Normal spread(seed);
    if constexpr (in_blocks) {
      blocks.resize(n);
      for (BlockScale& x : blocks)
        x = BlockScale(static_cast<float>((scales == Scales::none ? size / range : block_size) * 0.7 *
                                          std::exp2(std::tanh(spread()))));
    }
  };
  k_scale_ = make_scales(shape_.k_scales, shape_.key_size, shape_.seed + 997);
  v_scale_ = make_scales(shape_.v_scales, shape_.value_size, shape_.seed + 998);

  k_.resize(batch()), v_.resize(batch()), k_blocks_.resize(batch()), v_blocks_.resize(batch());
  for (int b = 0; b < batch(); ++b) {
    Normal keys(shape_.seed + 1000 + 2 * b), values(shape_.seed + 1001 + 2 * b);
    const std::size_t rows = row(shape_.lengths[b], 0);
    k_[b].resize(rows * elements(shape_.head_dim));
    make_blocks(k_blocks_[b], rows * blocks(shape_.head_dim), shape_.k_scales, shape_.key_size,
                shape_.seed + 2000 + 2 * b);
    make_blocks(v_blocks_[b], rows * blocks(head_dim_v()), shape_.v_scales, shape_.value_size,
                shape_.seed + 2001 + 2 * b);
    if constexpr (has_row_format_v<T>) {  // each token and block has another scale
      Normal spread(shape_.seed + 3000 + b);
      for (std::size_t i = 0; i < rows; ++i) {
        T* const row = k_[b].data() + i * elements(shape_.head_dim);
        for (int block = 0; block < 4; ++block)
          DsMlaRow::set_scale(row, block,
                              static_cast<float>(shape_.key_size / range * std::exp2(2 * std::tanh(spread()))));
        for (int d = 0; d < shape_.head_dim; ++d) store_dim(row, d, key_unit * keys());
      }
    } else {
      for (int i = 0, n = static_cast<int>(rows) * shape_.head_dim; i < n; ++i)
        store_dim(k_[b].data(), i, key_unit * keys());
    }
    if (shape_.score_shift != 0)
      for (std::size_t i = 0; i < rows; ++i) store_dim(k_[b].data() + i * elements(shape_.head_dim), last, shift_k);
    if (shape_.values_in_keys) continue;
    v_[b].resize(rows * elements(head_dim_v()));
    for (int i = 0, n = static_cast<int>(rows) * head_dim_v(); i < n; ++i)
      store_dim(v_[b].data(), i, value_unit * values());
  }

  Normal extras(shape_.seed + 999);
  for (int h = 0; h < shape_.num_q_heads; ++h) {
    alibi_slopes_.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(shape_.num_q_heads)));
    sinks_.push_back(2 * extras());
  }
}

template <class T>
double Sample<T>::softmax_scale() const {
  return shape_.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(shape_.head_dim)));
}

template <class T>
bool Sample<T>::sees(int b, int t) const {
  for (int i = 0; i < query_len(b); ++i) {
    const int position = shape_.lengths[b] - query_len(b) + i;
    if (shape_.causal && t > position) continue;
    if (shape_.window_left < 0 || position - t <= shape_.window_left || t < shape_.num_initial_tokens) return true;
  }
  return false;
}

template <class T>
void Sample<T>::set_sight(const std::function<std::optional<Sight>(int token, int head)>& sight) {
  sight_.clear(), seen_.clear(), rows_.clear(), rounded_rows_.clear();
  for (const int length : shape_.lengths) seen_.emplace_back(length, false);
  for (int token = 0; token < query_tokens(); ++token)
    for (int h = 0; h < shape_.num_q_heads; ++h) {
      sight_.push_back(sight(token, h));
      if (!sight_.back()) continue;
      for (const auto& [b, t] : sight_.back()->tokens) seen_[b][t] = true;
    }
}

template <class T>
bool Sample<T>::visible(int b, int t) const {
  if (!seen_.empty()) return seen_[b][t];
  if (shape_.same_as.empty()) return sees(b, t);
  for (int other = 0; other < batch(); ++other)
    if (source(other) == source(b) && sees(other, t)) return true;
  return false;
}

template <class T>
int Sample<T>::entry_of(int token) const {
  return static_cast<int>(std::upper_bound(query_begin_.begin(), query_begin_.end(), token) - query_begin_.begin()) - 1;
}

template <class T>
typename Sample<T>::Numbers Sample<T>::numbers([[maybe_unused]] bool rounded) const {
  Numbers all;
  if constexpr (has_row_format_v<T>) {
    all.resize(k_.size());
    for (std::size_t b = 0; b < k_.size(); ++b) {
      const int dims         = shape_.head_dim;
      const std::size_t rows = k_[b].size() / elements(dims);
      all[b].resize(rows * dims);
      Kokkos::parallel_for("numbers", Kokkos::RangePolicy<Host>(Host(), 0, rows), [&](std::size_t i) {
        const T* const row = k_[b].data() + i * elements(dims);
        for (int d = 0; d < dims; ++d)
          all[b][i * dims + d] = rounded ? DsMlaRow::load_rounded(row, d) : load_dim(row, d);
      });
    }
  }
  return all;
}

template <class T>
reference::Row Sample<T>::answer(int b, int token, int head, [[maybe_unused]] const Numbers& numbers) const {
  const int kv_head = head / group();
  const auto read   = [](const T* from, std::span<double> to, const auto& scale_of_dim) {
    constexpr bool in_blocks = block_dims_v<T> > 0;
    const double scale       = in_blocks ? 0 : scale_of_dim(0);
    for (int d = 0; d < static_cast<int>(to.size()); ++d)
      to[d] = (in_blocks ? scale_of_dim(d) : scale) * load_dim(from, d);
  };
  const auto copy = [&](const std::pair<int, int>& at, std::span<double> to) {
    std::copy_n(numbers[source(at.first)].begin() + row(at.second, kv_head) * shape_.head_dim, to.size(), to.begin());
  };
  const int length = shape_.lengths[b], query_len = this->query_len(b);
  reference::RowOptions o;
  o.softmax_scale      = softmax_scale();
  o.causal             = shape_.causal;
  o.window_left        = std::min(shape_.window_left, length + query_len);  // the same window, far from overflow
  o.num_initial_tokens = shape_.num_initial_tokens;
  o.logit_soft_cap     = shape_.logit_soft_cap;
  if (shape_.alibi) o.alibi_slope = alibi_slopes_[head];
  if (shape_.sinks) o.sink = sinks_[head];
  const Sight* sight = nullptr;
  if (!sight_.empty()) {
    if (!sight_[row_of(token, head)]) {
      reference::Row nothing;
      nothing.lse = std::numeric_limits<double>::quiet_NaN();
      nothing.out.assign(head_dim_v(), nothing.lse);
      return nothing;
    }
    sight    = &*sight_[row_of(token, head)];
    o.causal = false;
  }
  const auto place = [&](int i) { return sight ? sight->tokens[i] : std::pair(b, i); };
  auto row         = reference::attend(
      {query(token, head), static_cast<std::size_t>(shape_.head_dim)},
      sight ? static_cast<int>(sight->tokens.size()) : length,
      sight ? sight->position : length - query_len + token - query_begin(b), head_dim_v(),
      [&](int i, std::span<double> to) {
        const std::pair<int, int> at = place(i);
        if constexpr (has_row_format_v<T>) return copy(at, to);
        read(key(at.first, at.second, kv_head), to,
                     [&](int d) { return key_scale_of_dim(at.first, at.second, kv_head, d); });
      },
      [&](int i, std::span<double> to) {
        const std::pair<int, int> at = place(i);
        if constexpr (has_row_format_v<T>) return copy(at, to);
        read(value(at.first, at.second, kv_head), to,
                     [&](int d) { return value_scale_of_dim(at.first, at.second, kv_head, d); });
      },
      o);
  if (shape_.sinks && std::isfinite(o.sink)) {
    // The sink is a score with its own rounding error. The other scores are weighted by their share without it.
    const double tokens  = std::accumulate(row.probabilities.begin(), row.probabilities.end(), 0.0);
    const double of_sink = (1 - tokens) * o.sink;
    row.score_condition  = std::sqrt((tokens > 0 ? std::pow(row.score_condition, 2) / tokens : 0) + of_sink * of_sink);
  }
  return row;
}

template <class T>
const std::vector<reference::Row>& Sample<T>::rows(bool rounded) const {
  std::vector<reference::Row>& rows = rounded ? rounded_rows_ : rows_;
  if (!rows.empty()) return rows;
  rows.resize(row_of(query_tokens(), 0));
  const Numbers numbers = this->numbers(rounded);
  Kokkos::parallel_for(
      "reference",
      Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>>(Host(), 0, rows.size()).set_chunk_size(1),
      [&](std::size_t i) {
        const int token = static_cast<int>(i) / shape_.num_q_heads, head = static_cast<int>(i) % shape_.num_q_heads;
        rows[i] = answer(entry_of(token), token, head, numbers);
      });
  return rows;
}

#define PAGODA_TEST_INSTANTIATE(name) template class Sample<pagoda::detail::type_##name>;
PAGODA_TEST_FOR_EACH_TYPE(PAGODA_TEST_INSTANTIATE)

}  // namespace pagoda::test
