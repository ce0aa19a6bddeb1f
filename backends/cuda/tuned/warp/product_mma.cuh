// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/fp16_of_bytes.cuh"
#include "backends/cuda/tuned/warp/scores.cuh"
#include "backends/cuda/tuned/warp/tiles.cuh"
#include "src/kernel/online_softmax.hpp"

/// One warp's softmax state of up to 8 query rows, and the two products that a tile adds to it.
namespace pagoda::tuned::warp {

using detail::initial_max;
using detail::rescale_threshold;

/// The accumulator for keys and values of 16 or 8 bits. In the first product queries are operand A of mma.m16n8k16 and
/// keys are operand B. Its accumulators have the layout of operand B of the second product, so probabilities are never
/// exchanged between lanes. Values are operand A and are transposed by the load. 8-bit elements become 16-bit elements
/// in registers.
///
/// It has up to 8 query rows.
template <Type T, int D>
class MmaAccumulator {
 public:
  using TileShape             = Tile<T, D>;
  using Query                 = std::uint16_t;
  static constexpr bool bf16  = T == Type::bf16;
  static constexpr bool bytes = TileShape::row_bytes == D;
  static constexpr int steps  = D / 16;  ///< steps of 16 dims

  PAGODA_DEVICE explicit MmaAccumulator(int lane) : lane_(lane), row_(lane >> 2), column_(lane & 3) {
    keys_   = TileShape::offset(lane & 7, lane >> 3);
    values_ = bytes ? TileShape::offset(lane & 15, lane >> 4)
                    : TileShape::offset((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
  }

  /// Begins new query rows. q: row of the first query head that shares the kv head. Rows from `count` on repeat the
  /// last one; their results are not stored.
  PAGODA_DEVICE void begin(const Query* q, std::int64_t head_stride, int count) {
    const Query* const from = q + min(row_, count - 1) * head_stride;
#pragma unroll
    for (int j = 0; j < steps; ++j) {
      if constexpr (bytes) {  // dims 4 column to 4 column + 3 of each 16, the order in which the bytes of keys arrive
        const uint2 v = __ldg(reinterpret_cast<const uint2*>(from + 4 * column_) + 4 * j);
        q_[2 * j] = v.x, q_[2 * j + 1] = v.y;
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          q_[2 * j + half] = __ldg(reinterpret_cast<const unsigned*>(from + 2 * column_) + 8 * j + 4 * half);
      }
    }
    reset();
  }
  /// The same from shared memory, where rows lie as query_offset() says.
  PAGODA_DEVICE void begin_shared(const char* rows, int count) {
    const int row          = min(row_, count - 1);
    const char* const from = rows + row * 128;
#pragma unroll
    for (int j = 0; j < steps; ++j) {
      const char* const run = from + j / 4 * 1024;  // of 64 dims
      if constexpr (bytes) {
        const uint2 v =
            *reinterpret_cast<const uint2*>(run + ((((2 * j) % 8 + (column_ >> 1)) ^ row) << 4) + (column_ & 1) * 8);
        q_[2 * j] = v.x, q_[2 * j + 1] = v.y;
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          q_[2 * j + half] = *reinterpret_cast<const unsigned*>(run + (((2 * j + half) % 8 ^ row) << 4) + 4 * column_);
      }
    }
    reset();
  }
  /// Begins a new state of the same query rows.
  PAGODA_DEVICE void reset() {
#pragma unroll
    for (auto& o : out_) o[0] = o[1] = o[2] = o[3] = 0;
    max_ = initial_max, sum_ = 0;
  }

  /// The query row of the lane's scores.
  PAGODA_DEVICE int row_of_scores() const { return row_; }
  /// Adds a tile whose keys and values are in shared memory. scores: makes scores of products, and hides tokens.
  /// Copies: orders the stores that zero the values of hidden tokens.
  template <class Copies, class Scores>
  PAGODA_DEVICE void add_tile(std::uint32_t keys, std::uint32_t values, const Scores& scores) {
    float s[4][4] = {};  // two accumulators for each eight tokens: shorter chains
#pragma unroll
    for (int i = 0; i < TileShape::row_bytes / 64; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t k[4];  // chunks 4 i to 4 i + 3 of eight tokens
        load_matrices<false>(k, keys + (keys_ ^ ((i & 1) << 6)) + (i >> 1) * 2048 + half * 1024);
        if constexpr (bytes) {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            mma<bf16>(s[2 * half + (j & 1)], q_[2 * (4 * i + j)], 0, q_[2 * (4 * i + j) + 1], 0,
                      fp16_of_bytes<T, 0>(k[j]), fp16_of_bytes<T, 1>(k[j]));
        } else {
          mma<bf16>(s[2 * half], q_[4 * i], 0, q_[4 * i + 1], 0, k[0], k[1]);
          mma<bf16>(s[2 * half + 1], q_[4 * i + 2], 0, q_[4 * i + 3], 0, k[2], k[3]);
        }
      }
    }
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = scores.of(s[i / 2 * 2][i % 2] + s[i / 2 * 2 + 1][i % 2], token_at(i));
    if (scores.hides_any()) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (scores.hides(token_at(i))) x[i] = -INFINITY;
      scores.template clear<TileShape, Copies>(values, lane_);
    }
    raise_max(x);
#pragma unroll
    for (float& e : x) {
      e = exp2_fast(e - max_);
      sum_ += e;
    }
    const std::uint32_t p0 = pack<bf16>(x[0], x[1]), p1 = pack<bf16>(x[2], x[3]);
#pragma unroll
    for (int i = 0; i < TileShape::row_bytes / 32; ++i) {
      std::uint32_t v[4];
      load_matrices<true>(v, values + (values_ ^ ((i & 3) << 5)) + (i >> 2) * 2048);
      if constexpr (bytes) {  // tokens 0 to 7 and 8 to 15 of one chunk, then of the next
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::uint32_t low = __byte_perm(v[2 * j], 0, 0x3120), high = __byte_perm(v[2 * j + 1], 0, 0x3120);
          mma<bf16>(out_[2 * i + j], fp16_of_bytes<T, 0>(low), fp16_of_bytes<T, 1>(low), fp16_of_bytes<T, 0>(high),
                    fp16_of_bytes<T, 1>(high), p0, p1);
        }
      } else {
        mma<bf16>(out_[i], v[0], v[1], v[2], v[3], p0, p1);
      }
    }
  }

  /// Stores the state of the first `count` rows to shared memory: maximum and sum of row r to states[r], weighted
  /// values to values[r * stride ...].
  PAGODA_DEVICE void store(float2* states, float* values, int stride, int count) {
    sum_ += __shfl_xor_sync(~0u, sum_, 1);
    sum_ += __shfl_xor_sync(~0u, sum_, 2);
    if (column_ == 0) states[row_] = make_float2(max_, sum_);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (2 * column_ + e >= count) continue;
      float* const to = values + (2 * column_ + e) * stride;
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        if constexpr (bytes) {  // two dims of a pair of bytes
          *reinterpret_cast<float2*>(to + 16 * i + 2 * row_) = make_float2(out_[i][e], out_[i][2 + e]);
        } else {
          to[16 * i + row_] = out_[i][e], to[16 * i + 8 + row_] = out_[i][2 + e];
        }
      }
    }
  }

 private:
  /// Token of the lane's i-th score in the tile.
  PAGODA_DEVICE int token_at(int i) const { return 2 * column_ + (i & 1) + (i >> 1) * 8; }

  /// Raises the running maximum if a score exceeds it by more than rescale_threshold.
  PAGODA_DEVICE void raise_max(const float (&x)[4]) {
    float new_max = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    if (!__any_sync(~0u, new_max > max_ + rescale_threshold)) return;
    new_max                = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
    new_max                = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
    new_max                = fmaxf(max_, new_max);
    const float correction = exp2_fast(max_ - new_max);
    max_                   = new_max;
    sum_ *= correction;
    // Output columns are query rows 2 column and 2 column + 1.
    const float correction0 = __shfl_sync(~0u, correction, 8 * column_),
                correction1 = __shfl_sync(~0u, correction, 8 * column_ + 4);
#pragma unroll
    for (auto& o : out_) o[0] *= correction0, o[1] *= correction1, o[2] *= correction0, o[3] *= correction1;
  }

  int lane_, row_, column_;
  std::uint32_t keys_, values_;  ///< the lane's offsets in a tile
  std::uint32_t q_[2 * steps];
  float out_[steps][4];
  float max_, sum_;
};

/// The accumulator of decodes without a list. QueryRows: the maximum number of query rows. product_fma.cuh has that of
/// 32-bit elements, product_imma.cuh that of integers.
template <Type T, int D, int QueryRows>
class RowAccumulator : public MmaAccumulator<T, D> {
 public:
  static_assert(QueryRows == 8);
  using MmaAccumulator<T, D>::MmaAccumulator;
};

}  // namespace pagoda::tuned::warp
