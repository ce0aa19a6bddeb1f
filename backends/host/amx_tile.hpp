// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "src/base/arithmetic.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

namespace pagoda::detail {

/// The state of AmxFragment: its scratch memory, where the rows of a tile of tokens lie, and what to prefetch. It has
/// no instructions of AMX: the kernel is compiled without them.
///
/// The kv heads of a work item are processed in sets of 16 / R: the scores of a set are 16 columns of a tile of scores,
/// R of each head, so that the softmax works on full vectors.
///
/// Tile registers multiply bfloat16. Rows of other types are converted to `copies` first (amx_converted.hpp).
template <class T, int R>
struct AmxTile {
  static constexpr bool converts = !std::is_same_v<T, bfloat16_t>;
  static constexpr bool scaled   = is_quantized_v<T>;
  /// Sums of weighted values for each row, added at the end: converted values are multiplied by probabilities that are
  /// the sum of two bfloat16 numbers.
  static constexpr int sums        = converts ? 2 : 1;
  static constexpr int per_element = dims_per_element_v<T>;
  static constexpr int half_tokens = 16;  ///< rows of a tile register
  static constexpr int halves      = 2;
  static constexpr int tile_tokens = halves * half_tokens;
  static constexpr int columns     = 16;           ///< columns of a tile of scores
  static constexpr int set_heads   = columns / R;  ///< kv heads of a set
  static constexpr int chunk_dims  = 32;           ///< dims in a row of a tile register
  static constexpr int tile_floats = 256;          ///< 32-bit elements of a tile register
  /// Bytes from one prefetched line to the next. Where tile loads read the cache, one line in 8 is prefetched, and the
  /// hardware brings the others: more requests would compete with the tile loads. Rows that are converted are
  /// prefetched whole, into the second-level cache.
  static constexpr int prefetch_step   = converts ? 64 : 512;
  static constexpr int prefetch_nearby = converts ? 2 : 3;  ///< the last argument of __builtin_prefetch
  static constexpr float infinity      = std::numeric_limits<float>::infinity();

  /// Where the rows of half a tile lie, for the item's first kv head.
  struct Half {
    int tokens;                                   ///< 0 to 16
    bool even;                                    ///< there are 16 tokens, and their rows lie at equal distances
    std::int64_t k[half_tokens], v[half_tokens];  ///< offsets of the rows; only the first if they are even
  };
  /// Bytes to prefetch.
  struct Run {
    const char* at;
    std::int64_t bytes;
  };

  const KernelArgsOf<T>& args;
  int head_dim, head_dim_v, heads;
  int head  = 0;         ///< the selected head
  int count = 0;         ///< tokens of the tile
  int next  = 0;         ///< tokens of the next tile
  int parts;             ///< bfloat16 numbers whose sum is an element of a query
  bool entered = false;  ///< the tile registers are configured
  /// Zeros of one row times a NaN or an infinity of another would be NaN: see AmxFragment::repeats.
  bool careful     = false;
  Half* here       = half_;
  Half* ahead      = half_ + halves;
  int num_runs     = 0;
  int run          = 0;
  const char *near = nullptr, *near_end = nullptr;  ///< what is left of the run
  float* output;                                    ///< see Operands::order
  float *most, *sum, *factor;                       ///< [sets][16]: maximum, sum of probabilities, factor of the scores
  std::uint32_t* queries;                           ///< [heads][max_parts][head_dim / 32][16 pairs of dims][16 columns]
  float* scores;                                    ///< [tile_tokens][16], of the set
  std::uint32_t* weights;                           ///< probabilities of the set: see Operands::store_weights
  bfloat16_t* copies;                               ///< operands that do not lie in the cache: see Operands
  RowState<float>* states;                          ///< [heads][R]
  float *k_scales, *v_scales;  ///< [sets][tile_tokens][set_heads]: scales of single tokens; quantized types only

  static constexpr int sets_of(int heads) { return (heads + set_heads - 1) / set_heads; }
  /// Limit on `parts`. An fp32 number is the sum of three; for a cache of bfloat16 two are enough, 16 bits.
  static constexpr int max_parts = converts ? 3 : 2;
  static constexpr int parts_of(DType q) { return q == DType::bf16 ? 1 : q == DType::fp16 ? 2 : max_parts; }
  static constexpr std::size_t query_elements(int head_dim) {
    return max_parts * (head_dim / chunk_dims) * tile_floats;
  }
  /// Elements of the copies of a head's keys or values. Of converted rows there are two: the next head is converted
  /// while one is multiplied.
  static constexpr std::size_t copy_elements(int dims) { return std::size_t(tile_tokens) * dims; }
  static constexpr std::size_t all_copies(int head_dim, int head_dim_v) {
    return (converts ? 2 : 1) * copy_elements(std::max(head_dim, head_dim_v));
  }
  static constexpr std::size_t scale_elements(int heads) {
    return scaled ? std::size_t(sets_of(heads)) * tile_tokens * set_heads : 0;
  }

  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int heads) {
    const std::size_t head =
        sizeof(float) * (sums * R * head_dim_v + query_elements(head_dim)) + R * sizeof(RowState<float>);
    const std::size_t set  = 3 * sizeof(float) * columns;
    const std::size_t tile = sizeof(float) * (tile_tokens * columns + 2 * tile_tokens * columns);
    return heads * head + sets_of(heads) * set + tile + sizeof(bfloat16_t) * all_copies(head_dim, head_dim_v) +
           2 * sizeof(float) * scale_elements(heads) + 64;
  }

  /// memory: scratch_bytes, aligned to 64 bytes.
  AmxTile(const KernelArgsOf<T>& a, char* memory)
      : args(a), head_dim(a.head_dim), head_dim_v(a.head_dim_v), heads(a.heads_per_item), parts(parts_of(a.q.type)) {
    const auto take = [&]<class E>(E*& at, std::size_t n) {
      at = reinterpret_cast<E*>(memory);
      memory += n * sizeof(E);
    };
    take(output, output_elements());
    take(queries, heads * query_elements(head_dim));
    take(most, sets_of(heads) * columns);
    take(sum, sets_of(heads) * columns);
    take(factor, sets_of(heads) * columns);
    take(scores, tile_tokens * columns);
    take(weights, 2 * tile_tokens * columns);
    take(copies, all_copies(head_dim, head_dim_v));
    take(k_scales, scale_elements(heads));
    take(v_scales, scale_elements(heads));
    take(states, heads * R);
    std::fill(k_scales, k_scales + 2 * scale_elements(heads), 1.0f);
    std::fill(factor, factor + sets_of(heads) * columns, 0.0f);
    clear();
  }
  /// No token has been processed.
  void clear() {
    std::fill(output, output + output_elements(), 0.0f);
    std::fill(most, most + sets_of(heads) * columns, -infinity);
    std::fill(sum, sum + sets_of(heads) * columns, 0.0f);
  }
  AmxTile(const AmxTile&)            = delete;
  AmxTile& operator=(const AmxTile&) = delete;

  int set() const { return head / set_heads; }
  int first_column() const { return head % set_heads * R; }
  int first_head() const { return set() * set_heads; }
  int heads_of_set() const { return std::min(set_heads, heads - first_head()); }
  int used_halves() const { return count > half_tokens ? 2 : 1; }
  std::size_t output_elements() const { return std::size_t(heads) * sums * R * head_dim_v; }
  /// The row of token n of half a tile.
  const T* key(const Half& half, int h, int n) const {
    const std::int64_t row = half.even ? half.k[0] + n * args.k_token : half.k[n];
    return static_cast<const T*>(args.k) + (row + h * args.k_head);
  }
  const T* value(const Half& half, int h, int n) const {
    const std::int64_t row = half.even ? half.v[0] + n * args.v_token : half.v[n];
    return static_cast<const T*>(args.v) + (row + h * args.v_head);
  }

  /// Finds the rows of the tile from token u on, and those of the next tile. The tiles of an item come in order, so
  /// each tile is located only once.
  template <class Where>
  void locate(const Where& where, int u, int end) {
    count = std::min(tile_tokens, end - u);
    if (next > 0) {
      std::swap(here, ahead);
    } else {
      find(where, u, count, here);
    }
    next     = std::clamp(end - u - tile_tokens, 0, tile_tokens);
    num_runs = 0, run = 0;
    if (next > 0) {
      find(where, u + tile_tokens, next, ahead);
      list_runs(ahead);
    }
    near = near_end = nullptr;
    start_run();
    if constexpr (scaled) {
      load_scales(args.k_scale, where, u, k_scales);
      load_scales(args.v_scale, where, u, v_scales);
    }
  }

  /// Prefetches the next `bytes` bytes of the next tile.
  [[gnu::always_inline]] void prefetch(std::int64_t bytes) {
    for (std::int64_t left = bytes; left > 0;) {
      if (near >= near_end) {
        if (run == num_runs) return;
        start_run();
      }
      __builtin_prefetch(near, 0, prefetch_nearby);
      left -= std::min<std::int64_t>(prefetch_step, near_end - near);
      near += prefetch_step;
    }
  }

  /// Continues with the next run of bytes to prefetch.
  void start_run() {
    if (run == num_runs) return;
    near     = runs_[run].at;
    near_end = near + runs_[run].bytes;
    ++run;
  }

 private:
  template <class Where>
  void find(const Where& where, int u, int tokens, Half* to) const {
    for (int i = 0; i < halves; ++i, u += half_tokens) {
      Half& half  = to[i];
      half.tokens = std::clamp(tokens - i * half_tokens, 0, half_tokens);
      if (half.tokens == 0) continue;
      const PagePlace place = where.place(u);
      const bool row =
          half.tokens == half_tokens && where.token(u + half_tokens - 1) - where.token(u) == half_tokens - 1;
      half.even            = row && place.slot + half_tokens <= args.page_size.value;
      const TokenRow first = where.row(place);
      half.k[0] = first.k, half.v[0] = first.v;
      for (int n = 1; n < half.tokens && !half.even; ++n) {
        const TokenRow at = where.row(where.place(u + n));
        half.k[n] = at.k, half.v[n] = at.v;
      }
    }
  }

  /// Loads the scales of the tile's tokens, if they have scales of their own.
  template <class Where>
  void load_scales(const auto& scale, const Where& where, int u, float* to) const {
    if (!scale.per_token()) return;
    for (int n = 0; n < count; ++n) {
      const PagePlace place = where.place(u + n);
      const std::int64_t at = scale.offset(place.page, place.slot) + std::int64_t(where.kv_head) * scale.head;
      for (int h = 0; h < heads; ++h)
        to[(h / set_heads * tile_tokens + n) * set_heads + h % set_heads] = scale.of_token(at, h);
    }
  }

  /// Lists the rows of a tile in memory order. Rows that follow each other are one run.
  void list_runs(const Half* of) {
    for (int i = 0; i < halves; ++i) {
      const Half& half = of[i];
      if (half.tokens == 0) continue;
      list_rows(half, static_cast<const T*>(args.k), half.k, args.k_token, args.k_head, head_dim);
      if (args.v != args.k)
        list_rows(half, static_cast<const T*>(args.v), half.v, args.v_token, args.v_head, head_dim_v);
    }
  }
  void list_rows(const Half& half, const T* base, const std::int64_t* at, std::int64_t token, std::int64_t head_step,
                 int dims) {
    const std::int64_t row = (heads - 1) * head_step + dims / per_element;
    if (half.even && token == row) {
      runs_[num_runs++] = {reinterpret_cast<const char*>(base + at[0]), std::int64_t(half_tokens * row * sizeof(T))};
      return;
    }
    for (int n = 0; n < half.tokens; ++n)
      runs_[num_runs++] = {reinterpret_cast<const char*>(base + (half.even ? at[0] + n * token : at[n])),
                           std::int64_t(row * sizeof(T))};
  }

  Half half_[2 * halves];
  Run runs_[2 * tile_tokens];
};

}  // namespace pagoda::detail
