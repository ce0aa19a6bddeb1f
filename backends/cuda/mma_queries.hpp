// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_tiles.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/unroll.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Query rows of MmaFragment in scratch, as rows of Operands. Queries of a type other than the operands' are rounded to
/// it, and the rounding errors are stored beside them.
template <class T, int DimTile, bool AnyQuery, bool AnyAlignment>
class MmaQueries : public MmaTiles<T, DimTile, AnyAlignment> {
 public:
  using Tiles = MmaTiles<T, DimTile, AnyAlignment>;
  using typename Tiles::Operand;
  using typename Tiles::Storage;
  static constexpr DType query_type = dtype_v<Operand>;

  /// Team-wide: stores the queries in scratch as rows of Operands, with rounding errors for other types.
  template <class Rows>
  KOKKOS_FUNCTION void load_queries(const Rows& rows_of, float scale) {
    scale_            = scale;
    const int threads = team_.team_size() * 32, thread = team_.team_rank() * 32 + lane_;
    if (args_.wide_queries) {
      PAGODA_UNROLL(1)
      for (int i = thread; i < rows * query_chunks; i += threads) {
        const int r = i / query_chunks, chunk = i % query_chunks;
        const bool none = !rows_of.valid(r) || 8 * chunk >= args_.head_dim;
        const Operand* const q =
            static_cast<const Operand*>(args_.q.data) + (none ? 0 : rows_of.query_offset(r) + 8 * chunk);
        cuda::copy_async(query_place(r, chunk), reinterpret_cast<const char*>(q), policy_, none);
      }
    } else if constexpr (AnyQuery) {
      if (args_.q.type == query_type) {
        copy_queries(rows_of, thread, threads);
        return cuda::commit_copies();
      }
      PAGODA_UNROLL(1)
      for (int i = thread; i < rows * DimTile; i += threads) {
        const int r = i / DimTile, d = i % DimTile;
        const float x                   = d < args_.head_dim ? rows_of.template load_query<float>(r, d) : 0.0f;
        char* const at                  = query_element(r, d);
        const auto rounded              = Operand(x);
        *reinterpret_cast<Operand*>(at) = rounded;
        *reinterpret_cast<Operand*>(at + query_bytes) = Operand(x - static_cast<float>(rounded));
      }
    }
    cuda::commit_copies();
  }

  /// Drops queries that were loaded speculatively for other rows, and frees their place in scratch.
  KOKKOS_FUNCTION void forget_queries() const {
    cuda::wait_copies<0>();
    team_.team_barrier();  // all copies have arrived: their place may be written again
  }

 protected:
  using Tiles::args_;
  using Tiles::chunks;
  using Tiles::column_;
  using Tiles::lane_;
  using Tiles::memory_;
  using Tiles::policy_;
  using Tiles::query_bytes;
  using Tiles::query_chunks;
  using Tiles::row_;
  using Tiles::rows;
  using Tiles::scaled;
  using Tiles::team_;
  using Tiles::worker_bytes;

  using Tiles::Tiles;

  /// Rows of queries lie after the parts of all workers. Chunk i lies at position i ^ (row % 8).
  KOKKOS_FUNCTION char* query_row(int r) const {
    return memory_ + team_.team_size() * worker_bytes + r * 16 * query_chunks;
  }
  KOKKOS_FUNCTION std::uint32_t query_place(int r, int chunk) const {
    return cuda::shared_address(query_row(r)) + ((chunk ^ (r & 7)) << 4);
  }
  KOKKOS_FUNCTION char* query_element(int r, int d) const {
    return query_row(r) + (((d / 8) ^ (r & 7)) << 4) + d % 8 * int(sizeof(Operand));
  }
  /// Copies queries of the operands' type, with any strides, to scratch.
  template <class Rows>
  KOKKOS_FUNCTION void copy_queries(const Rows& rows_of, int thread, int threads) const {
    constexpr int at_once = 4;  // loads in flight before the first result is used
    PAGODA_UNROLL(1)
    for (int first = thread; first < rows * DimTile; first += at_once * threads) {
      Operand x[at_once];
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * threads, r = i / DimTile, d = i % DimTile;
        x[j] = Operand(0.0f);
        if (r < rows && d < args_.head_dim && rows_of.valid(r))
          x[j] = static_cast<const Operand*>(args_.q.data)[rows_of.query_offset(r, d)];
      }
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * threads;
        if (i < rows * DimTile) *reinterpret_cast<Operand*>(query_element(i / DimTile, i % DimTile)) = x[j];
      }
    }
  }
  /// Loads the lane's operands of the queries, `part` bytes after the start of the queries.
  KOKKOS_FUNCTION void fetch_queries(std::uint32_t* q, int part) const {
    if constexpr (scaled) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < chunks; ++i) {
        std::uint32_t words[2 * Storage::steps];
        Storage::queries(query_row(row_) + part, row_ & 7, i, column_, words);
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2 * Storage::steps; ++j) q[2 * Storage::steps * i + j] = words[j];
      }
    } else {
      const std::uint32_t at = query_place(lane_ & 7, lane_ >> 3) + part;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < query_chunks; i += 4) cuda::load_matrices<false>(&q[i], at ^ (i << 4));
    }
  }

  float scale_ = 1;
};

}  // namespace pagoda::detail
