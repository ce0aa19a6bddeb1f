// SPDX-License-Identifier: Apache-2.0
// Pools of the C interface.
#include "src/base/by_type.hpp"
#include "src/c/pools.hpp"
#include "src/c/prefix_structs.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

using namespace pagoda::c;

namespace {

std::span<const int> counts_of(const char* who, const std::int32_t* counts, std::int32_t num_slots) {
  return counts ? list_of(who, "counts", counts, num_slots) : std::span<const int>();
}

static_assert(PAGODA_SHARE_AUTOMATIC == int(pagoda::SharePrefixes::automatic) &&
              PAGODA_SHARE_NEVER == int(pagoda::SharePrefixes::never));

pagoda::PoolOptions pool_options(const char* who, const pagoda_pool_options& o) {
  require(o.layout == PAGODA_CONTIGUOUS || o.layout == PAGODA_PAGED, who, ": options.layout is ", o.layout,
          "; allowed: PAGODA_CONTIGUOUS (0) or PAGODA_PAGED (1)");
  pagoda::PoolOptions to;
  to.num_kv_heads = o.num_kv_heads, to.head_dim = o.head_dim, to.head_dim_v = o.head_dim_v;
  to.max_seq_len = o.max_seq_len, to.max_sequences = o.max_sequences;
  if (o.page_size != 0) to.page_size = o.page_size;
  to.num_pages = o.num_pages, to.num_q_heads = o.num_q_heads;
  to.order          = order_of(who, "options.order", o.order);
  to.share_prefixes = static_cast<pagoda::SharePrefixes>(o.share_prefixes);
  to.prefix         = prefix_options_of(who, o.prefix);
  return to;
}

}  // namespace

pagoda_status pagoda_pool_create(const pagoda_exec* exec, const pagoda_pool_options* options, pagoda_pool** pool) {
  return guarded([&] {
    const char* const who = "pagoda_pool_create";
    not_null(who, "pool", pool);
    const auto o                    = read_struct(who, "options", options, offsetof(pagoda_pool_options, head_dim_v));
    const auto shape                = pool_options(who, o);
    const pagoda::DType* const type = find_type(o.type);
    require(type != nullptr, who, ": options.type is ", o.type, "; allowed: a plain type of pagoda_type_code, 1 to 4");
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      pagoda::detail::by_plain_type(*type, [&]<class T>(T*) {
        std::unique_ptr<pagoda::KVPool<T, Space>> made;
        if (o.layout == PAGODA_PAGED) {
          made = std::make_unique<pagoda::PagedPool<T, Space>>(instance, shape);
        } else {
          made = std::make_unique<pagoda::ContiguousPool<T, Space>>(instance, shape);
        }
        *pool = make_handle<pagoda_pool>(PoolIn<Space>(std::move(made)), std::string());
      });
    });
  });
}

void pagoda_pool_destroy(pagoda_pool* pool) { destroy_handle(pool); }

pagoda_status pagoda_pool_prepare(const pagoda_exec* exec, pagoda_pool* pool, const pagoda_decode_options* options) {
  return guarded([&] {
    const char* const who = "pagoda_pool_prepare";
    with_pool(who, exec, pool, [&]<class Space>(auto& p, const Space& instance, const Reach&) {
      const auto o = read_options(who, options);
      require(!o.workspace && o.workspace_bytes == 0, who,
              ": options.workspace is given; allowed: NULL, as the plan of a pool allocates its own");
      p.prepare(instance, decode_options<Space>(o));
    });
  });
}

pagoda_status pagoda_pool_get_options(const pagoda_pool* pool, pagoda_pool_options* options) {
  return guarded([&] {
    const char* const who   = "pagoda_pool_get_options";
    const std::size_t bytes = common_bytes(who, "options", options, offsetof(pagoda_pool_options, head_dim_v));
    with_pool(who, pool, [&]<class T, class Space>(const pagoda::KVPool<T, Space>& p) {
      const pagoda::PoolOptions& o = p.options();
      pagoda_pool_options to{};
      to.struct_size  = options->struct_size;
      to.layout       = dynamic_cast<const pagoda::PagedPool<T, Space>*>(&p) ? PAGODA_PAGED : PAGODA_CONTIGUOUS;
      to.type         = code_of(pagoda::dtype_v<T>);
      to.num_kv_heads = o.num_kv_heads, to.head_dim = o.head_dim, to.head_dim_v = o.head_dim_v;
      to.max_seq_len = o.max_seq_len, to.max_sequences = o.max_sequences;
      to.page_size = o.page_size, to.num_pages = o.num_pages, to.num_q_heads = o.num_q_heads;
      to.order          = o.order == pagoda::KVOrder::NHD ? PAGODA_NHD : PAGODA_HND;
      to.share_prefixes = static_cast<pagoda_share_prefixes>(o.share_prefixes);
      std::memcpy(options, &to, bytes);
    });
  });
}

const char* pagoda_pool_describe(pagoda_pool* pool) {
  return guarded_pointer([&] {
    with_pool("pagoda_pool_describe", pool, [&](auto& p) { pool->description = p.plan().describe(); });
    return static_cast<const char*>(pool->description.c_str());
  });
}

pagoda_status pagoda_pool_admit(const pagoda_exec* exec, pagoda_pool* pool, const pagoda_tensor* k,
                                const pagoda_tensor* v, std::int32_t* slot) {
  return guarded([&] {
    const char* const who = "pagoda_pool_admit";
    std::int32_t& to      = not_null(who, "slot", slot);
    with_pool(who, exec, pool, [&](auto& p, const auto& instance, const Reach& reach) {
      to = p.admit(instance, array<3>(who, "k", k, reach), array<3>(who, "v", v, reach));
    });
  });
}

pagoda_status pagoda_pool_admit_tokens(const pagoda_exec* exec, pagoda_pool* pool, std::int32_t num_tokens,
                                       std::int32_t* slot) {
  return guarded([&] {
    const char* const who = "pagoda_pool_admit_tokens";
    std::int32_t& to      = not_null(who, "slot", slot);
    with_pool(who, exec, pool,
              [&](auto& p, const auto& instance, const Reach&) { to = p.admit(instance, num_tokens); });
  });
}

pagoda_status pagoda_pool_fork(const pagoda_exec* exec, pagoda_pool* pool, std::int32_t slot, std::int32_t num_tokens,
                               std::int32_t* child) {
  return guarded([&] {
    const char* const who = "pagoda_pool_fork";
    std::int32_t& to      = not_null(who, "child", child);
    with_pool(who, exec, pool,
              [&](auto& p, const auto& instance, const Reach&) { to = p.fork(instance, slot, num_tokens); });
  });
}

pagoda_status pagoda_pool_release(pagoda_pool* pool, std::int32_t slot) {
  return guarded([&] { with_pool("pagoda_pool_release", pool, [&](auto& p) { p.release(slot); }); });
}

pagoda_status pagoda_pool_append(const pagoda_exec* exec, pagoda_pool* pool, std::int32_t num_slots,
                                 const std::int32_t* slots, const std::int32_t* counts, const pagoda_tensor* k,
                                 const pagoda_tensor* v) {
  return guarded([&] {
    const char* const who = "pagoda_pool_append";
    const auto list       = list_of(who, "slots", slots, num_slots);
    const auto each       = counts_of(who, counts, num_slots);
    with_pool(who, exec, pool, [&](auto& p, const auto& instance, const Reach& reach) {
      p.append(instance, list, each, array<3>(who, "k", k, reach), array<3>(who, "v", v, reach));
    });
  });
}

pagoda_status pagoda_pool_reserve(const pagoda_exec* exec, pagoda_pool* pool, std::int32_t num_slots,
                                  const std::int32_t* slots, const std::int32_t* counts) {
  return guarded([&] {
    const char* const who = "pagoda_pool_reserve";
    const auto list       = list_of(who, "slots", slots, num_slots);
    const auto each       = counts_of(who, counts, num_slots);
    with_pool(who, exec, pool, [&](auto& p, const auto& instance, const Reach&) { p.reserve(instance, list, each); });
  });
}

pagoda_status pagoda_pool_write(const pagoda_exec* exec, pagoda_pool* pool, const std::int64_t* slot_mapping,
                                std::int64_t num_tokens, const pagoda_tensor* k, const pagoda_tensor* v) {
  return guarded([&] {
    const char* const who = "pagoda_pool_write";
    require(num_tokens >= 0, who, ": num_tokens is ", num_tokens, "; allowed: 0 or more");
    require(slot_mapping || num_tokens == 0, who, ": slot_mapping is NULL; allowed: memory for ", num_tokens,
            " positions");
    with_pool(who, exec, pool, [&]<class Space>(auto& p, const Space& instance, const Reach& reach) {
      const Kokkos::View<const std::int64_t*, typename Space::memory_space> mapping(
          slot_mapping, static_cast<std::size_t>(num_tokens));
      p.write(instance, mapping, array<3>(who, "k", k, reach), array<3>(who, "v", v, reach));
    });
  });
}

pagoda_status pagoda_pool_decode(const pagoda_exec* exec, pagoda_pool* pool, std::int32_t num_slots,
                                 const std::int32_t* slots, const pagoda_tensor* q, const pagoda_tensor* out,
                                 const pagoda_tensor* lse) {
  return guarded([&] {
    const char* const who = "pagoda_pool_decode";
    const auto list       = list_of(who, "slots", slots, num_slots);
    with_pool(who, exec, pool, [&](auto& p, const auto& instance, const Reach& reach) {
      p.decode(instance, list, array<3>(who, "q", q, reach), array<3>(who, "out", out, reach),
               optional_lse<2>(who, "lse", lse, reach));
    });
  });
}

pagoda_status pagoda_pool_kv(const pagoda_exec* exec, pagoda_pool* pool, std::int32_t num_slots,
                             const std::int32_t* slots, pagoda_cache* kv) {
  return guarded([&] {
    const char* const who   = "pagoda_pool_kv";
    const auto list         = list_of(who, "slots", slots, num_slots);
    const std::size_t bytes = common_bytes(who, "kv", kv, offsetof(pagoda_cache, k_scale));
    with_pool(who, exec, pool,
              [&]<class T, class Space>(pagoda::KVPool<T, Space>& p, const Space& instance, const Reach&) {
                pagoda_cache to{};
                if (auto* const paged = dynamic_cast<pagoda::PagedPool<T, Space>*>(&p)) {
                  to = describe_cache(paged->kv(instance, list).ref());
                } else {
                  to = describe_cache(dynamic_cast<pagoda::ContiguousPool<T, Space>&>(p).kv(instance, list).ref());
                }
                to.struct_size = kv->struct_size;
                std::memcpy(kv, &to, bytes);
              });
  });
}

pagoda_status pagoda_pool_holds(const pagoda_pool* pool, std::int32_t slot, std::int32_t* holds) {
  return guarded([&] {
    const char* const who = "pagoda_pool_holds";
    std::int32_t& to      = not_null(who, "holds", holds);
    with_pool(who, pool, [&](const auto& p) { to = p.holds(slot) ? 1 : 0; });
  });
}

pagoda_status pagoda_pool_seq_len(const pagoda_pool* pool, std::int32_t slot, std::int32_t* seq_len) {
  return guarded([&] {
    const char* const who = "pagoda_pool_seq_len";
    std::int32_t& to      = not_null(who, "seq_len", seq_len);
    with_pool(who, pool, [&](const auto& p) { to = p.seq_len(slot); });
  });
}

pagoda_status pagoda_pool_can_admit(const pagoda_pool* pool, std::int32_t num_tokens, std::int32_t* can_admit) {
  return guarded([&] {
    const char* const who = "pagoda_pool_can_admit";
    std::int32_t& to      = not_null(who, "can_admit", can_admit);
    with_pool(who, pool, [&](const auto& p) { to = p.can_admit(num_tokens) ? 1 : 0; });
  });
}

pagoda_status pagoda_pool_block_table(const pagoda_pool* pool, std::int32_t slot, const std::int32_t** pages,
                                      std::int32_t* num_pages) {
  return guarded([&] {
    const char* const who      = "pagoda_pool_block_table";
    const std::int32_t*& first = not_null(who, "pages", pages);
    std::int32_t& count        = not_null(who, "num_pages", num_pages);
    with_pool(who, pool, [&](const auto& p) {
      const std::span<const int> table = p.block_table(slot);
      first = table.data(), count = static_cast<std::int32_t>(table.size());
    });
  });
}

pagoda_status pagoda_pool_page_ref_count(const pagoda_pool* pool, std::int32_t page, std::int32_t* count) {
  return guarded([&] {
    const char* const who = "pagoda_pool_page_ref_count";
    std::int32_t& to      = not_null(who, "count", count);
    with_pool(who, pool, [&](const auto& p) { to = p.page_ref_count(page); });
  });
}

pagoda_status pagoda_pool_slot_mapping(const pagoda_pool* pool, std::int32_t slot, std::int32_t first,
                                       std::int32_t count, std::int64_t* positions) {
  return guarded([&] {
    const char* const who = "pagoda_pool_slot_mapping";
    require(positions || count == 0, who, ": positions is NULL; allowed: memory for ", count, " positions");
    with_pool(who, pool, [&](const auto& p) {
      const auto list = p.slot_mapping(slot, first, count);
      std::copy(list.begin(), list.end(), positions);
    });
  });
}

pagoda_status pagoda_pool_get_stats(const pagoda_pool* pool, pagoda_pool_stats* stats) {
  return guarded([&] {
    const char* const who   = "pagoda_pool_get_stats";
    const std::size_t bytes = common_bytes(who, "stats", stats, offsetof(pagoda_pool_stats, tokens_held));
    with_pool(who, pool, [&](const auto& p) {
      pagoda_pool_stats s{};
      s.struct_size = stats->struct_size;
      s.free_slots = p.free_slots(), s.page_size = p.page_size();
      s.num_pages = p.num_pages(), s.free_pages = p.free_pages();
      s.tokens_held = p.tokens_held(), s.tokens_stored = p.tokens_stored();
      s.bytes_per_token = p.bytes_per_token(), s.bytes_allocated = p.bytes_allocated();
      s.bytes_reserved = p.bytes_reserved(), s.bytes_used = p.bytes_used();
      s.waste = p.waste(), s.evictable_pages = p.evictable_pages();
      std::memcpy(stats, &s, bytes);
    });
  });
}
