// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/latent_tiles.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Queries of DsMlaFragment, as first operand of the first product: fp16 for the dims that are e4m3 in the cache, bf16
/// for the rotary part. Rows are multiplied by powers of two that take their largest number close to the largest of
/// fp16; so numbers of bf16 stay exact, unless they are less than 2^-31 of the largest.
template <int RowGroups, bool AnyQuery>
class DsMlaQueries : public LatentTiles<fp8_ds_mla_t, half_t, RowGroups, AnyQuery> {
 public:
  using Tiles = LatentTiles<fp8_ds_mla_t, half_t, RowGroups, AnyQuery>;
  using Tiles::key_dims;
  using Tiles::lane_row;
  using Tiles::rows;
  using typename Tiles::Layout;
  /// Type of queries that the instance without options takes as they are.
  static constexpr DType query_type = DType::bf16;

  KOKKOS_FUNCTION void load_queries(const TileRows<AnyQuery>& rows_of, float scale) {
    queries_ = &rows_of;
    if constexpr (AnyQuery) {
      stage_all(rows_of);
      cuda::sync_team();
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) {
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 4; ++e) {
          PAGODA_UNROLL_ALL
          for (int i = 0; i < key_steps; ++i)
            q_[m][i][e] = *reinterpret_cast<const std::uint32_t*>(staged(query_row(m, e), query_dim(i, e)));
        }
      }
      scale_ = scale * reciprocal_of(factors_of_rows()[lane_row(0)]);
      cuda::sync_team();  // no lane reads staged queries any more
    } else {
      load_words(rows_of);
      scale_ = scale * reciprocal_of(factor_of(largest_of_row(lane_row(0))));
    }
  }

 protected:
  using Tiles::args_;
  using Tiles::key_steps;
  using Tiles::lane;
  using Tiles::memory_;
  using Tiles::query_row;
  using Tiles::scale_;
  using Tiles::sums_of;
  using Tiles::Tiles;
  using Tiles::warp_;
  using Tiles::warp_rows;
  using Tiles::warps;

  static constexpr int scaled_dims  = RowPlaces<fp8_ds_mla_t>::scaled_dims;
  static constexpr int warp_dims    = RowPlaces<fp8_ds_mla_t>::block_dims;
  static constexpr int number_steps = warp_dims / 16;  ///< steps of the first product before the rotary part
  static_assert(warp_dims * warps == scaled_dims && number_steps + 1 == key_steps);

  /// First of two dims of the lane's e-th word, in step i of the first operand of the first product. Of the numbers, a
  /// lane has four adjacent dims, as MmaStorage converts them.
  KOKKOS_FUNCTION int query_dim(int i, int e) const {
    return i < number_steps ? warp_dims * warp_ + 16 * i + 4 * (lane() & 3) + e / 2 * 2
                            : scaled_dims + 16 * warp_ + 2 * (lane() & 3) + e / 2 * 8;
  }
  /// Two dims of the rounding error of a query. Recomputed for each tile, because registers are short.
  template <class Operand>
  KOKKOS_FUNCTION std::uint32_t rest(int r, int d) const {
    const float factor = factors_of_rows()[r];
    const float x0     = queries_->template load_query<float>(r, d) * factor,
                x1     = queries_->template load_query<float>(r, d + 1) * factor;
    return cuda::pack<Operand>(x0 - static_cast<float>(Operand(x0)), x1 - static_cast<float>(Operand(x1)));
  }

  std::uint32_t q_[RowGroups][key_steps][4];

 private:
  /// The factor of a row whose largest number has these bits, of a float without sign. It takes it to 2^14 .. 2^15.
  KOKKOS_FUNCTION static float factor_of(int largest) {
    return Kokkos::bit_cast<float>((268 - greatest(largest >> 23, 15)) << 23);
  }
  KOKKOS_FUNCTION static float reciprocal_of(float factor) {
    return Kokkos::bit_cast<float>((254 << 23) - Kokkos::bit_cast<int>(factor));
  }
  KOKKOS_FUNCTION static int bits_without_sign(float x) { return Kokkos::bit_cast<int>(x) & 0x7fffffff; }

  // The instance without options: words of bf16, straight from memory.

  KOKKOS_FUNCTION void load_words(const TileRows<AnyQuery>& rows_of) {
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 2; ++e) {
        const int r         = query_row(m, e);
        const bool valid    = rows_of.valid(r);
        const auto* const q = static_cast<const bfloat16_t*>(args_.q.data) + (valid ? rows_of.query_offset(r) : 0);
        PAGODA_UNROLL_ALL
        for (int i = 0; i < number_steps; ++i) {
          const auto two  = *reinterpret_cast<const Pack<std::uint32_t, 2>*>(q + query_dim(i, 0));
          q_[m][i][e]     = valid ? two.at[0] : 0;
          q_[m][i][e + 2] = valid ? two.at[1] : 0;
        }
        PAGODA_UNROLL_ALL
        for (int half = 0; half < 4; half += 2)
          q_[m][number_steps][e + half] =
              valid ? *reinterpret_cast<const std::uint32_t*>(q + query_dim(number_steps, half)) : 0;
      }
    }
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 2; ++e) {
        std::uint32_t most = 0;  // of bits without sign, which have the order of the numbers
        PAGODA_UNROLL_ALL
        for (int i = 0; i < key_steps; ++i)
          for (int half = 0; half < 4; half += 2) most = cuda::max_of_halves(most, q_[m][i][e + half] & 0x7fff7fffu);
        const int of_row = cuda::max_of_group<4>(static_cast<int>(greatest(most << 16, most & 0xffff0000u)));
        if ((lane() & 3) == 0) largest_of_warp(warp_)[query_row(m, e)] = of_row;
      }
    }
    cuda::sync_team();
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 2; ++e) {
        const float factor = factor_of(largest_of_row(query_row(m, e)));
        PAGODA_UNROLL_ALL
        for (int i = 0; i < key_steps; ++i) {
          PAGODA_UNROLL_ALL
          for (int half = 0; half < 4; half += 2) {
            std::uint32_t& word = q_[m][i][e + half];
            float x0, x1;
            cuda::unpack<bfloat16_t>(word, x0, x1);
            word = i < number_steps ? cuda::pack<half_t>(x0 * factor, x1 * factor)
                                    : cuda::pack<bfloat16_t>(x0 * factor, x1 * factor);
          }
        }
      }
    }
  }
  /// For each row, the bits of the largest number among the dims of a warp. They lie where the sums will.
  KOKKOS_FUNCTION int* largest_of_warp(int warp) const { return reinterpret_cast<int*>(sums_of(0)) + warp * rows; }
  KOKKOS_FUNCTION int largest_of_row(int row) const {
    int most = 0;
    PAGODA_UNROLL_ALL
    for (int w = 0; w < warps; ++w) most = greatest(most, largest_of_warp(w)[row]);
    return most;
  }

  // The general instance: any type and strides. Rows are staged in scratch that no copy uses yet.

  KOKKOS_FUNCTION float* factors_of_rows() const { return reinterpret_cast<float*>(memory_ + Layout::factors_at); }
  KOKKOS_FUNCTION char* staged(int row, int d) const { return memory_ + (row * key_dims + d) * 2; }
  static_assert(!AnyQuery || rows * key_dims * 2 <= Layout::p_at);

  KOKKOS_FUNCTION void stage_all(const TileRows<AnyQuery>& rows_of) {
    switch (args_.q.type) {
      case DType::fp64:
        return stage<double>(rows_of);
      case DType::fp32:
        return stage<float>(rows_of);
      case DType::fp16:
        return stage<half_t>(rows_of);
      default:
        return stage<bfloat16_t>(rows_of);
    }
  }
  template <class Q>
  KOKKOS_FUNCTION void stage(const TileRows<AnyQuery>& rows_of) {
    constexpr int pairs = key_dims / 64;  // of a lane
    const Q* const q    = static_cast<const Q*>(args_.q.data);
    PAGODA_UNROLL(1)
    for (int r = warp_ * warp_rows; r < (warp_ + 1) * warp_rows; ++r) {
      const bool valid = rows_of.valid(r);
      const auto begin = valid ? rows_of.query_offset(r) : 0;
      float x[2 * pairs];
      PAGODA_UNROLL_ALL
      for (int i = 0; i < 2 * pairs; ++i)
        x[i] = valid ? static_cast<float>(q[begin + rows_of.dims(args_.q, 64 * (i / 2) + 2 * lane() + i % 2)]) : 0.0f;
      int most = 0;
      PAGODA_UNROLL_ALL
      for (const float number : x) most = greatest(most, bits_without_sign(number));
      const float factor = factor_of(cuda::max_of_lanes(most));
      if (lane() == 0) factors_of_rows()[r] = factor;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < pairs; ++i) {
        const float x0 = x[2 * i] * factor, x1 = x[2 * i + 1] * factor;
        *reinterpret_cast<std::uint32_t*>(staged(r, 64 * i + 2 * lane())) =
            64 * i < scaled_dims ? cuda::pack<half_t>(x0, x1) : cuda::pack<bfloat16_t>(x0, x1);
      }
    }
  }

  const TileRows<AnyQuery>* queries_ = nullptr;
};

}  // namespace pagoda::detail
