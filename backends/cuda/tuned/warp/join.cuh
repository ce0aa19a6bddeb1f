// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/common/segments.cuh"

/// Joining softmax states: of a block's warps in shared memory, of a row's blocks through device memory.
namespace pagoda::tuned {

using namespace ptx;

/// Four dims of a row's weighted values with the row's maximum (base 2) and sum.
struct Quad {
  float4 values = {0, 0, 0, 0};
  float most = lowest, sum = 0;

  static constexpr float lowest = -1e30f;  ///< a number, so that differences with it are

  /// Adds N states at once: their weights do not wait for each other.
  template <int N>
  PAGODA_DEVICE void add(const float4 (&v)[N], const float2 (&states)[N]) {
    float base = most;
#pragma unroll
    for (const float2& s : states) base = fmaxf(base, s.x);
    rescale(base);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float weight = exp2_fast(states[i].x - base);
      sum += states[i].y * weight;
      values.x += v[i].x * weight, values.y += v[i].y * weight;
      values.z += v[i].z * weight, values.w += v[i].w * weight;
    }
  }
  PAGODA_DEVICE void rescale(float base) {
    const float kept = exp2_fast(most - base);
    most             = base, sum *= kept;
    values.x *= kept, values.y *= kept, values.z *= kept, values.w *= kept;
  }
  /// Over groups of so many lanes, a power of two, that are `step` lanes apart.
  PAGODA_DEVICE void add_lanes(int lanes, int step = 1) {
    float base = most;
    for (int d = lanes * step / 2; d >= step; d /= 2) base = fmaxf(base, __shfl_xor_sync(~0u, base, d));
    rescale(base);
    for (int d = lanes * step / 2; d >= step; d /= 2) {
      sum += __shfl_xor_sync(~0u, sum, d);
      values.x += __shfl_xor_sync(~0u, values.x, d), values.y += __shfl_xor_sync(~0u, values.y, d);
      values.z += __shfl_xor_sync(~0u, values.z, d), values.w += __shfl_xor_sync(~0u, values.w, d);
    }
  }
};

/// The log-sum-exp of a finished row. A sum of 0 means that the row sees no token; a NaN stays a NaN.
PAGODA_DEVICE void store_lse_at(const Args& a, std::int64_t i, float most, float sum) {
  const float lse = sum == 0 ? -INFINITY : (most + __log2f(sum)) * 0.693147180559945f;
  if (a.lse_double) {
    static_cast<double*>(a.lse)[i] = lse;
  } else {
    static_cast<float*>(a.lse)[i] = lse;
  }
}
PAGODA_DEVICE void store_lse(const Args& a, int batch, int head, float most, float sum) {
  store_lse_at(a, batch * a.lse_batch + head * a.lse_head, most, sum);
}

/// Dims 4 quad .. + 4 of a finished row, and with the first of them its log-sum-exp.
PAGODA_DEVICE void store_output(const Args& a, int batch, int kv_head, int r, int quad, const Quad& x) {
  const int head = kv_head * a.group + r;
  float weight   = 0;  // of a row that sees no token: its value scale is not read
  if (x.sum != 0) weight = reciprocal(x.sum) * (a.v.scale ? __ldg(a.v.scale + kv_head * a.v.scale_head) : 1.0f);
  const float4 y        = {x.values.x * weight, x.values.y * weight, x.values.z * weight, x.values.w * weight};
  const std::int64_t at = batch * a.out.batch + head * a.out.head + 4 * quad;
  if (a.out.type == Type::fp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.out.data) + at) = y;
  } else {
    const bool bf16 = a.out.type == Type::bf16;
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(a.out.data) + at) =
        bf16 ? make_uint2(pack<true>(y.x, y.y), pack<true>(y.z, y.w))
             : make_uint2(pack<false>(y.x, y.y), pack<false>(y.z, y.w));
  }
  if (quad == 0 && a.lse) store_lse(a, batch, head, x.most, x.sum);
}

/// Partial results travel without flags or fences: a reader polls each word until it is no longer the sentinel, and
/// then writes the sentinel back. The sentinel is one of the NaNs.
constexpr std::uint32_t no_number = 0xffffffffu;

PAGODA_DEVICE bool is_number(float x) { return __float_as_uint(x) != no_number; }

/// The same number, but never the sentinel: another NaN instead. Without this a NaN could keep a reader polling for
/// ever.
PAGODA_DEVICE float not_sentinel(float x) { return __uint_as_float(min(__float_as_uint(x), no_number - 1)); }
PAGODA_DEVICE float4 not_sentinel(const float4& v) {
  return make_float4(not_sentinel(v.x), not_sentinel(v.y), not_sentinel(v.z), not_sentinel(v.w));
}

PAGODA_DEVICE void send(Record* to, const float4& values, float most, float sum) {
  store_shared_word4(&to->values, not_sentinel(values));
  store_shared_word2(&to->state, make_float2(most, not_sentinel(sum)));  // most is the result of fmaxf with a number
}
PAGODA_DEVICE void clear(Record* at) {
  const float none = __uint_as_float(no_number);
  store_shared_word4(&at->values, make_float4(none, none, none, none));
  store_shared_word2(&at->state, make_float2(none, none));
}

/// A block's two places: of the row that began before its share, and of the row that its share begins.
PAGODA_DEVICE Record* records_of(const Args& a, int block, bool begins, int items) {
  return a.records + static_cast<std::int64_t>(2 * block + begins) * items;
}

/// What a block still owes to a row that it shares with others.
struct Debt {
  int batch, head, from, to;  ///< to < from: nothing
};

/// Joins the records of one item, lanes over blocks of the row, `Each` at once by a lane. from: of the row's first
/// block; step: between blocks.
template <int Each>
PAGODA_DEVICE void join_records(Record* from, int step, int items, int part, int parts, int lanes, Quad& x) {
  for (int p0 = part; p0 < parts; p0 += Each * lanes) {
    float4 v[Each];
    float2 s[Each];
    bool waits[Each];
    // The row's first block has it in its second place.
    const auto record = [&](int u) {
      const int p = p0 + u * lanes;
      return from + (p * step + (p == 0 ? items : 0));
    };
#pragma unroll
    for (int u = 0; u < Each; ++u) {
      waits[u] = p0 + u * lanes < parts;
      v[u] = make_float4(0, 0, 0, 0), s[u] = make_float2(Quad::lowest, 0);
    }
    for (bool again = true; again;) {
#pragma unroll
      for (int u = 0; u < Each; ++u)
        if (waits[u]) v[u] = load_shared_word4(&record(u)->values), s[u] = load_shared_word2(&record(u)->state);
      again = false;
#pragma unroll
      for (int u = 0; u < Each; ++u) {
        if (!waits[u]) continue;
        waits[u] = !(is_number(v[u].x) && is_number(v[u].y) && is_number(v[u].z) && is_number(v[u].w) &&
                     is_number(s[u].x) && is_number(s[u].y));
        again |= waits[u];
      }
    }
#pragma unroll
    for (int u = 0; u < Each; ++u)
      if (p0 + u * lanes < parts) clear(record(u));
    x.add(v, s);
  }
}

/// Each block of a row joins a slice of the row's items.
template <int Warps>
PAGODA_DEVICE void join_slice(const Args& a, const Debt& d, int items, int quads, int warp, int lane) {
  const int parts = d.to - d.from + 1;
  const int slice = parts == a.pieces.value ? a.slice : (items + parts - 1) / parts;
  const int begin = (static_cast<int>(blockIdx.x) - d.from) * slice, end = min(items, begin + slice);
  const int log = parts >= 32 ? 5 : 32 - __clz(parts - 1), lanes = 1 << log;
  const int at_once = 32 >> log, part = lane & (lanes - 1), which = lane >> log;
  for (int first = begin + warp * at_once; first < end; first += Warps * at_once) {
    const int item = first + which;
    Quad x;
    if (item < end) {
      Record* const from = records_of(a, d.from, false, items) + item;
      parts <= 32 ? join_records<1>(from, 2 * items, items, part, parts, lanes, x)
                  : join_records<3>(from, 2 * items, items, part, parts, lanes, x);
    }
    __syncwarp();
    x.add_lanes(lanes);
    if (item < end && part == 0) store_output(a, d.batch, d.head, item / quads, item % quads, x);
  }
}

}  // namespace pagoda::tuned
