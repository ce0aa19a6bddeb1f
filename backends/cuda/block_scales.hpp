// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Block scales of a tile of tokens in scratch, of keys or of values. Asynchronous copies take aligned words, and the
/// scales of a row, of a byte each, may begin on any byte: the words that they touch are copied, and where in the first
/// of them they begin is noted beside. Words: of the scales of a row. Bytes behind a row's scales are 0.
template <int Tokens, int Words>
struct TileBlockScales {
  static constexpr int row_bytes = 4 * (Words + 1);
  static constexpr int bytes     = (Tokens * row_bytes + Tokens + 15) / 16 * 16;
  char* memory;

  /// Begins to copy the `count` scales of a token.
  KOKKOS_FUNCTION void copy(int token, const char* from, int count) const {
    const int first        = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) & 3);
    begin(token)           = static_cast<std::uint8_t>(first);
    const std::uint32_t to = cuda::shared_address(memory + token * row_bytes);
    PAGODA_UNROLL_ALL
    for (int i = 0; i <= Words; ++i) {
      const int left = least(4, greatest(0, first + count - 4 * i));
      cuda::copy_part_of_word_async(to + 4 * i, from - first + (left > 0 ? 4 * i : 0), left);
    }
  }
  /// The scales of a token from number `skip` on, 0 or 1.
  KOKKOS_FUNCTION void load(int token, int skip, std::uint32_t (&words)[Words]) const {
    const int at = begin(token) + skip;
    const auto* const from =
        reinterpret_cast<const std::uint32_t*>(memory + token * row_bytes + (at & ~3));  // word 1 at most
    std::uint32_t low = from[0];
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) {
      const std::uint32_t high = from[i + 1];
      words[i]                 = cuda::bytes_from(low, high, at & 3);
      low                      = high;
    }
  }

 private:
  KOKKOS_FUNCTION std::uint8_t& begin(int token) const {
    return reinterpret_cast<std::uint8_t*>(memory)[Tokens * row_bytes + token];
  }
};

template <int Tokens>
struct TileBlockScales<Tokens, 0> {
  static constexpr int bytes = 0;
  char* memory;
};

/// What values become in registers: what keys do, unless the storage says otherwise.
template <class Storage>
struct ValueOperandOf {
  using type = typename Storage::Operand;
};
template <class Storage>
  requires requires { typename Storage::ValueOperand; }
struct ValueOperandOf<Storage> {
  using type = typename Storage::ValueOperand;
};

}  // namespace pagoda::detail
