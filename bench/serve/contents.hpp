// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/random.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Contents of a request's cache: a pure function of the token's identity, so that host and device can compute any row
/// again, bit for bit, without reading the cache.
namespace pagoda::serve {

using bench::mix;
using bench::normal;

enum class Part : std::uint64_t { key = 1, value = 2, query = 3 };

/// Identity of the tokens of one sequence. Prompt tokens: the id of their block and the position in it, so equal ids
/// have equal rows. Generated tokens: the request and their position.
struct Contents {
  const std::int64_t* hash_ids = nullptr;  ///< ids of the prompt's blocks
  int block_tokens             = 512;
  int input_length             = 0;
  std::int64_t number          = 0;  ///< of the request
  std::uint64_t seed           = 0;

  /// Key of `normal` for one row of a head; the row's elements are its numbers 0, 1, 2 ...
  KOKKOS_FUNCTION std::uint64_t row(Part part, int token, int head) const {
    const bool prompt        = token < input_length && part != Part::query;
    const std::uint64_t who  = static_cast<std::uint64_t>(prompt ? hash_ids[token / block_tokens] : number);
    const std::uint64_t at   = static_cast<std::uint64_t>(prompt ? token % block_tokens : token);
    const std::uint64_t kind = 2 * static_cast<std::uint64_t>(part) + (prompt ? 1 : 0);
    return mix(mix(mix(seed * 8 + kind) + who) + (at << 16) + static_cast<std::uint64_t>(head));
  }
};

/// One token of one sequence.
struct Token {
  Contents sequence;
  int position;
};

/// Row r is token first + r of one sequence.
struct PromptTokens {
  Contents sequence;
  int first;
  KOKKOS_FUNCTION Token operator()(int r) const { return {sequence, first + r}; }
};

/// Row r is the token listed there.
template <class MemorySpace>
struct ListedTokens {
  Kokkos::View<const Token*, MemorySpace> list;
  KOKKOS_FUNCTION Token operator()(int r) const { return list(r); }
};

/// Writes rows (token, head, dim) of one part, all heads of token who(r) to row r.
template <class ExecutionSpace, class T, class Who>
class FillRows {
 public:
  using Rows   = Kokkos::View<T***, Kokkos::LayoutRight, typename ExecutionSpace::memory_space>;
  using Policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using Member = typename Policy::member_type;

  FillRows(Part part, const Who& who, const Rows& rows) : part_(part), who_(who), rows_(rows) {}

  void launch(const ExecutionSpace& exec) const {
    if (rows_.size() == 0) return;
    Kokkos::parallel_for("Pagoda::serve::fill", Policy(exec, rows_.extent_int(0), Kokkos::AUTO, 32), *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int r       = team.league_rank();
    const Token token = who_(r);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows_.extent_int(1)), [&](int head) {
      const std::uint64_t key = token.sequence.row(part_, token.position, head);
      T* const row            = &rows_(r, head, 0);
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, rows_.extent_int(2)),
                           [&](int d) { row[d] = T(normal(key, static_cast<std::uint32_t>(d))); });
    });
  }

 private:
  Part part_;
  Who who_;
  Rows rows_;
};

template <class ExecutionSpace, class Rows, class Who>
void fill_rows(const ExecutionSpace& exec, Part part, const Who& who, const Rows& rows) {
  FillRows<ExecutionSpace, typename Rows::value_type, Who>(part, who, rows).launch(exec);
}

}  // namespace pagoda::serve
