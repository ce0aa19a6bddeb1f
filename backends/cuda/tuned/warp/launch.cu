// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/warp/launch.hpp"

#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/common/set_options.hpp"
#include "backends/cuda/tuned/warp/fixed_args.hpp"
#include "backends/cuda/tuned/warp/kernels.hpp"
#include "backends/cuda/tuned/warp/list_args.hpp"
#include "backends/cuda/tuned/warp/list_tuning.hpp"
#include "backends/cuda/tuned/warp/option_args.hpp"
#include "backends/cuda/tuned/warp/tuning.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace pagoda::tuned::warp {

namespace {

TileBytes tile_bytes_of(const Problem& p) { return tile_bytes(p.type, p.head_dim, heads_at_once(p)); }
bool fits_32_bits(std::int64_t n) { return n >= 0 && n < std::int64_t(1) << 32; }
int quads_of_batch_head(const Problem& p) { return group_size_of(p) * (p.head_dim / 4); }
/// Tokens of a copy, all of one page.
int copy_tokens_of(const Problem& p) { return p.block_table ? std::gcd(p.page_size, tile_tokens) : tile_tokens; }
/// Kernels without tensor maps copy small pages, on every card.
Device device_for(const Problem& p, const Device& d) { return copy_tokens_of(p) < tile_tokens ? without_maps(d) : d; }

/// Query rows and batch heads of the kv heads that a warp reads at once.
int rows_at_once(const Problem& p) { return heads_at_once(p) * group_size_of(p); }
std::int64_t batch_heads_of(const Problem& p) { return std::int64_t(p.batch) * p.num_kv_heads / heads_at_once(p); }
Block block_for(const Problem& p, int warps, const Device& d) {
  return block_of(warps, tile_bytes_of(p), p.head_dim, rows_at_once(p), d);
}

/// Calls f<type>() with the problem's type.
const void* with_type(const Problem& p, const auto& f) {
  switch (p.type) {
    case Type::fp32:
      return f.template operator()<Type::fp32>();
    case Type::fp16:
      return f.template operator()<Type::fp16>();
    case Type::bf16:
      return f.template operator()<Type::bf16>();
    case Type::fp8_e4m3:
      return f.template operator()<Type::fp8_e4m3>();
    case Type::int8:
      return f.template operator()<Type::int8>();
    case Type::int4:
      return f.template operator()<Type::int4>();
    default:
      return f.template operator()<Type::fp8_e5m2>();
  }
}
const void* find_kernel(const Problem& p, int warps, int stages, bool maps) {
  return with_type(p, [&]<Type T>() {
    const int group = group_size_of(p), heads = heads_at_once(p);
    const bool options = p.options.any();
    if constexpr (!is_integer(T))
      if (p.cu_seqlens_q) return ragged_kernel_of<T>(p.head_dim, group, warps, stages, maps, options);
    return options ? option_kernel_of<T>(p.head_dim, group, warps, stages, maps, heads)
                   : kernel_of<T>(p.head_dim, group, warps, stages, maps, heads);
  });
}
const void* find_fixed_kernel(const Problem& p) {
  return with_type(p, [&]<Type T>() { return fixed_kernel_of<T>(p.head_dim, group_size_of(p)); });
}

int fixed_split_tokens_of(const Problem& p) {
  return fixed_split_tokens(tile_bytes_of(p), p.head_dim, group_size_of(p));
}
std::int64_t fixed_split_slots_of(const Problem& p) {  // of a batch head
  return fixed_split_slots(p.max_seq_len, fixed_split_tokens_of(p));
}
Block fixed_block_for(const Problem& p, const Device& d) {
  return fixed_split_block(tile_bytes_of(p), p.head_dim, group_size_of(p), d);
}

const void* find_list_kernel(const Problem& p) {
  return with_type(p, [&]<Type T>() { return list_kernel_of<T>(p.head_dim); });
}
ListLayout list_layout_of(const Problem& p) {
  return list_layout(tile_bytes_of(p).rows, p.head_dim, list_stages(tile_bytes_of(p).rows), list_warps);
}

void set_maps(const Problem& p, auto& args) {
  if (is_integer(p.type) && !is_list(p)) return;  // copied by lanes (ScaledCopies)
  args.k_map = make_tensor_map(p, p.k, tile_tokens), args.v_map = make_tensor_map(p, p.v, tile_tokens);
}

bool decode_list(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  if (p.list.num_entries == 0) return true;
  ListArgs a{};
  set_list_args(p, shape, tile_tokens, a);
  set_maps(p, a);
  set_list_workspace(workspace, d.num_sms, p.head_dim, a);
  a.heads_at_once = list_heads_at_once(p.num_kv_heads, list_warps);
  return launch(find_list_kernel(p), &a, {shape.blocks}, shape.warps * 32, list_layout_of(p).bytes, false, stream);
}

bool decode_fixed(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  FixedSplitArgs a{};
  set_args(p, shape, tile_tokens, a);
  set_maps(p, a);
  a.slots          = static_cast<char*>(workspace);
  a.slots_per_head = static_cast<int>(fixed_split_slots_of(p));
  while ((tile_tokens << a.split_shift) < fixed_split_tokens_of(p)) ++a.split_shift;
  // Fewer blocks give the same bits, where the stream may use fewer multiprocessors.
  for (std::int64_t blocks = shape.blocks; blocks > 0; blocks /= 2)
    if (launch(find_fixed_kernel(p), &a, {blocks}, shape.warps * 32, fixed_block_for(p, d).shared, false, stream))
      return true;
  return false;
}

}  // namespace

bool takes_list(const Problem& p, const Device& d) {
  return uses_maps(d) && has_list_kernel(p) && (p.max_q_tokens == 1 || !p.list.masks) && p.block_table &&
         p.page_size % tile_tokens == 0;
}

const char* why_not(const Problem& p) {
  if (is_list(p)) {
    if (!has_list_elements(p))  // nor do the wgmma kernels
      return "a list of entries, with keys and values that are not of 64 (not of 8 bits) or 128 dims in 8 or 16 bits";
    return has_token_scales(p.k) || has_token_scales(p.v) ? "scales of single tokens, with a list of entries" : nullptr;
  }
  if (p.head_dim != p.head_dim_v) return "head_dim and head_dim_v differ";
  if (p.head_dim != 128 && (p.head_dim != 64 || is_quantized(p.type)))
    return "head_dim is not one of 64 (not of quantized types), 128";
  for (const Cache& c : {p.k, p.v})
    if (has_token_scales(c)) {
      if (!is_integer(p.type)) return "scales of single tokens, of a type that is not an integer";
      if (!fits_32_bits(4 * c.scale_page) || !fits_32_bits(4 * c.scale_token) || !fits_32_bits(4 * c.scale_head))
        return "strides of scales of 2^32 bytes or more";
    }
  if (is_integer(p.type) && p.cu_seqlens_q) return "cu_seqlens_q, with an integer type";
  if (is_integer(p.type) && p.block_table && p.page_size % tile_tokens != 0)
    return "page_size is not a multiple of 16, with an integer type";
  for (const Cache& c : {p.k, p.v})
    if (is_integer(p.type) && !(fits_32_bits(c.page) && fits_32_bits(c.token) && fits_32_bits(c.head)))
      return "strides of integer keys or values of 2^32 bytes or more";
  if (is_integer(p.type) && p.fixed_splits) return "an exactness other than fast, with an integer type";
  if (p.max_q_tokens > 1) return "several query tokens of a type that is not of 16 bits";
  if (group_size_of(p) > 8) return "more than 8 query heads share a kv head, of a type that is not of 16 bits";
  return nullptr;
}

bool fits(const Problem& p, const Device& d) { return block_for(p, 1, device_for(p, d)).per_sm > 0; }

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  if (is_list(p)) return list_workspace_bytes(d.num_sms, p.head_dim);
  if (p.fixed_splits)
    return std::size_t(fixed_quad_bytes) * p.max_batch * p.num_kv_heads * fixed_split_slots_of(p) *
           quads_of_batch_head(p);
  const int heads = may_read_two_heads(p) ? 2 : 1;
  return sizeof(QuadPartial) * 2 * std::size_t(d.num_sms) * warps_per_sm * heads * quads_of_batch_head(p);
}

void prepare(const Problem& p, const Device& d) {
  if (is_list(p)) return allow_shared_memory(find_list_kernel(p), d.shared_per_block);
  if (p.fixed_splits) return allow_shared_memory(find_fixed_kernel(p), d.shared_per_block);
  // Only the decode knows the strides and the batch, on which heads_at_once depends.
  Problem large = p;
  large.k.head = large.v.head = row_bytes(p.type, p.head_dim);
  large.batch = 1 << 20, large.max_seq_len = 1 << 20;
  for (const Problem& each : {p, large})
    for (const Device& device : {d, without_maps(d)})
      for (const int warps : {8, 4, 2, 1})
        if (const void* const kernel =
                find_kernel(each, warps, block_for(each, warps, device).stages, uses_maps(device)))
          allow_shared_memory(kernel, d.shared_per_block);
}

LaunchShape choose_shape(const Problem& p, const Device& actual) {
  const Device d = device_for(p, actual);
  if (is_list(p)) return {d.num_sms, 1, true, list_warps};
  if (p.fixed_splits) return {d.num_sms * fixed_block_for(p, d).per_sm, 1, true, fixed_split_warps(tile_bytes_of(p))};
  const auto batch_heads = batch_heads_of(p);
  const auto tiles       = max_visible_tiles(p, tile_tokens);
  const bool uneven      = p.block_table && expects_uneven(p.batch, tile_tokens * tiles, p.num_pages * p.page_size);
  if (uneven) return stream_k(batch_heads, tiles, tile_bytes_of(p), p.head_dim, rows_at_once(p), d);
  return choose_shape(batch_heads, tiles, tile_bytes_of(p), p.head_dim, rows_at_once(p), d);
}

bool decode_with(const LaunchShape& shape, const Problem& p, const Device& actual, void* workspace,
                 CUstream_st* stream) {
  const Device d = device_for(p, actual);
  if (is_list(p)) return decode_list(shape, p, d, workspace, stream);
  if (p.fixed_splits) return decode_fixed(shape, p, d, workspace, stream);
  const bool maps = uses_maps(d);
  const int heads = heads_at_once(p);
  OptionArgs a{};  // kernels without options read the part that is Args; RaggedArgs adds no field
  set_args(p, shape, copy_tokens_of(p), a, heads);
  while (copy_tokens_of(p) << a.log_copies < tile_tokens) ++a.log_copies;
  set_options(p, tile_tokens, a);
  if (maps) set_maps(p, a);
  a.quads_per_join = (heads * quads_of_batch_head(p) + shape.num_splits - 1) / shape.num_splits;
  a.programmatic   = p.programmatic && maps && !shape.stream_k;
  a.partials       = static_cast<QuadPartial*>(workspace);

  const Block block        = block_for(p, shape.warps, d);
  const void* const kernel = find_kernel(p, shape.warps, block.stages, maps);
  return launch(kernel, &a, {blocks_to_launch(batch_heads_of(p), p.batch, shape)}, shape.warps * 32, block.shared,
                a.programmatic, stream);
}

}  // namespace pagoda::tuned::warp
