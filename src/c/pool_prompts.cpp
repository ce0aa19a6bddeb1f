// SPDX-License-Identifier: Apache-2.0
// Prompts and the prefix index of pools of the C interface.
#include "src/c/pools.hpp"

#include <cstddef>
#include <span>

using namespace pagoda::c;

namespace {

template <class T>
std::span<const T> named(const char* who, const char* name, const char* length, const T* entries, std::int32_t count) {
  require(count >= 0, who, ": ", length, " is ", count, "; allowed: 0 or more");
  require(entries || count == 0, who, ": ", name, " is NULL; allowed: memory for ", count, " entries");
  return {entries, static_cast<std::size_t>(count)};
}

/// The prompt behind a struct: with token ids, num_tokens counts them.
pagoda::Prompt prompt_of(const char* who, const pagoda_prompt* given) {
  const auto p = read_struct(who, "prompt", given, offsetof(pagoda_prompt, salt) + sizeof(std::uint64_t));
  require(!p.token_ids || (!p.page_hashes && p.num_page_hashes == 0), who,
          ": prompt has token_ids and page_hashes; allowed: one of them");
  pagoda::Prompt to;
  to.salt = p.salt;
  if (p.token_ids) {
    to.token_ids = named(who, "prompt.token_ids", "prompt.num_tokens", p.token_ids, p.num_tokens);
  } else {
    to.page_hashes = named(who, "prompt.page_hashes", "prompt.num_page_hashes", p.page_hashes, p.num_page_hashes);
    to.num_tokens  = p.num_tokens;
  }
  return to;
}

}  // namespace

pagoda_status pagoda_pool_match(const pagoda_pool* pool, const pagoda_prompt* prompt, std::int32_t* num_tokens) {
  return guarded([&] {
    const char* const who = "pagoda_pool_match";
    std::int32_t& to      = not_null(who, "num_tokens", num_tokens);
    with_pool(who, pool, [&](const auto& p) { to = p.match(prompt_of(who, prompt)); });
  });
}

pagoda_status pagoda_pool_admit_prompt(const pagoda_exec* exec, pagoda_pool* pool, const pagoda_prompt* prompt,
                                       const pagoda_tensor* k, const pagoda_tensor* v, std::int32_t* slot) {
  return guarded([&] {
    const char* const who = "pagoda_pool_admit_prompt";
    std::int32_t& to      = not_null(who, "slot", slot);
    with_pool(who, exec, pool, [&](auto& p, const auto& instance, const Reach& reach) {
      to = p.admit(instance, prompt_of(who, prompt), array<3>(who, "k", k, reach), array<3>(who, "v", v, reach));
    });
  });
}

pagoda_status pagoda_pool_admit_matched(const pagoda_exec* exec, pagoda_pool* pool, const pagoda_prompt* prompt,
                                        std::int32_t* slot) {
  return guarded([&] {
    const char* const who = "pagoda_pool_admit_matched";
    std::int32_t& to      = not_null(who, "slot", slot);
    with_pool(who, exec, pool,
              [&](auto& p, const auto& instance, const Reach&) { to = p.admit(instance, prompt_of(who, prompt)); });
  });
}

pagoda_status pagoda_pool_can_admit_prompt(const pagoda_pool* pool, const pagoda_prompt* prompt,
                                           std::int32_t* can_admit) {
  return guarded([&] {
    const char* const who = "pagoda_pool_can_admit_prompt";
    std::int32_t& to      = not_null(who, "can_admit", can_admit);
    with_pool(who, pool, [&](const auto& p) { to = p.can_admit(prompt_of(who, prompt)) ? 1 : 0; });
  });
}

pagoda_status pagoda_pool_name_tokens(pagoda_pool* pool, std::int32_t slot, std::int32_t num_tokens,
                                      const std::int32_t* token_ids) {
  return guarded([&] {
    const char* const who = "pagoda_pool_name_tokens";
    const auto ids        = named(who, "token_ids", "num_tokens", token_ids, num_tokens);
    with_pool(who, pool, [&](auto& p) { p.name(slot, ids); });
  });
}

pagoda_status pagoda_pool_name_pages(pagoda_pool* pool, std::int32_t slot, std::int32_t num_pages,
                                     const std::uint64_t* page_hashes) {
  return guarded([&] {
    const char* const who = "pagoda_pool_name_pages";
    const auto hashes     = named(who, "page_hashes", "num_pages", page_hashes, num_pages);
    with_pool(who, pool, [&](auto& p) { p.name(slot, hashes); });
  });
}

pagoda_status pagoda_pool_named_tokens(const pagoda_pool* pool, std::int32_t slot, std::int32_t* num_tokens) {
  return guarded([&] {
    const char* const who = "pagoda_pool_named_tokens";
    std::int32_t& to      = not_null(who, "num_tokens", num_tokens);
    with_pool(who, pool, [&](const auto& p) { to = p.named_tokens(slot); });
  });
}

pagoda_status pagoda_pool_is_indexed(const pagoda_pool* pool, std::int32_t page, std::int32_t* indexed) {
  return guarded([&] {
    const char* const who = "pagoda_pool_is_indexed";
    std::int32_t& to      = not_null(who, "indexed", indexed);
    with_pool(who, pool, [&](const auto& p) { to = p.is_indexed(page) ? 1 : 0; });
  });
}

pagoda_status pagoda_pool_evict(pagoda_pool* pool, std::int32_t num_pages, std::int32_t* evicted) {
  return guarded([&] {
    const char* const who = "pagoda_pool_evict";
    std::int32_t& to      = not_null(who, "evicted", evicted);
    with_pool(who, pool, [&](auto& p) { to = p.evict(num_pages); });
  });
}

pagoda_status pagoda_pool_get_prefix_stats(const pagoda_pool* pool, pagoda_prefix_stats* stats) {
  return guarded([&] {
    const char* const who   = "pagoda_pool_get_prefix_stats";
    const std::size_t bytes = common_bytes(who, "stats", stats, offsetof(pagoda_prefix_stats, hit_pages));
    with_pool(who, pool, [&](const auto& p) {
      const pagoda::PrefixStats s = p.prefix_stats();
      pagoda_prefix_stats to{};
      to.struct_size = stats->struct_size;
      to.prompts = s.prompts, to.hit_tokens = s.hit_tokens, to.miss_tokens = s.miss_tokens;
      to.hit_pages = s.hit_pages, to.miss_pages = s.miss_pages;
      to.saved_bytes = s.saved_bytes, to.evicted_pages = s.evicted_pages, to.indexed_pages = s.indexed_pages;
      to.hit_rate = s.hit_rate();
      std::memcpy(stats, &to, bytes);
    });
  });
}

pagoda_status pagoda_pool_reset_prefix_stats(pagoda_pool* pool) {
  return guarded([&] { with_pool("pagoda_pool_reset_prefix_stats", pool, [](auto& p) { p.reset_prefix_stats(); }); });
}
