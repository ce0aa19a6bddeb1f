// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"

namespace pagoda::tuned {

/// Where the first of a run of tokens lies in the cache. `token` counts from the beginning of the page.
struct TokenLocation {
  int page, token;
};

/// Finds the tokens of one sequence in the cache, contiguous or paged. CopyTokens: the most tokens that one copy loads,
/// all of one page.
template <int CopyTokens>
class PageCursor {
 public:
  PAGODA_DEVICE void begin(const Args& a, int sequence) {
    table_begin_ = a.has_indptr ? __ldg(a.page_indptr + sequence) : sequence * a.table_row;
  }
  /// Location of the sequence's tokens copy * copy_tokens and the following. An index beyond the sequence gives the
  /// last entry of its table row, so that nothing behind the table is read.
  PAGODA_DEVICE TokenLocation look_up(const Args& a, int sequence, int copy, int copy_tokens = CopyTokens) const {
    if (!a.block_table) return {sequence, copy * copy_tokens};
    const int index = a.copies_per_page.divide(copy), last = a.has_indptr ? a.last_page - table_begin_ : a.last_page;
    return {__ldg(a.block_table + (table_begin_ + min(index, last) * a.table_page)),
            (copy - index * a.copies_per_page.value) * copy_tokens};
  }

 private:
  int table_begin_ = 0;  ///< where the sequence's pages begin in the block table
};

}  // namespace pagoda::tuned
