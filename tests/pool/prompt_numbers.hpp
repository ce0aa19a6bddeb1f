// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/prefix_index.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace pagoda::test {

/// A prompt with what it refers to, and the numbers of its tokens.
struct DrawnPrompt {
  std::vector<int> ids, tokens;
  std::vector<std::uint64_t> hashes;
  Prompt prompt;
};

/// Token ids, and the numbers of tokens that determine rows (pool_model.hpp). The rows of a token depend on all tokens
/// before it, so equal ids have equal numbers only after equal prefixes of equal salt. A wrongly shared page is
/// therefore seen in its rows.
class PromptNumbers {
 public:
  /// Number before the first token of a sequence.
  static int first(std::uint64_t salt) { return -1 - static_cast<int>(salt); }

  /// The number of `id` after the token of number `before`. fresh(): a number that was never used.
  template <class Fresh>
  int number(int before, int id, const Fresh& fresh) {
    const auto at = numbers_.find({before, id});
    return at != numbers_.end() ? at->second : (numbers_[{before, id}] = fresh());
  }
  template <class Fresh>
  std::vector<int> numbers(std::uint64_t salt, const std::vector<int>& ids, const Fresh& fresh) {
    std::vector<int> list;
    for (const int id : ids) list.push_back(number(list.empty() ? first(salt) : list.back(), id, fresh));
    return list;
  }

  /// Ids under which the tokens [from, from + count) of a sequence of numbers may be named: the id that gave the number
  /// to a prompt, or a new one.
  std::vector<int> ids(std::uint64_t salt, const std::vector<int>& sequence, int from, int count) {
    std::vector<int> list;
    for (int t = from; t < from + count; ++t) {
      const int before = t == 0 ? first(salt) : sequence[t - 1];
      auto at          = numbers_.lower_bound({before, 0});
      while (at != numbers_.end() && at->first.first == before && at->second != sequence[t]) ++at;
      if (at == numbers_.end() || at->first.first != before)
        at = numbers_.try_emplace({before, next_id_++}, sequence[t]).first;
      list.push_back(at->first.second);
    }
    return list;
  }

  /// Draws a prompt of `length` tokens, named by ids or by hashes.
  template <class Random, class Fresh>
  void draw(DrawnPrompt& d, Random& random, int length, int page_size, const Fresh& fresh) {
    d.ids         = draw_ids(random, length);
    d.prompt.salt = random() % 5 == 0;
    d.tokens      = numbers(d.prompt.salt, d.ids, fresh);
    if (random() % 4 == 0) {
      d.hashes = hashes(d.tokens, 0, length / page_size, page_size);
      d.prompt = {.page_hashes = d.hashes, .num_tokens = length, .salt = d.prompt.salt};
    } else {
      d.prompt.token_ids = d.ids;
    }
  }

  /// Ids of a prompt: often some that were used before, then ids of a small alphabet.
  template <class Random>
  std::vector<int> draw_ids(Random& random, int length) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<int> ids;
    if (!used_.empty() && below(4) > 0) {
      ids = used_[below(static_cast<int>(used_.size()))];
      if (below(2) == 0) ids.resize(below(static_cast<int>(ids.size()) + 1));
    }
    ids.resize(std::min<std::size_t>(ids.size(), length));
    while (static_cast<int>(ids.size()) < length) ids.push_back(below(2));
    use(ids);
    return ids;
  }
  /// Later prompts may begin with these ids.
  void use(const std::vector<int>& ids) {
    if (used_.size() >= 5) used_.erase(used_.begin());
    used_.push_back(ids);
  }

  /// Hashes of the full pages of a sequence from page `first_page` on.
  static std::vector<std::uint64_t> hashes(const std::vector<int>& sequence, int first_page, int pages, int page_size) {
    std::vector<std::uint64_t> list;
    for (int i = first_page; i < first_page + pages; ++i) {
      std::uint64_t hash = 0;
      for (int t = i * page_size; t < (i + 1) * page_size; ++t)
        hash = hash * 1000003u + static_cast<std::uint64_t>(sequence[t]);
      list.push_back(hash);
    }
    return list;
  }

 private:
  std::map<std::pair<int, int>, int> numbers_;  ///< (number before, id) -> number
  std::vector<std::vector<int>> used_;
  int next_id_ = 100;
};

}  // namespace pagoda::test
