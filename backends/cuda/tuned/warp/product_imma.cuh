// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/product_mma.cuh"

/// The accumulator of integer caches.
namespace pagoda::tuned::warp {

/// How the words of a KV row become operands. A lane's word of a row holds four bytes, of dims that lie side by side.
/// The dims of the first product may be in any order that is the same for queries, and the dims of the output are put
/// in order at its end.
template <Type T>
struct IntegerWords;

template <>
struct IntegerWords<Type::int8> {
  static constexpr int shift   = 0;  ///< operands of the first product are 2^shift n
  static constexpr int outputs = 1;  ///< of 16 dims, in a chunk of 16 bytes
  /// The two halves of a step of 32 dims, from the words of two chunks.
  static PAGODA_DEVICE void keys(std::uint32_t even, std::uint32_t odd, int, std::uint32_t (&half)[2]) {
    half[0] = even, half[1] = odd;
  }
  /// Operands of the second product, from a word that holds dims of two tokens. A half with an exponent of 0 is a
  /// subnormal number, which matrix instructions multiply exactly: here n + 128 units of 2^-24.
  static PAGODA_DEVICE void values(std::uint32_t w, std::uint32_t (&low)[outputs], std::uint32_t (&high)[outputs]) {
    low[0] = masked_xor<0x00ff00ffu>(w, 0x00800080u), high[0] = masked_xor<0x00ff00ffu>(w >> 8, 0x00800080u);
  }
  static PAGODA_DEVICE constexpr float per_unit(int) { return 0x1p24f; }
  /// Two halves that remove the offset of values.
  static PAGODA_DEVICE constexpr std::uint32_t lower(int) { return 0x80808080u; }
};

/// The lower four bits of the bytes are the even dims, the upper ones the odd dims.
template <>
struct IntegerWords<Type::int4> {
  static constexpr int shift   = 4;
  static constexpr int outputs = 2;
  static PAGODA_DEVICE void keys(std::uint32_t even, std::uint32_t odd, int step, std::uint32_t (&half)[2]) {
    const std::uint32_t w = (step & 1) == 0 ? even : odd;
    half[0] = w << 4 & 0xf0f0f0f0u, half[1] = w & 0xf0f0f0f0u;
  }
  static PAGODA_DEVICE void values(std::uint32_t w, std::uint32_t (&low)[outputs], std::uint32_t (&high)[outputs]) {
    const std::uint32_t next = w >> 8;
    low[0] = masked_xor<0x000f000fu>(w, 0x00080008u), low[1] = masked_xor<0x00f000f0u>(w, 0x00800080u);
    high[0] = masked_xor<0x000f000fu>(next, 0x00080008u), high[1] = masked_xor<0x00f000f0u>(next, 0x00800080u);
  }
  static PAGODA_DEVICE constexpr float per_unit(int o) { return o == 0 ? 0x1p24f : 0x1p20f; }
  static PAGODA_DEVICE constexpr std::uint32_t lower(int o) { return o == 0 ? 0x80088008u : 0x80808080u; }
};

/// The accumulator for keys and values of 8-bit and 4-bit integers, with scales of tokens.
///
///  - The first product is one of integers, and exact. A query is a fixed-point number of 23 bits, relative to the
///    largest of its row, of which mma.m16n8k32 multiplies the three bytes ("digits") one by one.
///  - Up to four query rows: keys are operand A, and the columns of operand B are digits 2 and 1 of each query row,
///    then digit 0 twice. A lane has scores of two tokens and one query row. Tokens 0 to 7 and 8 to 15 have output
///    columns of their own, which are added at the end.
///  - Up to eight query rows: rows 0 to 7 of operand A are digit 2, rows 8 to 15 digit 1; then digit 0 and zeros. A
///    lane has scores of four tokens and one query row.
///  - The second product is one of fp16. Weights of values are probabilities times scales, and the running maximum
///    bounds these weights.
template <Type T, int D, int QueryRows>
  requires(is_integer(T))
class RowAccumulator<T, D, QueryRows> {
 public:
  static_assert(QueryRows == 4 || QueryRows == 8);
  using TileShape                    = Tile<T, D>;
  using Query                        = std::uint16_t;
  using Words                        = IntegerWords<T>;
  static constexpr bool few          = QueryRows == 4;
  static constexpr int steps         = D / 32;       ///< steps of 32 dims of the first product
  static constexpr int scores        = few ? 2 : 4;  ///< of a lane
  static constexpr int step_words    = few ? 4 : 6;
  static constexpr int query_bits    = 21;  ///< digits are those of numbers whose largest is at least 2^query_bits
  static constexpr int chunks        = TileShape::row_bytes / 16;
  static constexpr int chunk_outputs = Words::outputs;

  /// What accumulators share, in registers: the lane's offset in a tile, and operands that remove the offset of values.
  struct Shared {
    int tile;
    std::uint32_t lower[chunk_outputs][few ? 2 : 4];
    PAGODA_DEVICE explicit Shared(int lane) : tile(opaque(static_cast<int>(TileShape::offset(lane & 15, lane >> 4)))) {
#pragma unroll
      for (int o = 0; o < chunk_outputs; ++o)
#pragma unroll
        for (auto& word : lower[o]) word = unknown(Words::lower(o));
    }
  };

  PAGODA_DEVICE explicit RowAccumulator(int lane) : row_(lane >> 2), column_(lane & 3) {}

  /// Begins new query rows. q: row of the first query head that shares the kv head. Rows from `count` on repeat the
  /// last one; their results are not stored. The queries are used by convert_queries().
  PAGODA_DEVICE void begin(const Query* q, std::int64_t head_stride, int count) {
    const Query* const from = q + min(few ? row_ >> 1 : row_, count - 1) * head_stride;
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      if constexpr (T == Type::int4) {  // dims 8 column to 8 column + 7 of each 32
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(from + 8 * column_) + 4 * i);
        q_[i][0] = v.x, q_[i][1] = v.y, q_[i][2] = v.z, q_[i][3] = v.w;
      } else {  // dims 4 column to 4 column + 3 of each 16
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 v   = __ldg(reinterpret_cast<const uint2*>(from + 4 * column_) + 8 * i + 4 * half);
          q_[i][2 * half] = v.x, q_[i][2 * half + 1] = v.y;
        }
      }
    }
  }
  /// Begins a new state of the same query rows.
  PAGODA_DEVICE void reset() {
#pragma unroll
    for (auto& o : out_) o[0] = o[1] = o[2] = o[3] = 0;
    max_ = initial_max, sum_ = 0;
  }
  /// Turns the queries into digits and begins their state. To be called when they have arrived, before the first tile.
  PAGODA_DEVICE void convert_queries() {
    __half2 most = __half2(0, 0);
#pragma unroll
    for (auto& words : q_)
#pragma unroll
      for (int j = 0; j < 4; ++j) most = __hmax2_nan(most, __habs2(reinterpret_cast<const __half2&>(words[j])));
    int largest = __float_as_int(__half2float(__hmax_nan(__low2half(most), __high2half(most))));
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, d));  // NaN is the largest
    // The exponent e of the largest number: digits are those of 2^(query_bits - e) times the query.
    const bool finite  = largest < 0x7f800000;
    const int exponent = finite && largest > 0 ? largest >> 23 : 127;
    const float up     = __int_as_float((254 + query_bits - exponent) << 23);
    // Rows with other numbers become NaN.
    const float down = finite ? __int_as_float((exponent - query_bits - Words::shift) << 23) : NAN;
    factor_          = few ? __shfl_sync(~0u, down, 8 * column_) : down;
    // Selects a digit of two numbers: 2 or 1, and in the second set 0.
    const unsigned pick[2] = {(row_ & 1) == 0 ? 0x62u : 0x51u, 0x40u};
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      std::uint32_t words[step_words];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t n[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int word = T == Type::int4 ? j : 2 * half + (j >> 1), part = T == Type::int4 ? half : j & 1;
          const float x = unpack<false>(q_[i][word]).x, y = unpack<false>(q_[i][word]).y;
          n[j] = digits((part == 0 ? x : y) * up);
        }
        if constexpr (few) {
#pragma unroll
          for (int set = 0; set < 2; ++set)
            words[2 * set + half] =
                __byte_perm(__byte_perm(n[0], n[1], pick[set]), __byte_perm(n[2], n[3], pick[set]), 0x5410);
        } else {
          const std::uint32_t low01 = __byte_perm(n[0], n[1], 0x5140), low23 = __byte_perm(n[2], n[3], 0x5140);
          const std::uint32_t high01 = __byte_perm(n[0], n[1], 0x7362), high23 = __byte_perm(n[2], n[3], 0x7362);
          words[2 * half]     = __byte_perm(high01, high23, 0x5410);  // digit 2
          words[2 * half + 1] = __byte_perm(low01, low23, 0x7632);    // digit 1
          words[4 + half]     = __byte_perm(low01, low23, 0x5410);    // digit 0
        }
      }
#pragma unroll
      for (int j = 0; j < step_words; ++j) q_[i][j] = words[j];
    }
    reset();
  }

  /// The query row of the lane's scores.
  PAGODA_DEVICE int row_of_scores() const { return few ? column_ : row_; }
  /// Adds a tile whose keys, values and scales are in shared memory. tile: makes scores of products, and hides tokens.
  template <class Scores>
  PAGODA_DEVICE void add_tile(std::uint32_t keys, std::uint32_t values, std::uint32_t scales, const Scores& tile,
                              const Shared& shared) {
    float x[scores], key_scale[scores], weight[scores];
    load_scales(scales, key_scale);
    load_scales(scales + 4 * tile_tokens, weight);
    multiply_keys(keys, shared.tile, x);
    std::uint32_t v[chunks / 2][4];
#pragma unroll
    for (int i = 0; i < chunks / 2; ++i) load_matrices<true>(v[i], values + (shared.tile ^ (i << 5)));
#pragma unroll
    for (int i = 0; i < scores; ++i) x[i] = tile.of(x[i] * (factor_ * key_scale[i]), token_at(i));
    if (tile.hides_any()) {
#pragma unroll
      for (int i = 0; i < scores; ++i)
        if (tile.hides(token_at(i))) x[i] = -INFINITY, weight[i] = 0;
    }
    raise_max(x, weight);
#pragma unroll
    for (int i = 0; i < scores; ++i) {
      x[i] = exp2_fast(x[i] - max_);
      sum_ += x[i];
      x[i] *= weight[i];
    }
    std::uint32_t p, p0, p1;
    if constexpr (few) {  // even columns have tokens 0 to 7, odd columns tokens 8 to 15
      p                           = transpose(pack<false>(x[0], x[1]));
      const std::uint32_t is_even = (row_ & 1) - 1;
      p0 = p & is_even, p1 = p & ~is_even;
    } else {
      p0 = pack<false>(x[0], x[1]), p1 = pack<false>(x[2], x[3]);
    }
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      std::uint32_t low[2][chunk_outputs], high[2][chunk_outputs];  // tokens 0 to 7 and 8 to 15
      Words::values(v[i / 2][i % 2 * 2], low[0], high[0]);
      Words::values(v[i / 2][i % 2 * 2 + 1], low[1], high[1]);
#pragma unroll
      for (int o = 0; o < chunk_outputs; ++o) {
        auto& out = out_[chunk_outputs * i + o];
        mma<false>(out, low[0][o], high[0][o], low[1][o], high[1][o], p0, p1);
        // Removes the offset in each tile, so that sums and their rounding errors stay as small as without it.
        if constexpr (few) {
          mma_k8(out, shared.lower[o][0], shared.lower[o][1], p);
        } else {
          mma<false>(out, shared.lower[o][0], shared.lower[o][1], shared.lower[o][2], shared.lower[o][3], p0, p1);
        }
      }
    }
  }

  /// Stores the state of the first `count` rows to shared memory: maximum and sum of row r to states[r], weighted
  /// values to values[r * stride ...].
  PAGODA_DEVICE void store(float2* states, float* values, int stride, int count) {
#pragma unroll
    for (int d = few ? 4 : 1; d <= (few ? 16 : 2); d *= 2) sum_ += __shfl_xor_sync(~0u, sum_, d);
    if ((few ? row_ == 0 : column_ == 0) && row_of_scores() < count) states[row_of_scores()] = make_float2(max_, sum_);
#pragma unroll
    for (int e = 0; e < (few ? 1 : 2); ++e) {
      const int r = few ? column_ : 2 * column_ + e;
      if (r >= count) continue;
      const auto at = [&](int i, int o, int half) {
        const auto& out = out_[chunk_outputs * i + o];
        return (few ? out[2 * half] + out[2 * half + 1] : out[2 * half + e]) * Words::per_unit(o);
      };
      float* const to = values + r * stride;
#pragma unroll
      for (int i = 0; i < chunks; ++i) {
        if constexpr (T == Type::int4) {
          *reinterpret_cast<float4*>(to + 32 * i + 4 * row_) =
              make_float4(at(i, 0, 0), at(i, 1, 0), at(i, 0, 1), at(i, 1, 1));
        } else {
          *reinterpret_cast<float2*>(to + 16 * i + 2 * row_) = make_float2(at(i, 0, 0), at(i, 0, 1));
        }
      }
    }
  }

 private:
  /// The digits of x, rounded, to base 256: bytes 0 to 2, with signs. |x| < 2^22.
  static PAGODA_DEVICE std::uint32_t digits(float x) {
    constexpr std::uint32_t middle = 0x00008080u;  // 128 in digits 0 and 1
    // 1.5 * 2^23 + x has the bits of the integer behind those of 1.5 * 2^23.
    return (__float_as_uint(x + 0x1.8p23f) - 0x4b400000u + middle) ^ middle;
  }
  /// Token of the lane's i-th score in the tile.
  PAGODA_DEVICE int token_at(int i) const { return few ? row_ + 8 * i : 2 * column_ + (i & 1) + (i >> 1) * 8; }

  PAGODA_DEVICE void load_scales(std::uint32_t from, float (&scale)[scores]) const {
    if constexpr (few) {
      scale[0] = load_shared_float(from + 4 * row_), scale[1] = load_shared_float(from + 4 * row_ + 32);
    } else {
      const float2 low = load_shared_float2(from + 8 * column_), high = load_shared_float2(from + 8 * column_ + 32);
      scale[0] = low.x, scale[1] = low.y, scale[2] = high.x, scale[3] = high.y;
    }
  }
  /// Adds the products of a step and of a set of digits to d. low and high: the halves of keys 0 to 7 and 8 to 15.
  PAGODA_DEVICE void multiply(int (&d)[few ? 1 : 2][2][4], int step, int set, const std::uint32_t (&low)[2],
                              const std::uint32_t (&high)[2]) const {
    const auto& q = q_[step];
    if constexpr (few) {
      mma_s8(d[0][set], low[0], high[0], low[1], high[1], q[2 * set], q[2 * set + 1]);
    } else if (set == 0) {
      mma_s8(d[0][0], q[0], q[1], q[2], q[3], low[0], low[1]);
      mma_s8(d[1][0], q[0], q[1], q[2], q[3], high[0], high[1]);
    } else {
      mma_s8(d[0][1], q[4], 0, q[5], 0, low[0], low[1]);
      mma_s8(d[1][1], q[4], 0, q[5], 0, high[0], high[1]);
    }
  }
  /// x: products of the lane's tokens and query row.
  PAGODA_DEVICE void multiply_keys(std::uint32_t keys, int tile, float (&x)[scores]) const {
    int d[few ? 1 : 2][2][4] = {};  // of tokens 0 to 7 and 8 to 15; of few rows together
#pragma unroll
    for (int i = 0; i < chunks / 2; ++i) {
      std::uint32_t k[4];  // tokens 0 to 7 and 8 to 15 of one chunk, then of the next
      load_matrices<false>(k, keys + (tile ^ (i << 5)));
#pragma unroll
      for (int j = 0; j < 2 * steps / chunks; ++j) {
        const int step = 2 * steps / chunks * i + j;
        std::uint32_t low[2], high[2];  // halves of tokens 0 to 7, and of 8 to 15
        Words::keys(k[0], k[2], step, low);
        Words::keys(k[1], k[3], step, high);
#pragma unroll
        for (int set = 0; set < 2; ++set) multiply(d, step, set, low, high);
      }
    }
#pragma unroll
    for (int i = 0; i < scores; ++i) {
      const auto& a  = d[few ? 0 : i / 2];
      const int high = few ? 2 * i : i % 2, low = few ? high + 1 : high + 2;
      x[i] = fmaf(static_cast<float>(a[0][high] * 256 + a[0][low]), 256, static_cast<float>(a[1][high]));
    }
  }

  /// Raises the running maximum if a weight of a value exceeds it by more than rescale_threshold: with scales of
  /// tokens, the most probable token need not have the largest.
  PAGODA_DEVICE void raise_max(const float (&x)[scores], const float (&weight)[scores]) {
    float log[scores], new_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < scores; ++i) {
      log[i]  = log2_fast(fmaxf(fabsf(weight[i]), 0x1p-60f));
      new_max = fmaxf(new_max, x[i] + log[i]);
    }
    if (!__any_sync(~0u, new_max > max_ + rescale_threshold)) return;
    new_max = max_;
#pragma unroll
    for (int i = 0; i < scores; ++i) new_max = fmaxf(new_max, x[i] + fminf(log[i], 60));  // the scale may be infinite
#pragma unroll
    for (int d = few ? 4 : 1; d <= (few ? 16 : 2); d *= 2) new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, d));
    const float correction = exp2_fast(max_ - new_max);
    max_                   = new_max;
    sum_ *= correction;
    // Output columns are query rows 2 column and 2 column + 1; with few query rows both are query row `column`.
    const float correction0 = few ? correction : __shfl_sync(~0u, correction, 8 * column_),
                correction1 = few ? correction : __shfl_sync(~0u, correction, 8 * column_ + 4);
#pragma unroll
    for (auto& o : out_) o[0] *= correction0, o[1] *= correction1, o[2] *= correction0, o[3] *= correction1;
  }

  int row_, column_;
  std::uint32_t q_[steps][step_words];  ///< queries, then their digits
  float factor_ = 0;                    ///< of sums of products of digits
  float out_[D / 16][4];
  float max_, sum_;
};

}  // namespace pagoda::tuned::warp
