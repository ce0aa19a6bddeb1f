// SPDX-License-Identifier: Apache-2.0
#include "tests/support/placement.hpp"

#include <sstream>

namespace pagoda::test {

std::string describe(const Placement& p) {
  std::ostringstream text;
  text << (p.layout == Layout::contiguous ? "contiguous" : p.layout == Layout::paged ? "paged" : "paged (CSR)");
  if (p.layout != Layout::contiguous) text << ", page_size " << p.page_size;
  text << (p.order == KVOrder::NHD ? ", NHD" : ", HND") << (p.scale_order == KVOrder::HND ? " (scales HND)" : "")
       << ", cache " << describe(p.strides) << ", q and out " << describe(p.io);
  const auto differs = [&](const char* what, const std::optional<Arrangement>& strides) {
    if (strides) text << ", " << what << " " << describe(*strides);
  };
  differs("values", p.v_strides), differs("scales", p.scale_strides), differs("table", p.table_strides);
  differs("out", p.out_strides), differs("lse", p.lse_strides);
  if (p.unused_page != -1) text << ", unused page ids " << p.unused_page;
  if (p.max_batch > 0) text << ", max_batch " << p.max_batch;
  if (p.indirect) text << ", sequence_ids";
  if (p.ragged) text << ", cu_seqlens_q";
  if (p.out_type) text << ", out " << pagoda::name_of(*p.out_type);
  text << ", lse " << (p.with_lse ? pagoda::name_of(p.lse_type) : "none");
  return text.str();
}

}  // namespace pagoda::test
