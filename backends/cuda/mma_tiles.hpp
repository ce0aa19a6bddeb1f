// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/any_rows.hpp"
#include "backends/cuda/mma_layout.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>
#include <variant>

namespace pagoda::detail {

/// The tiles of keys and values of one worker, with their scales. Copies them from the cache to the worker's part of
/// scratch, a few tiles before their use. See MmaFragment.
template <class T, int DimTile, bool AnyAlignment>
class MmaTiles : public MmaLayout<T, DimTile, AnyAlignment> {
 protected:
  using Layout = MmaLayout<T, DimTile, AnyAlignment>;
  using Member = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  using Layout::chunks;
  using Layout::copy_lanes;
  using Layout::copy_rows;
  using Layout::in_blocks;
  using Layout::row_begins;
  using Layout::row_bytes;
  using Layout::row_ends;
  using Layout::rows;
  using Layout::scaled;
  using Layout::stage_bytes;
  using Layout::stages;
  using Layout::swizzle;
  using Layout::tile_bytes;
  using Layout::tile_tokens;
  using Layout::worker_bytes;
  using typename Layout::BlockCopies;
  using typename Layout::Storage;

  KOKKOS_FUNCTION MmaTiles(const Member& team, const KernelArgsOf<T>& args, char* memory)
      : team_(team), args_(args), memory_(memory), keys_(memory + team.team_rank() * worker_bytes) {
    KOKKOS_IF_ON_DEVICE((lane_ = static_cast<int>(threadIdx.x & 31);))  // the mask makes it non-negative
    row_    = lane_ >> 2;
    column_ = lane_ & 3;
    policy_ = cuda::read_once_policy();
    // Chunk i of row r of a tile lies at position i ^ swizzle(r) of the row. Rows start on multiples of their size, so
    // XOR on the address changes the position.
    const std::uint32_t keys = cuda::shared_address(keys_);
    const int row0 = lane_ / copy_lanes, first = lane_ & (copy_lanes - 1);
    copy_at_   = keys + row0 * row_bytes + ((first ^ swizzle(row0)) << 4);
    keys_at_   = keys + (lane_ & 15) * row_bytes + (((lane_ >> 4) ^ swizzle(lane_ & 7)) << 4);
    next_at_   = keys + row0 * row_bytes + (((first + 1) ^ swizzle(row0)) << 4);
    values_at_ = keys + tile_bytes + ((lane_ & 7) | (lane_ >> 4 << 3)) * row_bytes +
                 (((lane_ >> 3 & 1) ^ swizzle(lane_ & 7)) << 4);
    if constexpr (in_blocks)
      keys_at_ = cuda::opaque(keys_at_), values_at_ = cuda::opaque(values_at_), copy_at_ = cuda::opaque(copy_at_);
  }

  /// Starts the copies of the first tiles. This worker's tiles of tokens begin at u, u + step .. before end.
  template <class Where>
  KOKKOS_FUNCTION void begin_tiles(const Where& where, int u, int step, int end, bool known_pages, int page) {
    step_ = step, ahead_ = u;
    if constexpr (in_blocks) {
      const bool key = lane_ < tile_tokens;
      blocks_.begin(key ? args_.k_blocks : args_.v_blocks, where.kv_head,
                    blocks_of(dtype_v<T>, key ? args_.head_dim : args_.head_dim_v));
    } else if constexpr (scaled) {
      begin_scales(where.kv_head);
    }
    if (u < end) {
      if constexpr (AnyAlignment) {
        keys_from_ = AnyRows::of<T>(args_.k, args_.k_page, args_.k_token, where.kv_head * args_.k_head, args_.head_dim);
        values_from_ =
            AnyRows::of<T>(args_.v, args_.v_page, args_.v_token, where.kv_head * args_.v_head, args_.head_dim_v);
      } else {
        keys_from_   = source(args_.k, args_.k_units, where.kv_head, args_.head_dim);
        values_from_ = source(args_.v, args_.v_units, where.kv_head, args_.head_dim_v);
      }
      by_tile_ = where.in_pages(tile_tokens) && args_.near_tokens;
      if (by_tile_ && known_pages) {
        place_.page = page;
        if constexpr (in_blocks) place_.slot = args_.page_size.rest(where.token(least(u + lane_ * step, end - 1)));
        ahead_ += 32 * step_;
      } else {
        look_up(where, end);
      }
    }
    PAGODA_UNROLL_ALL
    for (int s = 0; s < stages; ++s) {
      more_ = comes(u, s * step, end);
      if (more_) turn(where, u + s * step, end);
      copy_keys();
      copy_values();
      next_stage();
    }
  }
  /// Selects the tile whose copies start while the one at u is multiplied.
  template <class Where>
  KOKKOS_FUNCTION void turn_ahead(const Where& where, int u, int end) {
    more_ = comes(u, stages * step_, end);
    if (more_) turn(where, u + stages * step_, end);
  }
  /// The page and slot of tile number tile_, of which lane tile_ % 32 knows them.
  KOKKOS_FUNCTION void take_place() {
    page_ = cuda::from_lane(pages_, tile_ & 31), slot_ = cuda::from_lane(slots_, tile_ & 31);
  }
  /// With block scales, keys, values and scales of a tile are copied together, by turn_ahead_together while the tile at
  /// u is multiplied, and copy_together after that. Nearly all tiles lie in one page and before the end, and their page
  /// is in a register; for these there are no branches but one.
  KOKKOS_FUNCTION void turn_ahead_together(int u, int end) {
    const auto left = static_cast<unsigned>(end - u), ahead = static_cast<unsigned>(stages * step_);
    steady_ = !AnyAlignment && !cuda::any_lane((tile_ & 31) == 0 || left < ahead + tile_tokens);
    take_place();
  }
  template <class Where>
  KOKKOS_FUNCTION void copy_together(const Where& where, int u, int end) {
    if constexpr (!AnyAlignment) {
      if (steady_) {
        ++tile_;
        blocks_.next();
        copy_block_scales(slot_ + (lane_ & (tile_tokens - 1)));
        copy_whole(stage_, keys_from_, units(keys_from_));
        cuda::commit_copies();
        copy_whole(stage_ + tile_bytes, values_from_, units(values_from_));
        return cuda::commit_copies();
      }
    }
    turn_ahead(where, u, end);
    copy_keys();
    copy_values();
  }
  /// Sets the addresses from which the lane copies scales: the first half of the lanes copy those of keys, the others
  /// those of values. If tokens have no scales of their own, scratch holds ones.
  KOKKOS_FUNCTION void begin_scales(int kv_head) {
    const ScaleArray& scales = lane_ < tile_tokens ? args_.k_scale : args_.v_scale;
    scales_from_             = nullptr;
    if (scales.per_token()) {
      scales_from_ = scales.at + static_cast<std::int64_t>(kv_head) * scales.head;
      scale_page_ = scales.page, scale_token_ = scales.token;
    } else {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < stages; ++s) scales_at(s * stage_bytes)[lane_] = 1;
    }
  }
  KOKKOS_FUNCTION float* scales_at(int stage) const { return reinterpret_cast<float*>(keys_ + stage + 2 * tile_bytes); }
  /// Loads the scales of the lane's two tokens: those of keys into k, those of values into value_scale_.
  KOKKOS_FUNCTION void load_scales(float (&k)[2]) {
    const float* const at = scales_at(stage_) + row_;
    k[0] = at[0], k[1] = at[8], value_scale_[0] = at[tile_tokens], value_scale_[1] = at[tile_tokens + 8];
  }
  /// Source addresses of the lane: its chunk of row `row0` of page 0 for a kv head, and the strides from there.
  struct Source {
    const char* base;
    RowSteps steps;
    std::uint32_t first;  ///< units to the kv head's rows
    bool beyond;          ///< the lane's chunk lies beyond head_dim: zeros
  };
  KOKKOS_FUNCTION Source source(const void* base, const RowSteps& steps, int kv_head, int head_dim) const {
    const int chunk   = lane_ & (copy_lanes - 1);
    const bool beyond = Storage::dims * chunk >= head_dim;
    return {static_cast<const char*>(base) + (beyond ? 0 : 16 * chunk), steps, kv_head * steps.head, beyond};
  }

  /// Page ids are loaded before their use. If tiles lie within pages, each lane holds the page id of one tile, and the
  /// next 32 are being loaded. Otherwise lane n % 16 holds the page id of its token in the next tile. Behind the last
  /// token, lanes repeat it, so every loaded row belongs to the sequence.
  template <class Where>
  KOKKOS_FUNCTION void look_up(const Where& where, int end) {
    const int ahead = by_tile_ ? lane_ * step_ : lane_ & (tile_tokens - 1);
    place_          = where.place(least(ahead_ + ahead, end - 1));
    ahead_ += by_tile_ ? 32 * step_ : step_;
  }
  /// Advances to the tile that begins at token u.
  template <class Where>
  KOKKOS_FUNCTION void turn(const Where& where, int u, int end) {
    whole_ = false;
    if (by_tile_) {
      if ((tile_ & 31) == 0) {
        pages_ = place_.page;
        if constexpr (in_blocks) slots_ = place_.slot;
        if (ahead_ < end) look_up(where, end);
      }
      if constexpr (in_blocks) {
        take_place();
        ++tile_;
      } else {
        page_ = pages_;
        KOKKOS_IF_ON_DEVICE((page_ = __shfl_sync(~0u, pages_, tile_ & 31);))
        ++tile_;
        slot_ = args_.page_size.rest(where.visible.first + u);  // there is no window
      }
      whole_ = u + tile_tokens <= end;
      if (!whole_) slot_ += least(lane_ & (tile_tokens - 1), end - 1 - u);
    } else {
      page_ = place_.page, slot_ = place_.slot;
      look_up(where, end);
    }
  }
  /// Copies the keys and all scales. Scales of values are included because the softmax needs them before the values.
  KOKKOS_FUNCTION void copy_keys() {
    if constexpr (in_blocks) {
      blocks_.next();
      if (!more_) return cuda::commit_copies();
      copy_block_scales(whole_ ? slot_ + (lane_ & (tile_tokens - 1)) : slot_);
    } else if constexpr (scaled) {
      if (more_ && scales_from_) {
        const auto page = static_cast<std::uint32_t>(page_);
        const auto slot = static_cast<std::uint32_t>(whole_ ? slot_ + (lane_ & (tile_tokens - 1)) : slot_);
        cuda::copy_word_async(cuda::shared_address(scales_at(stage_) + lane_),
                              scales_from_ + (static_cast<std::uint64_t>(page) * scale_page_ +
                                              static_cast<std::uint64_t>(slot) * scale_token_));
      }
    }
    copy(0, keys_from_);
  }
  KOKKOS_FUNCTION void copy_block_scales(int slot) { blocks_.copy(cuda::shared_address(block_row()), page_, slot); }
  /// Whether u + step < end; u + step may exceed 2^31.
  KOKKOS_FUNCTION static bool comes(int u, int step, int end) {
    return static_cast<unsigned>(u) + static_cast<unsigned>(step) < static_cast<unsigned>(end);
  }
  KOKKOS_FUNCTION void copy_values() { copy(tile_bytes, values_from_); }
  /// The lane's row of block scales in the tile's stage.
  KOKKOS_FUNCTION char* block_row() const { return keys_ + stage_ + 2 * tile_bytes + lane_ * BlockCopies::row_bytes; }
  /// Advances to the next stage. A tile reuses the place of the tile `stages` before it.
  KOKKOS_FUNCTION void next_stage() {
    if constexpr (stages > 1) stage_ = stage_ + stage_bytes == stages * stage_bytes ? 0 : stage_ + stage_bytes;
  }

  /// Starts to copy the rows of the selected tile, if there is one, to `behind_keys` bytes after the stage's keys. Each
  /// lane copies one chunk of every copy_rows-th row. Rows of a tile within a page are evenly spaced; for other tiles
  /// the lanes exchange the addresses of rows.
  KOKKOS_FUNCTION void copy(int behind_keys, const AnyRows& from) {
    if (!more_) return cuda::commit_copies();
    const int token = lane_ & (tile_tokens - 1), row0 = lane_ / copy_lanes, to = stage_ + behind_keys;
    const std::uint64_t row = from.row(page_, slot_ + (whole_ ? token : 0));  // the lane's token
    if (lane_ < tile_tokens) {
      row_begin(behind_keys, token) = AnyRows::begin(row);
      from.copy_chunk(row_end_at(behind_keys, token), row, copy_lanes, policy_);
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < tile_tokens; i += copy_rows)
      from.copy_chunk((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes, cuda::from_lane(row, row0 + i),
                      lane_ & (copy_lanes - 1), policy_);
    cuda::commit_copies();
  }
  /// Stored after a stage's tiles: the offsets of the rows of keys, then of values, in their first chunks; and the last
  /// chunk of each row, for which the tile has no room.
  KOKKOS_FUNCTION int& row_begin(int behind_keys, int row) const {
    return reinterpret_cast<int*>(keys_ + stage_ + row_begins)[behind_keys / tile_bytes * tile_tokens + row];
  }
  KOKKOS_FUNCTION std::uint32_t row_end_at(int behind_keys, int row) const {
    return cuda::shared_address(keys_ + stage_ + row_ends) + 16 * (behind_keys / tile_bytes * tile_tokens + row);
  }
  /// Shifts the rows of a tile that was copied from any address into place, so that chunk i of a row is its i-th 16
  /// bytes.
  KOKKOS_FUNCTION void realign(int behind_keys) const {
    constexpr int at_once = least(4, tile_tokens / copy_rows);  // steps whose loads hide each other's latency
    const int row0 = lane_ / copy_lanes, to = stage_ + behind_keys;
    const bool last = (lane_ & (copy_lanes - 1)) == copy_lanes - 1;
    PAGODA_UNROLL_ALL
    for (int first = 0; first < tile_tokens; first += at_once * copy_rows) {
      std::uint32_t words[at_once][4];
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * copy_rows;
        std::uint32_t low[4], high[4];
        cuda::load_shared(low, (copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes);
        cuda::load_shared(
            high, last ? row_end_at(behind_keys, row0 + i) : (next_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes);
        shift_bytes(words[j], low, high, row_begin(behind_keys, row0 + i));
      }
      cuda::sync_warp();  // all lanes have read the rows
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * copy_rows;
        cuda::store_shared((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes, words[j]);
      }
    }
    cuda::sync_warp();
  }
  KOKKOS_FUNCTION void copy(int behind_keys, const Source& from) {
    const int to = stage_ + behind_keys;
    if (!more_) return cuda::commit_copies();
    const std::uint32_t units = this->units(from);
    const int row0            = lane_ / copy_lanes;
    if (whole_) {
      copy_whole(to, from, units);
    } else {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < tile_tokens; i += copy_rows) {
        std::uint32_t at = units;
        KOKKOS_IF_ON_DEVICE((at = __shfl_sync(~0u, units, row0 + i);))
        cuda::copy_async((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes,
                         from.base + static_cast<std::uint64_t>(at) * args_.row_unit, policy_, from.beyond);
      }
    }
    cuda::commit_copies();
  }

  /// Units from row 0 of page 0 to the location of the selected tile.
  KOKKOS_FUNCTION std::uint32_t units(const Source& from) const {
    return page_ * from.steps.page + slot_ * from.steps.token + from.first;
  }
  /// Starts to copy a tile within a page to `to`, from `units` units behind row 0 of page 0.
  KOKKOS_FUNCTION void copy_whole(int to, const Source& from, std::uint32_t units) const {
    const int row0        = lane_ / copy_lanes;
    const char* const row = from.base + static_cast<std::uint64_t>(units + row0 * from.steps.token) * args_.row_unit;
    const std::uint32_t bytes = from.steps.token * args_.row_unit;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < tile_tokens; i += copy_rows)
      cuda::copy_async((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes, row + static_cast<std::uint64_t>(bytes) * i,
                       policy_, from.beyond);
  }

  const Member& team_;
  const KernelArgsOf<T>& args_;
  char* memory_;
  char* keys_;  ///< the worker's part of scratch: a tile of keys, then one of values
  int lane_ = 0, row_, column_;
  int step_ = 0, ahead_ = 0, tile_ = 0, pages_ = 0, slots_ = 0;
  bool steady_  = false;     ///< see turn_ahead_together
  bool by_tile_ = false;     ///< tiles lie within pages
  int stage_    = 0;         ///< offset of the tile's place, in bytes
  bool more_    = false;     ///< there is a tile to copy
  bool whole_   = false;     ///< the selected tile lies in one page and before the end
  int page_ = 0, slot_ = 0;  ///< start of the tile; if it is not whole, location of token lane % 16
  PagePlace place_{};
  std::conditional_t<AnyAlignment, AnyRows, Source> keys_from_{}, values_from_{};
  std::uint32_t copy_at_, next_at_, keys_at_, values_at_;  ///< the lane's, in shared memory
  std::uint64_t policy_;
  const float* scales_from_ = nullptr;
  std::uint32_t scale_page_ = 0, scale_token_ = 0;
  std::conditional_t<in_blocks, BlockCopies, std::monostate> blocks_{};
  float value_scale_[2] = {1, 1};  ///< scales of values of the lane's tokens
};

}  // namespace pagoda::detail
