// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entries.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <memory>
#include <vector>

/// Lists of entries that the benchmark makes itself. They have no partial states.
namespace pagoda::bench {

/// Entries of which each reads one kv head: sequence s of the tables is kv head s % heads of query token s / heads.
EntryList per_head_list(int sequences, int heads);

/// Sequences whose newest `drafts` tokens are a random tree. Query token s * drafts + i is draft i of sequence s and
/// sees the older tokens, its ancestors and itself. An entry has at most most_queries of them.
EntryList draft_list(int sequences, int drafts, int most_queries);

/// What a query token sees: the first `tokens` tokens of a sequence, and these others behind them.
struct Sight {
  int sequence = 0, tokens = 0;
  std::vector<int> others{};
};
/// What query token `token` of draft_list sees. length: tokens of each sequence.
Sight sight_of_draft(const EntryList& list, int token, int length);

/// A list in the memory of an execution space, and its plan.
template <class Exec>
class ListDecoder {
 public:
  using Memory = typename Exec::memory_space;

  /// query_tokens: rows of q.
  template <class KV>
  ListDecoder(const Exec& exec, const EntryList& list, int num_q_heads, int query_tokens, const KV& kv)
      : list_{there(list.entries), there(list.queries), {}, there(list.masks)} {
    DecodeOptions<Memory> options{.num_q_heads = num_q_heads, .max_query_tokens = query_tokens};
    int listed = 0;
    for (const Entry& e : list.entries) listed += e.num_queries;
    options.entries = {static_cast<int>(list.entries.size()), list.max_queries, listed};
    plan_           = std::make_unique<Plan<Exec>>(pagoda::plan(exec, kv, options));
  }
  template <class Rows, class KV>
  void decode(const Exec& exec, const Rows& q, const KV& kv, const Rows& out) const {
    const EntryStates none{Kokkos::View<float***, Memory>(), Kokkos::View<float**, Memory>()};
    decode_entries(exec, *plan_, q, kv, list_, out, Kokkos::View<float**, Memory>(), none);
  }
  const Plan<Exec>& plan() const { return *plan_; }

 private:
  template <class X>
  static Kokkos::View<const X*, Memory> there(const std::vector<X>& from) {
    const Kokkos::View<X*, Memory> to("Pagoda::bench::list", from.size());
    Kokkos::deep_copy(to, Kokkos::View<const X*, Kokkos::HostSpace>(from.data(), from.size()));
    return to;
  }

  DeviceEntries<Memory> list_;
  std::unique_ptr<Plan<Exec>> plan_;
};

}  // namespace pagoda::bench
