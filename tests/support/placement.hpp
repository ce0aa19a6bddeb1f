// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/array.hpp"

#include <pagoda/pagoda.hpp>

#include <optional>
#include <string>

namespace pagoda::test {

enum class Layout { contiguous, paged, csr };

/// Layout of a sample in memory.
struct Placement {
  Layout layout       = Layout::contiguous;
  int page_size       = 16;
  KVOrder order       = KVOrder::NHD;
  KVOrder scale_order = KVOrder::NHD;  ///< order of a quantized cache's scales
  Arrangement strides{};               ///< strides of the cache and of a dense block table
  Arrangement io{};                    ///< strides of queries and outputs
  bool indirect = false;               ///< batch entries are sequences of a larger cache, in another order
  bool ragged   = false;               ///< give cu_seqlens_q even if all entries have the same number of query tokens
  std::optional<DType> out_type{};     ///< default: the cache's; fp32 for a quantized one
  DType lse_type = DType::fp32;
  bool with_lse  = true;
  // Where they differ from `strides` and `io`.
  std::optional<Arrangement> v_strides{}, scale_strides{}, table_strides{}, out_strides{}, lse_strides{};
  int unused_page = -1;  ///< page id of pages that no query sees a token of, and of the padding of block tables
  int max_batch   = 0;   ///< bound on the batch of later decodes, an option of plans; 0: the sample's batch
};

std::string describe(const Placement& placement);

}  // namespace pagoda::test
