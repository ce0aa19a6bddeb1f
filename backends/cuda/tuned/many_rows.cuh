// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/many_rows.hpp"
#include "backends/cuda/tuned/merge.cuh"
#include "backends/cuda/tuned/tile.cuh"
#include "backends/cuda/tuned/walk.cuh"
#include "backends/cuda/wgmma.cuh"

/// Decode attention where up to 64 (two blocks: 128) query rows share a kv head. Four warpgroups, after
/// FlashMLA (DeepSeek) and FlashAttention-3 (Shah et al., 2024), which divide the work nearly so:
///  - two warpgroups take turns at tiles of 64 tokens: copy, scores, softmax, probabilities to shared memory. Each has
///    room for one tile. While one is at its softmax the other's scores keep the matrix units busy;
///  - two warpgroups add each tile's values to half of the output's dims each, which fill their registers.
/// Nobody waits for the whole block: everything is handed on by barriers in shared memory.
namespace pagoda::tuned::many {

/// The segments of a block, for one warp.
template <int Together>
class Course {
 public:
  using Steps = Walk<1, tokens, Together>;
  typename Steps::Segment s;
  bool any = false;  ///< s is a segment
  int last = 0;      ///< block that has the row's last part

  /// The first segment as it is if the batch is even; its length, and all lengths, are on their way.
  PAGODA_DEVICE Course(const Args& args, int lane)
      : lengths_(args, lane), walk_(Steps::dealt(args, 0)), streams_(args.streams) {
    if (!streams_) any = walk_.next(args, s);
  }
  /// True: the first segment is another one.
  PAGODA_DEVICE bool settle(const Args& args, int lane) {
    bool changed = false;
    if (streams_ || !(args.alone || lengths_.template count<tokens>(args, lane).even)) [[unlikely]] {
      streams_ = changed = true;
      walk_              = Steps::streamed(args, 0, lane, lengths_.template count<tokens>(args, lane).tiles);
      any                = walk_.next(args, s);
    }
    judge();
    return changed;
  }
  PAGODA_DEVICE void next(const Args& args) {
    any = walk_.next(args, s);
    judge();
  }
  PAGODA_DEVICE int tiles() const { return s.first < s.end() ? (s.end() - s.first - 1) / s.step + 1 : 0; }

 private:
  /// A row that is dealt has no more parts than tiles, and one if it has none.
  PAGODA_DEVICE void judge() {
    if (!any) return;
    last = streams_ ? s.to : min(s.to, s.from + max(s.end(), 1) - 1);
    any  = Steps::block() <= last;
  }
  Lengths lengths_;
  Steps walk_;
  bool streams_;
};

/// Until all of the block are here.
PAGODA_DEVICE void sync_block() { asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory"); }

/// Barriers are known by name (Shared), shared memory by its address. Whoever waits for a barrier waits for each of its
/// phases: of one that was left out it could not tell whether it is over.
struct Place {
  std::uint32_t memory;
  /// All threads, before they touch a barrier.
  PAGODA_DEVICE void begin() const { sync_block(); }
  PAGODA_DEVICE std::uint32_t barrier(int i) const { return memory + Shared::barriers + 8 * i; }
  PAGODA_DEVICE void wait(int i, int phase) const { barrier_wait(barrier(i), phase & 1); }
  /// One arrival for each warp, once all of it is there.
  PAGODA_DEVICE void arrive(int i, int lane) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier(i));
  }
};

/// What a tile's probabilities come with, for the rows of a warp.
enum Sign { raised = 1, first_of_row = 2, last_of_row = 4, no_more = 8 };
/// The row that just ended, or the block's part of it.
struct Ended {
  int batch, head, begins, whole;
};

/// Query rows of this block among those that share a kv head.
template <int Together>
PAGODA_DEVICE int first_row() {
  return Together == 1 ? 0 : static_cast<int>(blockIdx.x % Together) * rows;
}
template <int Together>
PAGODA_DEVICE int rows_here(const Args& args) {
  return min(rows, args.group - first_row<Together>());
}

/// Copies tiles, eight tokens by each of eight lanes, by one warp.
template <int Together>
class TileCopies {
 public:
  using Segment = SegmentOf<tokens>;
  PAGODA_DEVICE explicit TileCopies(int lane) : lane_(lane) {}

  /// The next tile to copy will be this one: asks for its page ids.
  PAGODA_DEVICE void begin(const Args& args, const Segment& s, int tile) {
    row_   = args.has_indptr ? __ldg(args.page_indptr + s.sequence) : s.sequence * args.table_row;
    ahead_ = look_up(args, s, tile);
  }
  PAGODA_DEVICE void queries(const Args& args, const Segment& s, Place at) const {
    if (lane_ != 0) return;
    // Rows beyond the group's: up to eight are zeros, the others anything, as nobody looks at what becomes of them.
    const int eights = (rows_here<Together>(args) + 7) / 8;
    barrier_expect(at.barrier(Shared::q_full), eights * eight);
#pragma unroll 1
    for (int i = 0; i < eights; ++i)
      copy_box(at.memory + Shared::q + i * eight, &args.q_map, first_row<Together>() + 8 * i, s.head, s.batch,
               at.barrier(Shared::q_full), read_once_policy());
  }
  /// The round-th tile of a slot, a quarter as soon as the one there has been used. next: the tile after it.
  PAGODA_DEVICE void tile(const Args& args, const Segment& s, Place at, int slot, int round, int tile, int next) {
    const Source now         = ahead_;
    ahead_                   = look_up(args, s, next);
    const int eights         = min(tokens / 8, (s.len - tile * tokens + 7) >> 3);
    const std::uint32_t full = at.barrier(Shared::full + slot);
    if (lane_ == 0) barrier_expect(full, eights * eight);
#pragma unroll 1
    for (int quarter = 0; quarter < Shared::quarters; ++quarter) {
      if (round > 0) at.wait(Shared::empty + slot * Shared::quarters + quarter, round - 1);
      __syncwarp();
      if (lane_ / 2 == quarter && lane_ < eights)
        copy_box(at.memory + Shared::tiles + slot * tile_bytes + lane_ * eight, &args.k_map, now.token, s.head,
                 now.page, full, read_once_policy());
    }
  }

 private:
  /// Beyond a row's end its last entry again, so that nothing behind the table is read.
  PAGODA_DEVICE Source look_up(const Args& args, const Segment& s, int tile) const {
    const int group = tile * (tokens / 8) + (lane_ & 7);
    if (!args.block_table) return {s.sequence, group * 8};
    const int index = args.tiles_per_page.divide(group);
    const int last  = args.has_indptr ? args.last_page - row_ : args.last_page;
    return {__ldg(args.block_table + (row_ + min(index, last) * args.table_page)),
            (group - index * args.tiles_per_page.value) * 8};
  }
  int lane_, row_ = 0;  ///< row_: where the sequence's pages begin in the table
  Source ahead_{};
};

/// Scores and probabilities of every other tile, by a warpgroup. A lane has two rows, eight apart, and of each 16
/// tokens. The running maximum (base) is one for both warpgroups, handed on from tile to tile; it is raised only when a
/// score exceeds it by more than 2^8. Sums are each warpgroup's own.
template <bool Bf16, int Together>
PAGODA_DEVICE void score_tiles(const Args& args, Place at, char* memory, int which, int warp, int lane) {
  constexpr float lowest      = Quad::lowest;
  float* const shared_base    = reinterpret_cast<float*>(memory + Shared::base);
  float* const kept           = reinterpret_cast<float*>(memory + Shared::kept);
  int* const sign             = reinterpret_cast<int*>(memory + Shared::signs) + warp;
  float2* const states        = reinterpret_cast<float2*>(memory + Shared::states) + which * rows;
  Debt* const debts           = reinterpret_cast<Debt*>(memory + Shared::debts);
  const std::uint32_t tile_at = at.memory + Shared::tiles + which * tile_bytes;
  const int row = 16 * warp + (lane >> 2), column = lane & 3;
  const bool active = 16 * warp < rows_here<Together>(args), speaks = column == 0;
  // Where the lane's share of a store goes: rows of 128 bytes, 16-byte chunks swizzled.
  const int store_row          = 16 * warp + (lane & 15);
  const std::uint32_t store_to = at.memory + Shared::probabilities + store_row * 128;

  // Of a row that the block's share begins, and of one that began before it.
  if (which == 0 && warp == 0 && lane < 2) debts[lane] = {0, 0, 0, -1};
  Course<Together> course(args, lane);
  auto& s = course.s;
  TileCopies<Together> copies(lane);
  const bool copies_here = warp == 0;
  int n = 0, segments = 0, i = 0;  // i: of the warpgroup's next tile in the segment
  const auto begin = [&] {
    i = (which - n) & 1;
    if (copies_here && course.any) copies.begin(args, s, s.first + i * s.step);
  };
  begin();
  at.begin();
  if (course.settle(args, lane)) begin();
  for (; course.any; course.next(args), begin()) {
    const int count = course.tiles();
    if (count == 0) continue;
    float base[2] = {lowest, lowest}, sum[2] = {0, 0};
    const auto queries = [&] {
      if (!copies_here || which != 0) return;
      if (segments > 0) at.wait(Shared::q_empty, segments - 1);
      copies.queries(args, s, at);
    };
    if (i >= count) {
      queries();
      at.wait(Shared::q_full, segments);
      at.arrive(Shared::q_empty, lane);
    }
    for (; i < count; i += 2) {
      const int m = n + i, there = s.len - (s.first + i * s.step) * tokens;
      float x[32];
      if (copies_here) {
        const int tile = s.first + i * s.step;
        copies.tile(args, s, at, which, m / stages, tile, tile + 2 * s.step);
      }
      if (i < 2) {
        queries();
        at.wait(Shared::q_full, segments);
      }
      at.wait(Shared::full + which, m / stages);
      const std::uint64_t q = fresh(operand(at.memory + Shared::q, eight));
      const std::uint64_t k = fresh(operand(at.memory + Shared::tiles + which * tile_bytes, eight));
      wgmma_keep(x);
      wgmma_begin();
#pragma unroll
      for (int j = 0; j < head_dim / 16; ++j) {
        const int dims = j / 4 * run_bytes + j % 4 * 32;
        wgmma<Bf16>(x, operand_at(q, dims), operand_at(k, dims), j > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_keep(x);
      if (i + 2 >= count) at.arrive(Shared::q_empty, lane);

      bool raises = false;
      std::uint32_t p[16];
      if (m > 0) at.wait(Shared::turn + (which ^ 1), (m - 1) / 2);
      float before[2] = {lowest, lowest};
      if (active) {
        if (there < tokens) {
#pragma unroll
          for (int e = 0; e < 32; ++e)
            if (8 * (e / 4) + 2 * column + (e & 1) >= there) x[e] = -INFINITY;
        }
        float most[2] = {x[0], x[2]};
#pragma unroll
        for (int e = 0; e < 32; ++e) most[e >> 1 & 1] = fmaxf(most[e >> 1 & 1], x[e]);
        most[0] *= args.scale, most[1] *= args.scale;
        if (i > 0) before[0] = shared_base[row], before[1] = shared_base[row + 8];
        float now[2] = {before[0], before[1]};
        raises       = __any_sync(~0u, most[0] > before[0] + 8.0f || most[1] > before[1] + 8.0f);
        if (raises) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
            now[r]  = fmaxf(before[r], most[r]);
            if (speaks) shared_base[row + 8 * r] = now[r];
          }
        } else if (i == 0 && speaks) {
          shared_base[row] = shared_base[row + 8] = lowest;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[r] *= exp2_fast(base[r] - now[r]), base[r] = now[r];
      }
      at.arrive(Shared::turn + which, lane);
      if (active) {
#pragma unroll
        for (int e = 0; e < 32; ++e) {
          x[e] = exp2_fast(x[e] * args.scale - base[e >> 1 & 1]);
          sum[e >> 1 & 1] += x[e];
        }
#pragma unroll
        for (int e = 0; e < 16; ++e) p[e] = pack<Bf16>(x[2 * e], x[2 * e + 1]);
      }

      if (m > 0) at.wait(Shared::p_empty + (which ^ 1), (m - 1) / 2);
      if (lane == 0)
        *sign = (raises && i > 0 ? raised : 0) | (i == 0 ? first_of_row : 0) | (i + 1 == count ? last_of_row : 0);
      if (active) {
        if (raises && i > 0 && speaks) {
          kept[row]     = exp2_fast(before[0] - base[0]);
          kept[row + 8] = exp2_fast(before[1] - base[1]);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2)
          store_matrices(store_to + (((j + (lane >> 4)) ^ (store_row & 7)) << 4), p + 2 * j);
      }
      // Memory behind the last token may hold anything, and 0 times that is not 0.
      if (there < tokens) {
        constexpr int chunks = head_dim_v / 8;
        for (int c = 32 * warp + lane; c < (tokens - there) * chunks; c += 128) {
          const int token = there + c / chunks, chunk = c % chunks;
          asm volatile(
              "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(tile_at + token / 8 * eight + chunk / 8 * run_bytes +
                                                               token % 8 * 128 + (((chunk & 7) ^ (token & 7)) << 4)),
              "r"(0)
              : "memory");
        }
      }
      fence_copies();
      at.arrive(Shared::p_full, lane);
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
    if (segments > 0) at.wait(Shared::state_empty, segments - 1);
    if (which == 0 && warp == 0 && lane == 0) {
      const bool whole                                  = s.from >= course.last;
      *reinterpret_cast<Ended*>(memory + Shared::ended) = {s.batch, s.head, s.begins, whole};
      if (!whole) debts[s.begins] = {s.batch, s.head, s.from, course.last};
    }
    if (speaks) states[row] = make_float2(base[0], sum[0]), states[row + 8] = make_float2(base[1], sum[1]);
    at.arrive(Shared::state_full, lane);
    n += count, ++segments;
  }
  if ((n & 1) == which) {
    if (n > 0) at.wait(Shared::p_empty + (which ^ 1), (n - 1) / 2);
    if (lane == 0) *sign = no_more;
    at.arrive(Shared::p_full, lane);
  }
}

/// Two dims of an output.
PAGODA_DEVICE void store_two(const Args& args, int batch, int head, int dim, float x, float y) {
  const std::int64_t at = batch * args.out.batch + head * args.out.head + dim;
  if (args.out.type == Type::fp32) {
    *reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(args.out.data) + at) =
        args.out.type == Type::bf16 ? pack<true>(x, y) : pack<false>(x, y);
  }
}

PAGODA_DEVICE float4* part_of(const Args& args, int block, bool begins) {
  return args.parts + (2 * block + begins) * part_quads(args.part_rows);
}

/// What a lane has of a unit: two dims of a row (x, y) and of the row eight below (z, w), the same eight dims on, and
/// the rows' maxima (base 2) and sums (x, y and z, w).
struct Unit {
  float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0}, state = {Quad::lowest, 0, Quad::lowest, 0};

  PAGODA_DEVICE void add(const Unit& o) {
    const float most0 = fmaxf(state.x, o.state.x), most1 = fmaxf(state.z, o.state.z);
    const float kept0 = exp2_fast(state.x - most0), kept1 = exp2_fast(state.z - most1);
    const float new0 = exp2_fast(o.state.x - most0), new1 = exp2_fast(o.state.z - most1);
    const auto mix = [&](float4& to, const float4& from) {
      to = make_float4(to.x * kept0 + from.x * new0, to.y * kept0 + from.y * new0, to.z * kept1 + from.z * new1,
                       to.w * kept1 + from.w * new1);
    };
    mix(a, o.a), mix(b, o.b);
    state = make_float4(most0, state.y * kept0 + o.state.y * new0, most1, state.w * kept1 + o.state.w * new1);
  }
  /// Reads it from another block's part, which may not be there yet.
  PAGODA_DEVICE void load(const float4* from, int lane) {
    a = load_shared_word4(from + lane), b = load_shared_word4(from + 32 + lane);
    state = load_shared_word4(from + 64 + lane / 4);
  }
  PAGODA_DEVICE bool there() const {
    const auto most = [](const float4& v) {
      return max(max(__float_as_uint(v.x), __float_as_uint(v.y)), max(__float_as_uint(v.z), __float_as_uint(v.w)));
    };
    return max(max(most(a), most(b)), most(state)) != no_number;
  }
  /// Leaves its place as it was.
  PAGODA_DEVICE static void clear(float4* at, int lane) {
    const float none = __uint_as_float(no_number);
    store_shared_word4(at + lane, make_float4(none, none, none, none));
    store_shared_word4(at + 32 + lane, make_float4(none, none, none, none));
    if (lane % 4 == 0) store_shared_word4(at + 64 + lane / 4, make_float4(none, none, none, none));
  }
};

/// Each block of a row joins a slice of its units, as many warps to a unit as there are.
template <int Together>
PAGODA_DEVICE void join_parts(const Args& args, const Debt& d, char* memory, int warp, int lane) {
  constexpr int warps = threads / 32;
  const int here = rows_here<Together>(args), parts = d.to - d.from + 1, units = (here + 15) / 16 * units_of_16_rows;
  const int slice = (units + parts - 1) / parts;
  const int begin = (Course<Together>::Steps::block() - d.from) * slice, end = min(units, begin + slice);
  int split = 1;
  while (split < warps && split * (end - begin) < warps && split < parts) split *= 2;
  const int which = warp / split, first_part = warp % split;
  const auto place = [&](int p, int unit) {  // the row's first block has it in its second place
    return part_of(args, (d.from + p) * Together + static_cast<int>(blockIdx.x % Together), p == 0) + unit * unit_quads;
  };
  Unit* const shared = reinterpret_cast<Unit*>(memory + Shared::tiles);
#pragma unroll 1
  for (int unit = begin + which; unit - which < end; unit += warps / split) {
    Unit x;
    if (unit < end) {
#pragma unroll 1
      for (int p = first_part; p < parts; p += 2 * split) {  // two at once
        const bool two    = p + split < parts;
        float4 *const one = place(p, unit), *const other = place(two ? p + split : p, unit);
        Unit y, z;
        do y.load(one, lane), z.load(other, lane);
        while (__any_sync(~0u, !y.there() || !z.there()));
        Unit::clear(one, lane);
        x.add(y);
        if (two) Unit::clear(other, lane), x.add(z);
      }
    }
    if (split > 1) {
      shared[threadIdx.x] = x;
      sync_block();
      if (first_part == 0)
#pragma unroll 1
        for (int w = 1; w < split; ++w) x.add(shared[threadIdx.x + 32 * w]);
      sync_block();  // before the next are written
    }
    if (unit >= end || first_part != 0) continue;
    const int r = unit / units_of_16_rows * 16 + lane / 4, dim = unit % units_of_16_rows * 16 + lane % 4 * 2;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int head   = d.head * args.group + first_row<Together>() + r + 8 * below;
      const float most = below ? x.state.z : x.state.x, sum = below ? x.state.w : x.state.y;
      if (r + 8 * below >= here) continue;
      const float weight = reciprocal(sum);
      store_two(args, d.batch, head, dim, (below ? x.a.z : x.a.x) * weight, (below ? x.a.w : x.a.y) * weight);
      store_two(args, d.batch, head, dim + 8, (below ? x.b.z : x.b.x) * weight, (below ? x.b.w : x.b.y) * weight);
      if (dim == 0 && args.lse) store_lse(args, d.batch, head, most, sum);
    }
  }
}

/// Stores a row's outputs, or the block's part of them, out of the products' accumulators: as little code as can be, as
/// it is run once and cold.
template <bool Bf16, int Together>
PAGODA_DEVICE void end_row(const Args& args, const Ended& ended, const float (&o)[2][64], const float2 (&state)[2],
                           int half, int row, int lane) {
  const int column = lane & 3, here = rows_here<Together>(args), head = ended.head * args.group + first_row<Together>();
  const bool odd = column & 1, second = column & 2;
  if (!ended.whole) {
    float4* const to = part_of(args, static_cast<int>(blockIdx.x), ended.begins) +
                       (row / 16 * units_of_16_rows + half * (units_of_16_rows / 2)) * unit_quads;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float* const z = o[j / 16] + j % 16 * 4;
      store_shared_word4(to + j / 2 * unit_quads + j % 2 * 32 + lane, make_float4(z[0], z[1], z[2], z[3]));
    }
#pragma unroll
    for (int u = 0; u < units_of_16_rows / 8; ++u)
      store_shared_word4(to + (4 * u + column) * unit_quads + 64 + lane / 4,
                         make_float4(state[0].x, state[0].y, state[1].x, state[1].y));
    return;
  }
  // Lanes of a row's first two columns speak for the row and for the one eight below it.
  const int spoken = row + 8 * column;
  if (half == 0 && column < 2 && spoken < here && args.lse) {
    const float2 mine = column == 0 ? state[0] : state[1];
    store_lse(args, ended.batch, head + spoken, mine.x, mine.y);
  }
  const float weights[2] = {reciprocal(state[0].y), reciprocal(state[1].y)};
  if (args.out.type == Type::fp32) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at = ended.batch * args.out.batch + (head + row + 8 * r) * args.out.head;
      float2* const to = reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + at) + half * quads + column;
      if (row + 8 * r >= here) continue;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const float* const z = o[j / 16] + j % 16 * 4 + 2 * r;
        to[4 * j]            = make_float2(z[0] * weights[r], z[1] * weights[r]);
      }
    }
  } else {
    // Lanes exchange what they have of two rows until each has whole vectors of one.
    const int mine        = row + (second ? 8 : 0);
    const std::int64_t at = ended.batch * args.out.batch + (head + mine) * args.out.head;
    uint4* const to =
        reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(args.out.data) + at) + half * (quads / 4) + odd;
    const bool bf16 = args.out.type == Type::bf16;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
      const float* const z = o[j / 16] + j % 16 * 4;  // eight dims and the next eight
      const auto word      = [&](int i) {
        const float low = z[2 * i] * weights[i & 1], high = z[2 * i + 1] * weights[i & 1];
        return bf16 ? pack<true>(low, high) : pack<false>(low, high);
      };
      const std::uint32_t first[2] = {word(0), word(1)}, next[2] = {word(2), word(3)};
      // Of one row, this lane's words and those of the lane two columns on; then of one eight dims.
      const std::uint32_t a = second ? first[1] : first[0], b = second ? next[1] : next[0];
      const std::uint32_t c = __shfl_xor_sync(~0u, second ? first[0] : first[1], 2);
      const std::uint32_t d = __shfl_xor_sync(~0u, second ? next[0] : next[1], 2);
      const std::uint32_t e = __shfl_xor_sync(~0u, odd ? a : b, 1), f = __shfl_xor_sync(~0u, odd ? c : d, 1);
      const std::uint32_t g = odd ? b : a, h = odd ? d : c;
      // Columns 0 to 3: mine, beside mine, and those two columns on (or before).
      const std::uint32_t near0 = odd ? e : g, near1 = odd ? g : e, far0 = odd ? f : h, far1 = odd ? h : f;
      if (mine < here) to[j] = second ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
    }
  }
}

/// Adds the values of all tiles to half of the output's dims, by a warpgroup. A lane has two rows, eight apart, and of
/// each eight dims two.
template <bool Bf16, int Together>
PAGODA_DEVICE void add_values(const Args& args, Place at, char* memory, int half, int warp, int lane) {
  const float* const kept    = reinterpret_cast<const float*>(memory + Shared::kept);
  const int* const sign_here = reinterpret_cast<const int*>(memory + Shared::signs) + warp;
  const float2* const states = reinterpret_cast<const float2*>(memory + Shared::states);
  const int row = 16 * warp + (lane >> 2), here = rows_here<Together>(args);
  const bool active = 16 * warp < here;

  at.begin();
  int segments = 0;
  float o[2][64];  // 128 dims each: ptxas takes no more for a block of so many threads
  for (int n = 0;; ++n) {
    const int slot = n % stages;
    at.wait(Shared::p_full, n);
    const int sign = *sign_here;
    if (sign & no_more) break;
    at.wait(Shared::full + slot, n / stages);
    if (sign & raised) {
      const float kept0 = kept[row], kept1 = kept[row + 8];
#pragma unroll
      for (int e = 0; e < 128; ++e) o[e / 64][e % 64] *= e & 2 ? kept1 : kept0;
    }
    const std::uint64_t p    = fresh(operand(at.memory + Shared::probabilities, run_bytes));
    const std::uint64_t tile = fresh(operand(
        at.memory + Shared::tiles + slot * tile_bytes + half * (head_dim_v / 128) * run_bytes, eight, run_bytes));
    const bool adds          = !(sign & first_of_row);
    wgmma_keep(o[0]), wgmma_keep(o[1]);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < Shared::quarters; ++j) {
#pragma unroll
      for (int d = 0; d < 2; ++d)
        wgmma_transposed<Bf16>(o[d], operand_at(p, j * 32), operand_at(tile, j * 2 * eight + d * 2 * run_bytes),
                               adds || j > 0);
      wgmma_commit();
    }
    const int empty = Shared::empty + slot * Shared::quarters;
    wgmma_wait<3>();
    at.arrive(empty, lane);
    wgmma_wait<2>();
    at.arrive(empty + 1, lane);
    wgmma_wait<1>();
    at.arrive(empty + 2, lane);
    wgmma_wait<0>();
    at.arrive(empty + 3, lane);
    at.arrive(Shared::p_empty + (n & 1), lane);
    wgmma_keep(o[0]), wgmma_keep(o[1]);
    if (!(sign & last_of_row)) continue;

    at.wait(Shared::state_full, segments++);
    const Ended ended = *reinterpret_cast<const Ended*>(memory + Shared::ended);
    float2 state[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 one = states[row + 8 * r], other = states[rows + row + 8 * r];
      state[r].x = fmaxf(one.x, other.x);
      state[r].y = one.y * exp2_fast(one.x - state[r].x) + other.y * exp2_fast(other.x - state[r].x);
    }
    at.arrive(Shared::state_empty, lane);
    if (active) end_row<Bf16, Together>(args, ended, o, state, half, row, lane);
  }
}

/// What is left when all of a block's own parts have been sent, by all of its warps.
template <int Together>
PAGODA_DEVICE void finish(const Args& args, char* memory, int warp, int lane) {
  using Steps = typename Course<Together>::Steps;
  sync_block();
#pragma unroll 1
  for (int begins = 0; begins < 2; ++begins) {
    const Debt debt = reinterpret_cast<const Debt*>(memory + Shared::debts)[begins];
    if (debt.to >= debt.from) join_parts<Together>(args, debt, memory, warp, lane);
  }
  for (int r = Steps::block(); r < args.batch * args.num_kv_heads.value; r += Steps::blocks()) {
    const int batch = args.num_kv_heads.divide(r), head = r - batch * args.num_kv_heads.value;
    if (length_of(args, batch) > 0) continue;
    for (int item = threadIdx.x; item < rows_here<Together>(args) * quads; item += threads)
      store_output(args, batch, head, first_row<Together>() + item / quads, item % quads, Quad{});
  }
}

template <bool Bf16, int Together>
PAGODA_DEVICE void decode_block(const Args& args) {
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const Place at{shared_address(memory)};
  if (warp == 0) {
    const auto init = [&](int i, int arrivals) {
      if (lane == i) barrier_init(at.barrier(i), arrivals);
    };
    init(Shared::q_full, 1), init(Shared::q_empty, 8);
    init(Shared::p_full, 4);
    init(Shared::state_full, 8), init(Shared::state_empty, 8);
    for (int i = 0; i < 2; ++i) init(Shared::p_empty + i, 8), init(Shared::turn + i, 4);
    for (int i = 0; i < stages; ++i) init(Shared::full + i, 1);
    for (int i = Shared::empty; i < Shared::count; ++i) init(i, 8);
    barrier_init_done();
    if (lane == 0) prefetch_map(&args.k_map), prefetch_map(&args.q_map);
  }
  if (warp >= 8) {
    give_registers<96>();
    score_tiles<Bf16, Together>(args, at, memory, warp / 4 - 2, warp % 4, lane);
    take_registers<128>();
  } else {
    take_registers<160>();
    add_values<Bf16, Together>(args, at, memory, warp / 4, warp % 4, lane);
    give_registers<128>();
  }
  finish<Together>(args, memory, warp, lane);
}

template <bool Bf16, int Together>
__global__ void __launch_bounds__(threads, 1) decode_kernel(const __grid_constant__ Args args) {
#if PAGODA_SM90A
  decode_block<Bf16, Together>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::many
