// SPDX-License-Identifier: Apache-2.0
// Shared prefixes of pools of the C interface.
#include "src/c/pools.hpp"
#include "src/c/prefix_structs.hpp"

#include <cstddef>
#include <cstring>

using namespace pagoda::c;

pagoda_status pagoda_pool_get_prefix_report(const pagoda_pool* pool, pagoda_prefix_report* report) {
  return guarded([&] {
    const char* const who = "pagoda_pool_get_prefix_report";
    with_pool(who, pool, [&](const auto& p) { write_report(who, p.prefix_report(), report); });
  });
}

pagoda_status pagoda_pool_get_rates(const pagoda_pool* pool, pagoda_device_rates* rates) {
  return guarded([&] {
    const char* const who = "pagoda_pool_get_rates";
    with_pool(who, pool, [&](const auto& p) { write_rates(who, p.rates(), rates); });
  });
}

pagoda_status pagoda_pool_set_rates(pagoda_pool* pool, const pagoda_device_rates* rates) {
  return guarded([&] {
    const char* const who = "pagoda_pool_set_rates";
    with_pool(who, pool, [&](auto& p) { p.set_rates(rates_of(who, rates)); });
  });
}

pagoda_status pagoda_pool_batch_pages(const pagoda_pool* pool, std::int32_t num_slots, const std::int32_t* slots,
                                      std::int32_t query_len, pagoda_batch_pages* tables) {
  return guarded([&] {
    const char* const who   = "pagoda_pool_batch_pages";
    const std::size_t bytes = common_bytes(who, "tables", tables, sizeof(pagoda_batch_pages));
    const auto list         = list_of(who, "slots", slots, num_slots);
    with_pool(who, pool, [&](const auto& p) {
      const pagoda::BatchPages t = p.batch_pages(list, query_len == 0 ? 1 : query_len);
      pagoda_batch_pages to{};
      to.struct_size = tables->struct_size;
      to.batch = t.batch, to.num_sequences = t.num_sequences, to.page_size = t.page_size, to.query_len = t.query_len;
      to.seq_lens = t.seq_lens, to.sequence_ids = t.sequence_ids, to.page_rows = t.page_rows;
      std::memcpy(tables, &to, bytes);
    });
  });
}
