// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/runtime.hpp"

#include <pagoda/pagoda_pool.h>

#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

/// What pools take and give besides arrays of keys and values: prompts, numbers, and tables on the host.
namespace pagoda::python {

/// The name of a prompt.
class Prompt {
 public:
  Prompt(std::optional<std::vector<std::int32_t>> token_ids, std::optional<std::vector<std::uint64_t>> page_hashes,
         int num_tokens, std::uint64_t salt)
      : ids_(std::move(token_ids).value_or(std::vector<std::int32_t>())),
        hashes_(std::move(page_hashes).value_or(std::vector<std::uint64_t>())) {
    const int ids = static_cast<int>(ids_.size());
    if (ids > 0 && num_tokens != 0 && num_tokens != ids)
      refuse("pagoda.Prompt: num_tokens is ", num_tokens, "; allowed: 0 or ", ids, ", as there are token_ids");
    p_.struct_size = sizeof p_;
    if (ids > 0) p_.token_ids = ids_.data();
    if (!hashes_.empty()) p_.page_hashes = hashes_.data();
    p_.num_tokens      = ids > 0 ? ids : num_tokens;
    p_.num_page_hashes = static_cast<std::int32_t>(hashes_.size());
    p_.salt            = salt;
  }
  Prompt(const Prompt&)            = delete;  // p_ points to its vectors
  Prompt& operator=(const Prompt&) = delete;

  const pagoda_prompt* described() const { return &p_; }
  int num_tokens() const { return p_.num_tokens; }

 private:
  std::vector<std::int32_t> ids_;
  std::vector<std::uint64_t> hashes_;
  pagoda_prompt p_{};
};

/// The options of a pool as a dict.
inline nb::dict options_as_dict(const pagoda_pool_options& o) {
  nb::dict all;
  all["dtype"] = pagoda_type_name(o.type), all["num_kv_heads"] = o.num_kv_heads, all["head_dim"] = o.head_dim;
  all["head_dim_v"] = o.head_dim_v, all["max_seq_len"] = o.max_seq_len, all["max_sequences"] = o.max_sequences;
  all["page_size"] = o.page_size, all["num_pages"] = o.num_pages;
  all["order"]          = o.order == PAGODA_NHD ? "NHD" : "HND";
  all["share_prefixes"] = o.share_prefixes == PAGODA_SHARE_NEVER ? "never" : "automatic";
  return all;
}

/// The numbers of a struct as a dict.
inline nb::dict stats_as_dict(const pagoda_prefix_stats& s) {
  nb::dict all;
  all["prompts"] = s.prompts, all["hit_tokens"] = s.hit_tokens, all["miss_tokens"] = s.miss_tokens;
  all["hit_pages"] = s.hit_pages, all["miss_pages"] = s.miss_pages, all["saved_bytes"] = s.saved_bytes;
  all["evicted_pages"] = s.evicted_pages, all["indexed_pages"] = s.indexed_pages, all["hit_rate"] = s.hit_rate;
  return all;
}
inline nb::dict stats_as_dict(const pagoda_pool_stats& s) {
  nb::dict all;
  all["free_slots"] = s.free_slots, all["page_size"] = s.page_size, all["num_pages"] = s.num_pages;
  all["free_pages"] = s.free_pages, all["tokens_held"] = s.tokens_held, all["tokens_stored"] = s.tokens_stored;
  all["bytes_per_token"] = s.bytes_per_token, all["bytes_allocated"] = s.bytes_allocated;
  all["bytes_reserved"] = s.bytes_reserved, all["bytes_used"] = s.bytes_used, all["waste"] = s.waste;
  all["evictable_pages"] = s.evictable_pages;
  return all;
}

/// Integers on the host as an array that owns them.
inline nb::object vector_as_array(std::vector<std::int32_t>&& numbers) {
  auto held               = std::make_unique<std::vector<std::int32_t>>(std::move(numbers));
  std::int32_t* const all = held->data();
  const std::size_t size  = held->size();
  const nb::capsule owner(held.release(), [](void* p) noexcept { delete static_cast<std::vector<std::int32_t>*>(p); });
  return nb::cast(nb::ndarray<nb::array_api, std::int32_t, nb::ndim<1>, nb::device::cpu>(all, {size}, owner));
}

/// Copies of a batch's lengths and CSR page lists.
class PageLists {
 public:
  /// t: tables with sequence_ids, and with page_rows or without pages.
  void append(const pagoda_batch_pages& t) {
    paged_ = t.page_rows != nullptr;
    seq_lens_.reserve(static_cast<std::size_t>(t.batch));
    for (int b = 0; b < t.batch; ++b) {
      const std::int32_t sequence = t.sequence_ids[b], length = t.seq_lens[sequence];
      seq_lens_.push_back(length);
      if (!paged_) continue;
      const std::int32_t* const pages = t.page_rows[sequence];
      indices_.insert(indices_.end(), pages, pages + (length + t.page_size - 1) / t.page_size);
      indptr_.push_back(static_cast<std::int32_t>(indices_.size()));
    }
  }
  /// (seq_lens, page_indptr, page_indices), or (seq_lens, None, None) without pages.
  nb::tuple arrays() {
    if (!paged_) return nb::make_tuple(vector_as_array(std::move(seq_lens_)), nb::none(), nb::none());
    return nb::make_tuple(vector_as_array(std::move(seq_lens_)), vector_as_array(std::move(indptr_)),
                          vector_as_array(std::move(indices_)));
  }

 private:
  std::vector<std::int32_t> seq_lens_, indptr_{0}, indices_;
  bool paged_ = false;
};

}  // namespace pagoda::python
