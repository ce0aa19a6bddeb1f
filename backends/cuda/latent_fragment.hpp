// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/latent_tiles.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The fragment for latent caches of 16-bit elements, with mma.sync.m16n8k16 (see LatentTiles). Of both operands, warp
/// w multiplies dims 64 i + 16 w .. 64 i + 16 w + 15, for all i. AnyQuery: queries of types other than the cache's.
template <class T, int RowGroups, bool AnyQuery = false>
class LatentFragment : public LatentTiles<T, T, RowGroups, AnyQuery> {
 public:
  template <bool General>
  using Instance = LatentFragment<T, RowGroups, General>;
  using Tiles    = LatentTiles<T, T, RowGroups, AnyQuery>;
  using Tiles::key_dims;
  using Tiles::lane_row;
  using Tiles::rows;
  using Tiles::tile_tokens;
  using typename Tiles::Layout;
  using typename Tiles::Member;

  KOKKOS_FUNCTION LatentFragment(const Member& team, const KernelArgs& args, char* memory)
      : Tiles(team, args, memory) {}

  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int, int end) {
    if (u >= end) return;
    const PagePlace first = place(where, u, end);
    const PagePlace next  = place(where, u + tile_tokens, end);
    copy_                 = address(where, first);
    copy(0, false);
    copy_ = address(where, next);
  }

  KOKKOS_FUNCTION void load_queries(const TileRows<AnyQuery>& rows_of, float scale) {
    scale_           = scale;
    queries_         = &rows_of;
    T* const rounded = reinterpret_cast<T*>(memory_);
    if constexpr (AnyQuery) {  // any type and strides: staged in scratch that no copy uses yet
      PAGODA_UNROLL(1)
      for (int i = 32 * warp_ + lane(); i < rows * key_dims; i += 32 * warps)
        rounded[i] = T(rows_of.template load_query<float>(i / key_dims, i % key_dims));
      cuda::sync_team();
    }
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 4; ++e) {
        const int r      = query_row(m, e);
        const bool valid = AnyQuery || rows_of.valid(r);
        const T* q       = rounded + r * key_dims;
        if constexpr (!AnyQuery) q = static_cast<const T*>(args_.q.data) + (valid ? rows_of.query_offset(r) : 0);
        PAGODA_UNROLL_ALL
        for (int i = 0; i < key_steps; ++i)
          q_[m][i][e] = valid ? *reinterpret_cast<const std::uint32_t*>(q + query_dim(i, e)) : 0;
      }
    }
    if constexpr (AnyQuery) cuda::sync_team();
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    cuda::wait_copies<0>();
    cuda::sync_team();  // the tile is complete, and no warp reads the previous one any more
    place_                           = place(where, u + 2 * tile_tokens, end);  // one tile before its use
    const int n                      = lane();
    const std::uint32_t keys         = tile_at(tile_, (n & 7) + (n >> 4) * 8, 2 * warp_ + (n >> 3 & 1));
    float s[chains][RowGroups][2][4] = {};
    std::uint32_t ahead[2][4];  // explicit, because the compiler is short of registers and does not load ahead
    cuda::load_matrices<false>(ahead[0], keys);
    copy(Layout::tile_bytes - tile_, u + tile_tokens >= end);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < key_steps; ++i) {
      if (i + 1 < key_steps) cuda::load_matrices<false>(ahead[(i + 1) % 2], keys + 128 * (i + 1));
      const auto& k = ahead[i % 2];
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) multiply_pair(s[i % chains][m], q_[m][i], k);
    }
    if (AnyQuery && args_.q.type != dtype_v<T>) {
      PAGODA_UNROLL(1)
      for (int i = 0; i < key_steps; ++i) {
        std::uint32_t k[4], q[4];
        cuda::load_matrices<false>(k, keys + 128 * i);
        PAGODA_UNROLL_ALL
        for (int m = 0; m < RowGroups; ++m) {
          PAGODA_UNROLL_ALL
          for (int e = 0; e < 4; ++e) q[e] = rest(query_row(m, e), query_dim(i, e));
          multiply_pair(s[0][m], q, k);
        }
      }
    }
    PAGODA_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) {
        auto& sum = s[0][m][half];
        if constexpr (chains == 2)
          for (int e = 0; e < 4; ++e) sum[e] += s[1][m][half][e];
        store_sums(m, half, sum);
      }
    }
    cuda::sync_team();
    add_sums(end - u);
  }

  KOKKOS_FUNCTION void softmax(bool hides) {
    const bool raised = exponentiate(hides);
    // Rows have two chunks, swapped in every other group of four rows, so that the chunks of eight rows lie in
    // different banks.
    const int row = lane_row(0), token = token_at(0);
    Pack<std::uint32_t, lane_tokens / 2> p;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens / 2; ++i) p.at[i] = cuda::pack<T>(x_[2 * i], x_[2 * i + 1]);
    *reinterpret_cast<Pack<std::uint32_t, lane_tokens / 2>*>(memory_ + Layout::p_at + row * 32 +
                                                             ((2 * token) ^ ((row >> 2 & 1) << 4))) = p;
    raised_ = cuda::sync_team_or(raised);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where& where, int, int, bool hides) {
    copy_ = address(where, place_);
    if (raised_) rescale_outputs();
    const int n                = lane();
    const std::uint32_t values = tile_at(tile_, n & 15, 2 * warp_ + (n >> 4));
    const auto load            = [&](int i, std::uint32_t (&v)[4]) { cuda::load_matrices<true>(v, values + 128 * i); };
    std::uint32_t p[RowGroups][4];
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m)
      cuda::load_matrices<false>(p[m], cuda::shared_address(memory_) + Layout::p_at + 512 * m + (n & 15) * 32 +
                                           (((n >> 4) ^ (n >> 2 & 1)) << 4));
    if constexpr (AnyQuery) {
      if (hides && !values_are_finite(load)) {
        multiply_visible_values(load, p);
        tile_ = Layout::tile_bytes - tile_;
        return;
      }
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < value_steps; ++i) {
      std::uint32_t v[4];
      load(i, v);
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) multiply_pair(out_[m][i], p[m], v);
    }
    tile_ = Layout::tile_bytes - tile_;
  }

  /// Team-wide: returns the state of part_rows rows, from `first` on.
  KOKKOS_FUNCTION StateArray<float> finish(int first) {
    return finish_part(first, [&](int m, float* to) {
      to += 16 * warp_ + 2 * (lane() & 3);
      PAGODA_UNROLL_ALL
      for (int i = 0; i < value_steps; ++i) {
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 4; ++e) {
          const auto& o = out_[m][i][e / 2];
          *reinterpret_cast<Pack<float, 2>*>(to + 64 * i + 8 * (e / 2) + e % 2 * 8 * Layout::value_stride) = {
              o[e % 2 * 2], o[e % 2 * 2 + 1]};
        }
      }
    });
  }

 private:
  using Tiles::add_sums;
  using Tiles::address;
  using Tiles::args_;
  using Tiles::copy_;
  using Tiles::copy_row;
  using Tiles::exponentiate;
  using Tiles::finish_part;
  using Tiles::key_steps;
  using Tiles::lane;
  using Tiles::lane_tokens;
  using Tiles::memory_;
  using Tiles::multiply_visible_values;
  using Tiles::out_;
  using Tiles::place;
  using Tiles::place_;
  using Tiles::query_row;
  using Tiles::raised_;
  using Tiles::rescale_outputs;
  using Tiles::scale_;
  using Tiles::store_sums;
  using Tiles::tile_;
  using Tiles::token_at;
  using Tiles::value_steps;
  using Tiles::values_are_finite;
  using Tiles::warp_;
  using Tiles::warps;
  using Tiles::x_;

  static constexpr int chains = RowGroups == 1 ? 2 : 1;  ///< product chains: at least four hide their latency
  static_assert(!AnyQuery || rows * Layout::row_bytes <= 2 * Layout::tile_bytes);

  /// d += a b for two operands b, of 8 columns each.
  KOKKOS_FUNCTION static void multiply_pair(float (&d)[2][4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[4]) {
    cuda::mma<T>(d[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    cuda::mma<T>(d[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
  /// Chunk i (16 bytes) of row r lies at position i ^ (r % 8) of the row, so that chunks i of eight rows lie in
  /// different banks. The chunks of a row that one lane accesses are 128 bytes apart, so one address suffices.
  KOKKOS_FUNCTION std::uint32_t tile_at(int tile, int row, int chunk) const {
    return cuda::shared_address(memory_) + tile + row * Layout::row_bytes + ((chunk ^ (row & 7)) << 4);
  }
  /// First of two dims of the lane's e-th word, in step i of the first operand of the first product.
  KOKKOS_FUNCTION int query_dim(int i, int e) const { return 64 * i + 16 * warp_ + 2 * (lane() & 3) + e / 2 * 8; }
  /// Two dims of the rounding error of a query. Recomputed for each tile, because registers are short.
  KOKKOS_FUNCTION std::uint32_t rest(int r, int d) const {
    const float x0 = queries_->template load_query<float>(r, d), x1 = queries_->template load_query<float>(r, d + 1);
    return cuda::pack<T>(x0 - static_cast<float>(T(x0)), x1 - static_cast<float>(T(x1)));
  }
  /// Starts to copy the lane's part of the tile whose row lies at copy_, or to clear its place.
  KOKKOS_FUNCTION void copy(int tile, bool clear) const {
    const std::uint32_t to     = tile_at(tile, copy_row(), lane() & 7);
    const std::uint64_t policy = cuda::read_once_policy();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Layout::row_bytes / 128; ++i) cuda::copy_async(to + 128 * i, copy_ + 128 * i, policy, clear);
    cuda::commit_copies();
  }

  const TileRows<AnyQuery>* queries_ = nullptr;
  std::uint32_t q_[RowGroups][key_steps][4];
};

}  // namespace pagoda::detail
