// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/product_mma.cuh"

/// The products of 32-bit keys and values, by plain multiply-adds.
namespace pagoda::tuned {

/// `row_lanes` lanes read a row of a tile together, the others other rows at the same time; a lane has the same dims of
/// keys, values, queries and outputs. The fewer lanes to a row, the fewer sums to add over lanes, and the more dims of
/// queries and outputs in registers: QueryRows * D / row_lanes of each.
///
/// Scores are added while they are spread over the lanes of their row: each step halves what a lane holds and how many
/// lanes there are to add. A lane ends up with those of one query row, and every lane asks it for the probabilities.
/// Outputs are added over lanes in the same way, once, at the end.
template <int D, int QueryRows>
class Rows<Type::fp32, D, QueryRows> {
 public:
  using Shape                   = Tile<Type::fp32, D>;
  using Query                   = float;
  static constexpr float lowest = -1e30f;  ///< below any score, and finite: differences with it are numbers

  PAGODA_DEVICE explicit Rows(int lane) : lane_(lane) {
    part_ = lane % row_lanes, row_ = lane / row_lanes;
    // Eight lanes that read at once must find eight places of a run: rows r and r ^ 4, of four lanes each, do.
    if constexpr (row_lanes == 4) row_ = (row_ >> 1) | (row_ & 1) << 2;
    place_ = Shape::place(row_, part_);
    token_ = part_ / replicas * lane_scores % lane_tokens;
  }

  /// Begins new rows: q is of the group's first head; rows from `count` on are zeros.
  PAGODA_DEVICE void begin(const Query* q, std::int64_t head_stride, int count) {
#pragma unroll
    for (int h = 0; h < QueryRows; ++h) {
#pragma unroll
      for (int c = 0; c < chunks; ++c)
        q_[h][c] =
            h < count ? __ldg(reinterpret_cast<const float4*>(q + h * head_stride + dim(c))) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (float& o : out_) o = 0;
    base_ = lowest, sum_ = 0;
  }

  /// Adds a tile: keys at `keys` in shared memory, values at `values`. Of its tokens the first `count` are there.
  /// Copies: is told where values behind the last token were overwritten.
  template <class Copies>
  PAGODA_DEVICE void add(std::uint32_t keys, std::uint32_t values, int count, float scale) {
    float s[lane_tokens];
#pragma unroll
    for (int t = 0; t < lane_tokens; ++t) {
      float sums[QueryRows] = {};
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        const float4 k = load(keys, t, c);
#pragma unroll
        for (int h = 0; h < QueryRows; ++h) sums[h] = dot(q_[h][c], k, sums[h]);
      }
      spread<row_lanes / 2, 1, QueryRows>(sums);
      s[t] = sums[0];
    }
    spread<head_lanes / 2, 1, lane_tokens>(s);
    float x[lane_scores];
#pragma unroll
    for (int i = 0; i < lane_scores; ++i) {
#pragma unroll
      for (int d = replicas / 2; d > 0; d /= 2) s[i] += __shfl_xor_sync(~0u, s[i], d);
      x[i] = s[i] * scale;
    }
    if (count < Shape::tokens) {
#pragma unroll
      for (int i = 0; i < lane_scores; ++i)
        if (row_ + (token_ + i) * at_once >= count) x[i] = -INFINITY;
      clear_rows<Shape, Copies>(values, count, lane_);
    }
    raise(x);
    float sum = 0;
#pragma unroll
    for (float& e : x) {
      e = exp2_fast(e - base_);
      sum += e;
    }
    sum_ += sum;
    // A few tokens are summed apart before they are added to the output: long rows round less.
#pragma unroll
    for (int t0 = 0; t0 < lane_tokens; t0 += few) {
      float p[QueryRows][few];
#pragma unroll
      for (int h = 0; h < QueryRows; ++h) {
#pragma unroll
        for (int t = 0; t < few; ++t) {
          const int i = h * lane_tokens + t0 + t;
          p[h][t]     = __shfl_sync(~0u, x[i % lane_scores], i / lane_scores * replicas, row_lanes);
        }
      }
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        float4 v[few];
#pragma unroll
        for (int t = 0; t < few; ++t) v[t] = load(values, t0 + t, c);
#pragma unroll
        for (int h = 0; h < QueryRows; ++h) {
          float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
          for (int t = 0; t < few; ++t)
            y.x += p[h][t] * v[t].x, y.y += p[h][t] * v[t].y, y.z += p[h][t] * v[t].z, y.w += p[h][t] * v[t].w;
          float* const o = out_ + 4 * (h * chunks + c);
          o[0] += y.x, o[1] += y.y, o[2] += y.z, o[3] += y.w;
        }
      }
    }
  }

  /// Leaves the state in shared memory: maximum and sum of row r at states[r], weighted values at values[r][stride].
  PAGODA_DEVICE void end(float2* states, float* values, int stride, int count) {
    for_each_lane_of_row(replicas, [&](int d) { sum_ += __shfl_xor_sync(~0u, sum_, d); });
    if (lane_ < row_lanes && lane_ % head_lanes == 0) states[lane_ / head_lanes] = make_float2(base_, sum_);
    spread<16, row_lanes, outs>(out_);
    constexpr int kept = outs * row_lanes / 32;  // of a lane, from the numbers of all chunks of all query rows
    const int first    = lane_ / row_lanes * kept;
#pragma unroll
    for (int i = 0; i < kept; i += 2) {
      const int h = (first + i) / (4 * chunks), c = (first + i) / 4 % chunks;
      if (h < count)
        *reinterpret_cast<float2*>(values + h * stride + dim(c) + (first + i) % 4) = make_float2(out_[i], out_[i + 1]);
    }
  }

 private:
  static constexpr int row_lanes = QueryRows * D / 32 > 4 ? QueryRows* D / 32 : 4;
  static constexpr int at_once   = 32 / row_lanes;  ///< rows
  static constexpr int chunks    = D / 4 / row_lanes;
  static constexpr int outs      = QueryRows * chunks * 4;
  /// Of a tile a lane has so many tokens, at_once apart, and so many scores. Where there are fewer scores than lanes,
  /// several hold the same.
  static constexpr int lane_tokens = Shape::tokens / at_once;
  static constexpr int lane_scores = QueryRows * lane_tokens > row_lanes ? QueryRows* lane_tokens / row_lanes : 1;
  static constexpr int replicas    = row_lanes * lane_scores / (QueryRows * lane_tokens);
  static constexpr int head_lanes  = row_lanes / QueryRows;  ///< of a row, with scores of the same query row
  static constexpr int few         = lane_tokens < 4 ? lane_tokens : 4;
  static_assert(lane_tokens % lane_scores == 0 && outs * row_lanes / 32 % 2 == 0);

  /// First dim of the lane's c-th chunk of a row.
  PAGODA_DEVICE int dim(int c) const { return 4 * (c * row_lanes + part_); }
  /// That chunk of the lane's t-th row of a tile.
  PAGODA_DEVICE float4 load(std::uint32_t tile, int t, int c) const {
    const int row = t * at_once, chunk = c * row_lanes;
    return load_shared(tile + (place_ ^ ((row ^ chunk) & 7) << 4) + row * 128 + (chunk >> 3) * 128 * Shape::tokens);
  }
  PAGODA_DEVICE static float dot(const float4& a, const float4& b, float sum) {
    sum += a.x * b.x, sum += a.y * b.y, sum += a.z * b.z, sum += a.w * b.w;
    return sum;
  }

  /// Adds x over lanes that differ in the bits from Bit down to Last: a lane whose bit is set keeps the second half of
  /// the sums, the other one the first half, until one sum, or no bit, is left. What a lane keeps comes first in x.
  template <int Bit, int Last, int Count, int Size>
  PAGODA_DEVICE void spread(float (&x)[Size]) const {
    if constexpr (Bit >= Last && Count > 1) {
      const bool second = (lane_ & Bit) != 0;
#pragma unroll
      for (int i = 0; i < Count / 2; ++i) {
        const float keep = second ? x[i + Count / 2] : x[i], give = second ? x[i] : x[i + Count / 2];
        x[i] = keep + __shfl_xor_sync(~0u, give, Bit);
      }
      spread<Bit / 2, Last, Count / 2>(x);
    }
  }

  /// f(d) for each bit d, from `first` on, by which lanes with scores of the same query row differ.
  template <class F>
  PAGODA_DEVICE static void for_each_lane_of_row(int first, const F& f) {
#pragma unroll
    for (int d = first; d < head_lanes; d *= 2) f(d);
#pragma unroll
    for (int d = row_lanes; d < 32; d *= 2) f(d);
  }

  /// As the other products do: only when a score exceeds the maximum by more than 2^8.
  PAGODA_DEVICE void raise(const float (&x)[lane_scores]) {
    float most = x[0];
#pragma unroll
    for (int i = 1; i < lane_scores; ++i) most = fmaxf(most, x[i]);
    if (!__any_sync(~0u, most > base_ + 8.0f)) return;
    for_each_lane_of_row(1, [&](int d) { most = fmaxf(most, __shfl_xor_sync(~0u, most, d)); });
    const float base = fmaxf(base_, most), kept = exp2_fast(base_ - base);
    base_ = base;
    sum_ *= kept;
#pragma unroll
    for (int h = 0; h < QueryRows; ++h) {
      const float of_row = __shfl_sync(~0u, kept, h * head_lanes);
#pragma unroll
      for (int i = 0; i < 4 * chunks; ++i) out_[h * 4 * chunks + i] *= of_row;
    }
  }

  int lane_, part_, row_;  ///< which part of which row the lane reads
  int token_;              ///< which of its tokens the lane's first score is of
  std::uint32_t place_;    ///< of the lane's first chunk in a tile
  float4 q_[QueryRows][chunks];
  float out_[outs];
  float base_, sum_;  ///< of the query row that the lane has scores of
};

}  // namespace pagoda::tuned
