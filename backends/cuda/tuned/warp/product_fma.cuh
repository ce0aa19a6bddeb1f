// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/product_mma.cuh"

/// The accumulator for 32-bit keys and values, with plain multiply-adds.
namespace pagoda::tuned::warp {

/// `row_lanes` lanes read a KV row together, and the other lanes read other rows at the same time. A lane has the same
/// dims of keys, values, queries and outputs. Fewer lanes to a row need fewer sums over lanes, but more registers for
/// queries and outputs: QueryRows * D / row_lanes floats of each.
///
/// Scores are reduced and scattered over the lanes of their KV row: each step halves the number of sums that a lane
/// holds and the number of lanes that are left to add. In the end a lane has scores of one query row, and other lanes
/// get the probabilities by shuffles. Outputs are reduced over lanes in the same way, once, at the end.
template <int D, int QueryRows>
class RowAccumulator<Type::fp32, D, QueryRows> {
 public:
  using TileShape = Tile<Type::fp32, D>;
  using Query     = float;

  PAGODA_DEVICE explicit RowAccumulator(int lane) : lane_(lane) {
    part_ = lane % row_lanes, row_ = lane / row_lanes;
    // Eight lanes that read at the same time need eight different positions of a run. Rows r and r ^ 4, with four lanes
    // each, have them.
    if constexpr (row_lanes == 4) row_ = (row_ >> 1) | (row_ & 1) << 2;
    offset_ = TileShape::offset(row_, part_);
    token_  = part_ / replicas * lane_scores % lane_tokens;
  }

  /// Begins new query rows. q: row of the first query head that shares the kv head. Rows from `count` on are zeros.
  PAGODA_DEVICE void begin(const Query* q, std::int64_t head_stride, int count) {
#pragma unroll
    for (int h = 0; h < QueryRows; ++h) {
#pragma unroll
      for (int c = 0; c < chunks; ++c)
        q_[h][c] =
            h < count ? __ldg(reinterpret_cast<const float4*>(q + h * head_stride + dim(c))) : make_float4(0, 0, 0, 0);
    }
    reset();
  }
  /// Begins a new state of the same query rows.
  PAGODA_DEVICE void reset() {
#pragma unroll
    for (float& o : out_) o = 0;
    max_ = initial_max, sum_ = 0;
  }

  /// The query row of the lane's scores.
  PAGODA_DEVICE int row_of_scores() const { return part_ / head_lanes; }
  /// Adds a tile, as in product_mma.cuh.
  template <class Copies, class Scores>
  PAGODA_DEVICE void add_tile(std::uint32_t keys, std::uint32_t values, const Scores& scores) {
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
      reduce_scatter<row_lanes / 2, 1, QueryRows>(sums);
      s[t] = sums[0];
    }
    reduce_scatter<head_lanes / 2, 1, lane_tokens>(s);
    float x[lane_scores];
#pragma unroll
    for (int i = 0; i < lane_scores; ++i) {
#pragma unroll
      for (int d = replicas / 2; d > 0; d /= 2) s[i] += __shfl_xor_sync(~0u, s[i], d);
      x[i] = scores.of(s[i], token_at(i));
    }
    if (scores.hides_any()) {
#pragma unroll
      for (int i = 0; i < lane_scores; ++i)
        if (scores.hides(token_at(i))) x[i] = -INFINITY;
      scores.template clear<TileShape, Copies>(values, lane_);
    }
    raise_max(x);
    float sum = 0;
#pragma unroll
    for (float& e : x) {
      e = exp2_fast(e - max_);
      sum += e;
    }
    sum_ += sum;
    // Groups of a few tokens are summed before they are added to the output: this rounds less in long sequences.
#pragma unroll
    for (int t0 = 0; t0 < lane_tokens; t0 += group_tokens) {
      float p[QueryRows][group_tokens];
#pragma unroll
      for (int h = 0; h < QueryRows; ++h) {
#pragma unroll
        for (int t = 0; t < group_tokens; ++t) {
          const int i = h * lane_tokens + t0 + t;
          p[h][t]     = __shfl_sync(~0u, x[i % lane_scores], i / lane_scores * replicas, row_lanes);
        }
      }
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        float4 v[group_tokens];
#pragma unroll
        for (int t = 0; t < group_tokens; ++t) v[t] = load(values, t0 + t, c);
#pragma unroll
        for (int h = 0; h < QueryRows; ++h) {
          float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
          for (int t = 0; t < group_tokens; ++t)
            y.x += p[h][t] * v[t].x, y.y += p[h][t] * v[t].y, y.z += p[h][t] * v[t].z, y.w += p[h][t] * v[t].w;
          float* const o = out_ + 4 * (h * chunks + c);
          o[0] += y.x, o[1] += y.y, o[2] += y.z, o[3] += y.w;
        }
      }
    }
  }

  /// Stores the state to shared memory, as in product_mma.cuh.
  PAGODA_DEVICE void store(float2* states, float* values, int stride, int count) {
    for_each_lane_of_row(replicas, [&](int d) { sum_ += __shfl_xor_sync(~0u, sum_, d); });
    if (lane_ < row_lanes && lane_ % head_lanes == 0) states[lane_ / head_lanes] = make_float2(max_, sum_);
    reduce_scatter<16, row_lanes, outs>(out_);
    constexpr int lane_outs = outs * row_lanes / 32;  // outputs that a lane has in the end
    const int first         = lane_ / row_lanes * lane_outs;
#pragma unroll
    for (int i = 0; i < lane_outs; i += 2) {
      const int h = (first + i) / (4 * chunks), c = (first + i) / 4 % chunks;
      if (h < count)
        *reinterpret_cast<float2*>(values + h * stride + dim(c) + (first + i) % 4) = make_float2(out_[i], out_[i + 1]);
    }
  }

 private:
  static constexpr int row_lanes = QueryRows * D / 32 > 4 ? QueryRows* D / 32 : 4;
  static constexpr int at_once   = 32 / row_lanes;  ///< KV rows that a warp reads at the same time
  static constexpr int chunks    = D / 4 / row_lanes;
  static constexpr int outs      = QueryRows * chunks * 4;
  /// Tokens per lane in a tile, strided by at_once, and scores per lane after the reduction. If there are fewer scores
  /// than lanes, `replicas` lanes hold the same score.
  static constexpr int lane_tokens = TileShape::tokens / at_once;
  static constexpr int lane_scores = QueryRows * lane_tokens > row_lanes ? QueryRows* lane_tokens / row_lanes : 1;
  static constexpr int replicas    = row_lanes * lane_scores / (QueryRows * lane_tokens);
  static constexpr int head_lanes =
      row_lanes / QueryRows;  ///< lanes of a KV row that have scores of the same query row
  static constexpr int group_tokens = lane_tokens < 4 ? lane_tokens : 4;
  static_assert(lane_tokens % lane_scores == 0 && outs * row_lanes / 32 % 2 == 0);

  /// Token of the lane's i-th score in the tile.
  PAGODA_DEVICE int token_at(int i) const { return row_ + (token_ + i) * at_once; }
  /// First dim of the lane's c-th chunk of a row.
  PAGODA_DEVICE int dim(int c) const { return 4 * (c * row_lanes + part_); }
  /// That chunk of the lane's t-th KV row of a tile.
  PAGODA_DEVICE float4 load(std::uint32_t tile, int t, int c) const {
    const int row = t * at_once, chunk = c * row_lanes;
    return load_shared(tile + (offset_ ^ ((row ^ chunk) & 7) << 4) + row * 128 +
                       (chunk >> 3) * 128 * TileShape::tokens);
  }
  PAGODA_DEVICE static float dot(const float4& a, const float4& b, float sum) {
    sum += a.x * b.x, sum += a.y * b.y, sum += a.z * b.z, sum += a.w * b.w;
    return sum;
  }

  /// Adds x over lanes that differ in the bits from Bit down to Last. A lane whose bit is set keeps the second half of
  /// the sums, the other lane the first half, until one sum, or no bit, is left. Kept sums come first in x.
  template <int Bit, int Last, int Count, int Size>
  PAGODA_DEVICE void reduce_scatter(float (&x)[Size]) const {
    if constexpr (Bit >= Last && Count > 1) {
      const bool second = (lane_ & Bit) != 0;
#pragma unroll
      for (int i = 0; i < Count / 2; ++i) {
        const float keep = second ? x[i + Count / 2] : x[i], give = second ? x[i] : x[i + Count / 2];
        x[i] = keep + __shfl_xor_sync(~0u, give, Bit);
      }
      reduce_scatter<Bit / 2, Last, Count / 2>(x);
    }
  }

  /// Calls f(d) for each bit d, from `first` on, in which lanes with scores of the same query row differ.
  template <class F>
  PAGODA_DEVICE static void for_each_lane_of_row(int first, const F& f) {
#pragma unroll
    for (int d = first; d < head_lanes; d *= 2) f(d);
#pragma unroll
    for (int d = row_lanes; d < 32; d *= 2) f(d);
  }

  /// Raises the running maximum if a score exceeds it by more than rescale_threshold.
  PAGODA_DEVICE void raise_max(const float (&x)[lane_scores]) {
    float new_max = x[0];
#pragma unroll
    for (int i = 1; i < lane_scores; ++i) new_max = fmaxf(new_max, x[i]);
    if (!__any_sync(~0u, new_max > max_ + rescale_threshold)) return;
    for_each_lane_of_row(1, [&](int d) { new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, d)); });
    new_max                = fmaxf(max_, new_max);
    const float correction = exp2_fast(max_ - new_max);
    max_                   = new_max;
    sum_ *= correction;
#pragma unroll
    for (int h = 0; h < QueryRows; ++h) {
      const float row_correction = __shfl_sync(~0u, correction, h * head_lanes);
#pragma unroll
      for (int i = 0; i < 4 * chunks; ++i) out_[h * 4 * chunks + i] *= row_correction;
    }
  }

  int lane_, part_, row_;  ///< which part of which KV row the lane reads
  int token_;              ///< index of the token of the lane's first score among the lane's tokens
  std::uint32_t offset_;   ///< offset of the lane's first chunk in a tile
  float4 q_[QueryRows][chunks];
  float out_[outs];
  float max_, sum_;  ///< state of the query row of the lane's scores
};

}  // namespace pagoda::tuned::warp
