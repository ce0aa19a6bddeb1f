// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/output.cuh"

/// Parts of rows that several blocks share, through device memory.
namespace pagoda::tuned::wgmma {

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

/// Each block of a row joins a slice of its units, as many warps to a unit as there are. memory: of the block, unused
/// by now.
template <int Together, int DimsV, int Threads>
PAGODA_DEVICE void join_parts(const Args& args, const Debt& d, char* memory, int warp, int lane) {
  constexpr int warps = Threads / 32, across = units_of_16_rows(DimsV);
  const int here = rows_here<Together>(args), parts = d.to - d.from + 1, units = (here + 15) / 16 * across;
  const int slice = (units + parts - 1) / parts;
  const int begin = (Course<Together>::Steps::block() - d.from) * slice, end = min(units, begin + slice);
  int split = 1;
  while (split < warps && split * (end - begin) < warps && split < parts) split *= 2;
  const int which = warp / split, first_part = warp % split;
  const auto place = [&](int p, int unit) {  // the row's first block has it in its second place
    return part_of(args, (d.from + p) * Together + static_cast<int>(blockIdx.x % Together), p == 0) + unit * unit_quads;
  };
  Unit* const shared = reinterpret_cast<Unit*>(memory);
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
      sync_block<Threads>();
      if (first_part == 0)
#pragma unroll 1
        for (int w = 1; w < split; ++w) x.add(shared[threadIdx.x + 32 * w]);
      sync_block<Threads>();  // before the next are written
    }
    if (unit >= end || first_part != 0) continue;
    const int r = unit / across * 16 + lane / 4, dim = unit % across * 16 + lane % 4 * 2;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      if (r + 8 * below >= here) continue;
      const QueryRow row(args, d.head, first_row<Together>() + r + 8 * below);
      const float most = below ? x.state.z : x.state.x, sum = below ? x.state.w : x.state.y, weight = weight_of(sum);
      store_two(args, row, d.batch, dim, (below ? x.a.z : x.a.x) * weight, (below ? x.a.w : x.a.y) * weight);
      store_two(args, row, d.batch, dim + 8, (below ? x.b.z : x.b.x) * weight, (below ? x.b.w : x.b.y) * weight);
      if (dim == 0 && args.lse) store_lse(args, row, d.batch, most, sum);
    }
  }
}

/// What is left when all of a block's own parts have been sent: rows that it shares with others, and rows of sequences
/// without tokens, which are in nobody's share. By all of its threads. debts: of the row that began before the block's
/// share, and of the one that its share begins.
template <int Together, int DimsV, int Threads>
PAGODA_DEVICE void finish(const Args& args, const Debt* debts, char* memory, int warp, int lane) {
  using Steps = typename Course<Together>::Steps;
  sync_block<Threads>();
#pragma unroll 1
  for (int begins = 0; begins < 2; ++begins) {
    const Debt debt = debts[begins];
    if (debt.to >= debt.from) join_parts<Together, DimsV, Threads>(args, debt, memory, warp, lane);
  }
  for (int r = Steps::block(); r < args.batch * args.num_kv_heads.value; r += Steps::blocks()) {
    const int batch = args.num_kv_heads.divide(r), head = r - batch * args.num_kv_heads.value;
    if (length_of(args, batch) > 0) continue;
    constexpr int pairs = DimsV / 2;
    for (int item = threadIdx.x; item < rows_here<Together>(args) * pairs; item += Threads) {
      const QueryRow row(args, head, first_row<Together>() + item / pairs);
      store_two(args, row, batch, item % pairs * 2, 0, 0);
      if (item % pairs == 0 && args.lse) store_lse(args, row, batch, Quad::lowest, 0);
    }
  }
}

}  // namespace pagoda::tuned::wgmma
