// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/wgmma/launch.hpp"

#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/grouped/kernels.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/kernels.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"

#include <algorithm>

namespace pagoda::tuned::wgmma {

namespace {

int group_size_of(const Problem& p) { return p.num_q_heads / p.num_kv_heads; }
/// Query rows of a kv head, at most. Neither the kernel nor the layout of its workspace depends on a call's number.
std::int64_t max_rows_of(const Problem& p) { return std::int64_t(group_size_of(p)) * p.max_q_tokens; }
bool is_latent(const Problem& p) { return p.head_dim == latent::head_dim; }

struct Kernel {
  const void* function;  ///< null where the build has none: it is not for sm_90
  int threads, shared, blocks_per_head;
  Pace pace;
};
Kernel kernel_for(const Problem& p, const Device& d) {
  const auto all_rows = static_cast<int>(max_rows_of(p));
  const bool bf16     = p.type == Type::bf16;
  Kernel k{};
  if (is_latent(p)) {
    k = {nullptr, latent::threads, latent::shared_bytes, latent::blocks_per_head(all_rows), latent::pace(d)};
#if defined(PAGODA_HAS_SM90A)
    k.function =
        bf16 ? latent::kernel_of<Type::bf16>(k.blocks_per_head) : latent::kernel_of<Type::fp16>(k.blocks_per_head);
#endif
  } else {
    const int warpgroups = grouped::num_warpgroups(all_rows);
    k = {nullptr, grouped::threads(warpgroups), grouped::shared_layout(p.head_dim, warpgroups).bytes, 1,
         grouped::pace(p.head_dim, warpgroups, d)};
#if defined(PAGODA_HAS_SM90A)
    k.function = bf16 ? grouped::kernel_of<Type::bf16>(p.head_dim, warpgroups)
                      : grouped::kernel_of<Type::fp16>(p.head_dim, warpgroups);
#endif
  }
  return k;
}
std::int64_t partial_quads_of(const Problem& p, const Kernel& k) {
  const auto all_rows = static_cast<int>(max_rows_of(p));
  return partial_quads(k.blocks_per_head == 1 ? all_rows : tile_rows, p.head_dim_v);
}

}  // namespace

bool handles(const Problem& p) {
  if (p.type != Type::fp16 && p.type != Type::bf16) return false;
  if (is_latent(p)) return p.head_dim_v == latent::head_dim_v;
  return (p.head_dim == 64 || p.head_dim == 128) && p.head_dim_v == p.head_dim &&
         (group_size_of(p) > 8 || p.max_q_tokens > 1);
}

const char* why_not(const Problem& p, const Device& d) {
  if (!d.sm90a)
    return "latent caches, several query tokens and more than 8 query heads to a kv head need a card of sm_90, and a "
           "build for it";
  if (d.shared_per_block < kernel_for(p, d).shared) return "the device has too little shared memory";
  if (max_rows_of(p) > max_rows) return "more than 128 query heads and tokens share a kv head";
  if (is_latent(p)) {
    if (p.k.data != p.v.data || p.k.token != p.v.token || p.k.head != p.v.head || p.k.page != p.v.page)
      return "values of a latent cache are not the first dims of its keys";
    if (p.max_q_tokens > 1 && (p.num_kv_heads > 1 || group_size_of(p) % 8 != 0))
      return "several query tokens of a latent cache: its kv heads are not one, or its query heads no multiple of 8";
  }
  if (p.num_q_tokens < 1 || p.num_q_tokens > p.max_q_tokens) return "num_q_tokens is not 1 to max_q_tokens";
  if (!(p.softmax_scale > 0)) return "softmax_scale is not positive";
  if (p.block_table && p.page_size % 8 != 0) return "page_size is not a multiple of 8";
  if (p.q.batch % (8 * p.num_q_tokens) != 0) return "rows of q do not start on 16 bytes";
  if (const int in_16_bytes = 16 / bytes_of(p.out.type);
      p.out.batch % (in_16_bytes * p.num_q_tokens) != 0 || p.out.head % in_16_bytes != 0)
    return "rows of out do not start on 16 bytes";
  return nullptr;
}

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  const Kernel kernel = kernel_for(p, d);
  return sizeof(float4) * 2 * std::size_t(d.num_sms * kernel.pace.blocks_per_sm) *
         std::size_t(partial_quads_of(p, kernel));
}

void prepare(const Problem& p, const Device& d) {
  const Kernel kernel = kernel_for(p, d);
  allow_shared_memory(kernel.function, kernel.shared);
}

LaunchShape choose_shape(const Problem& p, const Device& d) {
  const Kernel kernel = kernel_for(p, d);
  return choose_shape(std::int64_t(p.batch) * p.num_kv_heads, max_tiles(p, tile_tokens), kernel.blocks_per_head,
                      kernel.pace, d);
}

bool decode_with(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  const int group_size   = group_size_of(p);
  const Kernel kernel    = kernel_for(p, d);
  const auto batch_heads = std::int64_t(p.batch) * p.num_kv_heads;
  Args a{};
  set_args(p, shape, copy_tokens, a);
  a.heads = Divisor::of(group_size), a.num_rows = group_size * p.num_q_tokens,
  a.hidden    = p.causal ? p.num_q_tokens - 1 : 0;
  a.q_token   = p.q.batch / p.num_q_tokens;
  a.out_token = p.out.batch / p.num_q_tokens, a.lse_token = p.lse_batch / p.num_q_tokens;
  a.k_map = make_tensor_map(p, p.k, copy_tokens);
  if (is_latent(p)) {
    const bool several = p.max_q_tokens > 1;  // then there is one kv head, and the map's heads are tokens
    a.q_map = make_tensor_map({p.q.data, 2, p.head_dim, group_size, several ? p.num_q_tokens : p.num_kv_heads, p.batch,
                               2 * p.q.head, 2 * (several ? a.q_token : p.q.head * group_size), 2 * p.q.batch},
                              8);
  } else {
    a.v_map = make_tensor_map(p, p.v, copy_tokens);
  }
  a.wgmma_partials = static_cast<float4*>(workspace), a.partial_quads = partial_quads_of(p, kernel);
  return launch(kernel.function, &a, blocks_to_launch(batch_heads, p.batch, shape) * kernel.blocks_per_head,
                kernel.threads, kernel.shared, false, stream);
}

}  // namespace pagoda::tuned::wgmma
