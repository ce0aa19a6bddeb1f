// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/copies.cuh"

/// Tiles that are made of rows, by the four warps of the warpgroup that multiplies them.
namespace pagoda::tuned::wgmma::latent {

/// What both kinds of rows have in common. T: type of the rows in memory. Derived classes have make_tile(args, s,
/// shared, slot, round, tile, next_tile). It makes a tile in a slot, as the round-th tile of the slot: each quarter as
/// soon as the quarter of the tile before it has been used. next_tile: the tile to make after this one.
template <Type T, int BlocksPerHead, int CopyTokens>
class RowReader : public TileCopies<BlocksPerHead, CopyTokens> {
 public:
  PAGODA_DEVICE RowReader(int warp, int lane) : TileCopies<BlocksPerHead, CopyTokens>(warp, lane), warp_(warp) {}

  /// Brings the tile that was looked up last, and is the next one to make, to the second-level cache.
  PAGODA_DEVICE void prefetch(const Args& args, const Segment& s, int tile) const {
    if (warp_ != 0) return;
    if constexpr (CopyTokens == 1) {
#pragma unroll
      for (int i = 0; i < next_.each; ++i)
        if (tile * tile_tokens + lane_ + 32 * i < s.len) prefetch_bulk(row(args, s, next_.of_lane(i)), bytes_of_row);
    } else {
      if (lane_ >= tile_tokens / 8) return;
      const int count     = min(8, s.len - tile * tile_tokens - 8 * lane_);
      const bool adjacent = args.k.token == bytes_of_row;
      const char* from    = row(args, s, next_.of_lane());
#pragma unroll 1
      for (int i = 0; i < count; i += adjacent ? 8 : 1, from += args.k.token)
        prefetch_bulk(from, adjacent ? count * bytes_of_row : bytes_of_row);
    }
  }

 protected:
  using TileCopies<BlocksPerHead, CopyTokens>::lane_;
  using TileCopies<BlocksPerHead, CopyTokens>::next_;
  static constexpr int bytes_of_row = row_bytes(T, head_dim);

  PAGODA_DEVICE static const char* row(const Args& args, const Segment& s, const TokenLocation& at) {
    const int head = T == Type::fp8_ds_mla ? 0 : s.head;  // such caches have one kv head
    return static_cast<const char*>(args.k.data) + at.page * args.k.page + at.token * args.k.token + head * args.k.head;
  }
  /// A row of the tile. Rows behind the last one are read as the last one. Their scores are hidden, and their values
  /// cleared, later. All lanes call it, with rows of the same quarter.
  PAGODA_DEVICE const char* row_of_tile(const Args& args, const Segment& s, int r, int last) const {
    return row(args, s, next_.of_token(min(r, last)));
  }

  int warp_;
};

/// Makes tiles of rows of 16 bits: copies of 16 bytes, by all threads. For small pages: others have tensor maps.
template <Type T, int BlocksPerHead>
class PlainRowTiles : public RowReader<T, BlocksPerHead, 1> {
  using Base = RowReader<T, BlocksPerHead, 1>;
  using Base::lane_;
  using Base::next_;
  using Base::warp_;

 public:
  using Base::Base;
  PAGODA_DEVICE void make_tile(const Args& args, const Segment& s, SharedMemory shared, int slot, int round, int tile,
                               int next_tile) {
    // Eight lanes copy a row, 16 bytes of each of its runs of 64 dims.
    const int row = 4 * warp_ + lane_ / 8, chunk = lane_ % 8, last = s.len - tile * tile_tokens - 1;
    std::uint32_t to = shared.address + SharedLayout::tiles + slot * tile_bytes + swizzled_offset<head_dim>(row, chunk);
#pragma unroll 1
    for (int quarter = 0; quarter < Barriers::quarters; ++quarter, to += 2 * bytes_of_8) {
      const char* const from = this->row_of_tile(args, s, 16 * quarter + row, last) + 16 * chunk;
      shared.wait_for_quarter(slot, quarter, round);
#pragma unroll
      for (int run = 0; run < head_dim / 64; ++run) copy_async(to + run * run_bytes, from + 128 * run);
    }
    next_.look_up(args, s, next_tile, lane_);
    commit_copies();
    wait_copies<0>();
    fence_async_proxy();  // products read the tile
    shared.arrive(Barriers::full + slot, lane_);
  }
};

// --- Rows of fp8_ds_mla (pagoda/row_formats.hpp).

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

/// Makes tiles of bf16. There is no room for rows in shared memory: threads load them to registers, and store numbers
/// times scales as a tensor map would. Before that, `prefetch` brings them to the second-level cache.
template <int BlocksPerHead, int CopyTokens>
class ScaledRowTiles : public RowReader<Type::fp8_ds_mla, BlocksPerHead, CopyTokens> {
  using Base = RowReader<Type::fp8_ds_mla, BlocksPerHead, CopyTokens>;
  using Base::lane_;
  using Base::next_;
  using Base::warp_;

 public:
  using Base::Base;
  PAGODA_DEVICE void make_tile(const Args& args, const Segment& s, SharedMemory shared, int slot, int round, int tile,
                               int next_tile) {
    const PlaceInQuarter place(warp_, opaque(lane_));  // or registers are kept for it where there is no tile to make
    const std::uint64_t policy = read_once_policy();
    const int last             = s.len - tile * tile_tokens - 1;
    std::uint32_t to           = shared.address + SharedLayout::tiles + slot * tile_bytes + place.first_chunk();
    const int rope             = static_cast<int>(place.rope_chunk() - place.first_chunk());
    RowPart part;
    const char* from = this->row_of_tile(args, s, place.row, last);
    part.scale       = load_scale(from, place, policy);
    from += 16 * place.part;
    load<0>(part, from, policy), load<1>(part, from, policy), load<2>(part, from, policy), load<3>(part, from, policy);
#pragma unroll 1
    for (int quarter = 0; quarter < Barriers::quarters; ++quarter, to += 2 * bytes_of_8) {
      const bool more  = quarter + 1 < Barriers::quarters;
      float next_scale = 0;
      if (more) {
        from       = this->row_of_tile(args, s, 16 * (quarter + 1) + place.row, last);
        next_scale = load_scale(from, place, policy);
        from += 16 * place.part;
      }
      shared.wait_for_quarter(slot, quarter, round);
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
    next_.look_up(args, s, next_tile, lane_);
  }

 private:
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
};

}  // namespace pagoda::tuned::wgmma::latent
