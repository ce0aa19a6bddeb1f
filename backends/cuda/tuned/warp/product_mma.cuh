// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/tiles.cuh"

/// One warp's softmax state of up to 8 query rows, and the two products that a tile adds to it.
namespace pagoda::tuned {

/// Scores are computed with query rows as rows (Q is A of mma.m16n8k16, keys are B). Their accumulators are laid out as
/// the B operand of the second product, so probabilities never move between lanes; values are A, transposed as they are
/// loaded. 8-bit elements become halves in registers.
///
/// QueryRows: room for so many. The other types are in product_fma.cuh.
template <Type T, int D, int QueryRows>
class Rows {
 public:
  static_assert(QueryRows == 8);
  using Shape                   = Tile<T, D>;
  using Query                   = std::uint16_t;
  static constexpr bool bf16    = T == Type::bf16;
  static constexpr bool bytes   = Shape::element_bytes == 1;
  static constexpr bool e5m2    = T == Type::fp8_e5m2;
  static constexpr int steps    = D / 16;  ///< of 16 dims
  static constexpr float lowest = -1e30f;  ///< below any score, and finite: differences with it are numbers

  PAGODA_DEVICE explicit Rows(int lane) : lane_(lane), row_(lane >> 2), column_(lane & 3) {
    keys_   = Shape::place(lane & 7, lane >> 3);
    values_ = bytes ? Shape::place(lane & 15, lane >> 4) : Shape::place((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
  }

  /// Begins new rows: q is of the group's first head. Rows from `count` on are the last once more: they change nothing
  /// of the others, and nobody asks for them.
  PAGODA_DEVICE void begin(const Query* q, std::int64_t head_stride, int count) {
    const Query* const from = q + min(row_, count - 1) * head_stride;
#pragma unroll
    for (int j = 0; j < steps; ++j) {
      if constexpr (bytes) {  // dims 4 column .. + 4 of each 16: as their bytes come out of the keys
        const uint2 v = __ldg(reinterpret_cast<const uint2*>(from + 4 * column_) + 4 * j);
        q_[2 * j] = v.x, q_[2 * j + 1] = v.y;
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          q_[2 * j + half] = __ldg(reinterpret_cast<const unsigned*>(from + 2 * column_) + 8 * j + 4 * half);
      }
    }
#pragma unroll
    for (auto& o : out_) o[0] = o[1] = o[2] = o[3] = 0;
    base_ = lowest, sum_ = 0;
  }

  /// Adds a tile: keys at `keys` in shared memory, values at `values`. Of its tokens the first `count` are there.
  /// Copies: is told where values behind the last token were overwritten.
  template <class Copies>
  PAGODA_DEVICE void add(std::uint32_t keys, std::uint32_t values, int count, float scale) {
    float s[4][4] = {};  // of eight tokens each, twice: shorter chains
#pragma unroll
    for (int i = 0; i < Shape::row_bytes / 64; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t k[4];  // chunks 4 i .. + 4 of eight tokens
        load_matrices<false>(k, keys + (keys_ ^ ((i & 1) << 6)) + (i >> 1) * 2048 + half * 1024);
        if constexpr (bytes) {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            mma<bf16>(s[2 * half + (j & 1)], q_[2 * (4 * i + j)], 0, q_[2 * (4 * i + j) + 1], 0, widen<e5m2>(k[j]),
                      widen<e5m2>(k[j] >> 16));
        } else {
          mma<bf16>(s[2 * half], q_[4 * i], 0, q_[4 * i + 1], 0, k[0], k[1]);
          mma<bf16>(s[2 * half + 1], q_[4 * i + 2], 0, q_[4 * i + 3], 0, k[2], k[3]);
        }
      }
    }
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (s[i / 2 * 2][i % 2] + s[i / 2 * 2 + 1][i % 2]) * scale;
    if (count < Shape::tokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (token_at(i) >= count) x[i] = -INFINITY;
      clear_rows<Shape, Copies>(values, count, lane_);
    }
    raise(x);
#pragma unroll
    for (float& e : x) {
      e = exp2_fast(e - base_);
      sum_ += e;
    }
    const std::uint32_t p0 = pack<bf16>(x[0], x[1]), p1 = pack<bf16>(x[2], x[3]);
#pragma unroll
    for (int i = 0; i < Shape::row_bytes / 32; ++i) {
      std::uint32_t v[4];
      load_matrices<true>(v, values + (values_ ^ ((i & 3) << 5)) + (i >> 2) * 2048);
      if constexpr (bytes) {  // tokens 0 .. 7 and 8 .. 15 of one chunk, then of the next
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::uint32_t low = __byte_perm(v[2 * j], 0, 0x3120), high = __byte_perm(v[2 * j + 1], 0, 0x3120);
          mma<bf16>(out_[2 * i + j], widen<e5m2>(low), widen<e5m2>(low >> 16), widen<e5m2>(high),
                    widen<e5m2>(high >> 16), p0, p1);
        }
      } else {
        mma<bf16>(out_[i], v[0], v[1], v[2], v[3], p0, p1);
      }
    }
  }

  /// Leaves the state in shared memory: maximum and sum of row r at states[r], weighted values at values[r][stride].
  PAGODA_DEVICE void end(float2* states, float* values, int stride, int count) {
    sum_ += __shfl_xor_sync(~0u, sum_, 1);
    sum_ += __shfl_xor_sync(~0u, sum_, 2);
    if (column_ == 0) states[row_] = make_float2(base_, sum_);
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
  /// Which token of a tile the lane's i-th score is of.
  PAGODA_DEVICE int token_at(int i) const { return 2 * column_ + (i & 1) + (i >> 1) * 8; }

  /// The running maximum is raised only when a score exceeds it by more than 2^8; until then probabilities are up to
  /// 2^8, and nothing is rescaled.
  PAGODA_DEVICE void raise(const float (&x)[4]) {
    float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    if (!__any_sync(~0u, most > base_ + 8.0f)) return;
    most             = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most             = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float base = fmaxf(base_, most), kept = exp2_fast(base_ - base);
    base_ = base;
    sum_ *= kept;
    // Output columns are query rows 2 column and 2 column + 1.
    const float kept0 = __shfl_sync(~0u, kept, 8 * column_), kept1 = __shfl_sync(~0u, kept, 8 * column_ + 4);
#pragma unroll
    for (auto& o : out_) o[0] *= kept0, o[1] *= kept1, o[2] *= kept0, o[3] *= kept1;
  }

  int lane_, row_, column_;
  std::uint32_t keys_, values_;  ///< the lane's places in a tile
  std::uint32_t q_[2 * steps];
  float out_[steps][4];
  float base_, sum_;
};

}  // namespace pagoda::tuned
