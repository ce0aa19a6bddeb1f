// SPDX-License-Identifier: Apache-2.0
#include <pagoda/check.hpp>
#include <pagoda/error.hpp>

#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"

#include <limits>

namespace pagoda::detail {

namespace {

enum class ListFault {
  none,
  sequence,
  seq_len,
  range,
  kv_head,
  queries,
  page_list,
  page,
  token,
  owner,
  behind,
  mask,
  state,
  chain,
  chain_length,
  chain_number,
  chain_begin,
  chain_last,
  chain_empty,
  chain_queries,
  chain_state,
  chain_kv_head,
  chain_behind,
  chain_mask
};

/// The first fault of an entry, and the numbers for its error text.
struct ListFinding {
  ListFault fault    = ListFault::none;
  int query          = 0;  ///< index in the list's queries
  std::int64_t index = 0, value = 0, limit = 0;
};

/// What an entry refers to.
struct Examiner {
  CacheRef kv;
  EntriesRef list;
  ListLimits limits;

  KOKKOS_FUNCTION bool has_sequence(int s) const { return s >= 0 && s < kv.num_sequences; }

  KOKKOS_FUNCTION ListFinding pages(const Entry& e, std::int64_t first, std::int64_t last) const {
    const std::int64_t page_size = kv.k.extent[1], end = (last + page_size - 1) / page_size;
    std::int64_t row = e.sequence * kv.table_row_stride;
    if (kv.page_indptr) {
      row             = kv.page_indptr[e.sequence];
      const auto held = kv.page_indptr[e.sequence + 1] - row;
      if (row < 0 || held < end || row + end > kv.table_pages) return {ListFault::page_list, 0, 0, held, end};
    }
    for (std::int64_t i = first / page_size; i < end; ++i) {
      const int id = kv.block_table[row + i * kv.table_page_stride];
      if (id < 0 || id >= kv.k.extent[0]) return {ListFault::page, 0, i, id, kv.k.extent[0]};
    }
    return {};
  }

  KOKKOS_FUNCTION ListFinding query(const Entry& e, int i) const {
    const EntryQuery q = list.queries[i];
    if (q.token < 0 || q.token >= limits.num_tokens) return {ListFault::token, i, 0, q.token, limits.num_tokens};
    if (!has_sequence(q.sequence)) return {ListFault::owner, i, 0, q.sequence, kv.num_sequences};
    const std::int64_t most = q.mask < 0 ? std::numeric_limits<int>::max() : 128;
    if (q.behind < 1 || q.behind > most) return {ListFault::behind, i, 0, q.behind, most};
    if (q.mask >= 0 && q.mask > list.num_mask_words - 2) return {ListFault::mask, i, 0, q.mask, list.num_mask_words};
    if (e.chain != 0 && q.behind != 1) return {ListFault::chain_behind, i, 0, q.behind};
    if (e.chain != 0 && q.mask >= 0) return {ListFault::chain_mask, i, 0, q.mask};
    if (e.state < 0) return {};
    if (list.num_state_begin == 0) return {ListFault::state, i, q.token, e.state, 0};
    const std::int64_t begin = list.state_begin[q.token], end = list.state_begin[q.token + 1];
    if (begin < 0 || end > limits.num_states || e.state >= end - begin)
      return {ListFault::state, i, q.token, e.state, end - begin};
    return {};
  }

  /// Entry b as a part of its chain. The first entry counts the others. Each of them refers to it by its own number.
  KOKKOS_FUNCTION ListFinding chain(const Entry& e, int b) const {
    if (!limits.chains) return {ListFault::chain, 0, 0, e.chain};
    if (e.chain > 0) {
      const int behind = list.num_entries - 1 - b;
      if (e.chain > behind) return {ListFault::chain_length, 0, 0, e.chain, behind};
      for (int k = 1; k <= e.chain; ++k)
        if (const int number = list.entries[b + k].chain; number != -k)
          return {ListFault::chain_number, 0, b + k, number, -k};
      if (e.last < 0) return {ListFault::chain_last, 0, 0, e.last};
    }
    if (e.num_queries < 1) return {ListFault::chain_empty, 0, 0, e.num_queries};
    if (e.chain > 0) return {};
    const std::int64_t begin = std::int64_t(b) + e.chain;
    if (begin < 0 || list.entries[begin].chain < -std::int64_t(e.chain)) return {ListFault::chain_begin, 0, 0, e.chain};
    const Entry first      = list.entries[begin];
    const std::int64_t end = std::int64_t(e.query_begin) + e.num_queries;
    if (e.query_begin < first.query_begin || end > std::int64_t(first.query_begin) + first.num_queries)
      return {ListFault::chain_queries, 0, e.query_begin, e.num_queries, begin};
    if (e.state != first.state) return {ListFault::chain_state, 0, begin, e.state, first.state};
    if (e.kv_head != first.kv_head) return {ListFault::chain_kv_head, 0, begin, e.kv_head, first.kv_head};
    return {};
  }

  KOKKOS_FUNCTION ListFinding entry(int b) const {
    const Entry e = list.entries[b];
    if (e.chain != 0)
      if (const ListFinding f = chain(e, b); f.fault != ListFault::none) return f;
    if (e.num_queries == 0) return {};
    if (!has_sequence(e.sequence)) return {ListFault::sequence, 0, 0, e.sequence, kv.num_sequences};
    const std::int64_t length = kv.seq_lens[e.sequence];
    if (length < 0 || length > kv.max_seq_len) return {ListFault::seq_len, 0, e.sequence, length, kv.max_seq_len};
    const std::int64_t last = e.last < 0 ? length : e.last;
    if (e.first < 0 || last > length || (kv.paged && e.first % kv.k.extent[1] != 0))
      return {ListFault::range, 0, e.first, last, length};
    if (e.kv_head >= limits.num_kv_heads) return {ListFault::kv_head, 0, 0, e.kv_head, limits.num_kv_heads};
    if (e.num_queries < 0 || e.num_queries > limits.max_queries || e.query_begin < 0 ||
        e.num_queries > list.num_queries - e.query_begin)
      return {ListFault::queries, 0, e.query_begin, e.num_queries, list.num_queries};
    if (kv.paged && last > e.first)
      if (const ListFinding f = pages(e, e.first, last); f.fault != ListFault::none) return f;
    for (int i = e.query_begin; i < e.query_begin + e.num_queries; ++i)
      if (const ListFinding f = query(e, i); f.fault != ListFault::none) return f;
    return {};
  }
};

struct FirstListFault {
  Examiner examiner;
  KOKKOS_FUNCTION void operator()(int b, int& first) const {
    if (b < first && examiner.entry(b).fault != ListFault::none) first = b;
  }
};

struct ExamineList {
  Examiner examiner;
  int entry;
  ListFinding* finding;
  KOKKOS_FUNCTION void operator()(int) const { *finding = examiner.entry(entry); }
};

std::string text_of(const ListFinding& f, int b, const ListLimits& limits, int page_size) {
  const auto entry = concat("pagoda::check: entry ", b, " of the list ");
  const auto query = concat("pagoda::check: query ", f.query, " of the list ");
  switch (f.fault) {
    case ListFault::sequence:
      return concat(entry, "has sequence ", f.value, "; allowed: 0 to ", f.limit - 1);
    case ListFault::seq_len:
      return concat("pagoda::check: seq_lens(", f.index, ") is ", f.value, "; allowed: 0 to ", f.limit);
    case ListFault::range:
      return concat(entry, "has tokens from ", f.index, " to ", f.value, "; allowed: from a multiple of the page size ",
                    page_size, " to the sequence's length ", f.limit, " or less");
    case ListFault::kv_head:
      return concat(entry, "has kv_head ", f.value, "; allowed: below ", f.limit, ", or negative for all");
    case ListFault::queries:
      return concat(entry, "has num_queries ", f.value, " from query_begin ", f.index, "; allowed: 0 to ",
                    limits.max_queries, " (the plan's entries.max_queries) of the list's ", f.limit, " queries");
    case ListFault::page_list:
      return concat(entry, "needs ", f.limit, " pages, and page_indptr gives its sequence ", f.value,
                    "; allowed: as many or more, all within page_indices");
    case ListFault::page:
      return concat(entry, "has page id ", f.value, " as page ", f.index, " of its sequence; allowed: 0 to ",
                    f.limit - 1);
    case ListFault::token:
      return concat(query, "has token ", f.value, "; allowed: 0 to ", f.limit - 1);
    case ListFault::owner:
      return concat(query, "has sequence ", f.value, "; allowed: 0 to ", f.limit - 1);
    case ListFault::behind:
      return concat(query, "has behind ", f.value, "; allowed: 1 to ", f.limit);
    case ListFault::mask:
      return concat(query, "has mask ", f.value, "; allowed: the first of two of the list's ", f.limit,
                    " words of masks, or negative for none");
    case ListFault::chain:
      return concat(entry, "has chain ", f.value, "; allowed: 0 (entries.chains of the plan is false)");
    case ListFault::chain_length:
      return concat(entry, "has chain ", f.value, "; allowed: up to the ", f.limit, " entries behind it");
    case ListFault::chain_number:
      return concat(entry, "begins a chain, in which entry ", f.index, " has chain ", f.value, "; allowed: ", f.limit);
    case ListFault::chain_begin:
      return concat(entry, "has chain ", f.value, ", and no chain that contains it begins ", -f.value,
                    " entries before; allowed: 0 for an entry that is in no chain");
    case ListFault::chain_last:
      return concat(entry, "has last ", f.value, " and begins a chain; allowed: 0 or more");
    case ListFault::chain_empty:
      return concat(entry, "is in a chain and has num_queries ", f.value, "; allowed: 1 or more");
    case ListFault::chain_queries:
      return concat(entry, "is in a chain and has num_queries ", f.value, " from query_begin ", f.index,
                    "; allowed: a part of those of entry ", f.limit, ", which begins the chain");
    case ListFault::chain_state:
      return concat(entry, "is in a chain and has state ", f.value, "; allowed: ", f.limit, ", as entry ", f.index,
                    ", which begins the chain");
    case ListFault::chain_kv_head:
      return concat(entry, "is in a chain and has kv_head ", f.value, "; allowed: ", f.limit, ", as entry ", f.index,
                    ", which begins the chain");
    case ListFault::chain_behind:
      return concat(query, "is in a chain and has behind ", f.value, "; allowed: 1");
    case ListFault::chain_mask:
      return concat(query, "is in a chain and has mask ", f.value, "; allowed: a negative number, for none");
    default:
      return concat(entry, "has state ", f.value, ", and state_begin gives query token ", f.index, " ", f.limit,
                    " states; allowed: less, all of them within the ", limits.num_states, " states");
  }
}

}  // namespace

template <class ExecutionSpace>
void check(const ExecutionSpace& exec, const CacheRef& kv, const EntriesRef& list, const ListLimits& limits) {
  require_tables("pagoda::check", kv, list.num_entries);
  require_list("pagoda::check", list);
  require(list.num_state_begin == 0 || (list.state_begin && list.num_state_begin == limits.num_tokens + 1),
          "pagoda::check: the list's state_begin has ", list.num_state_begin,
          " elements; allowed: none, or q.extent(0) + 1 = ", limits.num_tokens + 1, ", not null");
  const Examiner examiner{kv, list, limits};
  int first = std::numeric_limits<int>::max();
  Kokkos::parallel_reduce("Pagoda::check", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, list.num_entries),
                          FirstListFault{examiner}, Kokkos::Min<int>(first));
  if (first >= list.num_entries) return;
  Kokkos::View<ListFinding, typename ExecutionSpace::memory_space> found(
      Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::check::finding"));
  Kokkos::parallel_for("Pagoda::check::finding", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, 1),
                       ExamineList{examiner, first, found.data()});
  ListFinding f;
  Kokkos::deep_copy(exec, Kokkos::View<ListFinding, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&f), found);
  exec.fence("Pagoda::check: the finding is read on the host");
  throw InvalidArgument(text_of(f, first, limits, kv.page_size()));
}

#define PAGODA_INSTANTIATE(Space) \
  template PAGODA_EXPORT void check<Space>(const Space&, const CacheRef&, const EntriesRef&, const ListLimits&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
