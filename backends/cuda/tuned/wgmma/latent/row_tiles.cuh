// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/copies.cuh"

/// Tiles of rows of fp8_ds_mla (pagoda/row_formats.hpp).
namespace pagoda::tuned::wgmma::latent {

/// What a thread loads of a row: 16 numbers of each block of 128, one of the scales, and 8 numbers of the rotary part.
struct RowPart {
  static constexpr int blocks = 4, block_dims = 128, scales_at = blocks * block_dims, rope_at = scales_at + 4 * blocks;
  uint4 numbers[blocks], rope;
  float scale;
};

/// Four e4m3 numbers times a scale, rounded to bf16.
PAGODA_DEVICE uint2 scaled(std::uint32_t word, float scale) {
  std::uint32_t fp16[2];
  widen_pairs(fp16, word);
  const float2 low = unpack<false>(fp16[0]), high = unpack<false>(fp16[1]);
  return make_uint2(pack<true>(low.x * scale, low.y * scale), pack<true>(high.x * scale, high.y * scale));
}
PAGODA_DEVICE uint4 scaled(std::uint32_t word, std::uint32_t next_word, float scale) {
  const uint2 first = scaled(word, scale), second = scaled(next_word, scale);
  return make_uint4(first.x, first.y, second.x, second.y);
}

/// A thread's place in a quarter of a tile. Each row of the quarter is that of eight lanes, which load 128 adjacent
/// bytes. The eight lanes that store 16 bytes at the same time have four chunks of two neighboring rows, which lie in
/// different banks, except in the rotary part.
struct PlaceInQuarter {
  int row, part;
  PAGODA_DEVICE PlaceInQuarter(int warp, int lane)
      : row(4 * warp + (lane >> 4) * 2 + (lane >> 2 & 1)), part((lane & 3) | (lane >> 1 & 4)) {}
  /// Offset of the first of the thread's chunks in a tile: dims 0 to 7 of its part of block 0. Dims 8 to 15 are at this
  /// ^ 16, those of the next block two runs behind.
  PAGODA_DEVICE std::uint32_t first_chunk() const { return swizzled_offset<head_dim>(row, 2 * part); }
  PAGODA_DEVICE std::uint32_t rope_chunk() const { return swizzled_offset<head_dim>(row, head_dim_v / 8 + part); }
};

/// Makes tiles of bf16 of rows, with the four warps of the warpgroup that multiplies them. There is no room for rows in
/// shared memory: threads load them to registers, and store numbers times scales as a tensor map would. Before that,
/// `prefetch` brings them to the second-level cache.
template <int BlocksPerHead>
class RowTiles : public TileCopies<BlocksPerHead> {
 public:
  PAGODA_DEVICE RowTiles(int warp, int lane) : TileCopies<BlocksPerHead>(warp, lane), warp_(warp) {}

  /// Brings the tile that was looked up last, and is the next one to make, to the second-level cache.
  PAGODA_DEVICE void prefetch(const Args& args, const Segment& s, int tile) const {
    if (warp_ != 0 || lane_ >= tile_tokens / 8) return;
    const int count     = min(8, s.len - tile * tile_tokens - 8 * lane_);
    const bool adjacent = args.k.token == bytes_of_row;
    const char* from    = row(args, next_, 0);
#pragma unroll 1
    for (int i = 0; i < count; i += adjacent ? 8 : 1, from += args.k.token)
      prefetch_bulk(from, adjacent ? count * bytes_of_row : bytes_of_row);
  }
  /// Makes a tile in a slot, as the round-th tile of the slot. Each quarter is stored as soon as the quarter of the
  /// tile before it has been used. next_tile: the tile to make after this one.
  PAGODA_DEVICE void make_tile(const Args& args, const Segment& s, SharedMemory shared, int slot, int round, int tile,
                               int next_tile) {
    const PlaceInQuarter place(warp_, opaque(lane_));  // or registers are kept for it where there is no tile to make
    const std::uint64_t policy = read_once_policy();
    const int last             = s.len - tile * tile_tokens - 1;
    std::uint32_t to           = shared.address + SharedLayout::tiles + slot * tile_bytes + place.first_chunk();
    const int rope             = static_cast<int>(place.rope_chunk() - place.first_chunk());
    RowPart part;
    const char* from = row_of_quarter(args, place, 0, last);
    part.scale       = load_scale(from, place, policy);
    from += 16 * place.part;
    load<0>(part, from, policy), load<1>(part, from, policy), load<2>(part, from, policy), load<3>(part, from, policy);
#pragma unroll 1
    for (int quarter = 0; quarter < Barriers::quarters; ++quarter, to += 2 * bytes_of_8) {
      const bool more  = quarter + 1 < Barriers::quarters;
      float next_scale = 0;
      if (more) {
        from       = row_of_quarter(args, place, quarter + 1, last);
        next_scale = load_scale(from, place, policy);
        from += 16 * place.part;
      }
      if (round > 0) shared.wait(Barriers::empty + slot * Barriers::quarters + quarter, round - 1);
      // As soon as registers have been stored, they are loaded for the next quarter.
      store<0>(part, to);
      if (more) load<0>(part, from, policy);
      store<1>(part, to);
      if (more) load<1>(part, from, policy);
      store<2>(part, to);
      if (more) load<2>(part, from, policy);
      store<3>(part, to);
      store_shared(to + rope, part.rope);
      if (more) load<3>(part, from, policy);
      part.scale = next_scale;
    }
    fence_async_proxy();  // products read the tile
    shared.arrive(Barriers::full + slot, lane_);
    next_ = this->look_up(args, s, next_tile);
  }

 private:
  using TileCopies<BlocksPerHead>::lane_;
  using TileCopies<BlocksPerHead>::next_;
  static constexpr int bytes_of_row = row_bytes(Type::fp8_ds_mla, head_dim);

  PAGODA_DEVICE static const char* row(const Args& args, const TokenLocation& eight, int r) {
    return static_cast<const char*>(args.k.data) + eight.page * args.k.page + (eight.token + r) * args.k.token;
  }
  /// The thread's row of a quarter. Rows behind the last one are loaded as the last one. Their scores are hidden, and
  /// their values cleared, later.
  PAGODA_DEVICE const char* row_of_quarter(const Args& args, const PlaceInQuarter& place, int quarter, int last) const {
    const int r = min(16 * quarter + place.row, last);
    const TokenLocation eight{__shfl_sync(~0u, next_.page, r >> 3), __shfl_sync(~0u, next_.token, r >> 3)};
    return row(args, eight, r & 7);
  }

  /// Four neighboring lanes load the four scales of their row.
  PAGODA_DEVICE static float load_scale(const char* row, const PlaceInQuarter& place, std::uint64_t policy) {
    return load_constant_float(row + RowPart::scales_at + 4 * (place.part & 3), policy);
  }
  /// Loads the numbers of a block, with those of the last block the rotary part. from: 16 bytes of the row for each
  /// part.
  template <int Block>
  PAGODA_DEVICE static void load(RowPart& p, const char* from, std::uint64_t policy) {
    p.numbers[Block] = load_constant(from + Block * RowPart::block_dims, policy);
    if constexpr (Block == RowPart::blocks - 1) p.rope = load_constant(from + RowPart::rope_at, policy);
  }
  /// Stores the numbers of a block, scaled. to: where the thread's first chunk lies.
  template <int Block>
  PAGODA_DEVICE static void store(const RowPart& p, std::uint32_t to) {
    const std::uint32_t at = to + Block * (RowPart::block_dims / 64) * run_bytes;
    const float scale      = __shfl_sync(~0u, p.scale, Block, 4);
    const uint4& x         = p.numbers[Block];
    store_shared(at, scaled(x.x, x.y, scale));
    store_shared(at ^ 16, scaled(x.z, x.w, scale));
  }

  int warp_;
};

}  // namespace pagoda::tuned::wgmma::latent
