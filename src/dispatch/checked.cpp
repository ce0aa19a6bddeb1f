// SPDX-License-Identifier: Apache-2.0
#include "src/dispatch/checked.hpp"

#include <pagoda/checked.hpp>

#include "backends/machines.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/plan_memory.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace pagoda::detail {

namespace {

/// One team examines a batch entry. The machine's policies launch in a way that graphs can capture.
template <class ExecutionSpace>
auto policy(const ExecutionSpace& exec, int entries) {
  using Machine = MachineOf<ExecutionSpace>;
  return Machine::policy(exec, std::max(entries, 1), Machine::max_workers, 0);
}

/// The first of n numbers that are bad, or a number beyond n. A worker tests 16 numbers at once, without a branch
/// between them, so that their loads overlap.
template <class Team, class Bad>
KOKKOS_FUNCTION int first_bad(const Team& team, int n, const Bad& bad) {
  constexpr int at_once = 16;
  const int steps       = (n + at_once - 1) / at_once;
  int first             = std::numeric_limits<int>::max();
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, steps),
      [&](int step, int& least) {
        int found[at_once];
        for (int j = 0; j < at_once; ++j) {
          const int i = Kokkos::min(step + j * steps, n - 1);  // a number may be tested twice
          found[j]    = bad(i) ? i : std::numeric_limits<int>::max();
        }
        for (int j = 0; j < at_once; ++j) least = Kokkos::min(least, found[j]);
      },
      Kokkos::Min<int>(first));
  return first;
}

template <class ExecutionSpace>
struct ExamineTables {
  CacheRef kv;
  QueryCounts queries;
  CheckedArrays to;

  /// The first entry up to b whose query tokens are no range of the queries, or a number beyond b.
  template <class Team>
  KOKKOS_FUNCTION int first_misfit(const Team& team, int b) const {
    if (!queries.cu_seqlens_q) return std::numeric_limits<int>::max();
    return first_bad(team, b + 1, [&](int i) { return !counts_fit(queries, i); });
  }

  KOKKOS_FUNCTION void operator()(const typename MachineOf<ExecutionSpace>::Member& team) const {
    const int b = team.league_rank();
    if (b == 0)
      Kokkos::single(Kokkos::PerTeam(team), [&] {
        *to.num_entries = kv.batch;
        if (kv.num_sequences == 0) to.seq_lens[0] = 0;
      });
    if (b >= kv.batch) return;
    const int misfit = first_misfit(team, b);
    PageRange range{};
    Finding f     = examine_entry(kv, {}, b, range);
    const int bad = first_bad(team, static_cast<int>(range.pages), [&](int i) { return !page_fits(kv, range, i); });
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      if (bad < range.pages) set_page_fault(f, kv, range, bad);
      copy(b, f, misfit);
      if (!counts_fit(queries, b)) f = examine_entry(kv, queries, b, range), f.index = misfit;
      to.findings[b] = f;
    });
  }

  KOKKOS_FUNCTION void copy(int b, const Finding& f, int misfit) const {
    if (queries.cu_seqlens_q) {
      // The entry before the first misfit ends within the queries.
      const int end = misfit > b ? queries.cu_seqlens_q[b + 1] : misfit == 0 ? 0 : queries.cu_seqlens_q[misfit];
      to.cu_seqlens_q[b + 1] = end;
      if (b == 0) to.cu_seqlens_q[0] = misfit == 0 ? 0 : queries.cu_seqlens_q[0];
    }
    // An id outside of the cache becomes 0: the entry reads that sequence, and its rows become NaN.
    int sequence      = kv.sequence_ids ? kv.sequence_ids[b] : b;
    const bool inside = sequence >= 0 && sequence < kv.num_sequences;
    if (!inside) sequence = 0;
    to.sequence_ids[b] = sequence;
    // Batch entries with the same sequence write the same length, so this depends on the sequence alone.
    if (inside) Kokkos::atomic_store(&to.seq_lens[sequence], f.fault == Fault::none ? static_cast<int>(f.value) : 0);
  }
};

KOKKOS_INLINE_FUNCTION void set_nan(const TensorRef& t, std::int64_t at) {
  switch (t.type) {
    case DType::fp64:
      static_cast<double*>(t.data)[at] = std::numeric_limits<double>::quiet_NaN();
      break;
    case DType::fp32:
      static_cast<float*>(t.data)[at] = std::numeric_limits<float>::quiet_NaN();
      break;
    default:  // fp16 and bf16: all bits of the exponent and the first of the mantissa
      static_cast<std::uint16_t*>(t.data)[at] = t.type == DType::fp16 ? 0x7e00 : 0x7fc0;
  }
}

template <class ExecutionSpace>
struct PoisonFaulty {
  TensorRef out, lse;
  CheckedArrays from;
  bool ragged;
  int query_len, batch;
  std::int64_t num_tokens;

  KOKKOS_FUNCTION void operator()(const typename MachineOf<ExecutionSpace>::Member& team) const {
    const int b = team.league_rank();
    if (b >= batch || from.findings[b].fault == Fault::none) return;
    std::int64_t begin = std::int64_t(b) * query_len, end = begin + query_len;
    if (ragged) {
      begin = from.cu_seqlens_q[b], end = from.cu_seqlens_q[b + 1];
      if (from.findings[b].fault == Fault::query_counts && from.findings[b].index == b) end = num_tokens;
    }
    const std::int64_t heads = out.extent[1], dims = out.extent[2];
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, (end - begin) * heads), [&](std::int64_t i) {
      const std::int64_t token = begin + i / heads, head = i % heads;
      for (std::int64_t d = 0; d < dims; ++d)
        set_nan(out, token * out.stride[0] + head * out.stride[1] + d * out.stride[2]);
      if (lse.data) set_nan(lse, token * lse.stride[0] + head * lse.stride[1]);
    });
  }
};

template <class ExecutionSpace>
void launch_poison(const ExecutionSpace& exec, const CheckedArrays& arrays, const Schedule& s, const Problem& p) {
  const int batch = p.kv.batch;
  Kokkos::parallel_for(
      "Pagoda::decode::poison_faulty", policy(exec, batch),
      PoisonFaulty<ExecutionSpace>{p.out, p.lse, arrays, s.checked.cu_seqlens_q != nullptr,
                                   batch > 0 ? static_cast<int>(p.q.extent[0] / batch) : 0, batch, p.q.extent[0]});
}

template <class ExecutionSpace>
void launch_examine(const ExecutionSpace& exec, const CheckedArrays& arrays, const Schedule& s, const Problem& p) {
  const QueryCounts queries{s.checked.cu_seqlens_q, p.q.extent[0], s.bounds.max_query_len};
  Kokkos::parallel_for("Pagoda::decode::examine_tables", policy(exec, p.kv.batch),
                       ExamineTables<ExecutionSpace>{p.kv, queries, arrays});
}

}  // namespace

template <class ExecutionSpace>
void prepare_checked(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  const CheckedArrays arrays(plan.schedule(), plan.memory().data());
  launch_examine(exec, arrays, plan.schedule(), Problem{});
  launch_poison(exec, arrays, plan.schedule(), Problem{});
}

template <class ExecutionSpace>
Problem examine_tables(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  const CheckedArrays arrays(plan.schedule(), plan.memory().data());
  launch_examine(exec, arrays, plan.schedule(), problem);
  Problem safe     = problem;
  safe.kv.seq_lens = arrays.seq_lens;
  if (problem.kv.sequence_ids) safe.kv.sequence_ids = arrays.sequence_ids;
  return safe;
}

template <class ExecutionSpace>
void poison_faulty(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  launch_poison(exec, CheckedArrays(plan.schedule(), plan.memory().data()), plan.schedule(), problem);
}

template <class ExecutionSpace>
std::vector<TableFault> faults_of(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  const Schedule& s = plan.schedule();
  require(s.checked.on, "pagoda::faults: the plan's checked is false; allowed: a plan made with checked = true");
  plan.memory().enter(exec, s.multiprocessors);
  const CheckedArrays arrays(s, plan.memory().data());
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  const auto read = [&]<class T>(T* to, const T* from, std::size_t n) {
    Kokkos::deep_copy(exec, Kokkos::View<T*, Kokkos::HostSpace, Unmanaged>(to, n),
                      Kokkos::View<const T*, typename ExecutionSpace::memory_space, Unmanaged>(from, n));
    exec.fence("pagoda::faults: the report is read on the host");
  };
  int entries = 0;
  read(&entries, arrays.num_entries, 1);
  std::vector<Finding> findings(static_cast<std::size_t>(entries));
  if (entries > 0) read(findings.data(), arrays.findings, findings.size());
  std::vector<TableFault> faults;
  for (int b = 0; b < entries; ++b) {
    const Finding& f = findings[static_cast<std::size_t>(b)];
    if (f.fault == Fault::none) continue;
    const bool has_page = f.fault == Fault::page, has_sequence = f.fault != Fault::query_counts;
    faults.push_back(
        {b, has_sequence ? f.sequence : -1, has_page ? f.index : -1, f.value, text_of("pagoda::decode", f, b)});
  }
  return faults;
}

#define PAGODA_INSTANTIATE(Space)                                                           \
  template void prepare_checked<Space>(const Space&, const Plan<Space>&);                   \
  template Problem examine_tables<Space>(const Space&, const Plan<Space>&, const Problem&); \
  template void poison_faulty<Space>(const Space&, const Plan<Space>&, const Problem&);     \
  template PAGODA_EXPORT std::vector<TableFault> faults_of<Space>(const Space&, const Plan<Space>&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
