// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/entry.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/pack.hpp"
#include "src/kernel/visible_tokens.hpp"
#include "src/plan/kernel_choice.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

/// Addresses of the rows of one work item: keys and values, queries and outputs.
namespace pagoda::detail {

/// Location of a token: its page, and its slot in the page.
struct PagePlace {
  int page, slot;
};

/// Element offsets of one token's row from the bases of keys and values.
struct TokenRow {
  std::int64_t k, v;
};

/// The tokens of a work item. It finds the row of visible token u in two steps, place() and row(), so that a machine
/// can load from the page table ahead of its use. General: as in DecodeKernel.
template <bool General>
struct ItemRows {
  const KernelArgs& args;
  VisibleTokens visible;
  int sequence, kv_head;
  const int* pages;  ///< the sequence's row of the table

  /// entry: the item's entry.
  KOKKOS_FUNCTION ItemRows(const KernelArgs& a, const EntryView& entry, int first_kv_head)
      : args(a),
        visible(a.options, entry),
        sequence(entry.sequence),
        kv_head(first_kv_head),
        pages(a.pages_of(sequence)) {}

  KOKKOS_FUNCTION int token(int u) const { return General ? visible.token(u) : visible.first + u; }
  KOKKOS_FUNCTION PagePlace place(int u) const {
    const int t = token(u), index = args.page_size.divide(t);
    return {args.paged ? args.page(pages, index) : sequence, t - index * args.page_size.value};
  }
  /// Whether a run of `tokens` tokens that begins at a multiple of its length lies within one page.
  KOKKOS_FUNCTION bool in_pages(int tokens) const {
    return (!args.paged || args.page_size.value % tokens == 0) && (!General || args.options.window_left < 0);
  }
  KOKKOS_FUNCTION TokenRow row(const PagePlace& p) const {
    const std::int64_t page = p.page;
    return {page * args.k_page + p.slot * args.k_token + kv_head * args.k_head,
            page * args.v_page + p.slot * args.v_token + kv_head * args.v_head};
  }
};

/// A query row in memory.
struct QueryRow {
  const void* data    = nullptr;  ///< null: a row of zeros
  DType type          = {};
  std::int64_t at     = 0;  ///< index of dim 0
  std::int64_t stride = 1;  ///< distance of two dims, in elements

  /// Loads dims d .. d + n. The type is checked once for all dims.
  template <class Acc>
  void load(int d, int n, Acc* to) const {
    const auto convert = [&](const auto* from) {
      for (int i = 0; i < n; ++i) to[i] = static_cast<Acc>(from[at + (d + i) * stride]);
    };
    if (!data) {
      for (int i = 0; i < n; ++i) to[i] = Acc(0);
      return;
    }
    switch (type) {
      case DType::fp64:
        return convert(static_cast<const double*>(data));
      case DType::fp32:
        return convert(static_cast<const float*>(data));
      case DType::fp16:
        return convert(static_cast<const half_t*>(data));
      default:
        return convert(static_cast<const bfloat16_t*>(data));
    }
  }
};

/// An output row, or the values of a partial state, in memory.
struct OutputRow {
  void* data;
  DType type;
  std::int64_t at;      ///< index of dim 0
  std::int64_t stride;  ///< distance of two dims, in elements
};

/// The query rows of a tile. Row r is a pair of query token and q head, counted over the query tokens of an entry and
/// the heads of a group. The query tokens of a batch entry are adjacent rows of q. Those of a list's entry are any
/// rows, and their results may be partial states. General: as in DecodeKernel.
template <bool General>
struct TileRows {
  const KernelArgs& args;
  int query_begin, first, count, head0;
  int state;  ///< as in EntryView

  /// entry: the item's entry; h: index of the kv head in the item.
  KOKKOS_FUNCTION TileRows(const KernelArgs& a, const EntryView& entry, const WorkItem& item, int h = 0)
      : args(a),
        query_begin(entry.query_begin),
        first(item.row_tile * a.row_tile.value),
        count(least(a.row_tile.value, entry.queries * a.group.value - first)),
        head0((item.kv_head + h) * a.group.value),
        state(entry.state) {}

  KOKKOS_FUNCTION int kv_head() const { return args.group.divide(head0); }
  KOKKOS_FUNCTION bool valid(int r) const { return r < count; }
  /// The query token of row r, counted in the entry.
  KOKKOS_FUNCTION int query(int r) const { return General ? args.group.divide(first + r) : 0; }
  KOKKOS_FUNCTION int head(int r) const { return head0 + first + r - query(r) * args.group.value; }
  /// Distance of an element from the first one. In the instance without options, queries and outputs are small enough
  /// for an int.
  using Offset = std::conditional_t<General, std::int64_t, int>;
  KOKKOS_FUNCTION static Offset dims(const DeviceArray& a, int d) { return d * static_cast<Offset>(a.stride2); }
  KOKKOS_FUNCTION Offset offset(const DeviceArray& a, int token, int r) const {
    return token * static_cast<Offset>(a.stride0) + head(r) * static_cast<Offset>(a.stride1);
  }
  /// The row of q that holds the query token of row r.
  KOKKOS_FUNCTION int token(int r) const {
    if constexpr (General)
      if (args.list.entries) return args.query_of_list(query_begin + query(r)).token;
    return query_begin + query(r);
  }
  /// Offset of element d of query row r in q. All queries are addressed through this function.
  KOKKOS_FUNCTION Offset query_offset(int r, int d = 0) const { return offset(args.q, token(r), r) + dims(args.q, d); }
  /// Whether results are partial states.
  KOKKOS_FUNCTION bool writes_states() const { return General && state >= 0; }
  /// Element d of query row r, or 0 if the row is not valid.
  template <class Acc>
  KOKKOS_FUNCTION Acc load_query(int r, int d) const {
    if (!valid(r)) return Acc(0);
    return load_element<Acc>(args.q.data, args.q.type, query_offset(r, d));
  }
  /// Row r in memory. For hosts.
  QueryRow query_row(int r) const {
    if (!valid(r)) return {};
    return {args.q.data, args.q.type, std::int64_t(query_offset(r)), args.q.stride2};
  }
  /// Stores dims d + step q .. d + step q + 4 of an output row, for all q. Dims beyond the last are skipped.
  template <int Quads, class Acc>
  KOKKOS_FORCEINLINE_FUNCTION void store_out(int r, int d, int step, const Acc (&x)[Quads][4]) const {
    if constexpr (General)
      if (writes_states()) return store_dims(args.list.out, args.list.wide_outputs, state_of(r), r, d, step, x);
    store_dims(args.out, args.wide_outputs, token(r), r, d, step, x);
  }
  /// Output row r in memory. For hosts.
  OutputRow output_row(int r) const {
    const bool states    = writes_states();
    const DeviceArray& a = states ? args.list.out : args.out;
    return {a.data, a.type, offset(a, states ? state_of(r) : token(r), r), a.stride2};
  }
  KOKKOS_FUNCTION bool wants_lse() const { return args.lse.data || writes_states(); }
  template <class Acc>
  KOKKOS_FORCEINLINE_FUNCTION void store_lse(int r, Acc value) const {
    if constexpr (General)
      if (writes_states()) {
        const DeviceArray& a = args.list.lse;
        return store_element(a.data, a.type, offset(a, state_of(r), r), value);
      }
    store_element(args.lse.data, args.lse.type, offset(args.lse, token(r), r), value);
  }
  /// Natural logit of row r's sink, or -infinity if there is none. Partial states have no sinks: their merge adds them.
  template <class Acc>
  KOKKOS_FUNCTION Acc sink(int r) const {
    return args.options.sinks && !writes_states() ? Acc(args.options.sinks[head(r)])
                                                  : -Kokkos::Experimental::infinity_v<Acc>;
  }

 private:
  /// The partial state that row r writes.
  KOKKOS_FUNCTION int state_of(int r) const { return args.list.state_begin[token(r)] + state; }
  template <int Quads, class Acc>
  KOKKOS_FORCEINLINE_FUNCTION void store_dims(const DeviceArray& out, const bool& wide, int token, int r, int d,
                                              int step, const Acc (&x)[Quads][4]) const {
    const Offset at = offset(out, token, r) + dims(out, d);
    if (wide) {
      switch (out.type) {
        case DType::fp32:
          return store_packs<float>(out, at, step, x);
        case DType::fp16:
          return store_packs<half_t>(out, at, step, x);
        case DType::bf16:
          return store_packs<bfloat16_t>(out, at, step, x);
        default:
          break;
      }
    }
    PAGODA_UNROLL_ALL
    for (int q = 0; q < Quads; ++q) {
      const int n = least(4, args.head_dim_v - d - step * q);
#if defined(__HIP_DEVICE_COMPILE__)
      PAGODA_UNROLL_ALL  // clang moves the array to scratch memory for a loop that is not unrolled
          for (int j = 0; j < 4; ++j) if (j < n)
              store_element(out.data, out.type, at + dims(out, step * q + j), x[q][j]);
#else
      PAGODA_UNROLL(1)
      for (int j = 0; j < n; ++j) {
        // No address taken: stays in registers.
        const Acc y = j < 2 ? (j == 0 ? x[q][0] : x[q][1]) : (j == 2 ? x[q][2] : x[q][3]);
        store_element(out.data, out.type, at + dims(out, step * q + j), y);
      }
#endif
    }
  }
  template <class T, int Quads, class Acc>
  KOKKOS_FORCEINLINE_FUNCTION static void store_packs(const DeviceArray& out, Offset at, int step,
                                                      const Acc (&x)[Quads][4]) {
    PAGODA_UNROLL_ALL
    for (int q = 0; q < Quads; ++q) {
      Pack<T, 4> pack;
      for (int j = 0; j < 4; ++j) pack.at[j] = T(x[q][j]);
      *reinterpret_cast<Pack<T, 4>*>(static_cast<T*>(out.data) + at + step * q) = pack;
    }
  }
};

}  // namespace pagoda::detail
