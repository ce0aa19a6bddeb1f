// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/mpi/message.hpp"
#include "src/mpi/mpi_call.hpp"

#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

/// What ranks compare: their options when an object is made, and the headers of their messages in a step. Every rank
/// compares all of them with rank 0's, so all ranks find the same error.
namespace pagoda::mpi {

/// The text of the exception that is being handled.
inline std::string reason_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// The options of a rank, and whether its constructor has thrown.
class Agreement {
 public:
  explicit Agreement(const ContextParallelOptions& o)
      : numbers_{o.num_q_heads,
                 o.head_dim_v,
                 o.max_query_tokens,
                 static_cast<int>(o.merged_heads),
                 static_cast<int>(o.state_type),
                 static_cast<int>(o.transport)} {}

  void fail(const std::string& reason) {
    failed_ = 1;
    reason.copy(reason_, sizeof reason_ - 1);
  }
  /// Collective. Throws PeerError if another rank has failed, and InvalidArgument if options differ.
  void compare(const Communicator& comm) const {
    std::vector<Agreement> all(static_cast<std::size_t>(comm.size()), *this);
    check_mpi(MPI_Allgather(this, sizeof *this, MPI_BYTE, all.data(), sizeof *this, MPI_BYTE, comm.get()),
              "MPI_Allgather");
    for (int rank = 0; rank < comm.size(); ++rank) {
      if (all[rank].failed_)
        throw PeerError(rank, detail::concat("pagoda::mpi::ContextParallel: rank ", rank,
                                             " failed: ", static_cast<const char*>(all[rank].reason_)));
    }
    static constexpr std::array names{"num_q_heads",  "head_dim_v", "max_query_tokens",
                                      "merged_heads", "state_type", "transport"};
    for (int rank = 1; rank < comm.size(); ++rank)
      for (std::size_t i = 0; i < names.size(); ++i)
        detail::require(all[rank].numbers_[i] == all[0].numbers_[i], "pagoda::mpi::ContextParallel: ", names[i], " is ",
                        all[rank].numbers_[i], " on rank ", rank, " and ", all[0].numbers_[i],
                        " on rank 0; allowed: the same options on all ranks");
  }

 private:
  std::array<int, 6> numbers_;
  int failed_       = 0;
  char reason_[232] = {};
};

/// Throws InvalidArgument if the ranks' plans or queries do not fit together. All marks are `decoded`.
inline void check_headers(const std::vector<Header>& headers) {
  const char* const who = "pagoda::mpi::ContextParallel::decode: ";
  const auto flagged    = [&](std::uint32_t flag, const char* what) {
    int first = -1;
    for (int rank = 0; rank < static_cast<int>(headers.size()); ++rank) {
      if (!(headers[rank].flags & flag)) continue;
      detail::require(first < 0, who, "the plans of ranks ", first, " and ", rank, " ", what);
      first = rank;
    }
  };
  for (std::size_t rank = 1; rank < headers.size(); ++rank)
    detail::require(headers[rank].query_tokens == headers[0].query_tokens, who, "q has ", headers[rank].query_tokens,
                    " query tokens on rank ", rank, " and ", headers[0].query_tokens,
                    " on rank 0; allowed: the same number on all ranks");
  flagged(Header::has_sinks, "have sinks; allowed: on one rank, because sinks count once (see shard_options)");
  flagged(Header::is_causal,
          "are causal with several query tokens of a sequence; allowed: only that of the rank with the newest tokens "
          "(see shard_options)");
}

}  // namespace pagoda::mpi
