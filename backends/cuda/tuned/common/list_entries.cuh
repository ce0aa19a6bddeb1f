// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/list_args.hpp"
#include "backends/cuda/tuned/common/outputs.cuh"
#include "src/kernel/entry.hpp"

/// Entries of lists, and where the results of their query rows go. Row r of the query rows of an entry that share a kv
/// head is query token r / group_size, head r % group_size of the group.
namespace pagoda::tuned {

using detail::EntryView;

/// Entry `index` of a list, as it is stored.
template <class Base>
PAGODA_DEVICE Entry stored_entry(const ListArgsOf<Base>& args, int index) {
  static_assert(sizeof(Entry) == 2 * sizeof(int4));
  const int4* const at = reinterpret_cast<const int4*>(args.entries + index);
  const int4 a = __ldg(at), b = __ldg(at + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}
/// Whether an entry is among those that are carried out.
template <class Base>
PAGODA_DEVICE bool takes(const ListArgsOf<Base>& args, const Entry& e) {
  return e.chain == 0 ? e.num_queries >= args.min_queries && e.num_queries <= args.max_queries
                      : e.chain > 0 && args.chains;
}
/// Whether an entry's tokens count as work.
template <class Base>
PAGODA_DEVICE bool counts(const ListArgsOf<Base>& args, const Entry& e) {
  return e.chain == 0 ? takes(args, e) : args.chains;
}
/// Entry `index` of a list, without query tokens if it is not carried out.
template <class Base>
PAGODA_DEVICE Entry list_entry(const ListArgsOf<Base>& args, int index) {
  Entry e = stored_entry(args, index);
  if (!takes(args, e)) e.num_queries = 0;
  return e;
}
template <class Base>
PAGODA_DEVICE EntryQuery list_query(const ListArgsOf<Base>& args, int index) {
  static_assert(sizeof(EntryQuery) == sizeof(int4));
  const int4 q = __ldg(reinterpret_cast<const int4*>(args.queries + index));
  return {q.x, q.y, q.z, q.w};
}
/// end: the entry's last token and one, if it is known; else the sequence's length.
template <class Base>
PAGODA_DEVICE EntryView view_of(const ListArgsOf<Base>& args, const Entry& e, int end) {
  const int queries = max(min(e.num_queries, args.q_tokens_bound), 0);  // there is no room for more
  return {e.sequence, e.first, queries > 0 ? max(end - e.first, 0) : 0, e.query_begin, queries};
}
/// Where an entry ends. One without query tokens may have any sequence.
template <class Base>
PAGODA_DEVICE int end_of(const ListArgsOf<Base>& args, const Entry& e) {
  return e.last < 0 && e.num_queries > 0 ? __ldg(args.seq_lens + e.sequence) : e.last;
}
template <class Base>
PAGODA_DEVICE EntryView entry_of(const ListArgsOf<Base>& args, int index) {
  const Entry e = list_entry(args, index);
  return view_of(args, e, end_of(args, e));
}
/// kv heads of an entry.
template <class Base>
PAGODA_DEVICE int heads_of(const ListArgsOf<Base>& args, const Entry& e) {
  return e.num_queries <= 0 ? 0 : e.kv_head >= 0 ? 1 : args.num_kv_heads.value;
}

/// Where results of entries go that write partial states, or of the others.
template <class Base>
PAGODA_DEVICE const Outputs& list_outputs(const ListArgsOf<Base>& args, bool states) {
  return args.outputs[states];
}
/// Row of the output, or of the partial states, of query token `token` of q. state: Entry::state.
template <class Base>
PAGODA_DEVICE int output_row(const ListArgsOf<Base>& args, int token, int state) {
  return state < 0 ? token : __ldg(args.state_begin + token) + state;
}

}  // namespace pagoda::tuned
