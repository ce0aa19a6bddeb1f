// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ds_mla_queries.hpp"
#include "backends/cuda/ds_mla_scales.hpp"
#include "backends/cuda/latent_tiles.hpp"
#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The fragment for rows of fp8_ds_mla, with mma.sync.m16n8k16 (see LatentTiles). A tile holds rows as they are in
/// memory. Warp w multiplies dims 128 w .. 128 w + 127, which have one scale in each row, and a quarter of the rotary
/// part. So it needs one scale of each token, and multiplies what no other warp reads:
///
///  - Q K^T: e4m3 numbers become fp16, exactly. The sums over 128 dims are multiplied by the scales of their tokens.
///    The rotary part, in bf16, is added to them.
///  - P V: probabilities are multiplied by the scales before they are rounded to fp16 (DsMlaScales).
///
/// A row of 656 bytes begins 16 bytes further in the banks than the row before it, so eight rows lie in different
/// banks.
template <int RowGroups, bool AnyQuery = false>
class DsMlaFragment : public DsMlaQueries<RowGroups, AnyQuery> {
 public:
  template <bool General>
  using Instance = DsMlaFragment<RowGroups, General>;
  using Queries  = DsMlaQueries<RowGroups, AnyQuery>;
  using Queries::lane_row;
  using Queries::query_type;
  using Queries::tile_tokens;
  using typename Queries::Layout;
  using typename Queries::Member;

  KOKKOS_FUNCTION DsMlaFragment(const Member& team, const KernelArgs& args, char* memory)
      : Queries(team, args, memory) {}

  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int, int end) {
    *highest() = 0;
    if (u >= end) return;
    adjacent_ = where.in_pages(tile_tokens) && where.token(u) % tile_tokens == 0 && args_.k_token == Layout::row_bytes;
    PagePlace places[Layout::tiles];
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Layout::tiles; ++i) places[i] = place(where, u + i * tile_tokens, end);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Layout::tiles - 1; ++i) {
      copy_ = address(where, places[i], u + i * tile_tokens, end);
      copy(i * Layout::tile_bytes, u + i * tile_tokens, end);
    }
    copy_ = address(where, places[Layout::tiles - 1], u + (Layout::tiles - 1) * tile_tokens, end);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    cuda::wait_copies<Layout::tiles - 2>();
    cuda::sync_team();  // the tile is complete, and no warp reads the previous one any more
    place_                   = place(where, u + Layout::tiles * tile_tokens, end);  // one tile before its use
    const std::uint32_t keys = numbers();
    copy(tile_ == 0 ? (Layout::tiles - 1) * Layout::tile_bytes : tile_ - Layout::tile_bytes,
         u + (Layout::tiles - 1) * tile_tokens, end);
    float s[chains][RowGroups][2][4] = {};
    std::uint32_t ahead[2][4];
    cuda::load_matrices<false>(ahead[0], keys);
    PAGODA_UNROLL_ALL
    for (int j = 0; j < number_steps; j += 2) {
      if (j + 2 < number_steps) cuda::load_matrices<false>(ahead[(j / 2 + 1) % 2], keys + 16 * (j + 2));
      const auto& words = ahead[j / 2 % 2];
      PAGODA_UNROLL_ALL
      for (int h = 0; h < 2; ++h) {
        std::uint32_t a[1][4];
        Numbers::keys(words[2 * h], words[2 * h + 1], a);
        PAGODA_UNROLL_ALL
        for (int m = 0; m < RowGroups; ++m) multiply_pair<half_t>(s[h % chains][m], q_[m][j + h], a[0]);
      }
      // Keeps later loads from being moved up. The compiler would then multiply the halves of the tile one after the
      // other, in half as many product chains.
      if constexpr (RowGroups > 1) cuda::sync_warp();
    }
    if (AnyQuery && args_.q.type != query_type) add_rest_of_numbers(keys, s[0]);
    float scales[4];
    load_scales(scales);
    odd_ = !scales_.fit(scales);
    if (odd_) {  // an infinite scale makes the score NaN: products of both signs, or of 0, have one
      for (float& scale : scales) scale += 0.0f * scale;
    }
    std::uint32_t k[4];
    cuda::load_matrices<false>(k, rope(keys));
    PAGODA_UNROLL_ALL
    for (int m = 0; m < RowGroups; ++m) {
      PAGODA_UNROLL_ALL
      for (int half = 0; half < 2; ++half) {
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 4; ++e) {
          float& sum = s[0][m][half][e];
          if constexpr (chains == 2) sum += s[1][m][half][e];
          sum *= scales[2 * half + e % 2];
        }
      }
      multiply_pair<bfloat16_t>(s[0][m], q_[m][number_steps], k);
      if (AnyQuery && args_.q.type != query_type) {
        std::uint32_t q[4];
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 4; ++e) q[e] = this->template rest<bfloat16_t>(query_row(m, e), query_dim(number_steps, e));
        multiply_pair<bfloat16_t>(s[0][m], q, k);
      }
      store_sums(m, 0, s[0][m][0]);
      store_sums(m, 1, s[0][m][1]);
    }
    cuda::sync_team();
    add_sums(end - u);
  }

  KOKKOS_FUNCTION void softmax(bool hides) {
    const bool raised = exponentiate(hides);
    // They replace sums that this lane alone has read.
    Pack<float, lane_tokens> p;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < lane_tokens; ++i) p.at[i] = x_[i];
    *reinterpret_cast<Pack<float, lane_tokens>*>(sums_of(0) + sum_at(lane_row(0), token_at(0))) = p;
    raised_ = cuda::sync_team_or(raised);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where& where, int u, int end, bool hides) {
    copy_ = address(where, place_, u + Layout::tiles * tile_tokens, end);
    if (raised_) rescale_outputs();
    const std::uint32_t values = numbers();
    DsMlaTurn turn;
    bool more;
    PAGODA_UNROLL(1)
    do {
      float factors[4];
      load_scales(factors);
      more = scales_.take(factors, odd_, turn, out_, highest());
      std::uint32_t p[RowGroups][4];
      PAGODA_UNROLL_ALL
      for (int m = 0; m < RowGroups; ++m) load_probabilities(p[m], m, factors, hides);
      multiply(values, p, hides);
    } while (more);
    tile_ = tile_ == (Layout::tiles - 1) * Layout::tile_bytes ? 0 : tile_ + Layout::tile_bytes;
  }

  /// Team-wide: returns the state of part_rows rows, from `first` on.
  KOKKOS_FUNCTION StateArray<float> finish(int first) {
    return finish_part(first, [&](int m, float* to) {
      const float unit = scales_.unit();
      to += warp_dims * warp_ + 4 * (lane() & 3);
      PAGODA_UNROLL_ALL
      for (int i = 0; i < value_steps; ++i) {
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 2; ++e) {
          const auto &even = out_[m][i][0], &odd = out_[m][i][1];
          auto& quad = *reinterpret_cast<Pack<float, 4>*>(to + 16 * i + e * 8 * Layout::value_stride);
          quad       = {even[2 * e] * unit, odd[2 * e] * unit, even[2 * e + 1] * unit, odd[2 * e + 1] * unit};
        }
      }
    });
  }

 private:
  using Queries::add_sums;
  using Queries::args_;
  using Queries::copy_;
  using Queries::copy_row;
  using Queries::exponentiate;
  using Queries::finish_part;
  using Queries::lane;
  using Queries::lane_tokens;
  using Queries::memory_;
  using Queries::multiply_visible_values;
  using Queries::number_steps;
  using Queries::out_;
  using Queries::place_;
  using Queries::q_;
  using Queries::query_dim;
  using Queries::query_row;
  using Queries::raised_;
  using Queries::rescale_outputs;
  using Queries::store_sums;
  using Queries::sum_at;
  using Queries::sums_of;
  using Queries::tile_;
  using Queries::token_at;
  using Queries::value_steps;
  using Queries::values_are_finite;
  using Queries::warp_;
  using Queries::warp_dims;
  using Queries::x_;
  using Numbers = MmaStorage<fp8_e4m3_t>;
  using Places  = RowPlaces<fp8_ds_mla_t>;

  static constexpr int chains = RowGroups == 1 ? 2 : 1;  ///< product chains: at least four hide their latency

  /// d += a b for two operands b, of 8 columns each.
  template <class Operand>
  KOKKOS_FUNCTION static void multiply_pair(float (&d)[2][4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[4]) {
    cuda::mma<Operand>(d[0], a[0], a[1], a[2], a[3], b[0], b[2]);
    cuda::mma<Operand>(d[1], a[0], a[1], a[2], a[3], b[1], b[3]);
  }
  /// The lane's address of the tile's e4m3 numbers of this warp, for load_matrices: two chunks of 16 tokens.
  KOKKOS_FUNCTION std::uint32_t numbers() const {
    const int n = lane();
    return cuda::shared_address(memory_) + tile_ + (n & 15) * Layout::row_bytes + 16 * (n >> 4) + warp_dims * warp_;
  }
  /// The same for the warp's 16 dims of the rotary part.
  KOKKOS_FUNCTION std::uint32_t rope(std::uint32_t numbers) const {
    return numbers + Places::number(Places::scaled_dims) - (warp_dims - 32) * warp_;
  }
  /// See DsMlaScales. All lanes of the warp write the same number.
  KOKKOS_FUNCTION int* highest() const { return reinterpret_cast<int*>(memory_ + Layout::highest_at) + warp_; }
  /// Token of the lane's i-th scale. A lane has these four in the sums of the first product and in the first operand of
  /// the second product.
  KOKKOS_FUNCTION int scale_token(int i) const { return 2 * (lane() & 3) + (i & 1) + 8 * (i >> 1); }
  /// The scales of this warp's dims.
  KOKKOS_FUNCTION void load_scales(float (&scales)[4]) const {
    const char* const from =
        memory_ + tile_ + Places::scale(0) + 4 * warp_ + scale_token(0) * static_cast<int>(Layout::row_bytes);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      scales[i] = *reinterpret_cast<const float*>(from + ((i & 1) + 8 * (i >> 1)) * Layout::row_bytes);
  }
  /// Adds the products of the queries' rounding errors. fp16 queries have none in these dims.
  KOKKOS_FUNCTION void add_rest_of_numbers(std::uint32_t keys, float (&s)[RowGroups][2][4]) {
    if (args_.q.type == DType::fp16) return;
    PAGODA_UNROLL(1)
    for (int j = 0; j < number_steps; j += 2) {
      std::uint32_t k[4], a[1][4], q[4];
      cuda::load_matrices<false>(k, keys + 16 * j);
      PAGODA_UNROLL_ALL
      for (int h = 0; h < 2; ++h) {
        Numbers::keys(k[2 * h], k[2 * h + 1], a);
        PAGODA_UNROLL_ALL
        for (int m = 0; m < RowGroups; ++m) {
          PAGODA_UNROLL_ALL
          for (int e = 0; e < 4; ++e) q[e] = this->template rest<half_t>(query_row(m, e), query_dim(j + h, e));
          multiply_pair<half_t>(s[m], q, a[0]);
        }
      }
    }
  }
  /// The first operand of the second product: probabilities times factors of their tokens.
  KOKKOS_FUNCTION void load_probabilities(std::uint32_t (&p)[4], int m, const float (&factors)[4],
                                          [[maybe_unused]] bool hides) const {
    const float* const from = sums_of(0) + 16 * m * tile_tokens;
    const int at            = sum_at(lane() >> 2, scale_token(0));
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 4; ++e) {
      const auto two = *reinterpret_cast<const Pack<float, 2>*>(from + (e & 1) * 8 * tile_tokens + (at ^ (e >> 1) * 8));
      float x[2]     = {two.at[0] * factors[e & 2], two.at[1] * factors[(e & 2) + 1]};
      if constexpr (AnyQuery) {
        if (hides) {
          PAGODA_UNROLL_ALL
          for (int i = 0; i < 2; ++i) {
            if (x[i] <= 0.0f && x[i] > -0x1p-24f) x[i] = 0.0f;  // not -0, which would hide the token
            if (cuda::is_hidden(two.at[i])) x[i] = hidden_probability;
          }
        }
      }
      p[e] = cuda::pack<half_t>(x[0], x[1]);
    }
  }
  KOKKOS_FUNCTION void multiply(std::uint32_t values, const std::uint32_t (&p)[RowGroups][4],
                                [[maybe_unused]] bool hides) {
    if constexpr (AnyQuery) {
      const auto load = [&](int i, std::uint32_t (&v)[4]) {
        std::uint32_t w[4], a[1][4];
        cuda::load_matrices<true>(w, values + 16 * (i & ~1));
        Numbers::values(i & 1 ? w[2] : w[0], i & 1 ? w[3] : w[1], a);
        v[0] = a[0][0], v[1] = a[0][2], v[2] = a[0][1], v[3] = a[0][3];
      };
      if (hides && !values_are_finite(load)) return multiply_visible_values(load, p);
    }
    PAGODA_UNROLL_ALL
    for (int j = 0; j < value_steps; j += 2) {
      std::uint32_t w[4];
      cuda::load_matrices<true>(w, values + 16 * j);
      PAGODA_UNROLL_ALL
      for (int h = 0; h < 2; ++h) {
        std::uint32_t v[1][4];
        Numbers::values(w[2 * h], w[2 * h + 1], v);
        PAGODA_UNROLL_ALL
        for (int m = 0; m < RowGroups; ++m) multiply_pair<half_t>(out_[m][j + h], p[m], v[0]);
      }
    }
  }
  /// Whether the tile from u on is one piece of memory: whole, in one page, its rows side by side. Then adjacent lanes
  /// copy adjacent chunks of 16 bytes of all of it. Otherwise eight lanes copy a row, and since rows begin on any 16
  /// bytes, some sectors of 32 bytes are read twice.
  KOKKOS_FUNCTION bool in_one_piece(int u, int end) const { return adjacent_ && u + tile_tokens <= end; }
  /// Locates the row that the lane helps to copy, or the first one of the tile.
  template <class Where>
  KOKKOS_FUNCTION PagePlace place(const Where& where, int u, int end) const {
    return in_one_piece(u, end) ? where.place(u) : Queries::place(where, u, end);
  }
  /// Address of the lane's first chunk.
  template <class Where>
  KOKKOS_FUNCTION const char* address(const Where& where, const PagePlace& place, int u, int end) const {
    return Queries::address(where, place) + (in_one_piece(u, end) ? 16 * (thread() - (lane() & 7)) : 0);
  }
  KOKKOS_FUNCTION int thread() const { return 32 * warp_ + lane(); }
  /// Starts to copy the lane's part, at copy_, of the tile from u on, or to clear its place: five chunks, and a sixth
  /// by some lanes.
  KOKKOS_FUNCTION void copy(int tile, int u, int end) const {
    const int part          = lane() & 7;
    const std::uint32_t to  = cuda::shared_address(memory_) + tile;
    constexpr int team_step = 16 * 32 * Layout::warps, row_step = 16 * 8;
    if (in_one_piece(u, end)) {
      copy_chunks<team_step>(to + 16 * thread(), thread() < (Layout::tile_bytes - 5 * team_step) / 16, false);
    } else {
      static_assert(Layout::row_bytes == 5 * row_step + 16);
      copy_chunks<row_step>(to + copy_row() * Layout::row_bytes + 16 * part, part == 0, u >= end);
    }
    cuda::commit_copies();
  }
  template <int Step>
  KOKKOS_FUNCTION void copy_chunks(std::uint32_t to, bool sixth, bool clear) const {
    const std::uint64_t policy = cuda::read_once_policy();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 5; ++i) cuda::copy_async(to + Step * i, copy_ + Step * i, policy, clear);
    cuda::copy_async_if(sixth, to + Step * 5, copy_ + Step * 5, policy, clear);
  }

  DsMlaScales scales_;
  bool adjacent_ = false;  ///< tiles that lie in one page are one piece of memory
  bool odd_      = false;  ///< scales of the tile do not fit the unit of the outputs
};

}  // namespace pagoda::detail
