// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_model.hpp"

#include <random>

namespace pagoda::test {
namespace {

/// Random calls, each followed by a comparison of everything with the model. What must fail is predicted from the
/// model.
template <class Pool>
struct Stress : Driven<Pool> {
  std::mt19937 random;
  int refusals = 0;

  Stress(const PoolOptions& options, unsigned seed) : Driven<Pool>(options), random(seed) {}

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  int pages(int tokens) const {
    const int size = this->pool.page_size();
    return is_paged<Pool> ? (tokens + size - 1) / size : 1;
  }
  int any_slot() { return std::next(this->model.begin(), below(static_cast<int>(this->model.size())))->first; }

  template <class Call>
  void perform(bool fits, const Call& call) {
    if (fits) return call();
    ++refusals;
    EXPECT_THROW(call(), OutOfCapacity);
  }

  void step() {
    const auto& o        = this->pool.options();
    const bool slot_free = static_cast<int>(this->model.size()) < o.max_sequences;
    switch (this->model.empty() ? 0 : below(8)) {
      case 0: {
        const int n = below(o.max_seq_len + 1) / (1 + below(3));
        ASSERT_EQ(this->pool.can_admit(n), slot_free && pages(n) <= this->pool.free_pages());
        return perform(this->pool.can_admit(n), [&] { this->admit(n); });
      }
      case 1: {
        const int parent = any_slot(), n = below(3) == 0 ? -1 : below(this->pool.seq_len(parent) + 1);
        return perform(slot_free, [&] { this->fork(parent, n); });
      }
      case 2:
        return this->release(any_slot());
      default:
        return append();
    }
  }

  void append() {
    std::vector<int> slots = slots_of(this->model), counts;
    std::shuffle(slots.begin(), slots.end(), random);
    slots.resize(1 + below(static_cast<int>(slots.size())));
    const int most = below(3) == 0 ? 1 : 8;
    for (const int slot : slots)
      counts.push_back(std::min(below(most + 1), this->pool.options().max_seq_len - this->pool.seq_len(slot)));
    perform(pages_to_take(slots, counts) <= this->pool.free_pages(), [&] { this->append_all(slots, counts); });
  }
  void append_all(const std::vector<int>& slots, const std::vector<int>& counts) {
    Driven<Pool>::append(slots, counts);
  }

  /// Pages that grow, and partial pages written by all but the last of their holders.
  int pages_to_take(const std::vector<int>& slots, const std::vector<int>& counts) {
    std::map<int, int> holders;
    int taken = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const int length = this->pool.seq_len(slots[i]), size = this->pool.page_size();
      taken += pages(length + counts[i]) - pages(length);
      if (counts[i] == 0 || length % size == 0) continue;
      const int page = this->pool.block_table(slots[i])[length / size];
      const auto at  = holders.try_emplace(page, this->pool.page_ref_count(page)).first;
      if (at->second > 1) --at->second, ++taken;
    }
    return taken;
  }
};

template <class Pool>
struct PoolStress : testing::Test {};
TYPED_TEST_SUITE(PoolStress, Pools, PoolNames);

TYPED_TEST(PoolStress, AgainstTheModel) {
  unsigned seed = 1;
  for (const auto order : {KVOrder::NHD, KVOrder::HND}) {
    for (const int page_size : {1, 3, 16, 48}) {
      if (!is_paged<TypeParam> && page_size != 16) continue;
      PoolOptions options{.num_kv_heads  = 2,
                          .head_dim      = 3,
                          .head_dim_v    = 2,
                          .max_seq_len   = 50,
                          .max_sequences = 7,
                          .page_size     = page_size,
                          .num_pages     = 150 / page_size,
                          .order         = order};
      Stress<TypeParam> stress(options, seed++);
      for (int i = 0; i < 120; ++i) {
        stress.step();
        stress.check();
        ASSERT_FALSE(testing::Test::HasFailure())
            << "step " << i << ", page size " << page_size << ", " << (order == KVOrder::NHD ? "NHD" : "HND");
      }
      EXPECT_GT(stress.refusals, 0);
    }
  }
}

}  // namespace
}  // namespace pagoda::test
