// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/runtime.hpp"

#include <pagoda/pagoda_lists.h>

namespace pagoda::python {

/// A list of entries, described once and used by many calls. It keeps the arrays alive.
class Entries {
 public:
  Entries(nb::handle entries, nb::handle queries, nb::handle state_begin, nb::handle masks, std::uintptr_t stream)
      : entries_(who, "entries", entries, Access::keep, stream),
        queries_(who, "queries", queries, Access::keep, stream) {
    list_.struct_size = sizeof list_;
    list_.entries     = rows_of<pagoda_entry>("entries", entries_, list_.num_entries);
    list_.queries     = rows_of<pagoda_entry_query>("queries", queries_, list_.num_queries);
    state_begin_      = Array::optional(who, "state_begin", state_begin, Access::keep, stream);
    masks_            = Array::optional(who, "masks", masks, Access::keep, stream);
    for (const auto& [name, array] :
         {std::pair("queries", &queries_), std::pair("state_begin", &state_begin_), std::pair("masks", &masks_)})
      array->require_on(who, name, entries_.device(), "the device of entries");
    if (state_begin_) {
      list_.state_begin     = state_begin_.vector_of<std::int32_t>(who, "state_begin");
      list_.num_state_begin = static_cast<std::int32_t>(state_begin_.tensor().extent[0]);
    }
    if (masks_) read_masks();
  }
  Entries(const Entries&)            = delete;
  Entries& operator=(const Entries&) = delete;

  const pagoda_entries* described() const { return &list_; }
  Device device() const { return entries_.device(); }
  int num_entries() const { return list_.num_entries; }
  int num_queries() const { return list_.num_queries; }

 private:
  static constexpr const char* who = "pagoda.Entries";

  /// The rows of an int32 array as structs.
  template <class Row>
  static const Row* rows_of(const char* name, const Array& array, std::int32_t& count) {
    constexpr std::int64_t columns = sizeof(Row) / sizeof(std::int32_t);
    const std::int32_t* const data = array.int_table(who, name);
    const pagoda_tensor& t         = array.tensor();
    if (t.extent[1] != columns) refuse(who, ": ", name, " has ", t.extent[1], " columns; allowed: ", columns);
    if (t.extent[0] > 0 && (t.stride[1] != 1 || (t.extent[0] > 1 && t.stride[0] != columns)))
      refuse(who, ": ", name, " has strides (", t.stride[0], ", ", t.stride[1], "); allowed: dense rows");
    count = static_cast<std::int32_t>(t.extent[0]);
    return reinterpret_cast<const Row*>(data);
  }

  void read_masks() {
    const pagoda_tensor& t = masks_.tensor();
    if (masks_.type_name() != "uint64" && masks_.type_name() != "int64")
      refuse(who, ": masks holds ", masks_.type_name(), "; allowed: uint64, or int64 with the same bits");
    const bool pairs = t.rank == 2 && t.extent[1] == 2 && t.stride[1] == 1 && (t.stride[0] == 2 || t.extent[0] <= 1);
    if (!pairs) refuse(who, ": masks has ", t.rank, " axes; allowed: a dense array of (mask, 2)");
    list_.masks          = static_cast<const std::uint64_t*>(t.data);
    list_.num_mask_words = static_cast<std::int32_t>(2 * t.extent[0]);
  }

  Array entries_, queries_, state_begin_, masks_;
  pagoda_entries list_{};
};

}  // namespace pagoda::python
