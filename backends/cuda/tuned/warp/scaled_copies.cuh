// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/tiles.cuh"

namespace pagoda::tuned::warp {

/// Copies of integer tiles and of the scales of their tokens, by asynchronous copies of the lanes: a tensor copy of so
/// few bytes takes more instructions. Lane i copies the scale of key i % 16, or of value i % 16 in the upper half of
/// the warp. Where tokens have no scales of their own, their places hold ones.
///
/// Heads: kv heads whose rows of a token are adjacent, and are copied as one.
template <class TileShape, int Stages, int Heads = 1>
class ScaledCopies : public CommittedCopies<Stages> {
 public:
  static constexpr bool uses_maps           = false;
  static constexpr bool small_pages         = false;
  static constexpr bool may_be_programmatic = true;
  static constexpr TileBytes size{Heads * TileShape::size.rows, Heads* TileShape::size.scales, Heads};

  PAGODA_DEVICE ScaledCopies(const Args& args, std::uint32_t ring, std::uint32_t, int lane)
      : args_(args), ring_(ring), policy_(read_once_policy()) {
    const int row = lane / row_chunks, chunk = lane % row_chunks;
    const std::uint32_t to =
        ring + chunk / head_chunks * TileShape::bytes + TileShape::offset(row, chunk % head_chunks);
    const TokenScales& scales = lane < tile_tokens ? args.k_scales : args.v_scales;
    row_                      = opaque(row);
    chunk_                    = 16 * chunk;
    to_                       = opaque(static_cast<int>(to));
    token_                    = lane & (tile_tokens - 1);
    scales_to_                = opaque(static_cast<int>(scales_of(0) + 4 * lane));
    scales_                   = opaque(reinterpret_cast<const char*>(scales.data));
    scale_page_ = scales.page, scale_token_ = scales.token, scale_head_ = scales.head;
    if (!scales_)
      for (int i = 0; i < Stages * Heads; ++i) store_shared_float(scales_to_ + i * TileShape::size.scales, 1);
    __syncwarp();
  }

  PAGODA_DEVICE static void prefetch(const Args&) {}
  /// owner: lane that knows the location.
  PAGODA_DEVICE void begin(int slot, bool, int owner, TokenLocation from, int head) {
    const int page = __shfl_sync(~0u, from.page, owner), token = __shfl_sync(~0u, from.token, owner);
    const int to = to_ + slot * 2 * size.rows;
    copy<0>(to, args_.k, page, token, head);
    copy<size.rows>(to, args_.v, page, token, head);
    if (scales_) {
      const char* const base = advance(advance(scales_, Heads * head, scale_head_), page, scale_page_);
      const char* from       = advance(base, min(token + token_, args_.page_size - 1), scale_token_);
#pragma unroll
      for (int h = 0; h < Heads; ++h, from += scale_head_)
        copy_word_async(scales_to_ + slot * size.scales + h * TileShape::size.scales, from);
    }
    commit_copies();
  }
  /// The scales of a stage, for each kv head: of 16 keys, then of 16 values.
  PAGODA_DEVICE std::uint32_t scales_of(int slot) const { return ring_ + Stages * 2 * size.rows + slot * size.scales; }

 private:
  static constexpr int head_chunks = TileShape::row_bytes / 16, row_chunks = Heads * head_chunks;

  /// Behind: bytes from `to` to the place of the lane's first chunk.
  template <int Behind>
  PAGODA_DEVICE void copy(int to, const Cache& from, int page, int token, int head) const {
    constexpr int rows_at_once = 32 / row_chunks;
    const char* const of_head =
        advance(static_cast<const char*>(from.data) + chunk_, Heads * head, static_cast<std::uint32_t>(from.head));
    const char* const base = advance(of_head, page, static_cast<std::uint32_t>(from.page));
#pragma unroll
    for (int i = 0; i < tile_tokens; i += rows_at_once) {  // a page may end within a tile: nothing behind it is read
      const int row     = min(token + row_ + i, args_.page_size - 1);
      const int swizzle = static_cast<int>(TileShape::offset(i, 0)) - i * TileShape::row_bytes;
      copy_async((to ^ swizzle) + (i * TileShape::row_bytes + Behind),
                 advance(base, row, static_cast<std::uint32_t>(from.token)), policy_);
    }
  }

  const Args& args_;
  std::uint32_t ring_;
  std::uint64_t policy_;
  int row_, chunk_, token_;  ///< of the lane's copies: row and byte in a tile, and token of the scale
  int to_, scales_to_;       ///< where they go in the first stage
  const char* scales_;
  std::uint32_t scale_page_, scale_token_, scale_head_;
};

/// Of two kv heads at once.
template <class TileShape, int Stages>
using TwoHeadCopies = ScaledCopies<TileShape, Stages, 2>;

}  // namespace pagoda::tuned::warp
