// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/partials.cuh"
#include "backends/cuda/tuned/warp/option_args.hpp"
#include "backends/cuda/tuned/warp/visible_tiles.cuh"

/// Merges softmax states: those of a block's warps in shared memory, those of a batch head's blocks through device
/// memory.
namespace pagoda::tuned::warp {

/// Four dims of a query row's weighted values, with the row's maximum (base 2) and sum. Operations that the compiler
/// could fuse in two ways are named, so that the same sum has the same bits wherever it is compiled
/// (pagoda::Exactness).
struct QuadState {
  float4 values = {0, 0, 0, 0};
  float row_max = initial_max, row_sum = 0;

  /// Adds N states at once, so that their weights do not depend on each other.
  template <int N>
  PAGODA_DEVICE void add(const float4 (&v)[N], const float2 (&states)[N]) {
    float new_max = row_max;
#pragma unroll
    for (const float2& s : states) new_max = fmaxf(new_max, s.x);
    rescale(new_max);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float weight = exp2_fast(states[i].x - new_max);
      row_sum            = __fmaf_rn(states[i].y, weight, row_sum);
      values             = make_float4(__fmaf_rn(v[i].x, weight, values.x), __fmaf_rn(v[i].y, weight, values.y),
                                       __fmaf_rn(v[i].z, weight, values.z), __fmaf_rn(v[i].w, weight, values.w));
    }
  }
  /// Adds one state.
  PAGODA_DEVICE void add(const QuadState& o) {
    const float4 v[1] = {o.values};
    const float2 s[1] = {make_float2(o.row_max, o.row_sum)};
    add(v, s);
  }
  PAGODA_DEVICE void rescale(float new_max) {
    const float correction = exp2_fast(row_max - new_max);
    row_max = new_max, row_sum = __fmul_rn(row_sum, correction);
    values = make_float4(__fmul_rn(values.x, correction), __fmul_rn(values.y, correction),
                         __fmul_rn(values.z, correction), __fmul_rn(values.w, correction));
  }
  /// The state of another lane.
  PAGODA_DEVICE QuadState of_lane(int lane) const {
    const auto get = [&](float x) { return __shfl_sync(~0u, x, lane); };
    return {make_float4(get(values.x), get(values.y), get(values.z), get(values.w)), get(row_max), get(row_sum)};
  }
  /// Adds the states of a group of neighbouring lanes, whose number is a power of two. All lanes get the sum.
  PAGODA_DEVICE void add_lanes(int lanes) {
    float new_max = row_max;
    for (int d = lanes / 2; d >= 1; d /= 2) new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, d));
    rescale(new_max);
    for (int d = lanes / 2; d >= 1; d /= 2) {
      row_sum += __shfl_xor_sync(~0u, row_sum, d);
      values.x += __shfl_xor_sync(~0u, values.x, d), values.y += __shfl_xor_sync(~0u, values.y, d);
      values.z += __shfl_xor_sync(~0u, values.z, d), values.w += __shfl_xor_sync(~0u, values.w, d);
    }
  }
};

/// Stores four dims of an output, from element `at` on.
PAGODA_DEVICE void store_quad(const Heads& out, std::int64_t at, const float4& v, float weight) {
  const float4 y = {v.x * weight, v.y * weight, v.z * weight, v.w * weight};
  if (out.type == Type::fp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(out.data) + at) = y;
  } else {
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(out.data) + at) =
        out.type == Type::bf16 ? make_uint2(pack<true>(y.x, y.y), pack<true>(y.z, y.w))
                               : make_uint2(pack<false>(y.x, y.y), pack<false>(y.z, y.w));
  }
}

/// Stores dims 4 quad to 4 quad + 3 of a finished query row, and with the first of them its log-sum-exp. r: query head,
/// counted from the first of the kv head, or of the kv heads that are read at once. An entry without query tokens has
/// no outputs.
template <class Args>
PAGODA_DEVICE void store_output(const Args& a, int batch, int kv_head, int r, int quad, const QuadState& x) {
  const EntryView entry = entry_of(a, batch);
  if (entry.queries == 0) return;
  const int head = kv_head * a.group_size + r;
  const FinishedRow done(a, head, x.row_max, x.row_sum);
  float weight = done.weight;
  if (a.v.scale && x.row_sum != 0) weight *= __ldg(a.v.scale + a.kv_group.divide(head) * a.v.scale_head);
  const std::int64_t row = entry.query_begin;
  store_quad(a.out, row * a.out.token + head * a.out.head + 4 * quad, x.values, weight);
  if (quad == 0 && a.lse) store_lse_at(a, row * a.lse_token + head * a.lse_head, done.row_max, done.row_sum);
}

/// Where the partial result of an output quad lies.
struct QuadPlace {
  float4* values;
  float2* state;
};
PAGODA_DEVICE QuadPlace place_of(QuadPartial* at) { return {&at->values, &at->state}; }

PAGODA_DEVICE void publish(const QuadPlace& to, const QuadState& x) {
  store_relaxed_gpu4(to.values, avoid_sentinel(x.values));
  // The maximum is the result of fmaxf with a number, so it is no NaN.
  store_relaxed_gpu2(to.state, make_float2(x.row_max, avoid_sentinel(x.row_sum)));
}
PAGODA_DEVICE void reset(const QuadPlace& at) {
  store_sentinels(at.values);
  store_sentinels(at.state);
}

/// One of a block's two places for partial results (see PendingJoin).
PAGODA_DEVICE QuadPartial* partials_of(const Args& a, int block, bool has_first_tile, int num_quads) {
  return a.partials + static_cast<std::int64_t>(2 * block + has_first_tile) * num_quads;
}

/// Loads N partial results of an output quad, waits until they have been written, and resets their places. place(u):
/// where partial result u lies; wanted(u): whether there is one. Others get empty states.
template <int N, class Place, class Wanted>
PAGODA_DEVICE void take_partials(const Place& place, const Wanted& wanted, float4 (&v)[N], float2 (&s)[N]) {
  bool waits[N];
#pragma unroll
  for (int u = 0; u < N; ++u) waits[u] = wanted(u), v[u] = make_float4(0, 0, 0, 0), s[u] = make_float2(initial_max, 0);
  for (bool again = true; again;) {
#pragma unroll
    for (int u = 0; u < N; ++u) {
      if (!waits[u]) continue;
      const QuadPlace from = place(u);
      v[u] = load_relaxed_gpu4(from.values), s[u] = load_relaxed_gpu2(from.state);
    }
    again = false;
#pragma unroll
    for (int u = 0; u < N; ++u) {
      if (!waits[u]) continue;
      waits[u] = !(is_written(v[u]) && is_written(s[u].x) && is_written(s[u].y));
      again |= waits[u];
    }
  }
#pragma unroll
  for (int u = 0; u < N; ++u)
    if (wanted(u)) reset(place(u));
}

/// Adds the partial results of one output quad to x: splits first_split, first_split + lanes and so on, Unroll at once.
/// place(p): where that of split p lies.
template <int Unroll, class Place>
PAGODA_DEVICE void join_quad(const Place& place, int first_split, int num_splits, int lanes, QuadState& x) {
  for (int p0 = first_split; p0 < num_splits; p0 += Unroll * lanes) {
    float4 v[Unroll];
    float2 s[Unroll];
    take_partials<Unroll>([&](int u) { return place(p0 + u * lanes); },
                          [&](int u) { return p0 + u * lanes < num_splits; }, v, s);
    x.add(v, s);
  }
}

/// Joins output quads begin to end - 1 of a batch head, lanes over splits, and calls store(quad, state) for each.
/// place(split, quad): where a partial result lies.
template <int Warps, class Place, class Store>
PAGODA_DEVICE void join_quads(int begin, int end, int num_splits, int warp, int lane, const Place& place,
                              const Store& store) {
  const int log = num_splits >= 32 ? 5 : 32 - __clz(num_splits - 1), lanes = 1 << log;
  const int quads_at_once = 32 >> log, first_split = lane & (lanes - 1), which = lane >> log;
  for (int first = begin + warp * quads_at_once; first < end; first += Warps * quads_at_once) {
    const int i = first + which;
    QuadState x;
    if (i < end) {
      const auto split = [&](int p) { return place(p, i); };
      num_splits <= 32 ? join_quad<1>(split, first_split, num_splits, lanes, x)
                       : join_quad<3>(split, first_split, num_splits, lanes, x);
    }
    __syncwarp();
    x.add_lanes(lanes);
    if (i < end && first_split == 0) store(i, x);
  }
}
/// The places of blocks, or warps, that have two each. first: first place of that with the first split; step: from one
/// to the next.
PAGODA_DEVICE auto places_two_each(QuadPartial* first, int num_quads, int step) {
  // The batch head begins in the share of its first block, which has it in its second place.
  return [=](int split, int quad) { return place_of(first + quad + (split * step + (split == 0 ? num_quads : 0))); };
}

/// Joins a batch head's splits: each of its blocks joins a slice of the output quads.
template <int Warps, class Args>
PAGODA_DEVICE void join_slice(const Args& a, const PendingJoin& join, int num_quads, int quads_per_row, int warp,
                              int lane) {
  const int num_splits = join.num_splits();
  const int slice = num_splits == a.num_splits.value ? a.quads_per_join : (num_quads + num_splits - 1) / num_splits;
  const int begin = (static_cast<int>(blockIdx.x) - join.first_block) * slice, end = min(num_quads, begin + slice);
  join_quads<Warps>(begin, end, num_splits, warp, lane,
                    places_two_each(partials_of(a, join.first_block, false, num_quads), num_quads, 2 * num_quads),
                    [&](int i, const QuadState& x) {
                      store_output(a, join.batch, join.head, i / quads_per_row, i % quads_per_row, x);
                    });
}

}  // namespace pagoda::tuned::warp
