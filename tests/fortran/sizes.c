/* SPDX-License-Identifier: Apache-2.0 */
#include <pagoda/pagoda_pool.h>

/* What the derived types of the Fortran module must be as large as. */
size_t size_in_c(int32_t which);

size_t size_in_c(int32_t which) {
  const size_t sizes[] = {sizeof(pagoda_tensor), sizeof(pagoda_cache), sizeof(pagoda_decode_options),
                          sizeof(pagoda_pool_options), sizeof(pagoda_pool_stats)};
  return sizes[which];
}
