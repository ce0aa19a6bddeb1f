// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/checks.hpp"
#include "src/mpi/mpi_call.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <type_traits>

#if defined(PAGODA_HAS_NCCL)
#include "backends/cuda/stream.hpp"

#include <nccl.h>
#endif

namespace pagoda::mpi {

/// Whether ranks of this execution space can exchange states by NCCL in this build (PAGODA_NCCL).
template <class ExecutionSpace>
#if defined(PAGODA_HAS_NCCL)
inline constexpr bool has_nccl_v = std::is_same_v<ExecutionSpace, Kokkos::Cuda>;
#else
inline constexpr bool has_nccl_v = false;
#endif

/// NCCL's collectives on an instance's stream. The primary template is for builds and spaces without NCCL.
template <class ExecutionSpace, bool = has_nccl_v<ExecutionSpace>>
class NcclCommunicator {
 public:
  NcclCommunicator(const ExecutionSpace&, const Communicator&) {}
  void all_gather(const ExecutionSpace&, const std::byte*, std::byte*, std::size_t) const {}
  void all_to_all(const ExecutionSpace&, const std::byte*, std::byte*, std::size_t) const {}
};

#if defined(PAGODA_HAS_NCCL)

/// Throws MpiError unless NCCL's call succeeded.
inline void check_nccl(ncclResult_t result, const char* call) {
  if (result != ncclSuccess)
    throw MpiError(detail::concat("pagoda::mpi: ", call, " failed: ", ncclGetErrorString(result), " (",
                                  ncclGetLastError(nullptr), ")"));
}

template <class ExecutionSpace>
class NcclCommunicator<ExecutionSpace, true> {
 public:
  /// Collective over comm. Each rank must have a GPU of its own.
  NcclCommunicator(const ExecutionSpace& exec, const Communicator& comm) : ranks_(comm.size()) {
    struct {
      ncclUniqueId id;
      ncclResult_t made;
    } first{};
    if (comm.rank() == 0) first.made = ncclGetUniqueId(&first.id);
    check_mpi(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm.get()), "MPI_Bcast");
    check_nccl(first.made, "ncclGetUniqueId");
    const detail::CudaDeviceGuard guard(exec.cuda_device());
    check_nccl(ncclCommInitRank(&comm_, ranks_, first.id, comm.rank()), "ncclCommInitRank");
  }
  ~NcclCommunicator() { ncclCommDestroy(comm_); }
  NcclCommunicator(const NcclCommunicator&)            = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Asynchronous on exec. from: this rank's message of `bytes`; to: those of all ranks, in order.
  void all_gather(const ExecutionSpace& exec, const std::byte* from, std::byte* to, std::size_t bytes) const {
    const detail::CudaDeviceGuard guard(exec.cuda_device());
    check_nccl(ncclAllGather(from, to, bytes, ncclUint8, comm_, exec.cuda_stream()), "ncclAllGather");
  }
  /// Asynchronous on exec. from: messages of `bytes` to all ranks; to: those from all ranks.
  void all_to_all(const ExecutionSpace& exec, const std::byte* from, std::byte* to, std::size_t bytes) const {
    const detail::CudaDeviceGuard guard(exec.cuda_device());
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int rank = 0; rank < ranks_; ++rank) {
      check_nccl(ncclSend(from + rank * bytes, bytes, ncclUint8, rank, comm_, exec.cuda_stream()), "ncclSend");
      check_nccl(ncclRecv(to + rank * bytes, bytes, ncclUint8, rank, comm_, exec.cuda_stream()), "ncclRecv");
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }

 private:
  int ranks_;
  ncclComm_t comm_ = nullptr;
};

#endif

}  // namespace pagoda::mpi
