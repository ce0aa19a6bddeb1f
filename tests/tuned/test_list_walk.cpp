// SPDX-License-Identifier: Apache-2.0
// How the hand-tuned kernels for lists go through a list: their code, with the threads of a block as fibers
// (simt/simt.hpp). Needs no GPU.
#include "backends/cuda/tuned/wgmma/grouped/mixed_roles.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pagoda::tuned {
namespace {

using wgmma::grouped::HeadWork;
using Half = ChainEntries<HeadWork>::Half;

/// A random list. Its entries are as those of a caller: of any sequence, some without tokens or query tokens.
struct RandomList {
  std::vector<int> seq_lens;
  std::vector<Entry> entries;
  bool single_heads = false;

  RandomList(std::mt19937& random, int count, int kv_heads, int most_queries, bool chains, bool heads) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int i = 0; i < 5; ++i) seq_lens.push_back(below(4) == 0 ? below(3000) : below(300));
    const auto tokens_of = [&](Entry& e) {
      e.sequence = below(5);
      e.first    = 16 * below(4);
      e.last     = below(3) == 0 ? -1 : e.first + (below(4) == 0 ? 0 : below(6) == 0 ? below(2000) : below(150));
    };
    while (static_cast<int>(entries.size()) < count) {
      Entry e{};
      tokens_of(e);
      e.query_begin = below(1000), e.num_queries = below(8) == 0 ? 0 : 1 + below(most_queries), e.state = below(4) - 1;
      if (heads && below(3) == 0) e.kv_head = below(kv_heads), single_heads = true;
      const int further = chains && below(2) == 0 ? 1 + below(below(4) == 0 ? 140 : 6) : 0;
      if (further > 0) {
        e.chain = further, e.num_queries = std::max(e.num_queries, 2);
        if (e.last < 0 || below(3) == 0) e.first = e.last = 0;
      }
      const Entry head = e;
      entries.push_back(e);
      for (int k = 1; k <= further; ++k) {
        tokens_of(e);
        const int begin = below(head.num_queries);
        e.query_begin = head.query_begin + begin, e.num_queries = 1 + below(head.num_queries - begin), e.chain = -k;
        entries.push_back(e);
      }
    }
  }
  int tokens(const Entry& e) const { return std::max((e.last < 0 ? seq_lens[e.sequence] : e.last) - e.first, 0); }
  /// The halves of the tiles of a chain that begins with entry i.
  std::vector<Half> halves(int i) const {
    std::vector<Half> all;
    const Entry& head = entries[i];
    for (int k = 0; k <= head.chain; ++k) {
      const Entry& e  = entries[i + k];
      const int begin = e.query_begin - head.query_begin, half = HeadWork::half_tokens;
      for (int from = 0; from < tokens(e); from += half)
        all.push_back({e.sequence, e.first + from, std::min(tokens(e) - from, half), begin, begin + e.num_queries});
    }
    return all;
  }
  template <class Base>
  void set_args(ListArgsOf<Base>& a, int kv_heads, int group, int most_queries, bool chains) const {
    a.seq_lens = seq_lens.data(), a.entries = entries.data(), a.batch = static_cast<int>(entries.size());
    a.num_kv_heads = Divisor::of(kv_heads), a.heads = Divisor::of(group), a.q_tokens_bound = most_queries;
    a.min_queries = 1, a.max_queries = 1 << 30, a.chains = chains;
  }
};

/// What a worker carries out: a segment, its owner, and the halves that it reads of a chain.
struct Part {
  int owner;
  ListSegment segment;
  std::vector<Half> halves;
};

/// Lanes look for the halves of up to four tiles at a time, as the warp that copies tiles does.
template <class Args>
void find_halves(const Args& args, ChainEntries<HeadWork> chain, const ListSegment& s, int lane,
                 std::vector<Half>& halves) {
  int most = 1;
  for (int tile = s.share.first_tile; tile < s.share.end_tile; most = 4) {
    const int count = std::min(most, s.share.end_tile - tile), mine = lane >> 3;
    const int half  = 2 * (tile + mine) + (lane >> 2 & 1);
    const Half h    = chain.find(args, half, mine < count, lane);
    const int first = 2 * s.share.first_tile;
    if (mine < count && lane % 4 == 0) {
      if (halves.size() <= std::size_t(half - first)) halves.resize(std::size_t(half - first) + 1);
      halves[half - first] = h;
    }
    tile += count;
  }
}

/// The board of late shares. Between launches all of its words are empty_sentinel.
class Board {
 public:
  explicit Board(int workers) : words_(late_board_bytes(workers) / 4, -1) {}
  LateBoard on_device() { return {reinterpret_cast<int2*>(words_.data())}; }
  bool is_clear() const {
    return std::ranges::all_of(words_, [](int word) { return word == -1; });
  }

 private:
  std::vector<int> words_;
};
int late_segments = 0;  ///< that are in late shares, of all walks

/// Goes through the share of a warp, and through late shares.
template <class Work, class Args>
void walk_share(const Args& args, const ListStart& start, const LateBoard& board, int lane, std::vector<Part>& parts) {
  ListWalk<Work> walk(start);
  ListSegment s;
  bool late       = false;
  const auto next = [&] {
    while (!walk.next(args, lane, s)) {
      if constexpr (!Work::late)
        return false;
      else if (!walk.take_late(board, start.workers, lane))
        return false;
      late = true;
    }
    return true;
  };
  while (next()) {
    late_segments += late && lane == 0 ? 1 : 0;
    static std::map<unsigned, std::vector<Half>> of_segments;  // by warp: its lanes add to it
    const unsigned warp = blockIdx.x << 16 | threadIdx.x / 32;
    if (lane == 0) of_segments[warp].clear();
    __syncwarp();
    if constexpr (Work::chains)
      if (s.chain > 0) find_halves(args, walk.chain(s, lane), s, lane, of_segments[warp]);
    __syncwarp();
    if (lane == 0) parts.push_back({start.owner, s, of_segments[warp]});
    __syncwarp();
  }
}

/// The parts of each entry and kv head. Owners carry out their parts in order.
using Parts = std::map<std::pair<int, int>, std::vector<Part>>;
Parts sorted(const std::vector<Part>& all) {
  Parts parts;
  for (const Part& p : all) parts[{p.segment.index, p.segment.head}].push_back(p);
  for (auto& [head, of_head] : parts)
    std::stable_sort(of_head.begin(), of_head.end(), [](const Part& a, const Part& b) { return a.owner < b.owner; });
  return parts;
}

/// All tiles of each batch head are carried out, once. takes: whether these blocks carry out an entry.
template <class Work, class Takes>
void expect_all(const RandomList& list, int kv_heads, int group, const Parts& parts, const Takes& takes) {
  std::size_t heads = 0;
  for (int i = 0; i < static_cast<int>(list.entries.size()); ++i) {
    const Entry& e = list.entries[i];
    if (e.chain < 0 || e.num_queries == 0 || !takes(e)) continue;
    const auto halves = list.halves(i);
    const int tiles =
        e.chain > 0 ? static_cast<int>(halves.size() + 1) / 2 : Work::of(list.tokens(e), e.num_queries * group).tiles;
    for (int head = 0; head < kv_heads; ++head) {
      if (e.kv_head >= 0 && head != e.kv_head) continue;
      ++heads;
      const std::string in = "entry " + std::to_string(i) + ", kv head " + std::to_string(head);
      const auto of_head   = parts.find({i, head});
      ASSERT_NE(of_head, parts.end()) << in;
      int next = 0;
      for (const Part& part : of_head->second) {
        const ListSegment& s = part.segment;
        const HeadShare& h   = s.share;
        ASSERT_EQ(h.first_tile, next) << in;
        ASSERT_EQ(h.has_first_tile, &part == &of_head->second.front()) << in;
        ASSERT_EQ(h.whole, of_head->second.size() == 1) << in;
        if (!h.whole) {
          ASSERT_EQ(h.first_owner, of_head->second.front().owner) << in;
          ASSERT_EQ(h.last_owner, of_head->second.back().owner) << in;
        }
        next = h.end_tile;
        ASSERT_EQ(s.entry.sequence, e.sequence) << in;
        ASSERT_EQ(s.entry.first, e.first) << in;
        ASSERT_EQ(s.entry.tokens, list.tokens(e)) << in;
        ASSERT_EQ(s.entry.query_begin, e.query_begin) << in;
        ASSERT_EQ(s.entry.queries, e.num_queries) << in;
        ASSERT_EQ(s.state, e.state) << in;
        ASSERT_EQ(s.to_end, e.last < 0) << in;
        ASSERT_EQ(s.chain, e.chain) << in;
        if (e.chain == 0) continue;
        ASSERT_EQ(part.halves.size(), 2 * std::size_t(h.end_tile - h.first_tile)) << in;
        for (std::size_t k = 0; k < part.halves.size(); ++k) {
          const Half& found     = part.halves[k];
          const std::size_t all = 2 * std::size_t(h.first_tile) + k;
          const Half right      = all < halves.size() ? halves[all] : Half{};
          ASSERT_EQ(found.tokens, right.tokens) << in << ", half " << all;
          if (right.tokens == 0) continue;  // the last tile of an odd number of halves
          ASSERT_EQ(found.sequence, right.sequence) << in << ", half " << all;
          ASSERT_EQ(found.first, right.first) << in << ", half " << all;
          ASSERT_EQ(found.begin, right.begin) << in << ", half " << all;
          ASSERT_EQ(found.end, right.end) << in << ", half " << all;
        }
      }
      ASSERT_EQ(next, tiles) << in;
    }
  }
  EXPECT_EQ(parts.size(), heads);
}

/// Blocks of `Threads` threads, in which `Workers` warps have shares. They see `Capacity` entries at a time.
template <class Work, int Threads, int Capacity, int Workers>
void walk_list(std::mt19937& random, bool chains) {
  const auto below   = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int kv_heads = 4 << below(2), group = 1 << below(3), blocks = 1 + below(9), heads_at_once = 1 << below(3);
  const int heads_of_block = Workers > 1 ? std::min(heads_at_once, Workers) : heads_at_once;
  const int most           = 16;
  const RandomList list(random, 1 + below(3 * Capacity), kv_heads, most, chains, below(2) == 0);
  wgmma::ListArgs args{};
  list.set_args(args, kv_heads, group, most, chains);
  const int all = Workers > 1 ? blocks : blocks * heads_of_block;  // a multiple, as of a launch
  std::vector<Part> parts;
  std::vector<std::vector<int>> memory(all, std::vector<int>(Capacity + start_memory(Threads, Workers), -1));
  Board board(all * Workers);
  simt::Grid(all, Threads).run([&] {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const ListStart start = find_start<Threads, Capacity>(
        OneRole<Work>{Workers, heads_of_block, 2 * Work::tile_units + 4, Work::late ? board.on_device() : LateBoard{}},
        args, memory[blockIdx.x].data(), warp);
    if (warp < Workers) walk_share<Work>(args, start, board.on_device(), lane, parts);
  });
  EXPECT_TRUE(board.is_clear());
  expect_all<Work>(list, kv_heads, group, sorted(parts), [](const Entry&) { return true; });
}

TEST(ListWalk, EveryTileOnce) {
  std::mt19937 random(1);
  for (int run = 0; run < 20 && !::testing::Test::HasFatalFailure(); ++run) {
    SCOPED_TRACE("run " + std::to_string(run));
    walk_list<HeadWork, 64, 64, 1>(random, false);
    walk_list<warp::ListWork, 128, 48, 4>(random, false);
  }
  EXPECT_GT(late_segments, 100);
}

TEST(ListWalk, Chains) {
  std::mt19937 random(2);
  for (int run = 0; run < 15 && !::testing::Test::HasFatalFailure(); ++run) {
    SCOPED_TRACE("run " + std::to_string(run));
    walk_list<HeadWork, 64, 40, 1>(random, true);
    walk_list<HeadWork, 96, 512, 1>(random, true);
  }
}

/// Entries of few query rows and the others, in blocks of two roles.
TEST(ListWalk, TwoRoles) {
  std::mt19937 random(3);
  const auto below      = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  constexpr int threads = 128, capacity = 64, few_warps = 4;
  for (int run = 0; run < 20 && !HasFatalFailure(); ++run) {
    SCOPED_TRACE("run " + std::to_string(run));
    const int kv_heads = 4 << below(2), group = 1 << below(3), most = 16, blocks = 4 * (2 + below(4));
    const bool chains = below(2) == 0;
    const RandomList list(random, 1 + below(3 * capacity), kv_heads, most, chains, below(2) == 0);
    wgmma::grouped::MixedArgs args{};
    list.set_args(args.many, kv_heads, group, most, chains);
    list.set_args(args.few, kv_heads, group, most, false);
    args.few.max_queries = 8 / group, args.many.min_queries = args.few.max_queries + 1;
    args.many.heads_at_once = 1 << below(3), args.few.heads_at_once = 4;
    std::vector<Part> parts_of_many, parts_of_few;
    std::vector<std::vector<int>> memory(blocks, std::vector<int>(capacity + start_memory(threads, few_warps, 2), -1));
    Board board(blocks * few_warps);
    args.few.late = board.on_device().at;
    simt::Grid(blocks, threads).run([&] {
      const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
      const ListStart start =
          find_start<threads, capacity>(wgmma::grouped::MixedRoles{args}, args.many, memory[blockIdx.x].data(), warp);
      if (start.role == 1) {
        if (warp < few_warps) walk_share<warp::ListWork>(args.few, start, board.on_device(), lane, parts_of_few);
      } else if (warp == 0) {
        walk_share<HeadWork>(args.many, start, board.on_device(), lane, parts_of_many);
      }
    });
    EXPECT_TRUE(board.is_clear());
    expect_all<HeadWork>(list, kv_heads, group, sorted(parts_of_many),
                         [&](const Entry& e) { return e.chain > 0 ? chains : e.num_queries >= args.many.min_queries; });
    expect_all<warp::ListWork>(list, kv_heads, group, sorted(parts_of_few),
                               [&](const Entry& e) { return e.chain == 0 && e.num_queries <= args.few.max_queries; });
  }
}

}  // namespace
}  // namespace pagoda::tuned
