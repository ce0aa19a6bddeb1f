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
/// Units of an entry and one of its kv heads.
template <class Work, class Args>
PAGODA_DEVICE int units_of_head(const Args& args, const Entry& e, int end) {
  const EntryView view = view_of(args, e, end);
  return e.chain < 0 ? Work::chain_units(view.tokens) : work_of<Work>(args, view).units;
}

/// Where a share begins.
struct ListStart {
  WorkDivision division;
  int role;                 ///< of the block
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
  /// Of an entry, for all of its kv heads. Entries behind the first one of a chain count as parts of it.
  template <class Base>
  PAGODA_DEVICE int units_of(const ListArgsOf<Base>& args, const Entry& e, int end) const {
    return counts(args, e) ? heads_of(args, e) * units_of_head<Work>(args, e, end) : 0;
  }
};

/// Units of a run of entries, in shared memory. All threads of the block make one together.
///
/// What follows runs once in each block, before anything else can start, and most of its time is that of loading
/// instructions. So loops are not unrolled, and there is one copy of each.
template <class Roles, int Threads, int Capacity>
struct UnitsWindow {
  int begin = 0, end = 0;  ///< the thread's entries, counted from the window's first
  /// Of each role: units of the window before the thread's entries, of these, and of the window, for one kv head at a
  /// time.
  int before[Roles::count] = {}, units[Roles::count] = {}, total[Roles::count] = {};
  bool single_heads = false;  ///< the window has an entry of one kv head

  UnitsWindow() = default;
  /// units_of: [Capacity]; sums: [Threads / 32][roles]. Both may be read by the block until it calls this again.
  template <class Args>
  PAGODA_DEVICE UnitsWindow(const Roles& roles, const Args& args, int first, int* units_of, int* sums) {
    constexpr int loads = 5;
    bool single         = false;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int count = min(args.batch - first, Capacity);
    int cut = 0, cut_end = 0;  // a chain that ends behind the window, if cut_end is not 0
    __syncthreads();           // all have read the window before
    if (args.chains) {
#pragma unroll 1
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
        const int at = from + i * Threads;
        if (at >= count) break;
        single |= e[i].kv_head >= 0;
        const int units = roles.units_of(args, e[i], ends[i]);
        if (!args.chains) {
          units_of[at] = units;
          continue;
        }
        const int to = at + min(e[i].chain, 0);  // negative: an earlier window has the chain's first entry
        if (to >= 0) atomicAdd(units_of + to, units);
        if (at + e[i].chain >= count) cut = at, cut_end = at + e[i].chain + 1;
      }
    }
#pragma unroll 1
    for (int beyond = count; beyond < cut_end; ++beyond) {
      const Entry e = stored_entry(args, first + beyond);
      atomicAdd(units_of + cut, roles.units_of(args, e, end_of(args, e)));
    }
    single_heads   = __syncthreads_or(single);
    const int each = ((count + Threads - 1) / Threads) | 1;  // odd: lanes read different banks
    begin = min(thread * each, count), end = min(begin + each, count);
#pragma unroll 1
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
      before[r] -= units[r];
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

/// Ints of shared memory that find_start needs besides `Capacity`.
PAGODA_HOST_DEVICE constexpr int start_memory(int threads, int most_owners, int roles = 1) {
  return threads / 32 * roles + 2 * most_owners;
}

/// The blocks of a role, and how their workers share its entries.
struct RoleBlocks {
  int role;
  int first, count;   ///< blocks
  int workers;        ///< of a block: its first warps
  int heads_at_once;  ///< workers that are one owner: a power of two that divides the number of kv heads, and `workers`
                      ///< or `count`
  int min_units;      ///< of a share
};

/// Where the share of a warp begins; warps that are no workers get that of the last worker. All threads of the block
/// call it. A single worker is an owner if an entry of the list has one kv head.
/// memory: [Capacity + start_memory]. blocks_of(totals): the blocks of this block's role, from the units of each role.
template <class Roles, int Threads, int Capacity, class Args, class BlocksOf>
PAGODA_DEVICE ListStart find_start(const Roles& roles, const Args& args, int* memory, int warp,
                                   const BlocksOf& blocks_of) {
  using Window     = UnitsWindow<Roles, Threads, Capacity>;
  int* const sums  = memory + Capacity;
  int* const found = sums + Threads / 32 * Roles::count;
  const int thread = static_cast<int>(threadIdx.x);
  Window window;
  int totals[Roles::count] = {}, earlier = 0;
  bool single = false;
  RoleBlocks blocks{};
  WorkDivision division{};
  int shift = 0, first_worker = 0, first_owner = 0, owners = 0;  // an owner has 1 << shift workers
  const auto of_role = [&](const int (&x)[Roles::count]) { return blocks.role == 0 ? x[0] : x[Roles::count - 1]; };
  // Counts the units of all windows, then finds the owners of the block.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
    for (int first = 0; first < args.batch; first += Capacity) {
      if (pass == 0 || args.batch > Capacity) window = Window(roles, args, first, memory, sums);
      if (pass == 0) {
        single |= window.single_heads;
#pragma unroll
        for (int r = 0; r < Roles::count; ++r) totals[r] += window.total[r];
        continue;
      }
      int before       = earlier + of_role(window.before);
      const int behind = before + of_role(window.units);
      int at           = window.begin;
#pragma unroll 1
      for (int owner = 0; owner < owners; ++owner) {  // in ascending order of their beginnings
        const int begin = division.begin(first_owner + owner) << shift;
        if (begin < before || begin >= behind) continue;
        const auto units = [&] { return Window::of_role(memory[at], blocks.role); };
        while (begin >= before + units()) before += units(), ++at;
        found[2 * owner] = first + at, found[2 * owner + 1] = before;
      }
      earlier += of_role(window.total);
    }
    if (pass == 1) break;
    blocks          = blocks_of(totals);
    const int total = of_role(totals);
    shift           = single ? 0 : __ffs(blocks.heads_at_once) - 1;
    first_worker    = (static_cast<int>(blockIdx.x) - blocks.first) * blocks.workers;
    first_owner     = first_worker >> shift;
    owners          = max(blocks.workers >> shift, 1);  // of this block
    division        = WorkDivision::of(total >> shift, (blocks.count * blocks.workers) >> shift, blocks.min_units);
    if (thread < owners && division.begin(first_owner + thread) << shift >= total)
      found[2 * thread] = args.batch, found[2 * thread + 1] = total;  // no thread finds it
  }
  __syncthreads();
  const int worker = min(warp, blocks.workers - 1), mine = worker >> shift, owner = first_owner + mine;
  const ListStart start{division,
                        blocks.role,
                        found[2 * mine],
                        found[2 * mine + 1] >> shift,
                        owner,
                        1 << shift,
                        first_worker + worker - (owner << shift)};
  __syncthreads();
  return start;
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
      : division_(start.division),
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

  WorkDivision division_;
  int owner_, heads_at_once_, first_head_;
  int first_;         ///< entry of lane 0
  Entry lane_raw_{};  ///< the lane's entry, without query tokens if it does not count
  int lane_tokens_ = 0;
  int index_, position_;  ///< entry, and units before the batch head
  Work work_{};           ///< of the entry
  int head_ = 0, heads_left_ = 0;
};

}  // namespace pagoda::tuned
