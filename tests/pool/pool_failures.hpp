// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/pool/pool_decode.hpp"

#include <exception>
#include <functional>
#include <string>
#include <vector>

/// Calls of a pool that fail at some step, and the check that they change nothing.
namespace pagoda::test {

/// A pool with sequences that share pages, and with a cache of them that kv returned.
template <class Pool>
struct Failing : Driven<Pool> {
  using Space   = typename Pool::execution_space;
  using Rows    = decltype(keys(std::declval<const Pool&>(), std::declval<const Space&>(), std::vector<int>{}));
  using Mapping = Kokkos::View<std::int64_t*, typename Space::memory_space>;
  std::vector<typename Pool::Layout> earlier;  ///< zero or one, as a layout has no default constructor

  explicit Failing(const PoolOptions& options) : Driven<Pool>(options) {}

  /// Takes a cache of all sequences in reverse order.
  void look() {
    auto slots = slots_of(this->model);
    std::reverse(slots.begin(), slots.end());
    earlier.assign(1, this->pool.kv(this->exec, slots));
  }

  /// State of the pool on the host, and on the device through the earlier cache. Makes no changes.
  State<Pool> seen() const {
    auto state = host_state_of(this->pool);
    if (!earlier.empty())
      state.contents = read_cache(this->exec, earlier[0], this->pool.options(), this->pool.options().max_seq_len);
    return state;
  }

  /// Makes the call with a failure at step n, for n = 0, 1, ... until none occurs. Expects that each failure throws and
  /// leaves the pool unchanged, and then calls `after`. Returns the number of failures. how: further arguments of
  /// Failure.
  template <class Failure, class... How>
  int fail_everywhere(const std::string& what, const std::function<void()>& call, const std::function<void()>& after,
                      How... how) {
    const auto before = seen();
    for (int n = 0;; ++n) {
      bool thrown = false;
      {
        const Failure failure(n, how...);
        try {
          call();
        } catch (const std::exception&) {
          thrown = true;
        }
      }
      EXPECT_EQ(thrown, Failure::count() > n) << what << ", step " << n;
      if (!thrown || testing::Test::HasFailure()) return n;
      EXPECT_TRUE(seen() == before) << what << " changed something before it failed at step " << n;
      after();
    }
  }

  Rows k(const std::vector<int>& tokens) const { return keys(this->pool, this->exec, tokens); }
  Rows v(const std::vector<int>& tokens) const { return values(this->pool, this->exec, tokens); }
};

inline const PoolOptions failing_options{.num_kv_heads  = 2,
                                         .head_dim      = 8,
                                         .head_dim_v    = 4,
                                         .max_seq_len   = 300,
                                         .max_sequences = 7,
                                         .page_size     = 4,
                                         .num_pages     = 200,
                                         .num_q_heads   = 4};

/// Every call of a pool in turn, with a failure at each of its steps. Returns how many failures there were.
template <class Failure, class Pool, class... How>
int fail_every_call(const PoolOptions& options, How... how) {
  int failures = 0;
  Failing<Pool> d(options);
  if (is_paged<Pool>) d.pool.set_rates(eager_rates());  // decodes read lists
  const int a = d.admit(30), b = d.fork(a), gone = d.admit(50);
  d.release(gone);  // the next call updates the device
  d.look();
  // `done` updates the model after the call has succeeded.
  const auto fails = [&](const char* what, const std::function<void()>& call, const std::function<void()>& done) {
    failures += d.template fail_everywhere<Failure>(what, call, [] {}, how...);
    done();
    d.check();
    d.look();
  };
  const auto grow = [&](int slot, std::span<const int> tokens) {
    d.model[slot].insert(d.model[slot].end(), tokens.begin(), tokens.end());
  };

  int c = -1, e = -1, f = -1;
  const auto prompt = d.fresh(150), more = d.fresh(80), late = d.fresh(3);
  const auto prompt_k = d.k(prompt), prompt_v = d.v(prompt), more_k = d.k(more), more_v = d.v(more), late_k = d.k(late),
             late_v = d.v(late);
  fails("admit", [&] { c = d.pool.admit(d.exec, prompt_k, prompt_v); }, [&] { d.model[c] = prompt; });
  fails(
      "admit without rows", [&] { e = d.pool.admit(d.exec, 90); },
      [&] { d.model[e] = std::vector<int>(90, unwritten); });
  // The first sequence that writes into a shared page gets a copy; the last keeps the page.
  const std::vector<int> slots{b, c, a}, counts{70, 1, 9};
  fails(
      "append", [&] { d.pool.append(d.exec, slots, counts, more_k, more_v); },
      [&] {
        const std::span<const int> all = more;
        grow(b, all.subspan(0, 70)), grow(c, all.subspan(70, 1)), grow(a, all.subspan(71));
      });
  fails(
      "fork", [&] { f = d.pool.fork(d.exec, c, 131); },
      [&] {
        d.model[f] = d.model[c];
        d.model[f].resize(131);
      });
  const std::vector<int> reserved{c, f}, by{2, 60};
  fails(
      "reserve", [&] { d.pool.reserve(d.exec, reserved, by); },
      [&] {
        grow(c, std::vector<int>(2, unwritten));
        grow(f, std::vector<int>(60, unwritten));
      });
  const auto mapping = on_device(d.exec, d.pool.slot_mapping(c, 150, 3));
  fails(
      "write", [&] { d.pool.write(d.exec, mapping, late_k, late_v); },
      [&] { std::copy(late.begin(), late.end(), d.model[c].begin() + 150); });
  fails("release", [&] { d.pool.release(e); }, [&] { d.model.erase(e); });

  // Sequences with names. `common` is the prompt's number of tokens that the index has when it comes again.
  int g = -1, h = -1;
  const std::vector<int> ids(prompt.begin(), prompt.begin() + 30);
  const Prompt named{.token_ids = ids};
  const int common = is_paged<Pool> ? 28 : 0;
  const auto ids_k = d.k(ids), ids_v = d.v(ids);
  fails("admit a prompt", [&] { g = d.pool.admit(d.exec, named, ids_k, ids_v); }, [&] { d.model[g] = ids; });
  fails("name", [&] { d.pool.name(b, std::span(prompt).first(30)); }, [] {});
  fails("release a prompt", [&] { d.pool.release(g); }, [&] { d.model.erase(g); });
  fails(
      "admit pages of the index", [&] { h = d.pool.admit(d.exec, named); },
      [&] { d.model[h].assign(ids.begin(), ids.begin() + common); });
  fails("evict", [&] { d.pool.evict(200); }, [] {});
  fails("release", [&] { d.pool.release(h); }, [&] { d.model.erase(h); });

  // The selection of an earlier kv stays until another kv succeeds. At the end all sequences are decoded.
  std::vector<std::vector<int>> orders{{c, a}, {b, c, a}, {a, b, c}};
  for (const auto& order : orders) {
    fails("kv", [&] { d.pool.kv(d.exec, order); }, [] {});
    const PoolQueries<Pool> queries(d, static_cast<int>(order.size()));
    fails("decode", [&] { queries.decode(d, order); }, [&] { queries.expect_right(d, order); });
  }

  return failures;
}

/// A plan that fails at any step leaves the old one. The test keeps a copy of the old plan, as Kokkos terminates if it
/// cannot allocate the label of a View that it frees. For the same reason both plans have a window: then the pool has
/// no memory for lists, which it would free. Kokkos' one-time allocations have happened before, as Kokkos does
/// not survive their failure.
template <class Failure, class Pool, class... How>
int fail_prepare(How... how) {
  Failing<Pool> d(failing_options);
  const int a = d.admit(30), b = d.admit(100);
  d.look();
  d.pool.prepare(d.exec, {.num_q_heads = 6, .window_left = 20});
  d.pool.prepare(d.exec, {.num_q_heads = 2, .window_left = 25});
  const auto old    = d.pool.plan();
  const auto decode = [&](int heads) {
    const PoolQueries<Pool> queries(d, 2);
    EXPECT_EQ(queries.heads, heads);
    queries.decode(d, {b, a});
    queries.expect_right(d, {b, a});
  };
  const int failures = d.template fail_everywhere<Failure>(
      "prepare", [&] { d.pool.prepare(d.exec, {.num_q_heads = 6, .window_left = 20}); }, [&] { decode(2); }, how...);
  decode(6);
  return failures;
}

}  // namespace pagoda::test
