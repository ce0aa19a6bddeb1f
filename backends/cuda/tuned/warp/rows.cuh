// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/product_fma.cuh"
#include "backends/cuda/tuned/warp/product_imma.cuh"
#include "backends/cuda/tuned/warp/product_mma.cuh"

#include <utility>

/// The accumulators of a warp: of one kv head, or of those that it reads at once.
namespace pagoda::tuned::warp {

/// The accumulators of the kv heads whose tiles a stage holds: keys of all heads, then values of all, and scales head
/// by head. The interface is that of one accumulator; query rows are those of all heads.
template <Type T, int D, int QueryRows, int Heads>
class IntegerRows {
  using Head = RowAccumulator<T, D, QueryRows>;

 public:
  using TileShape = typename Head::TileShape;
  using Query     = typename Head::Query;

  PAGODA_DEVICE explicit IntegerRows(int lane) : IntegerRows(lane, std::make_integer_sequence<int, Heads>()) {}
  PAGODA_DEVICE void begin(const Query* q, std::int64_t head_stride, int count) {
    const int rows = count / Heads;
#pragma unroll
    for (int h = 0; h < Heads; ++h) heads_[h].begin(q + h * rows * head_stride, head_stride, rows);
  }
  PAGODA_DEVICE void reset() {
#pragma unroll
    for (Head& head : heads_) head.reset();
  }
  PAGODA_DEVICE void convert_queries() {
#pragma unroll
    for (Head& head : heads_) head.convert_queries();
  }
  /// The lane's row among those of its kv head.
  PAGODA_DEVICE int row_of_scores() const { return heads_[0].row_of_scores(); }
  template <class Scores>
  PAGODA_DEVICE void add_tiles(std::uint32_t keys, std::uint32_t scales, const Scores& scores, int tile) {
#pragma unroll
    for (int h = 0; h < Heads; ++h)
      heads_[h].add_tile(keys + h * TileShape::bytes, keys + (Heads + h) * TileShape::bytes,
                         scales + h * TileShape::size.scales, scores.heads[h].of_tile(tile), shared_);
  }
  PAGODA_DEVICE void store(float2* states, float* values, int stride, int count) {
    const int rows = count / Heads;
#pragma unroll
    for (int h = 0; h < Heads; ++h) heads_[h].store(states + h * rows, values + h * rows * stride, stride, rows);
  }

 private:
  template <int... H>
  PAGODA_DEVICE IntegerRows(int lane, std::integer_sequence<int, H...>)
      : heads_{(static_cast<void>(H), Head(lane))...}, shared_(lane) {}

  Head heads_[Heads];
  typename Head::Shared shared_;
};

template <Type T, int D, int QueryRows, int Heads>
struct RowsOfType {
  using type = RowAccumulator<T, D, QueryRows>;
};
template <Type T, int D, int QueryRows, int Heads>
  requires(is_integer(T))
struct RowsOfType<T, D, QueryRows, Heads> {
  using type = IntegerRows<T, D, QueryRows, Heads>;
};
/// What adds the tiles of a segment. QueryRows: of each kv head.
template <Type T, int D, int QueryRows, int Heads = 1>
using RowsOf = typename RowsOfType<T, D, QueryRows, Heads>::type;

}  // namespace pagoda::tuned::warp
