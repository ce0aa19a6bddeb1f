// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/pool/pool_decode.hpp"
#include "tests/pool/prompt_numbers.hpp"
#include "tests/pool/random_calls.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace pagoda::test {

/// A pool with random options, and random calls that follow from a seed or from a fuzzer's numbers. Some calls are
/// invalid, and in some an allocation or a launch fails.
template <class Pool, class Random = std::mt19937_64>
class RandomPool {
 public:
  using Space = typename Pool::execution_space;

  explicit RandomPool(Random random)
      : random_(std::forward<Random>(random)),
        options_(draw_pool_options(random_)),
        d_(options_),
        twin_(d_.exec, options_) {
    prepare();
  }

  void step() {
    switch (d_.model.empty() ? below(4) : below(26)) {
      case 0:
      case 1:
        return admit();
      case 2:
      case 3:
      case 20:
      case 21:
        return admit_prompt();
      case 22:
        return release();
      case 23:
      case 24:
        return name();
      case 25:
        return below(3) == 0 ? evict() : name();
      case 4:
        return fork();
      case 5:
        return release();
      case 6:
      case 7:
        return reserve();
      case 8:
      case 9:
        return write();
      case 10:
      case 11:
      case 12:
        return decode();
      case 13:
        return below(4) == 0 ? prepare() : misuse();
      default:
        return append();
    }
  }

  /// Compares everything with the model, and the slots and pages in use with those of the twin, which gets successful
  /// calls only.
  void check() {
    d_.check();
    for (const auto& [slot, tokens] : d_.model) {
      ASSERT_TRUE(twin_.holds(slot)) << "slot " << slot;
      const auto pages = d_.pool.block_table(slot), others = twin_.block_table(slot);
      ASSERT_TRUE(std::equal(pages.begin(), pages.end(), others.begin(), others.end())) << "pages of slot " << slot;
      ASSERT_EQ(d_.pool.named_tokens(slot), twin_.named_tokens(slot));
    }
    for (int page = 0; page < twin_.num_pages(); ++page) ASSERT_EQ(d_.pool.is_indexed(page), twin_.is_indexed(page));
    ASSERT_EQ(d_.pool.evictable_pages(), twin_.evictable_pages());
    ASSERT_EQ(d_.pool.prefix_stats(), twin_.prefix_stats());
  }

  std::string last;  ///< the call made last
  Attempts attempts;
  long decodes = 0, packed = 0;  ///< packed: decodes that read shared pages once
  PrefixStats prefix_stats() const { return d_.pool.prefix_stats(); }

 private:
  /// How a sequence is named.
  struct Names {
    bool by_hash       = false;
    std::uint64_t salt = 0;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int from(int least, int most) { return least + below(most - least + 1); }

  int pages(int tokens) const {
    const int size = d_.pool.page_size();
    return is_paged<Pool> ? (tokens + size - 1) / size : 1;
  }
  int any_slot() { return std::next(d_.model.begin(), below(static_cast<int>(d_.model.size())))->first; }
  std::vector<int> some_slots() {
    auto slots = slots_of(d_.model);
    std::shuffle(slots.begin(), slots.end(), random_);
    slots.resize(from(1, static_cast<int>(slots.size())));
    return slots;
  }
  std::vector<int> some_counts(const std::vector<int>& slots) {
    const int most = below(3) == 0 ? 1 : below(4) == 0 ? 60 : 8;
    std::vector<int> counts;
    for (const int slot : slots)
      counts.push_back(std::min(below(most + 1), options_.max_seq_len - d_.pool.seq_len(slot)));
    return counts;
  }

  /// Attempts::make, then what follows from it.
  template <class Error, class Call, class Done>
  void attempt(const char* name, bool fits, const Call& call, const Done& done) {
    last              = name;
    const auto result = attempts.make<Error>(random_, name, fits, call);
    if (!result.thrown) return done();
    // Pages that a call of several launches has evicted and overwritten are not in the index any more.
    if (const int gone = twin_.evictable_pages() - d_.pool.evictable_pages(); gone > 0) {
      EXPECT_TRUE(result.injected && (last == "append" || last == "reserve")) << last;
      twin_.evict(gone);
    }
  }
  template <class Call, class Done>
  void attempt(const char* name, bool fits, const Call& call, const Done& done) {
    attempt<OutOfCapacity>(name, fits, call, done);
  }

  /// Rows of tokens in one of the supported types.
  template <class Use>
  void with_rows(const std::vector<int>& tokens, const Use& use) {
    const auto in = [&]<class U>(U) {
      use(keys<Pool, U>(d_.pool, d_.exec, tokens), values<Pool, U>(d_.pool, d_.exec, tokens));
    };
    switch (below(3)) {
      case 0:
        return in(float());
      case 1:
        return in(double());
      default:
        return in(typename Pool::value_type());
    }
  }

  void admit() {
    const int n     = below(options_.max_seq_len + 1) / from(1, 3);
    const bool fits = static_cast<int>(d_.model.size()) < options_.max_sequences && pages(n) <= d_.pool.free_pages();
    ASSERT_EQ(d_.pool.can_admit(n), fits);
    int slot        = -1;
    const auto done = [&](const std::vector<int>& tokens) {
      d_.model[slot] = tokens;
      names_[slot]   = {};
      EXPECT_EQ(twin_.admit(d_.exec, n), slot);
    };
    if (below(4) == 0)
      return attempt(
          "admit without rows", fits, [&] { slot = d_.pool.admit(d_.exec, n); },
          [&] { done(std::vector<int>(n, unwritten)); });
    const auto tokens = d_.fresh(n);
    with_rows(tokens, [&](const auto& k, const auto& v) {
      attempt("admit", fits, [&] { slot = d_.pool.admit(d_.exec, k, v); }, [&] { done(tokens); });
    });
  }

  /// The sequence is the whole prompt, or the pages of it that the index has.
  void admit_prompt() {
    DrawnPrompt drawn;
    numbers_.draw(drawn, random_, below(options_.max_seq_len + 1), d_.pool.page_size(), [&] { return d_.next++; });
    const Prompt& prompt = drawn.prompt;
    const int n = static_cast<int>(drawn.tokens.size()), cached = d_.pool.match(prompt);
    ASSERT_EQ(cached, twin_.match(prompt));
    int slot        = -1;
    const auto done = [&](int length) {
      EXPECT_EQ(d_.pool.named_tokens(slot), is_paged<Pool> && (length < n || !prompt.token_ids.empty()) ? length
                                            : is_paged<Pool> ? n / d_.pool.page_size() * d_.pool.page_size()
                                                             : 0);
      d_.model[slot].assign(drawn.tokens.begin(), drawn.tokens.begin() + length);
      names_[slot] = {prompt.token_ids.empty() && n > 0, prompt.salt};
    };
    if (below(3) == 0)
      return attempt(
          "admit pages of the index", static_cast<int>(d_.model.size()) < options_.max_sequences,
          [&] { slot = d_.pool.admit(d_.exec, prompt); },
          [&] {
            done(cached);
            EXPECT_EQ(twin_.admit(d_.exec, prompt), slot);
          });
    // Rows of tokens that are shared may be given; these here would be wrong.
    auto rows = d_.fresh(cached - below(cached + 1));
    rows.insert(rows.end(), drawn.tokens.begin() + cached, drawn.tokens.end());
    with_rows(rows, [&](const auto& k, const auto& v) {
      attempt(
          "admit a prompt", d_.pool.can_admit(prompt), [&] { slot = d_.pool.admit(d_.exec, prompt, k, v); },
          [&] {
            done(n);
            EXPECT_EQ(twin_.admit(d_.exec, prompt, k, v), slot);
          });
    });
  }

  /// Names tokens whose rows are written.
  void name() {
    const int slot       = any_slot();
    const auto& sequence = d_.model[slot];
    const int named      = d_.pool.named_tokens(slot);
    const auto written   = std::find(sequence.begin() + named, sequence.end(), unwritten) - sequence.begin() - named;
    if (names_[slot].by_hash) {
      const int size = d_.pool.page_size();
      const auto hashes =
          PromptNumbers::hashes(sequence, named / size, below(static_cast<int>(written) / size + 1), size);
      return attempt("name by hashes", true, [&] { d_.pool.name(slot, hashes); }, [&] { twin_.name(slot, hashes); });
    }
    const auto ids = numbers_.ids(names_[slot].salt, sequence, named, below(static_cast<int>(written) + 1));
    if (named == 0 && names_[slot].salt == 0) numbers_.use(ids);
    attempt("name", true, [&] { d_.pool.name(slot, ids); }, [&] { twin_.name(slot, ids); });
  }

  void evict() {
    const int n = below(4);
    attempt("evict", true, [&] { d_.pool.evict(n); }, [&] { twin_.evict(n); });
  }

  void fork() {
    const int parent = any_slot(), n = below(3) == 0 ? -1 : below(d_.pool.seq_len(parent) + 1);
    int child = -1;
    attempt(
        "fork", static_cast<int>(d_.model.size()) < options_.max_sequences,
        [&] { child = d_.pool.fork(d_.exec, parent, n); },
        [&] {
          auto tokens = d_.model[parent];
          if (n >= 0) tokens.resize(n);
          d_.model[child] = tokens;
          names_[child]   = names_[parent];
          EXPECT_EQ(twin_.fork(d_.exec, parent, n), child);
        });
  }

  void release() {
    const int slot = any_slot();
    attempt(
        "release", true, [&] { d_.pool.release(slot); },
        [&] {
          d_.model.erase(slot);
          twin_.release(slot);
        });
  }

  /// Number of pages that an append takes: new ones, and copies of shared partial pages for all but the last sequence.
  /// A page of the index is copied for all.
  int pages_to_take(const std::vector<int>& slots, const std::vector<int>& counts) const {
    std::map<int, int> holders;
    int taken = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const int length = d_.pool.seq_len(slots[i]), size = d_.pool.page_size();
      taken += pages(length + counts[i]) - pages(length);
      if (counts[i] == 0 || length % size == 0) continue;
      const int page = d_.pool.block_table(slots[i])[length / size];
      const auto at  = holders.try_emplace(page, d_.pool.page_ref_count(page)).first;
      if (at->second > 1 || d_.pool.is_indexed(page)) --at->second, ++taken;
    }
    return taken;
  }

  void grow(const std::vector<int>& slots, const std::vector<int>& counts, const std::vector<int>& tokens) {
    auto next = tokens.begin();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      auto& sequence = d_.model[slots[i]];
      sequence.insert(sequence.end(), next, next + counts[i]);
      next += counts[i];
    }
    twin_.reserve(d_.exec, slots, counts);
  }

  void append() {
    const auto slots = some_slots(), counts = some_counts(slots);
    const int sum     = std::accumulate(counts.begin(), counts.end(), 0);
    const auto tokens = d_.fresh(sum);
    const bool fits   = pages_to_take(slots, counts) <= d_.pool.free_pages();
    with_rows(tokens, [&](const auto& k, const auto& v) {
      attempt(
          "append", fits, [&] { d_.pool.append(d_.exec, slots, counts, k, v); }, [&] { grow(slots, counts, tokens); });
    });
  }

  void reserve() {
    const auto slots = some_slots(), counts = some_counts(slots);
    const int sum = std::accumulate(counts.begin(), counts.end(), 0);
    attempt(
        "reserve", pages_to_take(slots, counts) <= d_.pool.free_pages(),
        [&] { d_.pool.reserve(d_.exec, slots, counts); },
        [&] { grow(slots, counts, std::vector<int>(sum, unwritten)); });
  }

  /// Writes new rows at positions of some tokens, also of unwritten ones, but not of tokens with names. All sequences
  /// that share a position get its new row.
  void write() {
    std::map<std::int64_t, int> rows;
    std::set<std::int64_t> kept;
    for (const auto& [slot, tokens] : d_.model) {
      const auto positions = d_.pool.slot_mapping(slot, 0, d_.pool.named_tokens(slot));
      kept.insert(positions.begin(), positions.end());
    }
    const auto is_kept = [&](std::int64_t position) {
      return kept.contains(position) || d_.pool.is_indexed(static_cast<int>(position / d_.pool.page_size()));
    };
    for (const auto& [slot, tokens] : d_.model) {
      const auto positions = d_.pool.slot_mapping(slot, 0, static_cast<int>(tokens.size()));
      for (std::size_t t = 0; t < tokens.size(); ++t)
        if ((tokens[t] == unwritten || below(10) == 0) && !is_kept(positions[t])) rows[positions[t]] = 0;
    }
    std::vector<std::int64_t> mapping;
    for (auto& [position, token] : rows) mapping.push_back(position);
    mapping.insert(mapping.end(), below(3), -1);  // skipped rows
    std::shuffle(mapping.begin(), mapping.end(), random_);
    const auto tokens = d_.fresh(static_cast<int>(mapping.size()));
    for (std::size_t i = 0; i < mapping.size(); ++i)
      if (mapping[i] >= 0) rows[mapping[i]] = tokens[i];
    const auto there = on_device(d_.exec, mapping);
    with_rows(tokens, [&](const auto& k, const auto& v) {
      attempt(
          "write", true, [&] { d_.pool.write(d_.exec, there, k, v); },
          [&] {
            for (auto& [slot, sequence] : d_.model) {
              const auto positions = d_.pool.slot_mapping(slot, 0, static_cast<int>(sequence.size()));
              for (std::size_t t = 0; t < sequence.size(); ++t)
                if (const auto at = rows.find(positions[t]); at != rows.end()) sequence[t] = at->second;
            }
          });
    });
  }

  void decode() {
    std::vector<int> written, slots;
    for (const auto& [slot, tokens] : d_.model)
      if (std::find(tokens.begin(), tokens.end(), unwritten) == tokens.end()) written.push_back(slot);
    if (!written.empty())
      for (int n = below(options_.max_sequences + 1); n > 0; --n)
        slots.push_back(written[below(static_cast<int>(written.size()))]);
    const PoolQueries<Pool> queries(d_, static_cast<int>(slots.size()),
                                    from(1, d_.pool.plan().schedule().bounds.max_query_len));
    attempt(
        "decode", true, [&] { queries.decode(d_, slots); },
        [&] {
          queries.expect_right(d_, slots);
          ++decodes;
          packed += d_.pool.prefix_report().plain_because == nullptr;
        });
  }

  void prepare() {
    DecodeOptions<typename Pool::memory_space> o;
    o.num_q_heads   = options_.num_kv_heads * from(1, 5);
    o.max_query_len = from(1, 4);
    if (below(3) == 0) o.causal = false;
    if (below(3) == 0) o.window_left = below(20);
    if (below(3) == 0) o.num_initial_tokens = below(5);
    if (below(3) == 0) o.logit_soft_cap = from(1, 10);
    if (below(3) == 0) o.softmax_scale = 0.1 * from(1, 5);
    last = "prepare";
    d_.pool.prepare(d_.exec, o);
    if (is_paged<Pool> && below(4) > 0) d_.pool.set_rates(eager_rates());
  }

  /// A call that is always refused.
  void misuse() {
    const auto refused_call = [&](const char* name, const auto& call) {
      attempt<InvalidArgument>(name, false, call, [] {});
    };
    const int slot = any_slot();
    int unknown    = from(-2, options_.max_sequences + 1);
    if (d_.model.contains(unknown)) unknown = -1;
    const std::vector<int> twice{slot, slot}, with_unknown{slot, unknown}, too_many{options_.max_seq_len + 1};
    switch (below(7)) {
      case 0:
        return refused_call("release of no sequence", [&] { d_.pool.release(unknown); });
      case 1:
        return refused_call("fork of no sequence", [&] { d_.pool.fork(d_.exec, unknown); });
      case 2:
        return refused_call("reserve of a slot twice", [&] { d_.pool.reserve(d_.exec, twice, {}); });
      case 3:
        return refused_call("reserve of too many",
                            [&] { d_.pool.reserve(d_.exec, std::span<const int>(twice).first(1), too_many); });
      case 4:
        return refused_call("kv of no sequence", [&] { d_.pool.kv(d_.exec, with_unknown); });
      case 5: {
        const PoolQueries<Pool> queries(d_, 2);
        return refused_call("decode of no sequence", [&] { queries.decode(d_, with_unknown); });
      }
      default: {
        const PoolQueries<Pool> queries(d_, 2, d_.pool.plan().schedule().bounds.max_query_len + 1);
        return refused_call("decode with too many queries", [&] { queries.decode(d_, twice); });
      }
    }
  }

  Random random_;
  PoolOptions options_;
  Driven<Pool> d_;
  PromptNumbers numbers_;
  std::map<int, Names> names_;  ///< of each slot
  Pool twin_;                   ///< gets the successful calls, without rows
};

}  // namespace pagoda::test
