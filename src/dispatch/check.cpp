// SPDX-License-Identifier: Apache-2.0
#include <pagoda/check.hpp>
#include <pagoda/error.hpp>

#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"

#include <limits>

namespace pagoda::detail {

namespace {

enum class Fault { none, sequence_id, seq_len, page_list, page, query_counts };

/// The first fault of one batch entry, and the numbers for its error text.
struct Finding {
  Fault fault  = Fault::none;
  int sequence = 0, index = 0;
  std::int64_t value = 0, limit = 0;
};

KOKKOS_INLINE_FUNCTION Finding examine(const CacheRef& kv, const QueryCounts& queries, int b) {
  Finding f;
  if (queries.cu_seqlens_q) {
    const std::int64_t begin = queries.cu_seqlens_q[b], end = queries.cu_seqlens_q[b + 1];
    if (begin < 0 || end < begin || end > queries.num_tokens || end - begin > queries.max_query_len) {
      f.fault = Fault::query_counts, f.value = begin, f.limit = end;
      return f;
    }
  }
  f.sequence = kv.sequence_ids ? kv.sequence_ids[b] : b;
  if (f.sequence < 0 || f.sequence >= kv.num_sequences) {
    f.fault = Fault::sequence_id;
    return f;
  }
  f.value = kv.seq_lens[f.sequence];
  f.limit = kv.max_seq_len;
  if (f.value < 0 || f.value > f.limit) {
    f.fault = Fault::seq_len;
    return f;
  }
  if (!kv.paged) return f;
  const std::int64_t page_size = kv.k.extent[1], pages = (f.value + page_size - 1) / page_size;
  std::int64_t row = f.sequence * kv.table_row_stride;
  if (kv.page_indptr) {
    row             = kv.page_indptr[f.sequence];
    const auto held = kv.page_indptr[f.sequence + 1] - row;
    if (row < 0 || held < pages || row + pages > kv.table_pages) {
      f.fault = Fault::page_list, f.value = held, f.limit = pages;
      return f;
    }
  }
  for (std::int64_t i = 0; i < pages; ++i) {
    const int id = kv.block_table[row + i * kv.table_page_stride];
    if (id < 0 || id >= kv.k.extent[0]) {
      f.fault = Fault::page, f.index = static_cast<int>(i), f.value = id, f.limit = kv.k.extent[0];
      return f;
    }
  }
  return f;
}

struct FirstFault {
  CacheRef kv;
  QueryCounts queries;
  KOKKOS_FUNCTION void operator()(int b, int& first) const {
    if (examine(kv, queries, b).fault != Fault::none && b < first) first = b;
  }
};

struct Examine {
  CacheRef kv;
  QueryCounts queries;
  int entry;
  Finding* finding;
  KOKKOS_FUNCTION void operator()(int) const { *finding = examine(kv, queries, entry); }
};

}  // namespace

template <class ExecutionSpace>
void check(const ExecutionSpace& exec, const CacheRef& kv, const QueryCounts& queries) {
  require_tables("pagoda::check", kv, kv.batch);
  int first = std::numeric_limits<int>::max();
  Kokkos::parallel_reduce("Pagoda::check", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, kv.batch),
                          FirstFault{kv, queries}, Kokkos::Min<int>(first));
  if (first >= kv.batch) return;
  Kokkos::View<Finding, typename ExecutionSpace::memory_space> found(
      Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::check::finding"));
  Kokkos::parallel_for("Pagoda::check::finding", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, 1),
                       Examine{kv, queries, first, found.data()});
  Finding f;
  Kokkos::deep_copy(exec, Kokkos::View<Finding, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&f), found);
  exec.fence("Pagoda::check: the finding is read on the host");
  const auto in_sequence = concat(" of sequence ", f.sequence, " (batch entry ", first, ")");
  switch (f.fault) {
    case Fault::sequence_id:
      throw InvalidArgument(
          concat("pagoda::check: sequence_ids(", first, ") is ", f.sequence, "; allowed: 0 to ", kv.num_sequences - 1));
    case Fault::seq_len:
      throw InvalidArgument(
          concat("pagoda::check: seq_lens(", f.sequence, ") is ", f.value, "; allowed: 0 to ", f.limit));
    case Fault::page_list:
      throw InvalidArgument(concat("pagoda::check: page_indptr gives ", f.value, " pages", in_sequence,
                                   "; allowed: at least ", f.limit, ", all within the ", kv.table_pages,
                                   " entries of page_indices"));
    case Fault::page:
      throw InvalidArgument(
          concat("pagoda::check: page ", f.index, in_sequence, " is ", f.value, "; allowed: 0 to ", f.limit - 1));
    case Fault::query_counts:
      throw InvalidArgument(concat("pagoda::check: cu_seqlens_q(", first, ") is ", f.value, " and cu_seqlens_q(",
                                   first + 1, ") is ", f.limit, "; allowed: values from 0 to q.extent(0) = ",
                                   queries.num_tokens, " that rise by 0 to max_query_len = ", queries.max_query_len));
    case Fault::none:
      break;
  }
}

#define PAGODA_INSTANTIATE(Space) \
  template PAGODA_EXPORT void check<Space>(const Space&, const CacheRef&, const QueryCounts&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
