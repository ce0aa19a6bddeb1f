// SPDX-License-Identifier: Apache-2.0
#include "src/plan/kernel_choice.hpp"

#include <pagoda/error.hpp>
#include <pagoda/row_formats.hpp>

#include "src/plan/bounds.hpp"
#include "src/plan/cache_rows.hpp"

namespace pagoda::detail {

FragmentShape fragment_shape(const ProblemShape& shape, const Bounds& bounds, const CacheRef& kv) {
  const RowLayout layout = row_layout(kv);
  return {.rows           = query_rows_of_longest_entry(bounds, shape),
          .head_dim       = shape.head_dim,
          .head_dim_v     = shape.head_dim_v,
          .dense_dims     = layout.dense_dims,
          .row_alignment  = layout.alignment,
          .values_in_keys = values_in_keys(kv),
          // An entry of a list may be for one kv head.
          .heads_in_turn = of_lists(bounds) ? 1 : heads_in_turn(kv),
          .row_units     = row_units(kv).count};
}

KernelChoice choose_kernel(const FragmentChoice& choice, const ProblemShape& shape, const Bounds& bounds,
                           const AttentionOptions& options, const CacheRef& kv) {
  KernelChoice kernel = choice.kernel;
  require(kernel.fragment >= 0, "pagoda::plan: head_dim is ", shape.head_dim, " and head_dim_v ", shape.head_dim_v,
          "; allowed: what fits the ", choice.machine.scratch_limit, " bytes of scratch of a team on this device");
  kernel.general = of_lists(bounds) || bounds.max_query_len > 1 || ragged(bounds) || options.changes_scores();
  // Of the kernels for such rows, those with matrix instructions read a row once for key and value.
  if (has_row_format(shape.kv_type) && choice.machine.multiprocessors > 0 && !kernel.values_in_keys)
    kernel.slow_because = "on this GPU no kernel with matrix instructions reads rows of this type";
  if (kernel.row_alignment > 0) return kernel;
  kernel.slow_because =
      row_layout(kv).dense_dims
          ? "no vector kernel takes this head_dim and alignment, so keys and values are read one element at a time"
          : "the dims of a row of keys or values, or its block scales, do not lie side by side (a View<T****> is "
            "LayoutLeft on a GPU; use Kokkos::LayoutRight or pagoda::make_paged_cache), so they are read one element "
            "at a time";
  return kernel;
}

}  // namespace pagoda::detail
