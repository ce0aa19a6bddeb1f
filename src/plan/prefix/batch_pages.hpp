// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/batch_pages.hpp>

#include <algorithm>

namespace pagoda::detail {

/// Returns the first page from `from` on in which two rows differ, or `to`.
inline int common_end(const PageRow& a, const PageRow& b, int from, int to) {
  if (a.stride == 1 && b.stride == 1) {
    constexpr int block = 16;
    for (; from + block <= to; from += block) {
      int differ = 0;  // no exit inside the block, so that the compiler vectorizes it
      for (int i = 0; i < block; ++i) differ |= a.ids[from + i] ^ b.ids[from + i];
      if (differ != 0) break;
    }
    // The first of the last pages that differs, without a branch for each.
    const int count = std::min(to - from, block);
    int equal       = count;
    for (int i = count - 1; i >= 0; --i) equal = a.ids[from + i] != b.ids[from + i] ? i : equal;
    return from + std::max(equal, 0);
  }
  while (from < to && a[from] == b[from]) ++from;
  return from;
}

/// Throws InvalidArgument if a count, a length, a sequence id or an offset is outside of the arrays. Reads no page id.
void require_batch_pages(const char* who, const BatchPages& pages);

}  // namespace pagoda::detail
