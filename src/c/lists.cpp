// SPDX-License-Identifier: Apache-2.0
// Lists of entries of the C interface.
#include <pagoda/pagoda_lists.h>

#include "src/c/plans.hpp"

#include <cstddef>
#include <cstdint>

using namespace pagoda::c;

namespace {

static_assert(sizeof(pagoda_entry) == sizeof(pagoda::Entry) &&
              sizeof(pagoda_entry_query) == sizeof(pagoda::EntryQuery));
static_assert(offsetof(pagoda_entry, state) == offsetof(pagoda::Entry, state) &&
              offsetof(pagoda_entry, kv_head) == offsetof(pagoda::Entry, kv_head) &&
              offsetof(pagoda_entry, chain) == offsetof(pagoda::Entry, chain));
static_assert(offsetof(pagoda_entry_query, behind) == offsetof(pagoda::EntryQuery, behind) &&
              offsetof(pagoda_entry_query, mask) == offsetof(pagoda::EntryQuery, mask));

/// An array of the list. The C struct `From` has the layout of the library's `To`.
template <class To, class Memory, class From>
Kokkos::View<const To*, Memory> entries_of(const char* who, const char* name, const From* from, std::int32_t count) {
  require(count >= 0, who, ": list.num_", name, " is ", count, "; allowed: 0 or more");
  require(reinterpret_cast<std::uintptr_t>(from) % alignof(To) == 0, who, ": list.", name, " is ",
          static_cast<const void*>(from), "; allowed: multiples of ", alignof(To));
  return Kokkos::View<const To*, Memory>(reinterpret_cast<const To*>(from), static_cast<std::size_t>(count));
}

/// The same array, which may be absent.
template <class To, class Memory>
Kokkos::View<const To*, Memory> optional_of(const char* who, const char* name, const char* length, const To* from,
                                            std::int32_t count) {
  require(count >= 0, who, ": list.", length, " is ", count, "; allowed: 0 or more");
  require(from || count == 0, who, ": list.", name, " is NULL; allowed: memory for ", count, " elements");
  require(reinterpret_cast<std::uintptr_t>(from) % alignof(To) == 0, who, ": list.", name, " is ",
          static_cast<const void*>(from), "; allowed: multiples of ", alignof(To));
  if (!from) return {};
  return Kokkos::View<const To*, Memory>(from, static_cast<std::size_t>(count));
}

template <class Memory>
pagoda::DeviceEntries<Memory> device_entries(const char* who, const pagoda_entries* given) {
  const auto l = read_struct(who, "list", given, offsetof(pagoda_entries, num_mask_words) + sizeof(std::int32_t));
  return {entries_of<pagoda::Entry, Memory>(who, "entries", l.entries, l.num_entries),
          entries_of<pagoda::EntryQuery, Memory>(who, "queries", l.queries, l.num_queries),
          optional_of<int, Memory>(who, "state_begin", "num_state_begin", l.state_begin, l.num_state_begin),
          optional_of<std::uint64_t, Memory>(who, "masks", "num_mask_words", l.masks, l.num_mask_words)};
}

/// Partial states that the caller passes, or empty ones for a list without any.
template <class Memory>
pagoda::EntryStates<Array<3>, Array<2>> states_of(const char* who, const pagoda::DeviceEntries<Memory>& list,
                                                  const pagoda_tensor* out, const pagoda_tensor* lse,
                                                  const Reach& reach) {
  if (list.state_begin.extent(0) > 0)
    return {array<3>(who, "state_out", out, reach), lse_array<2>(who, "state_lse", lse, reach)};
  return {optional_array<3>(who, "state_out", out, reach), optional_lse<2>(who, "state_lse", lse, reach)};
}

}  // namespace

pagoda_status pagoda_decode_entries(const pagoda_exec* exec, const pagoda_plan* plan, const pagoda_tensor* q,
                                    const pagoda_cache* kv, const pagoda_entries* list, const pagoda_tensor* out,
                                    const pagoda_tensor* lse, const pagoda_tensor* state_out,
                                    const pagoda_tensor* state_lse) {
  return guarded([&] {
    const char* const who = "pagoda_decode_entries";
    with_plan(who, exec, plan, [&]<class Space>(const PlanOf<Space>& with, const Space& instance) {
      const Reach reach    = Reach::of<Space>();
      const auto described = device_entries<typename Space::memory_space>(who, list);
      pagoda::decode_entries(instance, with, array<3>(who, "q", q, reach), cache(who, kv, reach), described,
                             array<3>(who, "out", out, reach), optional_lse<2>(who, "lse", lse, reach),
                             states_of(who, described, state_out, state_lse, reach));
    });
  });
}

pagoda_status pagoda_merge_entries(const pagoda_exec* exec, const pagoda_plan* plan, const pagoda_entries* list,
                                   const pagoda_tensor* state_out, const pagoda_tensor* state_lse,
                                   const pagoda_tensor* out, const pagoda_tensor* lse) {
  return guarded([&] {
    const char* const who = "pagoda_merge_entries";
    with_plan(who, exec, plan, [&]<class Space>(const PlanOf<Space>& with, const Space& instance) {
      const Reach reach = Reach::of<Space>();
      const pagoda::EntryStates<Array<3>, Array<2>> states{array<3>(who, "state_out", state_out, reach),
                                                           lse_array<2>(who, "state_lse", state_lse, reach)};
      pagoda::merge_entries(instance, with, device_entries<typename Space::memory_space>(who, list), states,
                            array<3>(who, "out", out, reach), optional_lse<2>(who, "lse", lse, reach));
    });
  });
}

pagoda_status pagoda_check_entries(const pagoda_exec* exec, const pagoda_plan* plan, const pagoda_tensor* q,
                                   const pagoda_cache* kv, const pagoda_entries* list, std::int32_t num_states) {
  return guarded([&] {
    const char* const who = "pagoda_check_entries";
    require(num_states >= 0, who, ": num_states is ", num_states, "; allowed: 0 or more");
    with_plan(who, exec, plan, [&]<class Space>(const PlanOf<Space>& with, const Space& instance) {
      const Reach reach    = Reach::of<Space>();
      const auto described = device_entries<typename Space::memory_space>(who, list);
      require(described.entries.data() || described.entries.extent(0) == 0, who,
              ": list.entries is NULL; allowed: memory for ", described.entries.extent(0), " entries");
      require(described.queries.data() || described.queries.extent(0) == 0, who,
              ": list.queries is NULL; allowed: memory for ", described.queries.extent(0), " queries");
      pagoda::check(instance, with, array<3>(who, "q", q, reach), cache(who, kv, reach), described, num_states);
    });
  });
}
