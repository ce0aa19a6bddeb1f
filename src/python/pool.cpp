// SPDX-License-Identifier: Apache-2.0
// Pools: memory and bookkeeping for many sequences.
#include "src/python/memory.hpp"
#include "src/python/options.hpp"
#include "src/python/pool_tables.hpp"
#include "src/python/rates.hpp"

#include <pagoda/pagoda_pool.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <vector>

using namespace nanobind::literals;

namespace pagoda::python {

namespace {

using Slots  = std::vector<std::int32_t>;
using Counts = std::optional<std::vector<std::int32_t>>;

class Pool final : public Owned {
 public:
  Pool(bool paged, const std::string& dtype, int num_kv_heads, int head_dim, int max_seq_len, int max_sequences,
       int head_dim_v, int page_size, int num_pages, const std::string& order, const std::string& share_prefixes,
       int max_entries, int max_states, const std::optional<std::string>& state_type, std::int32_t device_type,
       std::int32_t device_id, std::uintptr_t stream)
      : who_(paged ? "pagoda.PagedPool" : "pagoda.ContiguousPool"),
        device_{device_type, device_id},
        head_dim_v_(head_dim_v != 0 ? head_dim_v : head_dim) {
    pagoda_pool_options o{};
    o.struct_size  = sizeof o;
    o.layout       = paged ? PAGODA_PAGED : PAGODA_CONTIGUOUS;
    o.type         = type_by_name(who_.c_str(), "dtype", dtype);
    o.num_kv_heads = num_kv_heads, o.head_dim = head_dim, o.head_dim_v = head_dim_v;
    o.max_seq_len = max_seq_len, o.max_sequences = max_sequences;
    o.page_size = page_size, o.num_pages = num_pages;
    o.order = order_by_name(who_.c_str(), "order", order);
    if (share_prefixes != "automatic" && share_prefixes != "never")
      refuse(who_, ": share_prefixes is ", share_prefixes, "; allowed: automatic or never");
    o.share_prefixes = share_prefixes == "never" ? PAGODA_SHARE_NEVER : PAGODA_SHARE_AUTOMATIC;
    pagoda_prefix_options prefix{};
    prefix.struct_size = sizeof prefix;
    prefix.max_entries = max_entries, prefix.max_states = max_states;
    if (state_type) prefix.state_type = type_by_name(who_.c_str(), "state_type", *state_type);
    o.prefix = &prefix;
    Runtime::instance().start(device_);
    const pagoda_exec* const exec = Runtime::instance().exec(who_.c_str(), device_, stream);
    without_gil([&]() -> Outcome {
      const pagoda_status made = pagoda_pool_create(exec, &o, &pool_);
      if (made != PAGODA_SUCCESS) return made;
      memory_.struct_size = sizeof memory_;
      return finish(pagoda_pool_kv(exec, pool_, 0, nullptr, &memory_), device_, exec);
    });
  }
  ~Pool() override { leave(); }

  void prepare(std::uintptr_t stream, const nb::kwargs& given) {
    auto options = std::make_unique<Options>("pagoda.Pool.prepare", device_, stream, given);
    call("prepare", stream,
         [&](const pagoda_exec* exec) { return pagoda_pool_prepare(exec, pool_, options->described()); });
    options_ = std::move(options);
  }

  int admit(nb::handle k, nb::handle v, std::uintptr_t stream) {
    const Array keys = read("admit", "k", k, stream), values = read("admit", "v", v, stream);
    std::int32_t slot = -1;
    call("admit", stream, [&](const pagoda_exec* exec) {
      return pagoda_pool_admit(exec, pool_, &keys.tensor(), &values.tensor(), &slot);
    });
    return slot;
  }
  int admit_tokens(int num_tokens, std::uintptr_t stream) {
    std::int32_t slot = -1;
    call("admit_tokens", stream,
         [&](const pagoda_exec* exec) { return pagoda_pool_admit_tokens(exec, pool_, num_tokens, &slot); });
    return slot;
  }
  int fork(int slot, int num_tokens, std::uintptr_t stream) {
    std::int32_t child = -1;
    call("fork", stream,
         [&](const pagoda_exec* exec) { return pagoda_pool_fork(exec, pool_, slot, num_tokens, &child); });
    return child;
  }
  void release(int slot) {
    ask([&] { return pagoda_pool_release(pool_, slot); });
  }
  int admit_prompt(const Prompt& prompt, nb::handle k, nb::handle v, std::uintptr_t stream) {
    const Array keys = read("admit_prompt", "k", k, stream), values = read("admit_prompt", "v", v, stream);
    std::int32_t slot = -1;
    call("admit_prompt", stream, [&](const pagoda_exec* exec) {
      return pagoda_pool_admit_prompt(exec, pool_, prompt.described(), &keys.tensor(), &values.tensor(), &slot);
    });
    return slot;
  }
  int admit_matched(const Prompt& prompt, std::uintptr_t stream) {
    std::int32_t slot = -1;
    call("admit_matched", stream,
         [&](const pagoda_exec* exec) { return pagoda_pool_admit_matched(exec, pool_, prompt.described(), &slot); });
    return slot;
  }
  int match(const Prompt& prompt) {
    std::int32_t tokens = 0;
    ask([&] { return pagoda_pool_match(pool_, prompt.described(), &tokens); });
    return tokens;
  }
  bool can_admit_prompt(const Prompt& prompt) {
    std::int32_t yes = 0;
    ask([&] { return pagoda_pool_can_admit_prompt(pool_, prompt.described(), &yes); });
    return yes != 0;
  }
  void name_tokens(int slot, const std::vector<std::int32_t>& token_ids) {
    ask([&] { return pagoda_pool_name_tokens(pool_, slot, size(token_ids), token_ids.data()); });
  }
  void name_pages(int slot, const std::vector<std::uint64_t>& page_hashes) {
    const auto pages = static_cast<std::int32_t>(page_hashes.size());
    ask([&] { return pagoda_pool_name_pages(pool_, slot, pages, page_hashes.data()); });
  }
  int named_tokens(int slot) {
    std::int32_t tokens = 0;
    ask([&] { return pagoda_pool_named_tokens(pool_, slot, &tokens); });
    return tokens;
  }
  bool is_indexed(int page) {
    std::int32_t yes = 0;
    ask([&] { return pagoda_pool_is_indexed(pool_, page, &yes); });
    return yes != 0;
  }
  int evict(int num_pages) {
    std::int32_t evicted = 0;
    ask([&] { return pagoda_pool_evict(pool_, num_pages, &evicted); });
    return evicted;
  }
  nb::dict prefix_stats() {
    pagoda_prefix_stats s{};
    s.struct_size = sizeof s;
    ask([&] { return pagoda_pool_get_prefix_stats(pool_, &s); });
    return stats_as_dict(s);
  }
  void reset_prefix_stats() {
    ask([&] { return pagoda_pool_reset_prefix_stats(pool_); });
  }
  nb::dict options() {
    pagoda_pool_options o{};
    o.struct_size = sizeof o;
    ask([&] { return pagoda_pool_get_options(pool_, &o); });
    return options_as_dict(o);
  }
  void append(const Slots& slots, nb::handle k, nb::handle v, const Counts& counts, std::uintptr_t stream) {
    const Array keys = read("append", "k", k, stream), values = read("append", "v", v, stream);
    const std::int32_t* const each = counts_of("append", slots, counts);
    call("append", stream, [&](const pagoda_exec* exec) {
      return pagoda_pool_append(exec, pool_, size(slots), slots.data(), each, &keys.tensor(), &values.tensor());
    });
  }
  void reserve(const Slots& slots, const Counts& counts, std::uintptr_t stream) {
    const std::int32_t* const each = counts_of("reserve", slots, counts);
    call("reserve", stream,
         [&](const pagoda_exec* exec) { return pagoda_pool_reserve(exec, pool_, size(slots), slots.data(), each); });
  }
  void write(nb::handle slot_mapping, nb::handle k, nb::handle v, std::uintptr_t stream) {
    const Array mapping = read("write", "slot_mapping", slot_mapping, stream);
    const Array keys = read("write", "k", k, stream), values = read("write", "v", v, stream);
    const std::int64_t* const positions = mapping.vector_of<std::int64_t>("pagoda.Pool.write", "slot_mapping");
    call("write", stream, [&](const pagoda_exec* exec) {
      return pagoda_pool_write(exec, pool_, positions, mapping.tensor().extent[0], &keys.tensor(), &values.tensor());
    });
  }
  void decode(const Slots& slots, nb::handle q, nb::handle out, nb::handle lse, std::uintptr_t stream) {
    const Array queries = read("decode", "q", q, stream);
    const Array outputs("pagoda.Pool.decode", "out", out, Access::write, stream);
    const Array sums = Array::optional("pagoda.Pool.decode", "lse", lse, Access::write, stream);
    outputs.require_on("pagoda.Pool.decode", "out", device_, "the pool's device");
    sums.require_on("pagoda.Pool.decode", "lse", device_, "the pool's device");
    call("decode", stream, [&](const pagoda_exec* exec) {
      return pagoda_pool_decode(exec, pool_, size(slots), slots.data(), &queries.tensor(), &outputs.tensor(),
                                sums.tensor_or_null());
    });
  }
  nb::dict prefix_report() {
    pagoda_prefix_report r{};
    r.struct_size = sizeof r;
    std::string because;
    ask([&] {
      const pagoda_status done = pagoda_pool_get_prefix_report(pool_, &r);
      if (done == PAGODA_SUCCESS && r.plain_because) because = r.plain_because;
      return done;
    });
    return report_as_dict(r, because);
  }
  nb::dict rates() { return rates_as_dict(read_rates()); }
  void set_rates(const nb::dict& to) {
    pagoda_device_rates r = read_rates();
    change_rates("pagoda.Pool.set_rates", r, to);
    ask([&] { return pagoda_pool_set_rates(pool_, &r); });
  }
  nb::tuple batch_pages(const Slots& slots, int query_len) {
    PageLists lists;
    ask([&] {
      pagoda_batch_pages t{};
      t.struct_size             = sizeof t;
      const pagoda_status found = pagoda_pool_batch_pages(pool_, size(slots), slots.data(), query_len, &t);
      if (found == PAGODA_SUCCESS) lists.append(t);
      return found;
    });
    return lists.arrays();
  }
  Cache* cache(nb::handle self, const Slots& slots, std::uintptr_t stream) {
    pagoda_cache kv{};
    kv.struct_size = sizeof kv;
    call("cache", stream,
         [&](const pagoda_exec* exec) { return pagoda_pool_kv(exec, pool_, size(slots), slots.data(), &kv); });
    return new Cache(kv, device_, nb::borrow(self));
  }

  bool holds(int slot) {
    std::int32_t yes = 0;
    ask([&] { return pagoda_pool_holds(pool_, slot, &yes); });
    return yes != 0;
  }
  int seq_len(int slot) {
    std::int32_t tokens = 0;
    ask([&] { return pagoda_pool_seq_len(pool_, slot, &tokens); });
    return tokens;
  }
  bool can_admit(int num_tokens) {
    std::int32_t yes = 0;
    ask([&] { return pagoda_pool_can_admit(pool_, num_tokens, &yes); });
    return yes != 0;
  }
  std::vector<std::int32_t> block_table(int slot) {
    std::vector<std::int32_t> pages;
    ask([&] {
      const std::int32_t* first = nullptr;
      std::int32_t count        = 0;
      const pagoda_status found = pagoda_pool_block_table(pool_, slot, &first, &count);
      if (found == PAGODA_SUCCESS) pages.assign(first, first + count);
      return found;
    });
    return pages;
  }
  int page_ref_count(int page) {
    std::int32_t count = 0;
    ask([&] { return pagoda_pool_page_ref_count(pool_, page, &count); });
    return count;
  }
  std::vector<std::int64_t> slot_mapping(int slot, int first, int count) {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(count > 0 ? count : 0));
    ask([&] { return pagoda_pool_slot_mapping(pool_, slot, first, count, positions.data()); });
    return positions;
  }
  nb::dict stats() {
    pagoda_pool_stats s{};
    s.struct_size = sizeof s;
    ask([&] { return pagoda_pool_get_stats(pool_, &s); });
    return stats_as_dict(s);
  }
  std::string describe() {
    std::string text;
    ask([&] {
      const char* const line = pagoda_pool_describe(pool_);
      if (line) text = line;
      return line ? PAGODA_SUCCESS : PAGODA_INVALID_ARGUMENT;
    });
    return text;
  }

  nb::ndarray<nb::array_api> k(nb::handle self) const { return array_of(memory_.k, device_, self); }
  nb::ndarray<nb::array_api> v(nb::handle self) const { return array_of(memory_.v, device_, self); }
  int head_dim_v() const { return head_dim_v_; }
  std::string device() const { return device_.name(); }

 private:
  pagoda_device_rates read_rates() {
    pagoda_device_rates r{};
    r.struct_size = sizeof r;
    ask([&] { return pagoda_pool_get_rates(pool_, &r); });
    return r;
  }
  static std::int32_t size(const Slots& slots) { return static_cast<std::int32_t>(slots.size()); }
  const std::int32_t* counts_of(const char* method, const Slots& slots, const Counts& counts) const {
    if (counts && counts->size() != slots.size())
      refuse("pagoda.Pool.", method, ": counts has ", counts->size(), " entries; allowed: ", slots.size(),
             ", as slots");
    return counts ? counts->data() : nullptr;
  }
  Array read(const char* method, const char* name, nb::handle object, std::uintptr_t stream) const {
    const std::string who = std::string("pagoda.Pool.") + method;
    Array array(who.c_str(), name, object, Access::read, stream);
    array.require_on(who.c_str(), name, device_, "the pool's device");
    return array;
  }
  void close() override {
    pagoda_pool_destroy(pool_);
    pool_ = nullptr;
  }
  /// A call without device work, one at a time: a pool has one owner.
  template <class F>
  void ask(F&& f) {
    without_gil([&]() -> Outcome {
      const std::lock_guard lock(use);
      if (!pool_) throw std::runtime_error("pagoda: the interpreter is exiting, and the pool is closed");
      return f();
    });
  }
  /// A call that launches.
  template <class F>
  void call(const char* method, std::uintptr_t stream, F&& f) {
    const pagoda_exec* const exec =
        Runtime::instance().exec((std::string("pagoda.Pool.") + method).c_str(), device_, stream);
    without_gil([&]() -> Outcome {
      const std::lock_guard lock(use);
      if (!pool_) throw std::runtime_error("pagoda: the interpreter is exiting, and the pool is closed");
      return finish(f(exec), device_, exec);
    });
  }

  std::string who_;
  Device device_;
  int head_dim_v_;
  pagoda_pool* pool_ = nullptr;
  pagoda_cache memory_{};
  std::unique_ptr<Options> options_;
};

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<Prompt>(
      m, "Prompt",
      "The name of a prompt: the ids of all tokens, or a hash for each full page with num_tokens. Prompts "
      "of different salts share nothing.")
      .def(nb::init<std::optional<std::vector<std::int32_t>>, std::optional<std::vector<std::uint64_t>>, int,
                    std::uint64_t>(),
           "token_ids"_a = nb::none(), nb::kw_only(), "page_hashes"_a = nb::none(), "num_tokens"_a = 0, "salt"_a = 0)
      .def_prop_ro("num_tokens", &Prompt::num_tokens, "Tokens of the prompt.");
  nb::class_<Pool>(m, "Pool", "Memory for the keys and values of many sequences, and who holds which part of it.")
      .def(nb::init<bool, const std::string&, int, int, int, int, int, int, int, const std::string&, const std::string&,
                    int, int, const std::optional<std::string>&, std::int32_t, std::int32_t, std::uintptr_t>(),
           "paged"_a, nb::kw_only(), "dtype"_a, "num_kv_heads"_a, "head_dim"_a, "max_seq_len"_a, "max_sequences"_a,
           "head_dim_v"_a, "page_size"_a, "num_pages"_a, "order"_a, "share_prefixes"_a, "max_entries"_a, "max_states"_a,
           "state_type"_a.none(), "device_type"_a, "device_id"_a, "stream"_a)
      .def("_prepare", &Pool::prepare, "stream"_a, "options"_a)
      .def("_admit", &Pool::admit, "k"_a, "v"_a, "stream"_a)
      .def("_admit_tokens", &Pool::admit_tokens, "num_tokens"_a, "stream"_a)
      .def("_admit_prompt", &Pool::admit_prompt, "prompt"_a, "k"_a, "v"_a, "stream"_a)
      .def("_admit_matched", &Pool::admit_matched, "prompt"_a, "stream"_a)
      .def("_name_tokens", &Pool::name_tokens, "slot"_a, "token_ids"_a)
      .def("_name_pages", &Pool::name_pages, "slot"_a, "page_hashes"_a)
      .def("match", &Pool::match, "prompt"_a,
           "Tokens with which a sequence of this prompt would begin now, because the index has their pages.")
      .def("can_admit_prompt", &Pool::can_admit_prompt, "prompt"_a, "Whether `admit_prompt` would succeed now.")
      .def("named_tokens", &Pool::named_tokens, "slot"_a, "Number of first tokens of a sequence that have names.")
      .def("is_indexed", &Pool::is_indexed, "page"_a, "Whether a page is in the prefix index.")
      .def("evict", &Pool::evict, "num_pages"_a,
           "Evicts up to num_pages pages that the index caches and no sequence needs. Returns how many.")
      .def("prefix_stats", &Pool::prefix_stats, "What the prefix index has saved: hits, misses, bytes, evictions.")
      .def("reset_prefix_stats", &Pool::reset_prefix_stats, "Sets the counts of `prefix_stats` to 0.")
      .def("options", &Pool::options, "The shape of the pool, with defaults filled in.")
      .def("_fork", &Pool::fork, "slot"_a, "num_tokens"_a, "stream"_a)
      .def("_append", &Pool::append, "slots"_a, "k"_a, "v"_a, "counts"_a.none(), "stream"_a)
      .def("_reserve", &Pool::reserve, "slots"_a, "counts"_a.none(), "stream"_a)
      .def("_write", &Pool::write, "slot_mapping"_a, "k"_a, "v"_a, "stream"_a)
      .def("_decode", &Pool::decode, "slots"_a, "q"_a, "out"_a, "lse"_a.none(), "stream"_a)
      .def(
          "_cache",
          [](nb::handle self, const Slots& slots, std::uintptr_t stream) {
            return nb::cast<Pool&>(self).cache(self, slots, stream);
          },
          "slots"_a, "stream"_a, nb::rv_policy::take_ownership)
      .def("_set_rates", &Pool::set_rates, "rates"_a)
      .def("_batch_pages", &Pool::batch_pages, "slots"_a, "query_len"_a)
      .def("prefix_report", &Pool::prefix_report,
           "What the planning of the last decode found: times, sizes, why it was plain.")
      .def_prop_ro("rates", &Pool::rates, "The rates that decodes predict times from.")
      .def("release", &Pool::release, "slot"_a, "Removes a sequence. Its slot and its own pages are free at once.")
      .def("holds", &Pool::holds, "slot"_a, "Whether a sequence is in this slot.")
      .def("seq_len", &Pool::seq_len, "slot"_a, "Tokens of a sequence.")
      .def("can_admit", &Pool::can_admit, "num_tokens"_a, "Whether a sequence of that many tokens fits now.")
      .def("block_table", &Pool::block_table, "slot"_a, "Page ids of a sequence. Contiguous: its slot.")
      .def("page_ref_count", &Pool::page_ref_count, "page"_a, "Sequences that hold a page.")
      .def("slot_mapping", &Pool::slot_mapping, "slot"_a, "first"_a, "count"_a,
           "Positions of tokens `first` to `first + count - 1` of a sequence: entries for `write`.")
      .def("stats", &Pool::stats, "How full the pool is. Takes time in the number of pages.")
      .def("describe", &Pool::describe, "`Plan.describe` of the pool's plan.")
      .def_prop_ro(
          // Signatures are given because the stub of an array of any type is not valid in nanobind 2.12.
          "k", [](nb::handle self) { return nb::cast<Pool&>(self).k(self); },
          nb::for_getter(nb::sig("def k(self) -> object")),
          "The keys of all pages as a DLPack array, without a copy: (page, token, KV head, dim).")
      .def_prop_ro(
          "v", [](nb::handle self) { return nb::cast<Pool&>(self).v(self); },
          nb::for_getter(nb::sig("def v(self) -> object")), "The values, as `k`.")
      .def_prop_ro("head_dim_v", &Pool::head_dim_v, "Dims of a value.")
      .def_prop_ro("device", &Pool::device, "\"cpu\" or \"cuda:0\".");
}

}  // namespace pagoda::python
