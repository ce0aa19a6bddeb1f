// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/wgmma/launch.hpp"

#include "backends/cuda/tuned/common/driver.hpp"
#include "backends/cuda/tuned/launch_shape.hpp"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/grouped/kernels.hpp"
#include "backends/cuda/tuned/wgmma/grouped/shapes.hpp"
#include "backends/cuda/tuned/wgmma/latent/kernels.hpp"
#include "backends/cuda/tuned/wgmma/latent/shapes.hpp"

#include <algorithm>

namespace pagoda::tuned::wgmma {

namespace {

int group_of(const Problem& p) { return p.num_q_heads / p.num_kv_heads; }
/// Of a kv head, at most: which kernel is used, and how its workspace is laid out, does not depend on the call.
std::int64_t rows_of(const Problem& p) { return std::int64_t(group_of(p)) * p.most_q_tokens; }
bool is_latent(const Problem& p) { return p.head_dim == latent::head_dim; }

/// What is launched.
struct Kernel {
  const void* function;  ///< null where the build has none: it is not for sm_90
  int threads, shared, together;
  Pace pace;
};
Kernel kernel_for(const Problem& p, const Device& d) {
  const auto all_rows = static_cast<int>(rows_of(p));
  const bool bf16     = p.type == Type::bf16;
  Kernel k{};
  if (is_latent(p)) {
    k = {nullptr, latent::threads, latent::Shared::bytes, latent::together(all_rows), latent::pace(d)};
#if defined(PAGODA_HAS_SM90A)
    k.function = bf16 ? latent::kernel_of<Type::bf16>(k.together) : latent::kernel_of<Type::fp16>(k.together);
#endif
  } else {
    const int groups = grouped::groups(all_rows);
    k                = {nullptr, grouped::threads(groups), grouped::shared(p.head_dim, groups).bytes, 1,
                        grouped::pace(p.head_dim, groups, d)};
#if defined(PAGODA_HAS_SM90A)
    k.function =
        bf16 ? grouped::kernel_of<Type::bf16>(p.head_dim, groups) : grouped::kernel_of<Type::fp16>(p.head_dim, groups);
#endif
  }
  return k;
}
std::int64_t part_quads_of(const Problem& p, const Kernel& k) {
  const auto all_rows = static_cast<int>(rows_of(p));
  return part_quads(k.together == 1 ? all_rows : rows, p.head_dim_v);
}

}  // namespace

bool takes(const Problem& p) {
  if (p.type != Type::fp16 && p.type != Type::bf16) return false;
  if (is_latent(p)) return p.head_dim_v == latent::head_dim_v;
  return (p.head_dim == 64 || p.head_dim == 128) && p.head_dim_v == p.head_dim &&
         (group_of(p) > 8 || p.most_q_tokens > 1);
}

const char* why_not(const Problem& p, const Device& d) {
  if (!d.sm90a)
    return "latent caches, several query tokens and more than 8 query heads to a kv head need a card of sm_90, and a "
           "build for it";
  if (d.shared_per_block < kernel_for(p, d).shared) return "the device has too little shared memory";
  if (rows_of(p) > most_rows) return "more than 128 query heads and tokens share a kv head";
  if (is_latent(p)) {
    if (p.k.data != p.v.data || p.k.token != p.v.token || p.k.head != p.v.head || p.k.page != p.v.page)
      return "values of a latent cache are not the first dims of its keys";
    if (p.most_q_tokens > 1 && (p.num_kv_heads > 1 || group_of(p) % 8 != 0))
      return "several query tokens of a latent cache: its kv heads are not one, or its query heads no multiple of 8";
  }
  if (p.num_q_tokens < 1 || p.num_q_tokens > p.most_q_tokens) return "num_q_tokens is not 1 to most_q_tokens";
  if (!(p.softmax_scale > 0)) return "softmax_scale is not positive";
  if (p.block_table && p.page_size % 8 != 0) return "page_size is not a multiple of 8";
  if (p.q.batch % (8 * p.num_q_tokens) != 0) return "rows of q do not start on 16 bytes";
  if (const int whole = 16 / bytes_of(p.out.type);
      p.out.batch % (whole * p.num_q_tokens) != 0 || p.out.head % whole != 0)
    return "rows of out do not start on 16 bytes";
  return nullptr;
}

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  const Kernel kernel = kernel_for(p, d);
  return sizeof(float4) * 2 * std::size_t(d.num_sms * kernel.pace.blocks_per_sm) *
         std::size_t(part_quads_of(p, kernel));
}

void prepare(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  const Kernel kernel = kernel_for(p, d);
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared),
        "shared memory");
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "shared memory");
  check(cudaMemsetAsync(workspace, 0xff, wgmma::workspace_bytes(p, d), stream), "cudaMemsetAsync");
}

Shape shape_of(const Problem& p, const Device& d) {
  const Kernel kernel = kernel_for(p, d);
  return spread(std::int64_t(p.batch) * p.num_kv_heads, most_tiles(p, tokens), kernel.together, kernel.pace, d);
}

bool decode(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  return wgmma::decode_as(p, d, wgmma::shape_of(p, d), workspace, stream);
}

bool decode_as(const Problem& p, const Device& d, const Shape& shape, void* workspace, CUstream_st* stream) {
  const int group     = group_of(p);
  const Kernel kernel = kernel_for(p, d);
  const auto count    = std::int64_t(p.batch) * p.num_kv_heads;
  Args a{};
  describe(p, 8, shape.pieces, shape.streams, a);
  a.heads = Divisor::of(group), a.rows = group * p.num_q_tokens, a.hidden = p.causal ? p.num_q_tokens - 1 : 0;
  a.q_token   = p.q.batch / p.num_q_tokens;
  a.out_token = p.out.batch / p.num_q_tokens, a.lse_token = p.lse_batch / p.num_q_tokens;
  a.k_map = map_of(p, p.k, 2, 8);
  if (is_latent(p)) {
    const bool several = p.most_q_tokens > 1;  // then there is one kv head, and tokens stand where kv heads do
    a.q_map = map_of({p.q.data, 2, p.head_dim, group, several ? p.num_q_tokens : p.num_kv_heads, p.batch, 2 * p.q.head,
                      2 * (several ? a.q_token : p.q.head * group), 2 * p.q.batch},
                     8);
  } else {
    a.v_map = map_of(p, p.v, 2, 8);
  }
  a.parts = static_cast<float4*>(workspace), a.part_quads = part_quads_of(p, kernel);
  return launch(kernel.function, &a, teams_launched(count, p.batch, shape) * kernel.together, kernel.threads,
                kernel.shared, false, stream);
}

}  // namespace pagoda::tuned::wgmma
