// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/mpi.hpp>

#include <mpi.h>

#include <string>

namespace pagoda::mpi {

/// Throws MpiError unless `code`, what the call returned, is MPI_SUCCESS.
inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length                      = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw MpiError(detail::concat("pagoda::mpi: ", call, " returned error ", code, ": ", std::string(text, length)));
}

inline bool mpi_is_running() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

/// A duplicate of a communicator, whose calls return errors.
class Communicator {
 public:
  explicit Communicator(MPI_Comm comm) {
    const char* const who = "pagoda::mpi::ContextParallel: ";
    detail::require(mpi_is_running(), who, "MPI is not running; allowed: after MPI_Init and before MPI_Finalize");
    detail::require(comm != MPI_COMM_NULL, who, "comm is MPI_COMM_NULL; allowed: an intracommunicator");
    int inter = 0;
    check_mpi(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
    detail::require(!inter, who, "comm is an intercommunicator; allowed: an intracommunicator");
    check_mpi(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~Communicator() {
    if (mpi_is_running()) MPI_Comm_free(&comm_);
  }
  Communicator(const Communicator&)            = delete;
  Communicator& operator=(const Communicator&) = delete;

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

}  // namespace pagoda::mpi
