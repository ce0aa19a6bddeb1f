// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/compare.hpp"
#include "tests/support/sample.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/mpi.hpp>
#include <pagoda/pagoda.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace pagoda::test {

inline const MPI_Comm world = MPI_COMM_WORLD;

inline int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}
inline int size_of_comm(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

/// Why the ranks cannot use Transport::nccl; empty if they can.
template <class Space>
std::string why_no_nccl() {
  if (!mpi::has_nccl()) return "this build has no NCCL (PAGODA_NCCL)";
  if (!std::is_same_v<Space, Kokkos::DefaultExecutionSpace>) return "NCCL exchanges memory of GPUs";
  const int ranks = size_of_comm(MPI_COMM_WORLD);
  if (Kokkos::num_devices() < ranks) return "there are fewer GPUs than ranks";
  return "";
}

/// Which tokens of each batch entry a rank holds, in the order in which its cache has them.
using Tokens = std::vector<std::vector<int>>;

/// Ways to distribute tokens over ranks.
enum class Deal {
  runs,          ///< a run of consecutive tokens for each rank, of random lengths, some of them empty
  pages,         ///< runs of 4 tokens in turn
  last_rank,     ///< all tokens on the last rank
  single_tokens  ///< each token on a random rank
};

/// The newest `together` tokens of each entry are on the last rank.
inline Tokens tokens_of_rank(const std::vector<int>& lengths, int ranks, int rank, Deal deal, unsigned seed,
                             int together = 0) {
  std::mt19937 random(seed);
  Tokens mine(lengths.size());
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    std::vector<int> ends(static_cast<std::size_t>(ranks), lengths[b]);
    for (int r = 0; r + 1 < ranks; ++r) ends[r] = static_cast<int>(random() % static_cast<unsigned>(lengths[b] + 1));
    std::sort(ends.begin(), ends.end());
    for (int t = 0; t < lengths[b]; ++t) {
      const int dealt = static_cast<int>(random() % static_cast<unsigned>(ranks));
      int to          = ranks - 1;
      if (t < lengths[b] - together) {
        if (deal == Deal::runs) to = static_cast<int>(std::upper_bound(ends.begin(), ends.end() - 1, t) - ends.begin());
        if (deal == Deal::pages) to = t / 4 % ranks;
        if (deal == Deal::single_tokens) to = dealt;
      }
      if (to == rank) mine[b].push_back(t);
    }
  }
  return mine;
}

/// A rank's shard of a sample: a paged cache with its tokens and KV heads, and the queries of its heads. Memory that no
/// decode may read is NaN.
template <class Space, class T>
struct Shard {
  using Memory                 = typename Space::memory_space;
  using Rows                   = Kokkos::View<T****, Kokkos::LayoutRight, Memory>;
  static constexpr int in_page = 4;
  int first_head, heads;  ///< query heads
  Rows k, v;
  Kokkos::View<int**, Kokkos::LayoutRight, Memory> table;
  Kokkos::View<int*, Memory> lengths;
  Kokkos::View<int*, Memory> cu_seqlens_q;
  Kokkos::View<T***, Kokkos::LayoutRight, Memory> q;

  /// The part-th of `parts` equal parts of the heads.
  Shard(const Sample<T>& s, const Tokens& tokens, int part = 0, int parts = 1) {
    const Shape& shape = s.shape();
    const int kv_heads = shape.num_kv_heads / parts, first_kv = part * kv_heads, batch = s.batch();
    heads = shape.num_q_heads / parts, first_head = part * heads;
    int most = 1, pages = 1;
    for (const auto& list : tokens) {
      const int n = (static_cast<int>(list.size()) + in_page - 1) / in_page;
      most        = std::max(most, n), pages += n;
    }
    k                 = Rows("k", pages, in_page, kv_heads, shape.head_dim);
    v                 = Rows("v", pages, in_page, kv_heads, s.head_dim_v());
    table             = decltype(table)("table", batch, most);
    lengths           = decltype(lengths)("lengths", batch);
    q                 = decltype(q)("q", s.query_tokens(), heads, shape.head_dim);
    cu_seqlens_q      = decltype(cu_seqlens_q)("cu_seqlens_q", batch + 1);
    const auto host_k = Kokkos::create_mirror_view(k), host_v = Kokkos::create_mirror_view(v);
    const auto host_table   = Kokkos::create_mirror_view(table);
    const auto host_lengths = Kokkos::create_mirror_view(lengths), host_cu = Kokkos::create_mirror_view(cu_seqlens_q);
    const auto host_q = Kokkos::create_mirror_view(q);
    Kokkos::deep_copy(host_k, T(std::numeric_limits<float>::quiet_NaN()));
    Kokkos::deep_copy(host_v, T(std::numeric_limits<float>::quiet_NaN()));
    int next = pages - 1;  // pages in reverse order; page 0 is nobody's
    for (int b = 0; b < batch; ++b) {
      host_lengths(b) = static_cast<int>(tokens[b].size());
      for (int i = 0; i < host_lengths(b); ++i) {
        if (i % in_page == 0) host_table(b, i / in_page) = next--;
        const int page = host_table(b, i / in_page);
        for (int h = 0; h < kv_heads; ++h) {
          const T* const key   = s.key(b, tokens[b][i], first_kv + h);
          const T* const value = s.value(b, tokens[b][i], first_kv + h);
          for (int d = 0; d < shape.head_dim; ++d) host_k(page, i % in_page, h, d) = key[d];
          for (int d = 0; d < s.head_dim_v(); ++d) host_v(page, i % in_page, h, d) = value[d];
        }
      }
    }
    for (int b = 0; b <= batch; ++b) host_cu(b) = s.query_begin(b);
    for (int token = 0; token < s.query_tokens(); ++token)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < shape.head_dim; ++d) host_q(token, h, d) = T(s.query(token, first_head + h)[d]);
    Kokkos::deep_copy(k, host_k), Kokkos::deep_copy(v, host_v), Kokkos::deep_copy(table, host_table);
    Kokkos::deep_copy(lengths, host_lengths), Kokkos::deep_copy(q, host_q), Kokkos::deep_copy(cu_seqlens_q, host_cu);
  }

  PagedKV<T, Memory> kv() const { return {k, v, table, lengths}; }
};

/// Outputs of some heads.
template <class Space, class T>
struct Results {
  using Memory = typename Space::memory_space;
  int first_head;
  Kokkos::View<T***, Kokkos::LayoutRight, Memory> out;
  Kokkos::View<accumulator_t<T>**, Kokkos::LayoutRight, Memory> lse;

  Results(const Sample<T>& s, int first, int heads)
      : first_head(first), out("out", s.query_tokens(), heads, s.head_dim_v()), lse("lse", s.query_tokens(), heads) {
    Kokkos::deep_copy(out, T(std::numeric_limits<float>::quiet_NaN()));
    Kokkos::deep_copy(lse, std::numeric_limits<float>::quiet_NaN());
  }

  /// Compares all heads with the reference of the whole sequences. comm: the ranks that have the other heads, or
  /// MPI_COMM_SELF; collective over it.
  testing::AssertionResult right(const Sample<T>& s, MPI_Comm comm, DType probability, double leeway = 1) const {
    const int heads = s.shape().num_q_heads, dims = s.head_dim_v(), mine = static_cast<int>(out.extent(1));
    const std::size_t rows = static_cast<std::size_t>(s.query_tokens()) * heads;
    std::vector<double> all(rows * (dims + 1), 0.0);
    const auto host_out = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
    const auto host_lse = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
    for (int token = 0; token < s.query_tokens(); ++token) {
      for (int h = 0; h < mine; ++h) {
        double* const row = all.data() + s.row_of(token, first_head + h) * (dims + 1);
        for (int d = 0; d < dims; ++d) row[d] = host_out(token, h, d);
        row[dims] = host_lse(token, h);
      }
    }
    MPI_Allreduce(MPI_IN_PLACE, all.data(), static_cast<int>(all.size()), MPI_DOUBLE, MPI_SUM, comm);
    Array<Space> o(dtype_v<T>, {s.query_tokens(), heads, dims}, Strides::dense);
    Array<Space> l(dtype_v<accumulator_t<T>>, {s.query_tokens(), heads}, Strides::dense);
    for (int token = 0; token < s.query_tokens(); ++token) {
      for (int h = 0; h < heads; ++h) {
        const double* const row = all.data() + s.row_of(token, h) * (dims + 1);
        for (int d = 0; d < dims; ++d) o.set({token, h, d}, row[d]);
        l.set({token, h}, row[dims]);
      }
    }
    const Comparison c = compare<Space>(s, o, &l, probability, 0, leeway);
    return c.wrong == 0 ? testing::AssertionSuccess() : testing::AssertionFailure() << c.report;
  }
};

/// The options of the plan of a shard, for all query counts of the sample.
template <class Space, class T>
DecodeOptions<typename Space::memory_space> plan_options(const Sample<T>& s, const Shard<Space, T>& shard) {
  DecodeOptions<typename Space::memory_space> options{.num_q_heads = shard.heads};
  options.causal = s.shape().causal;
  if (!s.shape().query_lens.empty()) {
    options.max_query_len    = *std::max_element(s.shape().query_lens.begin(), s.shape().query_lens.end());
    options.max_query_tokens = s.query_tokens();
    options.cu_seqlens_q     = shard.cu_seqlens_q;
  }
  options.softmax_scale  = s.softmax_scale();
  options.logit_soft_cap = s.shape().logit_soft_cap;
  return options;
}

/// Expects that the call throws `Error`, with a message that holds these words. Other ranks may be in a collective, so
/// a failure does not end the test.
template <class Error, class F>
void expect_throw_with(const F& call, std::initializer_list<std::string> words) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected a message about \"" << *words.begin() << "\"";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "\"" << message << "\" does not say \"" << word << "\"";
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
}

}  // namespace pagoda::test
