// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/reference.hpp>
#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagoda::test {

/// Which rows of a quantized cache share a scale.
enum class Scales {
  none,  ///< all scales are 1
  per_tensor,
  per_head,
  per_token,  ///< all kv heads of a token share one
  per_token_and_head
};

/// The problem of a test.
struct Shape {
  std::vector<int> lengths{};  ///< tokens of each batch entry
  int num_q_heads  = 4;
  int num_kv_heads = 2;
  int head_dim     = 64;
  int head_dim_v   = 0;           ///< 0: as head_dim
  std::vector<int> query_lens{};  ///< query tokens of each batch entry; empty: one each
  /// Entry b decodes the sequence of entry same_as[b], which is b or an earlier entry with its own sequence. Both have
  /// the same length. Empty: each entry has its own sequence.
  std::vector<int> same_as{};

  std::optional<double> softmax_scale{};
  bool causal            = true;
  int window_left        = -1;
  int num_initial_tokens = 0;
  double logit_soft_cap  = 0;
  bool alibi             = false;
  bool sinks             = false;

  bool values_in_keys = false;    ///< a token's value is the first head_dim_v elements of its key
  double key_size     = 1;        ///< keys are this times N(0, 1)
  double score_shift  = 0;        ///< added to every score through the last dim of queries and keys
  std::optional<DType> q_type{};  ///< default: the cache's; fp32 for a quantized one
  unsigned seed = 1;

  // For quantized caches without block scales: stored numbers times scales are N(0, 1) times key_size or value_size.
  Scales k_scales   = Scales::per_token_and_head;
  Scales v_scales   = Scales::per_token_and_head;
  double value_size = 1;
};

std::string describe(const Shape& shape);

/// The tokens that a query row sees, as (batch entry, token), and the position of its query token among them.
struct Sight {
  std::vector<std::pair<int, int>> tokens;
  int position = 0;
};

/// Default type of queries and outputs.
template <class T>
inline constexpr DType io_type_v = is_quantized_v<T> ? DType::fp32 : dtype_v<T>;

/// Keys, values and queries of a shape, N(0, 1) from its seed and rounded to the cache's type T, and the reference
/// result of the rounded numbers. A longer sequence of the same seed begins with the tokens of a shorter one.
template <class T>
class Sample {
 public:
  explicit Sample(const Shape& shape);

  const Shape& shape() const { return shape_; }
  int batch() const { return static_cast<int>(shape_.lengths.size()); }
  int group() const { return shape_.num_q_heads / shape_.num_kv_heads; }
  int head_dim_v() const { return shape_.head_dim_v > 0 ? shape_.head_dim_v : shape_.head_dim; }
  int query_len(int b) const { return shape_.query_lens.empty() ? 1 : shape_.query_lens[b]; }
  int query_begin(int b) const { return query_begin_[b]; }
  int query_tokens() const { return query_begin_.back(); }
  double softmax_scale() const;
  DType q_type() const { return shape_.q_type.value_or(io_type_v<T>); }
  /// The entry whose sequence entry b decodes.
  int source(int b) const { return shape_.same_as.empty() ? b : shape_.same_as[b]; }
  /// Lets each row of a query token and a q head see these tokens, instead of those that the shape says. Without
  /// tokens, the row is as poison is: NaN.
  void set_sight(const std::function<std::optional<Sight>(int token, int head)>& sight);
  /// Whether any query token of the entries that decode b's sequence sees the token.
  bool visible(int b, int t) const;

  /// Logical rows. Tests may change them before the first call of rows().
  T* key(int b, int t, int head) { return k_[source(b)].data() + row(t, head) * elements(shape_.head_dim); }
  T* value(int b, int t, int head) {
    return shape_.values_in_keys ? key(b, t, head) : v_[source(b)].data() + row(t, head) * elements(head_dim_v());
  }
  /// Elements of a row.
  static int elements(int dims) {
    return has_row_format_v<T> ? row_format_of(dtype_v<T>).bytes : dims / dims_per_element_v<T>;
  }
  /// Scales of a token's key and value; 1 unless the cache is quantized with scales beside its rows.
  float& key_scale(int b, int t, int head) { return k_scale_[scale_of(shape_.k_scales, b, t, head)]; }
  float& value_scale(int b, int t, int head) { return v_scale_[scale_of(shape_.v_scales, b, t, head)]; }
  float key_scale(int b, int t, int head) const { return const_cast<Sample*>(this)->key_scale(b, t, head); }
  float value_scale(int b, int t, int head) const { return const_cast<Sample*>(this)->value_scale(b, t, head); }
  /// Block scales of a token's key and value, where T has them, one for each block of dims.
  using BlockScale = std::conditional_t<(block_dims_v<T> > 0), block_scale_t<T>, char>;
  static int blocks(int dims) { return blocks_of(dtype_v<T>, dims); }
  BlockScale* key_blocks(int b, int t, int head) {
    return k_blocks_[source(b)].data() + row(t, head) * blocks(shape_.head_dim);
  }
  BlockScale* value_blocks(int b, int t, int head) {
    return v_blocks_[source(b)].data() + row(t, head) * blocks(head_dim_v());
  }
  const BlockScale* key_blocks(int b, int t, int head) const {
    return const_cast<Sample*>(this)->key_blocks(b, t, head);
  }
  const BlockScale* value_blocks(int b, int t, int head) const {
    return const_cast<Sample*>(this)->value_blocks(b, t, head);
  }
  /// The factor of dim d of a key or value: its token's scale times its block's.
  double key_scale_of_dim(int b, int t, int head, int d) const {
    return scale_of_dim(key_scale(b, t, head), key_blocks(b, t, head), d);
  }
  double value_scale_of_dim(int b, int t, int head, int d) const {
    return scale_of_dim(value_scale(b, t, head), value_blocks(b, t, head), d);
  }
  double* query(int token, int head) { return q_.data() + row_of(token, head) * shape_.head_dim; }
  const T* key(int b, int t, int head) const { return const_cast<Sample*>(this)->key(b, t, head); }
  const T* value(int b, int t, int head) const { return const_cast<Sample*>(this)->value(b, t, head); }
  const double* query(int token, int head) const { return const_cast<Sample*>(this)->query(token, head); }
  const std::vector<float>& alibi_slopes() const { return alibi_slopes_; }
  const std::vector<float>& sinks() const { return sinks_; }
  std::vector<float>& alibi_slopes() { return alibi_slopes_; }
  std::vector<float>& sinks() { return sinks_; }

  /// The reference's results, indexed by row_of(token, head); computed once. rounded: with rows of fp8_ds_mla, of
  /// numbers as the hand-tuned kernels round them.
  const std::vector<reference::Row>& rows(bool rounded = false) const;
  std::size_t row_of(int token, int head) const { return static_cast<std::size_t>(token) * shape_.num_q_heads + head; }
  /// The batch entry that a query token belongs to.
  int entry_of(int token) const;

 private:
  static double scale_of_dim(float scale, [[maybe_unused]] const BlockScale* blocks, [[maybe_unused]] int d) {
    if constexpr (block_dims_v<T> > 0) {
      return static_cast<double>(scale) * static_cast<float>(blocks[d / block_dims_v<T>]);
    } else {
      return scale;
    }
  }
  std::size_t scale_of(Scales scales, int b, int t, int head) const {
    if (!is_quantized_v<T> || scales == Scales::none || scales == Scales::per_tensor) return 0;
    if (scales == Scales::per_head) return head;
    const std::size_t token = first_row_[source(b)] + t;
    return scales == Scales::per_token ? token : token * shape_.num_kv_heads + head;
  }
  std::size_t row(int t, int head) const { return static_cast<std::size_t>(t) * shape_.num_kv_heads + head; }
  bool sees(int b, int t) const;
  /// Numbers of the rows of each entry, (token, kv head, dim); empty unless T is a row format, whose numbers are slow
  /// to read.
  using Numbers = std::vector<std::vector<double>>;
  Numbers numbers(bool rounded) const;
  reference::Row answer(int b, int token, int head, const Numbers& numbers) const;

  Shape shape_;
  std::vector<int> query_begin_;
  std::vector<std::vector<T>> k_, v_;                         ///< of each entry, (token, kv head, dim)
  std::vector<std::size_t> first_row_;                        ///< tokens of the entries before each
  std::vector<std::vector<BlockScale>> k_blocks_, v_blocks_;  ///< of each entry, (token, kv head, block)
  std::vector<float> k_scale_, v_scale_;  ///< (token of all entries, kv head), (token), (kv head), or one
  std::vector<double> q_;                 ///< (query token, q head, dim), rounded to the queries' type
  std::vector<float> alibi_slopes_, sinks_;
  std::vector<std::optional<Sight>> sight_;  ///< of each row, or empty
  std::vector<std::vector<bool>> seen_;      ///< with sight_: of each entry, the tokens that a row sees
  mutable std::vector<reference::Row> rows_, rounded_rows_;
};

}  // namespace pagoda::test
