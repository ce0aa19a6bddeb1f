// SPDX-License-Identifier: Apache-2.0
#include "src/plan/workspace.hpp"

#include <pagoda/error.hpp>

#include "src/plan/bounds.hpp"

namespace pagoda::detail {

WorkspaceLayout workspace_layout(const ProblemShape& shape, const Bounds& bounds, const KernelChoice& kernel,
                                 int max_slots) {
  const int dims      = padded_to_quads(shape.head_dim_v);
  const double values = double(max_slots) * double(kernel.row_tile) * double(kernel.heads_per_item) * double(dims);
  require(values < 0x1p31, "pagoda::plan: max_seq_len ", bounds.max_seq_len,
          of_lists(bounds) ? " and entries.max_listed " : " and max_query_tokens ",
          of_lists(bounds) ? bounds.max_listed_queries : bounds.max_query_tokens, " ask for ", values,
          " partial values of head_dim_v ", shape.head_dim_v, "; allowed: fewer than 2^31");
  const std::size_t acc  = shape.kv_type == DType::fp64 ? sizeof(double) : sizeof(float);
  const std::size_t rows = std::size_t(max_slots) * kernel.row_tile * kernel.heads_per_item;
  Allocator space;
  WorkspaceLayout l;
  l.states = space.take(2 * acc * 2 * rows);
  l.values = space.take(acc * rows * dims);
  l.bytes  = space.used;
  return l;
}

}  // namespace pagoda::detail
