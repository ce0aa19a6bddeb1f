// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_start.cuh"

#include <type_traits>

/// Goes through the share of an owner: one warp by itself.
namespace pagoda::tuned {

/// An owner's split of a batch head.
struct ListSegment {
  int index;  ///< of the entry
  int head;
  EntryView entry;
  int state;
  bool to_end;  ///< the entry goes to the end of its sequence
  int chain;    ///< entries of its chain behind it
  HeadShare share;
};

/// The entries of a chain, for one warp. Lanes have 32 of them at a time. A chain is read in halves of tiles, and the
/// last half of an entry may be short.
template <class Work>
class ChainEntries {
 public:
  struct Half {
    int sequence, first;  ///< first token of the half
    int tokens;           ///< at most half a tile; 0: the chain has ended
    int begin, end;       ///< query tokens that see it, counted from the chain's first
  };
  ChainEntries() = default;
  /// index: of the chain's first entry. chain: entries behind it. first, tokens: the lane's entry of the first 32, and
  /// its tokens.
  PAGODA_DEVICE ChainEntries(int index, int chain, int query_begin, const Entry& first, int tokens, int lane)
      : next_(index), last_(index + chain), query_begin_(query_begin) {
    set(first, tokens, lane);
  }
  /// The lane's half, if it wants one. The first lane that does has the lowest half, and no half is below those of
  /// earlier calls. All lanes call it.
  template <class Args>
  PAGODA_DEVICE Half find(const Args& args, int half, bool wanted, int lane) {
    Half h{};
    while (true) {
      if (!counted_) {
        half_end_ = end_ + inclusive_sum(Work::chain_halves(tokens_), lane);
        end_ = __shfl_sync(~0u, half_end_, 31), counted_ = true;
      }
      const bool here = wanted && half < end_;
      int from        = 0;  // the first lane whose entry ends behind the half
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        if (__shfl_sync(~0u, half_end_, from + step - 1) <= half) from += step;
      const auto of      = [&](int x) { return __shfl_sync(~0u, x, from); };
      const int sequence = of(sequence_), first = of(first_), tokens = of(tokens_), run = of(run_),
                skip = (half - of(half_end_) + Work::chain_halves(tokens)) * half_tokens;
      if (here) h = {sequence, first + skip, min(tokens - skip, half_tokens), run & 0xffff, run >> 16};
      if (!__any_sync(~0u, wanted && !here) || next_ > last_) return h;
      wanted = wanted && !here;
      load(args, lane);
    }
  }

 private:
  static constexpr int half_tokens = Work::half_tokens;

  template <class Args>
  PAGODA_DEVICE void load(const Args& args, int lane) {
    const Entry e = stored_entry(args, min(next_ + lane, last_));
    set(e, max(end_of(args, e) - e.first, 0), lane);
  }
  /// Takes the next 32 entries.
  PAGODA_DEVICE void set(const Entry& e, int tokens, int lane) {
    const int run = e.query_begin - query_begin_;
    sequence_ = e.sequence, first_ = e.first, run_ = run | (run + e.num_queries) << 16;
    tokens_ = next_ + lane <= last_ ? tokens : 0;
    next_ += 32, counted_ = false;
  }

  int next_ = 0, last_ = 0, query_begin_ = 0;
  int sequence_ = 0, first_ = 0, tokens_ = 0, run_ = 0;  ///< of the lane's entry; run_: Half::begin and (<< 16) end
  bool counted_ = true;                                  ///< the rest is that of the lanes' entries
  int end_      = 0;                                     ///< halves up to these entries
  int half_end_ = 0;                                     ///< the half of the chain behind those of the lane's entry
};

/// Goes through the segments of a share, for one warp. Lanes load entries, 32 at a time.
template <class Work>
class ListWalk {
 public:
  PAGODA_DEVICE explicit ListWalk(const ListStart& start)
      : division_(division_of(start)),
        owner_(start.owner),
        heads_at_once_(start.heads_at_once),
        first_head_(start.head),
        first_(start.entry - 32),  // so that advance() loads the share's first entry
        index_(start.entry - 1),
        position_(start.before) {}

  PAGODA_DEVICE int heads_at_once() const { return heads_at_once_; }
  /// Finds the next segment. Returns false if there is none. All lanes call it.
  template <class Args>
  PAGODA_DEVICE bool next(const Args& args, int lane, ListSegment& s) {
    while (index_ < args.batch) {
      if (heads_left_ == 0) {
        if (position_ >= division_.begin_of(owner_ + 1)) return false;  // the next entry is in a later share
        if (!advance(args, lane)) return false;
        continue;
      }
      s.share = HeadShare::of(work_, position_, division_, owner_);
      if (s.share.last) return false;
      s.index = index_, s.head = head_;
      head_ += heads_at_once_, --heads_left_, position_ += work_.units;
      if (!s.share.any) continue;
      // Read from the entry's lane every time, which takes fewer registers.
      const int from = index_ - first_;
      s.entry = view_in(from), s.state = __shfl_sync(~0u, lane_raw_.state, from);
      s.to_end = __shfl_sync(~0u, lane_raw_.last, from) < 0;
      s.chain  = Work::chains ? __shfl_sync(~0u, lane_raw_.chain, from) : 0;
      return true;
    }
    return false;
  }
  /// Goes on with the next late share, or the worker's part of it, once next() has returned false. Returns false if
  /// there is none; the worker does not ask again. workers: of the role. All lanes call it.
  PAGODA_DEVICE bool take_late(const LateBoard& board, int workers, int lane) {
    const int tickets = division_.late_count * heads_at_once_;
    if (tickets == 0) return false;
    int ticket = 0;
    int2 begin = make_int2(0, 0);
    if (lane == 0) {
      ticket = board.take(tickets, workers);
      if (ticket < tickets) begin = board.get(ticket);
    }
    const auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); };
    ticket             = uniform(ticket);
    if (ticket >= tickets) return false;
    const int share = ticket / heads_at_once_;
    owner_ = division_.own.owners + share, first_head_ = ticket - share * heads_at_once_, heads_left_ = 0;
    index_ = uniform(begin.x) - 1, position_ = uniform(begin.y), first_ = index_ - 31;  // see the constructor
    return true;
  }
  /// The entries of the last segment, which is one of a chain.
  PAGODA_DEVICE ChainEntries<Work> chain(const ListSegment& s, int lane) const {
    return {s.index, s.chain, s.entry.query_begin, lane_raw_, lane_tokens_, lane};
  }
  /// The entry behind that of the last segment, if it has been loaded and has query tokens. All lanes call it.
  template <class Args>
  PAGODA_DEVICE bool peek(const Args& args, EntryView& e, bool& to_end) const {
    const int index = index_ + 1, lane = index - first_;
    if (index >= args.batch || lane >= 32) return false;
    e = view_in(lane), to_end = __shfl_sync(~0u, lane_raw_.last, lane) < 0;
    return e.queries > 0;  // otherwise its sequence may be anything
  }

 private:
  PAGODA_DEVICE static auto division_of(const ListStart& start) {
    if constexpr (Work::late)
      return start.division;
    else
      return start.division.own;
  }
  PAGODA_DEVICE EntryView view_in(int lane) const {
    const auto of = [&](int x) { return __shfl_sync(~0u, x, lane); };
    return {of(lane_raw_.sequence), of(lane_raw_.first), of(lane_tokens_), of(lane_raw_.query_begin),
            of(lane_raw_.num_queries)};
  }
  /// Of the entries behind the first one of a chain: a lane's part.
  struct ChainSize {
    int halves = 0, units = 0;
  };
  /// Loads the entries from index_ on, one to each lane. If a chain begins with index_, counts its entries.
  template <class Args>
  PAGODA_DEVICE ChainSize load(const Args& args, int lane) {
    constexpr int windows = Work::chains ? 3 : 1;  // of 32 entries, loaded at once
    first_                = index_;
    Entry e[windows]      = {};
    int ends[windows]     = {};
#pragma unroll
    for (int i = 0; i < windows; ++i)
      if (i == 0 || args.chains) e[i] = stored_entry(args, min(index_ + lane + 32 * i, args.batch - 1));
#pragma unroll
    for (int i = 0; i < windows; ++i)
      if (i == 0 || args.chains) ends[i] = end_of(args, e[i]);
    if (!counts(args, e[0])) e[0].num_queries = 0;
    const EntryView view  = view_of(args, e[0], ends[0]);
    lane_raw_             = e[0];
    lane_tokens_          = view.tokens;
    lane_raw_.num_queries = index_ + lane < args.batch ? view.queries : 0;
    ChainSize size;
    if constexpr (Work::chains) {
      if (!args.chains) return size;
      const auto add = [&](const Entry& member, int end) {
        const int tokens = max(end - member.first, 0);
        size.halves += Work::chain_halves(tokens), size.units += Work::chain_units(tokens);
      };
      const int chain = __shfl_sync(~0u, lane_raw_.chain, 0);
#pragma unroll
      for (int i = 0; i < windows; ++i) {
        const int behind = lane + 32 * i;
        if (behind > 0 && behind <= chain) add(e[i], ends[i]);
      }
#pragma unroll 1
      for (int i = lane + 32 * windows; i <= chain; i += 32) {
        const Entry member = stored_entry(args, index_ + i);
        add(member, end_of(args, member));
      }
    }
    return size;
  }
  /// Goes to the next entry that is carried out. Returns false if there is none.
  template <class Args>
  PAGODA_DEVICE bool advance(const Args& args, int lane) {
    ChainSize size;
    ++index_;
#pragma unroll 1
    while (index_ < args.batch) {
      if (index_ - first_ == 32) size = load(args, lane);
      const bool begins    = lane_raw_.num_queries > 0 && (!Work::chains || lane_raw_.chain >= 0);
      const unsigned later = __ballot_sync(~0u, begins) >> (index_ - first_);
      index_               = later == 0 ? first_ + 32 : index_ + __ffs(static_cast<int>(later)) - 1;
      if (later == 0) continue;
      if (Work::chains && index_ != first_ && __shfl_sync(~0u, lane_raw_.chain, index_ - first_) > 0) {
        first_ = index_ - 32;  // loads again: a chain is counted from lane 0
        continue;
      }
      select(args, size);
      return true;
    }
    return false;
  }
  /// Begins with entry index_. size: of its chain, if it begins one. It has just been loaded then.
  template <class Args>
  PAGODA_DEVICE void select(const Args& args, const ChainSize& size) {
    const int from       = index_ - first_;
    const EntryView view = view_in(from);
    work_                = work_of<Work>(args, view);
    if (Work::chains && from == 0 && __shfl_sync(~0u, lane_raw_.chain, 0) > 0)
      work_ = Work::of_chain(__reduce_add_sync(~0u, size.halves) + Work::chain_halves(view.tokens),
                             __reduce_add_sync(~0u, size.units) + Work::token_units(view.tokens),
                             view.queries * args.heads.value);
    const int kv_head = __shfl_sync(~0u, lane_raw_.kv_head, from);
    heads_left_       = view.queries == 0 ? 0 : kv_head >= 0 ? 1 : args.num_kv_heads.value / heads_at_once_;
    head_             = kv_head >= 0 ? kv_head : first_head_;
    // The share begins in one of its first entry's kv heads.
    const int earlier = max(division_.begin_of(owner_) - position_, 0) / work_.units;
    head_ += earlier * heads_at_once_, heads_left_ -= earlier, position_ += earlier * work_.units;
  }

  std::conditional_t<Work::late, LateDivision, WorkDivision> division_;
  int owner_, heads_at_once_, first_head_;
  int first_;         ///< entry of lane 0
  Entry lane_raw_{};  ///< the lane's entry, without query tokens if it does not count
  int lane_tokens_ = 0;
  int index_, position_;  ///< entry, and units before the batch head
  Work work_{};           ///< of the entry
  int head_ = 0, heads_left_ = 0;
};

}  // namespace pagoda::tuned
