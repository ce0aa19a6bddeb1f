// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/tuning.hpp"
#include "backends/cuda/tuned/warp/join.cuh"
#include "backends/cuda/tuned/warp/product_fma.cuh"
#include "backends/cuda/tuned/warp/tiles.cuh"

namespace pagoda::tuned {

/// Page ids ahead of their use: a lane holds the source of one of the next 32 tiles of the warp, and soon of one of the
/// 32 after them.
class Pages {
 public:
  PAGODA_DEVICE void begin(const Args& a, const Segment& s, int lane) {
    next_ = s.first + lane * s.step, step_ = 32 * s.step, sequence_ = s.sequence;
    row_ = a.has_indptr ? __ldg(a.page_indptr + s.sequence) : s.sequence * a.table_row;
    now_ = look_up(a);
  }
  PAGODA_DEVICE void ask_ahead(const Args& a) { ahead_ = look_up(a); }
  PAGODA_DEVICE void turn() { now_ = ahead_; }
  PAGODA_DEVICE Source now() const { return now_; }

 private:
  /// Beyond a row's end its last entry again, so that nothing behind the table is read.
  PAGODA_DEVICE Source look_up(const Args& a) {
    const int tile = next_;
    next_ += step_;
    if (!a.block_table) return {sequence_, tile * 16};
    const int index = a.tiles_per_page.divide(tile), last = a.has_indptr ? a.last_page - row_ : a.last_page;
    return {__ldg(a.block_table + (row_ + min(index, last) * a.table_page)),
            (tile - index * a.tiles_per_page.value) * 16};
  }
  int row_ = 0, next_ = 0, step_ = 0, sequence_ = 0;
  Source now_{}, ahead_{};
};

/// Whether a tile holds one of the newest 16 tokens of a sequence, which the kernel before may still write. These lie
/// in the last two tiles, unless the length is a multiple of 16.
PAGODA_DEVICE bool has_newest_16(int tile, int len) { return 16 * (tile + 2) > len; }

/// Decode attention in one launch. Every warp has a ring of stages of its own, tiles of keys and values, and waits for
/// nobody but its copies; a stage is filled again as soon as it has been used, across rows. Warps of a block meet at
/// the end of a row's part, blocks of a row at the kernel's end.
template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages>
PAGODA_DEVICE void decode_block(const Args& args) {
  using Shape = Tile<T, D>;
  using Query = typename Rows<T, D, QueryRows>::Query;
  extern __shared__ __align__(1024) char memory[];
  const SharedLayout layout = shared_layout(Shape::bytes, D, args.group, Warps, Stages);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const std::uint32_t ring = shared_address(memory) + warp * Stages * 2 * Shape::bytes;
  float* const values      = reinterpret_cast<float*>(memory + layout.values);
  float2* const states     = reinterpret_cast<float2*>(memory + layout.states);

  // The producer: tiles of the warp, in order, across segments.
  auto walk_ahead = Walk<Warps>::dealt(args, warp);
  Segment ahead;
  Pages pages;
  int in_segment = 0;
  bool more = false, streams = args.streams;
  const auto ask = [&] {
    more = walk_ahead.next(args, ahead);
    if (more) pages.begin(args, ahead, lane);  // asked for before the length is known
  };
  if (!streams) [[likely]]
    ask();

  // The consumer, at first where the producer is. While lengths and page ids are on their way it asks for the queries:
  // behind the first copies they would wait for all of them.
  auto walk = walk_ahead;
  Segment s = ahead;
  bool any  = more;
  Rows<T, D, QueryRows> rows(lane);
  const auto begin_rows = [&] {
    rows.begin(static_cast<const Query*>(args.q.data) + s.batch * args.q.batch + s.head * args.group * args.q.head,
               args.q.head, args.group);
  };
  bool early = Copies::uses_maps && args.early;
  if (any && !early) begin_rows();
  Copies::prefetch(args);
  const Lengths lengths(args, lane);
  Copies copies(args, ring, shared_address(memory + layout.barriers) + warp * 8 * Stages, lane);

  Ring<Stages> issued, used;
  const auto skip = [&] {
    while (more && ahead.first >= ahead.end()) ask();
    in_segment = 0;
  };
  const auto begin_copy = [&] {
    if (!more) return copies.begin_none();
    copies.begin(issued.slot, lane == (in_segment & 31), in_segment & 31, pages.now(), ahead.head);
    issued.next();
    ahead.first += ahead.step;
    if (ahead.first >= ahead.end()) {
      skip();
    } else if ((++in_segment & 15) == 0) {
      in_segment & 16 ? pages.ask_ahead(args) : pages.turn();
    }
  };
  if (!streams) skip();
  // Twice if the batch is not even after all: what was copied for rows that are dealt is of no use then.
#pragma unroll 1
  for (bool again = streams;; again = true) {
    if (again) [[unlikely]] {
      walk = walk_ahead = Walk<Warps>::streamed(args, warp, lane, lengths.count(args, lane).tiles);
      ask(), skip();
      any = walk.next(args, s);
      if (any) begin_rows();
    }
#pragma unroll 1
    for (int i = 0; i < Stages || early;) {
      if (early && (i == Stages || (more && has_newest_16(ahead.first, ahead.len)))) [[unlikely]] {
        wait_for_kernel_before();
        let_kernel_behind_start();  // after the wait: the kernel behind may read what the kernel before wrote
        early = false;
        if (any) begin_rows();
        continue;
      }
      begin_copy();
      ++i;
    }
    if (streams || args.alone || lengths.count(args, lane).even) break;
    streams = true;
    copies.drain(used, issued);
  }

  const int quads = D / 4, items = args.group * quads;
  Debt begun{0, 0, 0, -1}, continued{0, 0, 0, -1};
  bool again = false;
  while (any) {
    const int end = s.end();
    // A row that is dealt has no more parts than tiles, and one if it has none.
    const int last = streams ? s.to : min(s.to, s.from + max(end, 1) - 1);
    if (blockIdx.x > last) break;
    const bool whole  = s.from >= last;
    const float scale = args.scale * (args.k.scale ? __ldg(args.k.scale + s.head * args.k.scale_head) : 1.0f);
    for (int tile = s.first; tile < end; tile += s.step) {
      copies.wait(used);
      const std::uint32_t keys = ring + used.slot * 2 * Shape::bytes;
      rows.template add<Copies>(keys, keys + Shape::bytes, s.len - tile * Shape::tokens, scale);
      __syncwarp();  // all have read the stage
      used.next();
      begin_copy();
    }

    // Warps to a block.
    const auto sync = [] { Warps == 1 ? __syncwarp() : __syncthreads(); };
    if (again) sync();  // all have read the last row's
    rows.end(states + warp * 8, values + warp * args.group * (D + 4), D + 4, args.group);
    sync();
    Record* const to = whole ? nullptr : records_of(args, blockIdx.x, s.begins, items);
    for (int item = threadIdx.x; item < items; item += Warps * 32) {
      const int r = item / quads, quad = item % quads;
      float4 v[Warps];
      float2 state[Warps];
#pragma unroll
      for (int w = 0; w < Warps; ++w) {
        state[w] = states[w * 8 + r];
        v[w]     = *reinterpret_cast<const float4*>(values + (w * args.group + r) * (D + 4) + 4 * quad);
      }
      Quad x;
      x.add(v, state);
      if (whole) {
        store_output(args, s.batch, s.head, r, quad, x);
      } else {
        send(to + item, x.values, x.most, x.sum);
      }
    }
    if (!whole) (s.begins ? begun : continued) = {s.batch, s.head, s.from, last};
    again = true;
    any   = walk.next(args, s);
    if (any) begin_rows();
  }

  // Blocks to a row. All of a block's own parts are sent before it waits for others'.
  if (continued.to >= continued.from) join_slice<Warps>(args, continued, items, quads, warp, lane);
  if (begun.to >= begun.from) join_slice<Warps>(args, begun, items, quads, warp, lane);

  // Sequences without tokens are in nobody's stream.
  if (streams) {
    for (int row = blockIdx.x; row < args.batch * args.num_kv_heads.value; row += gridDim.x) {
      const int batch = args.num_kv_heads.divide(row);
      if (length_of(args, batch) > 0) continue;
      for (int item = threadIdx.x; item < items; item += Warps * 32)
        store_output(args, batch, row - batch * args.num_kv_heads.value, item / quads, item % quads, Quad{});
    }
  }
}

/// An architecture that lacks what a kernel needs gets no code for it, and is never given it (Device, why_not).
template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages>
__global__ void __launch_bounds__(Warps * 32, warps_per_sm / Warps) decode_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH__)
  if constexpr (__CUDA_ARCH__ >= (Copies::uses_maps || Tile<T, D>::element_bytes == 1 ? 900 : 800))
    decode_block<T, D, QueryRows, Copies, Warps, Stages>(args);
  else
    __trap();
#endif
}

}  // namespace pagoda::tuned
