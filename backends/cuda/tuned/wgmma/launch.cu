// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/wgmma/launch.hpp"

#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/common/set_options.hpp"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/grouped/kernels.hpp"
#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_args.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/kernels.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"
#include "backends/cuda/tuned/wgmma/passes.hpp"

#include <algorithm>
#include <numeric>

namespace pagoda::tuned::wgmma {

namespace {

/// Whether pages are too small for copies of eight tokens.
bool has_small_pages(const Problem& p) { return p.block_table && p.page_size % copy_tokens != 0; }
/// Query tokens in q.
std::int64_t q_tokens_of(const Problem& p) {
  return p.cu_seqlens_q || is_list(p) ? p.total_q_tokens : std::int64_t(p.batch) * p.num_q_tokens;
}
bool is_latent(const Problem& p) { return p.head_dim == latent::head_dim; }

#if defined(PAGODA_HAS_SM90A)
/// The kernel for a list; null if there is none for the type.
const void* find_list_kernel(const Problem& p, int warpgroups) {
  switch (p.type) {
    case Type::fp16:
      return grouped::list_kernel_of<Type::fp16>(p.head_dim, warpgroups);
    case Type::bf16:
      return grouped::list_kernel_of<Type::bf16>(p.head_dim, warpgroups);
    case Type::fp8_e4m3:
      return grouped::list_kernel_of<Type::fp8_e4m3>(p.head_dim, warpgroups);
    case Type::fp8_e5m2:
      return grouped::list_kernel_of<Type::fp8_e5m2>(p.head_dim, warpgroups);
    case Type::int8:
      return grouped::list_kernel_of<Type::int8>(p.head_dim, warpgroups);
    default:
      return nullptr;
  }
}
const void* find_mixed_kernel(const Problem& p) {
  return p.type == Type::bf16 ? grouped::mixed_list_kernel_of<Type::bf16>(p.head_dim)
                              : grouped::mixed_list_kernel_of<Type::fp16>(p.head_dim);
}
const void* find_latent_kernel(const Problem& p, int blocks_per_head, Instance instance, bool pairs) {
  switch (p.type) {
    case Type::fp16:
      return latent::kernel_of<Type::fp16>(blocks_per_head, instance, pairs);
    case Type::bf16:
      return latent::kernel_of<Type::bf16>(blocks_per_head, instance, pairs);
    case Type::fp8_ds_mla:
      return latent::kernel_of<Type::fp8_ds_mla>(blocks_per_head, instance, pairs);
    default:
      return nullptr;
  }
}
#endif

struct Kernel {
  const void* function;  ///< null if the build has none, because it is not for sm_90
  int threads, shared, blocks_per_head;
  Pace pace;
};
/// The kernel for lists of entries of many query rows and of few. As many blocks run on a multiprocessor as of the
/// other kernel for such lists.
Kernel mixed_kernel_for(const Problem& p, const Device& d) {
  Kernel k{nullptr, grouped::mixed_threads, grouped::mixed_shared_bytes(p.type, p.head_dim), 1,
           grouped::pace(p.head_dim, 1, d)};
#if defined(PAGODA_HAS_SM90A)
  k.function = find_mixed_kernel(p);
#endif
  return k;
}
/// limit: query rows of a pass. pairs: the instance for clusters of two. Other instances differ only in the
/// function, that for small pages also in the number of threads.
Kernel kernel_for(const Problem& p, const Device& d, int limit, [[maybe_unused]] Instance instance = Instance::equal,
                  [[maybe_unused]] bool pairs = false) {
  const int all_rows = pass_rows(p, limit);
  Kernel k{};
  if (is_list(p)) {
    const int warpgroups = grouped::num_warpgroups(all_rows);
    k = {nullptr, grouped::list_threads(p.type, warpgroups), grouped::list_layout(p.type, p.head_dim, warpgroups).bytes,
         1, grouped::pace(p.head_dim, warpgroups, d)};
#if defined(PAGODA_HAS_SM90A)
    k.function = find_list_kernel(p, warpgroups);
#endif
  } else if (is_latent(p)) {
    k = {nullptr, latent::threads, latent::shared_bytes, latent::blocks_per_head(all_rows), latent::pace(p.type, d)};
#if defined(PAGODA_HAS_SM90A)
    k.function = find_latent_kernel(p, k.blocks_per_head, instance, pairs);
#endif
  } else {
    const int warpgroups = grouped::num_warpgroups(all_rows);
    k                    = {nullptr, grouped::threads(warpgroups, instance == Instance::small_pages),
                            grouped::shared_layout(p.head_dim, warpgroups).bytes, 1, grouped::pace(p.head_dim, warpgroups, d)};
#if defined(PAGODA_HAS_SM90A)
    const auto find = [&]<Type T>() {
      return p.options.any() ? grouped::option_kernel_of<T>(p.head_dim, warpgroups, instance)
                             : grouped::kernel_of<T>(p.head_dim, warpgroups, instance);
    };
    k.function = p.type == Type::bf16 ? find.operator()<Type::bf16>() : find.operator()<Type::fp16>();
#endif
  }
  return k;
}
/// The y of a latent kernel's grid counts blocks that share query rows, so its passes do not run side by side.
Passes passes_on(const Problem& p, const Device& d, const Kernel& kernel) {
  return passes_of(p, is_latent(p) ? 1 : d.num_sms * kernel.pace.blocks_per_sm);
}
std::int64_t partial_quads_of(const Problem& p, const Kernel& k, int limit) {
  return partial_quads(k.blocks_per_head == 1 ? pass_rows(p, limit) : tile_rows, p.head_dim_v);
}
/// Bytes of the partial results of blocks of `kernel`.
std::size_t partial_bytes(const Problem& p, const Device& d, const Kernel& kernel, int limit = max_rows) {
  return sizeof(float4) * 2 * std::size_t(d.num_sms * kernel.pace.blocks_per_sm) *
         std::size_t(partial_quads_of(p, kernel, limit));
}

}  // namespace

bool handles(const Problem& p) {
  if (is_list(p) && grouped::is_converted(p.type)) return p.head_dim == 128 && p.head_dim_v == 128;
  if (p.type == Type::fp8_ds_mla) return is_latent(p) && !is_list(p);
  if (p.type != Type::fp16 && p.type != Type::bf16) return false;
  if (is_latent(p)) return p.head_dim_v == latent::head_dim_v;
  return (p.head_dim == 64 || p.head_dim == 128) && p.head_dim_v == p.head_dim &&
         (group_size_of(p) > 8 || p.max_q_tokens > 1 || is_list(p));
}

const char* why_not(const Problem& p, const Device& d) {
  if (!d.sm90a)
    return "latent caches, several query tokens, more than 8 query heads to a kv head and lists of entries need a card "
           "of sm_90, and a build for it";
  if (is_list(p)) {
    if (is_latent(p)) return "a list of entries, with a latent cache";
    if (has_token_scales(p.k) || has_token_scales(p.v)) return "scales of single tokens, with a list of entries";
  } else if (is_latent(p) && p.options.any()) {
    return "a score option, with a latent cache";
  }
  if (d.shared_per_block < kernel_for(p, d, max_rows).shared) return "the device has too little shared memory";
  if (is_list(p) && max_rows_of(p) > max_rows) return "more than 128 query heads and tokens share a kv head";
  if (group_size_of(p) > max_rows) return "more than 128 query heads share a kv head";
  if (is_latent(p)) {
    if (p.k.data != p.v.data || p.k.token != p.v.token || p.k.head != p.v.head || p.k.page != p.v.page)
      return "values of a latent cache are not the first dims of its keys";
    if (p.max_q_tokens > 1 && group_size_of(p) % 8 != 0)
      return "several query tokens of a latent cache, whose query heads to a kv head are no multiple of 8";
  }
  if (!is_list(p) && !p.cu_seqlens_q && (p.num_q_tokens < 1 || p.num_q_tokens > p.max_q_tokens))
    return "num_q_tokens is not 1 to max_q_tokens";
  if (q_tokens_of(p) >= std::int64_t(1) << 31) return "2^31 query tokens or more";
  if (!is_list(p) && std::int64_t(p.batch) * passes_of(p).count * p.num_kv_heads >= std::int64_t(1) << 31)
    return "2^31 passes of 128 query rows or more";
  if (!(p.softmax_scale > 0)) return "softmax_scale is not positive";
  if (has_small_pages(p) && is_list(p)) return "page_size is not a multiple of 8, with a list of entries";
  if (const int in_16_bytes = 128 / bits_of(p.out.type);
      p.out.token % in_16_bytes != 0 || p.out.head % in_16_bytes != 0)
    return "rows of out do not start on 16 bytes";
  return nullptr;
}

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  const auto of = [&](int limit) { return partial_bytes(p, d, kernel_for(p, d, limit), limit); };
  // Which of the two passes a decode has, follows from its query tokens.
  const std::size_t bytes = is_list(p) ? of(max_rows) : std::max(of(max_rows), of(tile_rows));
  return grouped::has_mixed_kernel(p) ? bytes + warp::list_workspace_bytes(d.num_sms, p.head_dim) : bytes;
}

void prepare(const Problem& p, const Device& d) {
  if (grouped::has_mixed_kernel(p)) {
    const Kernel kernel = mixed_kernel_for(p, d);
    allow_shared_memory(kernel.function, kernel.shared);
  }
  for (const int limit : {tile_rows, max_rows})
    for (const Instance instance : all_instances)
      for (const bool pairs : {false, true}) {  // a list has one kernel
        const Kernel kernel = kernel_for(p, d, limit, instance, pairs);
        allow_shared_memory(kernel.function, kernel.shared);
      }
}

LaunchShape choose_shape(const Problem& p, const Device& d) {
  const Kernel kernel = kernel_for(p, d, pass_limit(p));
  if (is_list(p)) return {d.num_sms * kernel.pace.blocks_per_sm, 1, true};
  const Passes passes = passes_on(p, d, kernel);
  return choose_shape(std::int64_t(p.batch) * passes.rounds * p.num_kv_heads, max_visible_tiles(p, tile_tokens),
                      kernel.blocks_per_head * passes.side_by_side, kernel.pace, d);
}

namespace {

/// Whether a list runs in the kernel for entries of many query rows and of few.
bool is_mixed(const Problem& p) {
  return p.list.has_few_rows && grouped::has_mixed_kernel(p) && p.block_table && p.page_size % warp::tile_tokens == 0;
}

void set_list_args(const Problem& p, const LaunchShape& shape, const Kernel& kernel, void* workspace, ListArgs& a) {
  tuned::set_list_args(p, shape, copy_tokens, a);
  a.rows_bound    = a.group_size * p.max_q_tokens;
  a.heads_at_once = grouped::list_heads_at_once(p.num_kv_heads, shape.blocks);
  a.order         = eights_map_of(p, p.k);
  if (eights_map_of(p, p.v) != a.order || grouped::is_converted(p.type)) a.order = EightsMap::none;
  if (a.order != EightsMap::none) {
    a.box_eights = std::gcd(p.page_size, grouped::half_tokens) / copy_tokens;
    a.k_map = make_eights_map(p, p.k, a.order, a.box_eights), a.v_map = make_eights_map(p, p.v, a.order, a.box_eights);
  } else {
    // Halves of a chain's tile may be of different pages. Rows of 16 bits are two runs, so boxes of more than eight
    // rows would lie differently.
    const int most = p.list.chains ? grouped::half_tokens : tile_tokens;
    a.box_eights   = !grouped::is_converted(p.type) ? 1
                     : p.block_table                ? std::gcd(p.page_size, most) / copy_tokens
                                                    : most / copy_tokens;
    const int rows = a.box_eights * copy_tokens;
    a.k_map = make_tensor_map(p, p.k, rows), a.v_map = make_tensor_map(p, p.v, rows);
  }
  a.wgmma_partials = static_cast<float4*>(workspace), a.partial_quads = partial_quads_of(p, kernel, max_rows);
}

bool decode_mixed_list(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace,
                       CUstream_st* stream) {
  const Kernel kernel = mixed_kernel_for(p, d);
  grouped::MixedArgs a{};
  set_list_args(p, shape, kernel, workspace, a.many);
  tuned::set_list_args(p, shape, warp::tile_tokens, a.few);
  a.few.k_map = make_tensor_map(p, p.k, warp::tile_tokens);
  a.few.v_map = make_tensor_map(p, p.v, warp::tile_tokens);
  warp::set_list_workspace(static_cast<char*>(workspace) + partial_bytes(p, d, kernel), d.num_sms, p.head_dim, a.few);
  a.few.heads_at_once = warp::list_heads_at_once(p.num_kv_heads, grouped::mixed_few_warps);
  a.few.max_queries   = grouped::mixed_few_queries(p);
  a.many.chains       = p.list.chains;
  a.many.min_queries  = a.few.max_queries + 1;
  return launch(kernel.function, &a, {shape.blocks}, kernel.threads, kernel.shared, false, stream);
}

bool decode_list(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  if (p.list.num_entries == 0) return true;
  if (is_mixed(p)) return decode_mixed_list(shape, p, d, workspace, stream);
  const Kernel kernel = kernel_for(p, d, max_rows);
  ListArgs a{};
  set_list_args(p, shape, kernel, workspace, a);
  a.chains = p.list.chains;
  return launch(kernel.function, &a, {shape.blocks}, kernel.threads, kernel.shared, false, stream);
}

}  // namespace

bool decode_with(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  if (is_list(p)) return decode_list(shape, p, d, workspace, stream);
  const int group_size = group_size_of(p), limit = pass_limit(p);
  const Passes passes     = passes_on(p, d, kernel_for(p, d, limit));
  const Instance instance = has_small_pages(p) ? Instance::small_pages
                            : passes.count > 1 ? Instance::in_passes
                            : p.cu_seqlens_q   ? Instance::ragged
                                               : Instance::equal;
  const Kernel kernel     = kernel_for(p, d, limit, instance);
  const int entries       = p.batch * passes.rounds;
  const auto batch_heads  = std::int64_t(entries) * p.num_kv_heads;
  // Kernels without options read the part that is Args. Those derived from it add no field.
  OptionArgs<SmallPageArgs> a{};
  static_assert(sizeof(a) == sizeof(OptionArgs<Args>));
  set_args(p, shape, has_small_pages(p) ? 1 : copy_tokens, a);
  set_options(p, tile_tokens, a);
  a.batch = entries, a.single_sequence = entries == 1 && !shape.stream_k;
  a.rounds = Divisor::of(passes.rounds), a.side_by_side = Divisor::of(passes.side_by_side),
  a.q_tokens_bound = passes.tokens, a.num_q_tokens = p.num_q_tokens;
  a.hides_newer = p.causal;
  a.heads = Divisor::of(group_size), a.rows_bound = group_size * a.q_tokens_bound;
  a.hidden_bound      = p.causal ? a.q_tokens_bound - 1 : 0;
  const bool has_maps = !has_small_pages(p) && p.type != Type::fp8_ds_mla;
  if (has_maps) a.k_map = make_tensor_map(p, p.k, copy_tokens);
  if (is_latent(p)) {
    // Indexed [query token][kv head][head of the group]. Boxes of eight rows lie within a query token and kv head: with
    // several query tokens the group is a multiple of 8; else rows beyond the group are zeros.
    a.q_map =
        make_tensor_map({p.q.data, 2, p.head_dim, group_size, p.num_kv_heads, std::max<std::int64_t>(q_tokens_of(p), 1),
                         2 * p.q.head, 2 * p.q.head * group_size, 2 * p.q.token},
                        8);
  } else if (has_maps) {
    a.v_map = make_tensor_map(p, p.v, copy_tokens);
  }
  a.wgmma_partials = static_cast<float4*>(workspace), a.partial_quads = partial_quads_of(p, kernel, limit);
  LaunchGrid grid{blocks_to_launch(batch_heads, entries, shape), kernel.blocks_per_head, 1, passes.side_by_side};
  // Where clusters of two do not fit, single blocks may.
  const bool has_pairs = is_latent(p) && passes.count == 1 && instance != Instance::small_pages;
  for (bool pairs = has_pairs && forms_pairs(shape, grid.teams);; pairs = false) {
    grid.cluster               = pairs ? 2 : 1;
    const void* const function = kernel_for(p, d, limit, instance, pairs).function;
    if (launch(function, &a, grid, kernel.threads, kernel.shared, false, stream)) return true;
    if (!pairs) return false;
  }
}

}  // namespace pagoda::tuned::wgmma
