// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/batch_pages.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace pagoda::detail {

/// Divides tokens by the page size. Most page sizes are powers of two, for which no division is needed.
class PageDivisor {
 public:
  explicit PageDivisor(int page_size)
      : page_size_(page_size),
        shift_(std::has_single_bit(static_cast<unsigned>(page_size))
                   ? std::countr_zero(static_cast<unsigned>(page_size))
                   : -1) {}
  int operator()(int tokens) const { return shift_ >= 0 ? tokens >> shift_ : tokens / page_size_; }

 private:
  int page_size_, shift_;
};

/// Pages that differing_pages() compares.
inline constexpr int pages_at_once = 32;

/// Returns a bit for each of the first pages_at_once pages: whether two contiguous rows differ there.
inline std::uint32_t differing_pages(const int* x, const int* y) {
#ifdef __SSE2__
  const auto equal = [&](int i) {  // pages i to i + 3
    const auto load = [](const int* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    return _mm_cmpeq_epi32(load(x + i), load(y + i));
  };
  const auto equal16 = [&](int i) {
    const __m128i low = _mm_packs_epi32(equal(i), equal(i + 4)), high = _mm_packs_epi32(equal(i + 8), equal(i + 12));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
  };
  return ~(equal16(0) | equal16(16) << 16);
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < pages_at_once; ++i) bits |= std::uint32_t(x[i] != y[i]) << i;
  return bits;
#endif
}

/// Returns the first page from `from` on in which two rows differ, or `to`.
inline int common_end(const PageRow& a, const PageRow& b, int from, int to) {
  if (a.stride == 1 && b.stride == 1 && to >= pages_at_once) {
    for (; from + pages_at_once < to; from += pages_at_once)
      if (const std::uint32_t bits = differing_pages(a.ids + from, b.ids + from); bits != 0)
        return from + std::countr_zero(bits);
    if (from >= to) return from;
    const int last           = to - pages_at_once;  // the last block may begin before `from`
    const std::uint32_t bits = differing_pages(a.ids + last, b.ids + last) >> (from - last);
    return bits != 0 ? from + std::countr_zero(bits) : to;
  }
  while (from < to && a[from] == b[from]) ++from;
  return from;
}

/// Throws InvalidArgument if a count, a length, a sequence id or an offset is outside of the arrays. Reads no page id.
void require_batch_pages(const char* who, const BatchPages& pages);

}  // namespace pagoda::detail
