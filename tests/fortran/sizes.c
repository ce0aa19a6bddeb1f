/* SPDX-License-Identifier: Apache-2.0 */
#include <pagoda/pagoda_lists.h>
#include <pagoda/pagoda_memory.h>
#include <pagoda/pagoda_pool.h>
#include <pagoda/pagoda_prefix.h>

/* What the derived types of the Fortran module must be as large as. */
size_t size_in_c(int32_t which);

size_t size_in_c(int32_t which) {
  const size_t sizes[] = {sizeof(pagoda_tensor),       sizeof(pagoda_cache),         sizeof(pagoda_decode_options),
                          sizeof(pagoda_pool_options), sizeof(pagoda_pool_stats),    sizeof(pagoda_entry),
                          sizeof(pagoda_entry_query),  sizeof(pagoda_entries),       sizeof(pagoda_cache_shape),
                          sizeof(pagoda_row_tile),     sizeof(pagoda_device_rates),  sizeof(pagoda_prefix_options),
                          sizeof(pagoda_batch_pages),  sizeof(pagoda_prefix_report), sizeof(pagoda_prompt),
                          sizeof(pagoda_prefix_stats), sizeof(pagoda_table_fault)};
  return sizes[which];
}
