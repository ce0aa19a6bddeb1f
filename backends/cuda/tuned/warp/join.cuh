// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/partials.cuh"
#include "backends/cuda/tuned/warp/option_args.hpp"

/// Merges softmax states: those of a block's warps in shared memory, those of a batch head's blocks through device
/// memory.
namespace pagoda::tuned::warp {

/// Four dims of a query row's weighted values, with the row's maximum (base 2) and sum.
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
      row_sum += states[i].y * weight;
      values.x += v[i].x * weight, values.y += v[i].y * weight;
      values.z += v[i].z * weight, values.w += v[i].w * weight;
    }
  }
  PAGODA_DEVICE void rescale(float new_max) {
    const float correction = exp2_fast(row_max - new_max);
    row_max                = new_max, row_sum *= correction;
    values.x *= correction, values.y *= correction, values.z *= correction, values.w *= correction;
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

/// Adds the attention sink of a query head to a finished row: a token without a value.
PAGODA_DEVICE void add_sink(const Args&, int, QuadState&) {}
PAGODA_DEVICE void add_sink(const OptionArgs& a, int head, QuadState& x) {
  if (!a.sinks) return;
  const float sink = __ldg(a.sinks + head) * 1.44269504088896f;  // base 2, as row_max is
  x.rescale(fmaxf(x.row_max, sink));
  x.row_sum += exp2_fast(sink - x.row_max);
}

/// Stores dims 4 quad to 4 quad + 3 of a finished query row, and with the first of them its log-sum-exp. r: query head,
/// counted from the first of the kv head, or of the kv heads that are read at once.
template <class Args>
PAGODA_DEVICE void store_output(const Args& a, int batch, int kv_head, int r, int quad, QuadState x) {
  const int head       = kv_head * a.group_size + r;
  const bool sees_none = x.row_sum == 0;  // its value scale is not read
  add_sink(a, head, x);
  float weight = 0;
  if (x.row_sum != 0) {
    weight = reciprocal(x.row_sum);
    if (a.v.scale && !sees_none) weight *= __ldg(a.v.scale + a.kv_group.divide(head) * a.v.scale_head);
  }
  store_quad(a.out, batch * a.out.token + head * a.out.head + 4 * quad, x.values, weight);
  if (quad == 0 && a.lse) store_lse_at(a, batch * a.lse_token + head * a.lse_head, x.row_max, x.row_sum);
}

PAGODA_DEVICE void publish(QuadPartial* to, const QuadState& x) {
  store_relaxed_gpu4(&to->values, avoid_sentinel(x.values));
  // The maximum is the result of fmaxf with a number, so it is no NaN.
  store_relaxed_gpu2(&to->state, make_float2(x.row_max, avoid_sentinel(x.row_sum)));
}
PAGODA_DEVICE void reset(QuadPartial* at) {
  store_sentinels(&at->values);
  store_sentinels(&at->state);
}

/// One of a block's two places for partial results (see PendingJoin).
PAGODA_DEVICE QuadPartial* partials_of(const Args& a, int block, bool has_first_tile, int num_quads) {
  return a.partials + static_cast<std::int64_t>(2 * block + has_first_tile) * num_quads;
}

/// Adds the partial results of one output quad to x: splits first_split, first_split + lanes and so on, Unroll at once.
/// from: the quad in the first place of the first block; step: quads from one block to the next.
template <int Unroll>
PAGODA_DEVICE void join_quad(QuadPartial* from, int step, int num_quads, int first_split, int num_splits, int lanes,
                             QuadState& x) {
  for (int p0 = first_split; p0 < num_splits; p0 += Unroll * lanes) {
    float4 v[Unroll];
    float2 s[Unroll];
    bool waits[Unroll];
    // The batch head begins in the share of its first block, which has it in its second place.
    const auto partial = [&](int u) {
      const int p = p0 + u * lanes;
      return from + (p * step + (p == 0 ? num_quads : 0));
    };
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      waits[u] = p0 + u * lanes < num_splits;
      v[u] = make_float4(0, 0, 0, 0), s[u] = make_float2(initial_max, 0);
    }
    for (bool again = true; again;) {
#pragma unroll
      for (int u = 0; u < Unroll; ++u)
        if (waits[u]) v[u] = load_relaxed_gpu4(&partial(u)->values), s[u] = load_relaxed_gpu2(&partial(u)->state);
      again = false;
#pragma unroll
      for (int u = 0; u < Unroll; ++u) {
        if (!waits[u]) continue;
        waits[u] = !(is_written(v[u].x) && is_written(v[u].y) && is_written(v[u].z) && is_written(v[u].w) &&
                     is_written(s[u].x) && is_written(s[u].y));
        again |= waits[u];
      }
    }
#pragma unroll
    for (int u = 0; u < Unroll; ++u)
      if (p0 + u * lanes < num_splits) reset(partial(u));
    x.add(v, s);
  }
}

/// Joins output quads begin to end - 1 of a batch head, lanes over splits, and calls store(quad, state) for each.
/// places: first place for partial results of the first split; the second one is num_quads further, those of the next
/// split step.
template <int Warps, class Store>
PAGODA_DEVICE void join_quads(QuadPartial* places, int num_quads, int step, int begin, int end, int num_splits,
                              int warp, int lane, const Store& store) {
  const int log = num_splits >= 32 ? 5 : 32 - __clz(num_splits - 1), lanes = 1 << log;
  const int quads_at_once = 32 >> log, first_split = lane & (lanes - 1), which = lane >> log;
  for (int first = begin + warp * quads_at_once; first < end; first += Warps * quads_at_once) {
    const int i = first + which;
    QuadState x;
    if (i < end) {
      QuadPartial* const from = places + i;
      num_splits <= 32 ? join_quad<1>(from, step, num_quads, first_split, num_splits, lanes, x)
                       : join_quad<3>(from, step, num_quads, first_split, num_splits, lanes, x);
    }
    __syncwarp();
    x.add_lanes(lanes);
    if (i < end && first_split == 0) store(i, x);
  }
}

/// Joins a batch head's splits: each of its blocks joins a slice of the output quads.
template <int Warps, class Args>
PAGODA_DEVICE void join_slice(const Args& a, const PendingJoin& join, int num_quads, int quads_per_row, int warp,
                              int lane) {
  const int num_splits = join.num_splits();
  const int slice = num_splits == a.num_splits.value ? a.quads_per_join : (num_quads + num_splits - 1) / num_splits;
  const int begin = (static_cast<int>(blockIdx.x) - join.first_block) * slice, end = min(num_quads, begin + slice);
  join_quads<Warps>(partials_of(a, join.first_block, false, num_quads), num_quads, 2 * num_quads, begin, end,
                    num_splits, warp, lane, [&](int i, const QuadState& x) {
                      store_output(a, join.batch, join.head, i / quads_per_row, i % quads_per_row, x);
                    });
}

}  // namespace pagoda::tuned::warp
