// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/lanes.cuh"
#include "backends/cuda/tuned/common/list_entries.cuh"
#include "backends/cuda/tuned/common/list_work.hpp"

/// Finds the shares of a list that the owners of a block carry out. The whole block finds where they begin. Then a warp
/// goes through a share by itself. `Work` is a ListHeadWork. An owner takes heads_at_once kv heads of an entry at a
/// time, and counts them as one. Only the entries of the owner's role (`takes`) have work.
namespace pagoda::tuned {

template <class Work, class Args>
PAGODA_DEVICE Work work_of(const Args& args, const EntryView& view) {
  return Work::of(view.tokens, view.queries * args.heads.value);
}

/// Where a share begins.
struct ListStart {
  WorkDivision division;
  int entry;                ///< the entry in which it begins; the number of entries if the share is empty
  int before;               ///< units before this entry
  int owner;                ///< among all owners
  int heads_at_once, head;  ///< the worker takes each heads_at_once-th kv head, from `head` on
};

/// The units of all entries that a kernel carries out. A `Roles` says how to count: blocks of a launch may have several
/// roles, each with entries of its own. Units of role 1 are counted as negative numbers.
template <class Work>
struct OneRole {
  static constexpr int count = 1;
  template <class Base>
  PAGODA_DEVICE int units_of(const ListArgsOf<Base>& args, const Entry& e, int end) const {
    return takes(args, e) ? heads_of(args, e) * work_of<Work>(args, view_of(args, e, end)).units : 0;
  }
  template <class Base>
  PAGODA_DEVICE int chain_units_of(const ListArgsOf<Base>& args, const Entry& e, int end) const {
    return heads_of(args, e) * Work::chain_units(view_of(args, e, end).tokens);
  }
};

/// Units of a run of entries, in shared memory. All threads of the block make one together.
template <class Roles, int Threads, int Capacity>
struct UnitsWindow {
  int begin, end;  ///< the thread's entries, counted from the window's first
  /// Of each role: units of the window before the thread's entries, of these, and of the window, for one kv head at a
  /// time.
  int before[Roles::count], units[Roles::count], total[Roles::count];
  bool single_heads;  ///< the window has an entry of one kv head

  /// units_of: [Capacity]; sums: [Threads / 32][roles]. Both may be read by the block until it calls this again.
  template <class Args>
  PAGODA_DEVICE UnitsWindow(const Roles& roles, const Args& args, int first, int* units_of, int* sums) {
    constexpr int loads = 8;
    bool single         = false;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int count = min(args.batch - first, Capacity);
    __syncthreads();  // all have read the window before
    if (args.chains) {
      for (int i = thread; i < count; i += Threads) units_of[i] = 0;
      __syncthreads();
    }
#pragma unroll 1
    for (int from = thread; from < count; from += loads * Threads) {
      Entry e[loads];
      int ends[loads];
#pragma unroll
      for (int i = 0; i < loads; ++i) e[i] = stored_entry(args, first + min(from + i * Threads, count - 1));
#pragma unroll
      for (int i = 0; i < loads; ++i) ends[i] = end_of(args, e[i]);
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        single |= e[i].kv_head >= 0;
        const int at = from + i * Threads;
        if (at >= count) continue;
        if (e[i].chain == 0 || !args.chains) {
          units_of[at] = roles.units_of(args, e[i], ends[i]);
        } else if (e[i].chain > 0) {
          int units = roles.units_of(args, e[i], ends[i]);
          for (int beyond = count; beyond <= at + e[i].chain; ++beyond) {  // a later window has the chain's end
            const Entry member = stored_entry(args, first + beyond);
            units += roles.chain_units_of(args, member, end_of(args, member));
          }
          atomicAdd(units_of + at, units);
        } else if (at + e[i].chain >= 0) {
          atomicAdd(units_of + at + e[i].chain, roles.chain_units_of(args, e[i], ends[i]));
        }
      }
    }
    single_heads   = __syncthreads_or(single);
    const int each = ((count + Threads - 1) / Threads) | 1;  // odd: lanes read different banks
    begin = min(thread * each, count), end = min(begin + each, count);
#pragma unroll
    for (int r = 0; r < Roles::count; ++r) units[r] = 0;
    for (int i = begin; i < end; ++i) {
#pragma unroll
      for (int r = 0; r < Roles::count; ++r) units[r] += of_role(units_of[i], r);
    }
#pragma unroll
    for (int r = 0; r < Roles::count; ++r) {
      before[r] = inclusive_sum(units[r], lane);
      if (lane == 31) sums[warp * Roles::count + r] = before[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Roles::count; ++r) {
      before[r] -= units[r], total[r] = 0;
      for (int w = 0; w < Threads / 32; ++w) {
        const int sum = sums[w * Roles::count + r];
        if (w < warp) before[r] += sum;
        total[r] += sum;
      }
    }
  }
  /// What an entry's units are for a role.
  PAGODA_DEVICE static int of_role(int units, int role) {
    return Roles::count == 1 ? units : max(role == 0 ? units : -units, 0);
  }
};

/// Ints of shared memory that a ListScan needs besides `Capacity`.
PAGODA_HOST_DEVICE constexpr int start_memory(int threads, int most_owners, int roles = 1) {
  return threads / 32 * roles + 2 * most_owners;
}

/// The blocks of a role, and how their workers share its entries.
struct RoleBlocks {
  int first, count;   ///< blocks
  int workers;        ///< of a block
  int heads_at_once;  ///< workers that are one owner; a divisor of the number of kv heads, and of `workers` or of
                      ///< `count`
  int min_units;      ///< of a share
};

/// Counts the units of a list and finds where shares begin. All threads of the block make and use one together.
template <class Roles, class Args, int Threads, int Capacity>
class ListScan {
 public:
  /// memory: [Capacity + start_memory].
  PAGODA_DEVICE ListScan(const Roles& roles, const Args& args, int* memory)
      : roles_(roles),
        args_(args),
        memory_(memory),
        window_(roles, args, 0, memory, sums()),
        single_(window_.single_heads) {
#pragma unroll
    for (int r = 0; r < Roles::count; ++r) totals_[r] = window_.total[r];
#pragma unroll 1
    for (int first = Capacity; first < args.batch; first += Capacity) {
      const Window next(roles, args, first, memory, sums());
      single_ |= next.single_heads;
#pragma unroll
      for (int r = 0; r < Roles::count; ++r) totals_[r] += next.total[r];
    }
  }
  PAGODA_DEVICE int total(int role) const { return totals_[role]; }

  /// Where the share of a worker begins. A single worker is an owner if an entry of the list has one kv head.
  template <int Role>
  PAGODA_DEVICE ListStart find(const RoleBlocks& blocks, int worker) {
    int* const found        = sums() + Threads / 32 * Roles::count;
    const int heads_at_once = single_ ? 1 : blocks.heads_at_once, total = totals_[Role];
    const int first_worker = (static_cast<int>(blockIdx.x) - blocks.first) * blocks.workers;
    const int first_owner  = first_worker / heads_at_once;
    const int owners       = max(blocks.workers / heads_at_once, 1);  // of this block
    const WorkDivision division =
        WorkDivision::of(total / heads_at_once, blocks.count * blocks.workers / heads_at_once, blocks.min_units);
    if (static_cast<int>(threadIdx.x) < owners &&
        division.begin(first_owner + static_cast<int>(threadIdx.x)) * heads_at_once >= total)
      found[2 * threadIdx.x] = args_.batch, found[2 * threadIdx.x + 1] = total;  // no thread finds it
    int earlier = 0;
#pragma unroll 1
    for (int first = 0; first < args_.batch; first += Capacity) {
      if (args_.batch > Capacity) window_ = Window(roles_, args_, first, memory_, sums());
#pragma unroll 1
      for (int owner = 0; owner < owners; ++owner) {
        const int begin = division.begin(first_owner + owner) * heads_at_once;
        int before      = earlier + window_.before[Role];
        if (begin >= before && begin < before + window_.units[Role]) {
          const auto units = [&](int i) { return Window::of_role(memory_[i], Role); };
          int i            = window_.begin;
          while (begin >= before + units(i)) before += units(i++);
          found[2 * owner] = first + i, found[2 * owner + 1] = before;
        }
      }
      earlier += window_.total[Role];
    }
    __syncthreads();
    const int mine = worker / heads_at_once, owner = first_owner + mine;
    const ListStart start{division, found[2 * mine], found[2 * mine + 1] / heads_at_once,
                          owner,    heads_at_once,   first_worker + worker - owner * heads_at_once};
    __syncthreads();
    return start;
  }

 private:
  using Window = UnitsWindow<Roles, Threads, Capacity>;
  PAGODA_DEVICE int* sums() const { return memory_ + Capacity; }
  const Roles roles_;
  const Args& args_;
  int* const memory_;
  Window window_;
  bool single_;
  int totals_[Roles::count];
};

/// Where the share of a worker begins, in a kernel whose blocks have one role.
/// memory: [Capacity + start_memory(Threads, Workers)]. All threads of the block call it.
template <class Work, int Threads, int Capacity, int Workers, class Args>
PAGODA_DEVICE ListStart find_start(const Args& args, int* memory, int min_units, int heads_at_once, int worker) {
  ListScan<OneRole<Work>, Args, Threads, Capacity> scan({}, args, memory);
  return scan.template find<0>({0, static_cast<int>(gridDim.x), Workers, heads_at_once, min_units}, worker);
}

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
  /// index: of the chain's first entry. chain: entries behind it.
  template <class Args>
  PAGODA_DEVICE void begin(const Args& args, int index, int chain, int query_begin, int lane) {
    next_ = index, last_ = index + chain, query_begin_ = query_begin, end_ = 0;
    load(args, lane);
  }
  /// The lane's half, if it wants one. The first lane that does has the lowest half, and no half is below those of
  /// earlier calls. All lanes call it.
  template <class Args>
  PAGODA_DEVICE Half find(const Args& args, int half, bool wanted, int lane) {
    Half h{};
    while (true) {
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
    const bool any = next_ + lane <= last_;
    const Entry e  = stored_entry(args, any ? next_ + lane : last_);
    const int run  = e.query_begin - query_begin_;
    sequence_ = e.sequence, first_ = e.first, run_ = run | (run + e.num_queries) << 16;
    tokens_   = any ? max(end_of(args, e) - e.first, 0) : 0;
    half_end_ = end_ + inclusive_sum(Work::chain_halves(tokens_), lane);
    end_      = __shfl_sync(~0u, half_end_, 31), next_ += 32;
  }

  int next_, last_, query_begin_;
  int end_;                              ///< halves of the entries that have been loaded
  int sequence_, first_, tokens_, run_;  ///< of the lane's entry; run_: Half::begin and (<< 16) end
  int half_end_;                         ///< the half of the chain behind those of the lane's entry
};

/// Goes through the segments of a share, for one warp. Lanes load entries, 32 at a time.
template <class Work>
class ListWalk {
 public:
  template <class Args>
  PAGODA_DEVICE ListWalk(const Args& args, const ListStart& start, int lane)
      : division_(start.division),
        owner_(start.owner),
        heads_at_once_(start.heads_at_once),
        first_head_(start.head),
        index_(start.entry),
        position_(start.before) {
    if (index_ >= args.batch) return;
    load(args, lane);
    select(args);
    // The share begins in one of the entry's kv heads.
    const int earlier = (division_.begin(owner_) - position_) / work_.units;
    head_ += earlier * heads_at_once_, heads_left_ -= earlier, position_ += earlier * work_.units;
  }

  PAGODA_DEVICE int heads_at_once() const { return heads_at_once_; }

  /// Finds the next segment. Returns false if there is none. All lanes call it.
  template <class Args>
  PAGODA_DEVICE bool next(const Args& args, int lane, ListSegment& s) {
    while (index_ < args.batch) {
      if (heads_left_ == 0) {
        if (position_ >= division_.begin(owner_ + 1)) return false;  // the next entry is in a later share
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
      s.chain  = __shfl_sync(~0u, lane_raw_.chain, from);
      return true;
    }
    return false;
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
  PAGODA_DEVICE EntryView view_in(int lane) const {
    const auto of = [&](int x) { return __shfl_sync(~0u, x, lane); };
    return {of(lane_view_.sequence), of(lane_view_.first), of(lane_view_.tokens), of(lane_view_.query_begin),
            of(lane_view_.queries)};
  }
  /// Loads the entries from index_ on, one to each lane.
  template <class Args>
  PAGODA_DEVICE void load(const Args& args, int lane) {
    first_     = index_;
    lane_raw_  = list_entry(args, min(index_ + lane, args.batch - 1));
    lane_view_ = view_of(args, lane_raw_, end_of(args, lane_raw_));
    if (index_ + lane >= args.batch) lane_view_.queries = 0;
  }
  /// Goes to the next entry that is carried out. Returns false if there is none.
  template <class Args>
  PAGODA_DEVICE bool advance(const Args& args, int lane) {
    for (++index_; index_ < args.batch; index_ = first_ + 32) {
      if (index_ - first_ == 32) load(args, lane);
      const unsigned later = __ballot_sync(~0u, lane_view_.queries > 0) >> (index_ - first_);
      if (later == 0) continue;
      index_ += __ffs(static_cast<int>(later)) - 1;
      select(args);
      return true;
    }
    return false;
  }
  /// Begins with entry index_.
  template <class Args>
  PAGODA_DEVICE void select(const Args& args) {
    const int from       = index_ - first_;
    const EntryView view = view_in(from);
    work_                = work_of<Work>(args, view);
    if (args.chains) {
      const int chain = __shfl_sync(~0u, lane_raw_.chain, from);
      if (chain > 0) work_ = work_of_chain(args, view, chain);
    }
    const int kv_head = __shfl_sync(~0u, lane_raw_.kv_head, from);
    heads_left_       = view.queries == 0 ? 0 : kv_head >= 0 ? 1 : args.num_kv_heads.value / heads_at_once_;
    head_             = kv_head >= 0 ? kv_head : first_head_;
  }

  /// The work of the chain that begins with entry index_.
  template <class Args>
  PAGODA_DEVICE Work work_of_chain(const Args& args, const EntryView& head, int chain) const {
    int halves = 0, units = 0;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x & 31); i < chain; i += 32) {
      const Entry e    = stored_entry(args, index_ + 1 + i);
      const int tokens = max(end_of(args, e) - e.first, 0);
      halves += Work::chain_halves(tokens), units += Work::chain_units(tokens);
    }
    return Work::of_chain(__reduce_add_sync(~0u, halves) + Work::chain_halves(head.tokens),
                          __reduce_add_sync(~0u, units) + Work::token_units(head.tokens),
                          head.queries * args.heads.value);
  }

  WorkDivision division_;
  int owner_, heads_at_once_, first_head_;
  int first_ = 0;     ///< entry of lane 0
  Entry lane_raw_{};  ///< the lane's entry
  EntryView lane_view_{};
  int index_, position_;  ///< entry, and units before the batch head
  Work work_{};           ///< of the entry
  int head_ = 0, heads_left_ = 0;
};

}  // namespace pagoda::tuned
