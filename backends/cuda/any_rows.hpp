// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Rows of a cache that begin on any byte and have any length. Asynchronous 16-byte copies need aligned addresses
/// in global and shared memory. A row is therefore copied as the aligned 16-byte chunks that it touches, one more than
/// its length needs, and then shifted into place in shared memory (MmaFragment::realign).
namespace pagoda::detail {

/// The rows of one kv head: address of row 0 of page 0, bytes from one page or token to the next, bytes of a row.
struct AnyRows {
  const char* base;
  std::int64_t page, token;
  int bytes;

  /// Strides in elements.
  template <class T>
  KOKKOS_FUNCTION static AnyRows of(const void* base, std::int64_t page, std::int64_t token, std::int64_t head,
                                    int head_dim) {
    constexpr int size = sizeof(T);
    return {static_cast<const char*>(base) + head * size, page * size, token * size,
            head_dim / dims_per_element_v<T> * size};
  }
  /// Address of the row in a slot of a page.
  KOKKOS_FUNCTION std::uint64_t row(int page_id, int slot) const {
    return reinterpret_cast<std::uint64_t>(base) + static_cast<std::uint64_t>(page_id * page + slot * token);
  }
  /// Offset of a row in the first of its chunks.
  KOKKOS_FUNCTION static int begin(std::uint64_t row) { return static_cast<int>(row & 15); }
  /// Starts to copy the i-th chunk of a row to shared memory. Bytes behind the row become 0 and are not read. In the
  /// first chunk, bytes before the row are read too.
  KOKKOS_FUNCTION void copy_chunk(std::uint32_t to, std::uint64_t row, int i, std::uint64_t policy) const {
    const int count = least(16, greatest(0, begin(row) + bytes - 16 * i));
    cuda::copy_prefix_async(to, reinterpret_cast<const char*>(row - begin(row) + (count > 0 ? 16 * i : 0)), count,
                            policy);
  }
};

/// Bytes `first` .. `first` + 16 of the 32 bytes of low and high, 0 <= first < 16.
KOKKOS_INLINE_FUNCTION void shift_bytes([[maybe_unused]] std::uint32_t (&out)[4],
                                        [[maybe_unused]] const std::uint32_t (&low)[4],
                                        [[maybe_unused]] const std::uint32_t (&high)[4], [[maybe_unused]] int first) {
#if defined(__CUDA_ARCH__)
  const bool two = (first & 8) != 0, one = (first & 4) != 0;  // words to skip
  std::uint32_t w[8];
  PAGODA_UNROLL_ALL
  for (int i = 0; i < 4; ++i) w[i] = low[i], w[4 + i] = high[i];
  PAGODA_UNROLL_ALL
  for (int i = 0; i < 6; ++i) w[i] = two ? w[i + 2] : w[i];
  PAGODA_UNROLL_ALL
  for (int i = 0; i < 5; ++i) w[i] = one ? w[i + 1] : w[i];
  PAGODA_UNROLL_ALL
  for (int i = 0; i < 4; ++i) out[i] = __funnelshift_r(w[i], w[i + 1], 8 * (first & 3));
#endif
}

}  // namespace pagoda::detail
