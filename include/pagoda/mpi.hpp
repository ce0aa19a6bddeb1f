// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/decode.hpp>
#include <pagoda/merge.hpp>
#include <pagoda/mpi_export.hpp>

#include <mpi.h>
#include <Kokkos_Core.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

/// @file
/// Decode attention over sequences whose tokens are distributed over the ranks of an MPI communicator (context
/// parallelism). The target is Pagoda::mpi.

/// Decodes over several MPI ranks.
namespace pagoda::mpi {

/// Thrown if a call of MPI or NCCL returns an error, for example because a rank has died. The message names the call
/// and has the library's text. The communicator may be unusable.
class PAGODA_MPI_EXPORT MpiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown if another rank could not take part in a step. The message has the reason that this rank gave.
class PAGODA_MPI_EXPORT PeerError : public std::runtime_error {
 public:
  /// rank: in the communicator of the ContextParallel.
  PeerError(int rank, const std::string& message) : std::runtime_error(message), rank_(rank) {}
  /// The rank that failed.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// The query heads for which a rank receives the merged result.
enum class MergedHeads {
  all,  ///< every rank receives all heads (MPI_Allgather)
  own   ///< of P ranks, rank r receives the heads r * num_q_heads / P and the following, 1/P of them (MPI_Alltoall)
};

/// What exchanges the partial states of a step.
enum class Transport {
  mpi,  ///< one collective of MPI, which also tells whether each rank's step succeeded
  nccl  ///< a collective of NCCL on the instance's stream; each rank has an NVIDIA GPU of its own
};

/// What a ContextParallel is made for. All ranks must pass the same numbers.
struct ContextParallelOptions {
  int num_q_heads          = 0;  ///< required; heads of the local decodes. MergedHeads::own: a multiple of the ranks
  int head_dim_v           = 0;  ///< required; dims of an output row
  int max_query_tokens     = 0;  ///< required; bound on the query tokens of a step. Every message has room for these
  MergedHeads merged_heads = MergedHeads::all;  ///< the heads for which a rank receives the result
  /// Type in which outputs of shards travel: fp32, fp64, fp16 or bf16. Their log-sum-exps are float, or double with
  /// fp64. A 16-bit type halves the messages and rounds once more.
  DType state_type = DType::fp32;
  /// Whether MPI is given device memory; may differ between ranks. Default: what MPI says of itself
  /// (MPIX_Query_cuda_support and its kind). False: messages lie in pinned host memory, which kernels access directly.
  /// Transport::nccl ignores it: its messages lie in device memory.
  std::optional<bool> gpu_aware{};
  /// Transport::nccl needs a build with PAGODA_NCCL and the execution space Kokkos::Cuda.
  Transport transport = Transport::mpi;
};

/// The options of the plan of one rank, from those of the whole sequences: all options that count only once are left to
/// the rank with holds_newest, exactly one of them. These are the sinks, and the causal mask between several query
/// tokens of a sequence. That rank must hold the newest query_len - 1 tokens of every sequence, in order
/// and last in its cache.
template <class MemorySpace>
DecodeOptions<MemorySpace> shard_options(DecodeOptions<MemorySpace> options, bool holds_newest) {
  if (!holds_newest) options.sinks = {}, options.causal = false;
  return options;
}

/// Whether this build has Transport::nccl.
PAGODA_MPI_EXPORT bool has_nccl();

/// Decodes over sequences whose tokens are distributed over the ranks of a communicator. The cache of a rank is an
/// ordinary one with some of the tokens of each sequence, its shard: any tokens, in any order, none at all on some
/// ranks. Each token must be on one rank. In a step each rank decodes over its shard, one collective exchanges the
/// partial states (outputs and log-sum-exps), and one kernel merges them.
///
/// Steps are collective: all ranks call decode equally often, each with all query tokens and all num_q_heads of the
/// step. If KV heads are distributed over ranks too, make the ContextParallel on the communicator of the ranks that
/// hold the same heads (MPI_Comm_split), with their number of query heads.
///
/// Bytes that a rank receives in a step, for P ranks: (P - 1) * message_bytes(). A message has room for
/// max_query_tokens. For each of them and each head it has an output row and a log-sum-exp, and up to 46 bytes more for
/// each head. It has num_q_heads heads, or num_q_heads / P with MergedHeads::own. Example: 32 heads of 128 dims and one
/// query token in fp32 are 17 KB. Make one object for each number of query tokens that is frequent.
///
/// Options of plans: A rank does not know the positions of its tokens in the sequence. Plans with window_left or
/// alibi_slopes are therefore refused. At most one rank's plan may have sinks, and at most one may be causal in a step
/// with several query tokens of a sequence: use shard_options.
///
/// Results: With MergedHeads::all, ranks of the same kind compute the same bits, whatever MPI does. The ranks' states
/// are merged in order of the ranks.
///
/// Errors: Each message says whether its rank's step succeeded. If a step throws on one rank, this rank still takes
/// part in the collective, and decode throws PeerError on the others. An exception between two steps that destroys the
/// object on one rank has the same effect; a rank that keeps the object calls fail. No result is written then. The
/// object is unusable on all ranks from then on, and decode throws without communication; make a new one to continue.
/// If a process dies, MPI decides: Open MPI ends the job, other implementations return an error (MpiError).
///
/// Execution: MPI knows no streams. decode fences exec once before the collective, and once more after it with
/// device memory (gpu_aware). The merge is asynchronous. With Transport::nccl decode does not fence: a small collective
/// of MPI tells whether the ranks' calls succeeded while the GPUs decode, and the exchange of the states follows on
/// exec's stream. An error of the GPU in that time is noticed only by its own rank. Steps of one object run on one
/// instance, or on instances that the caller orders. MPI must allow calls from the thread that calls decode.
///
/// CUDA graphs: Steps with Transport::nccl can be captured (cudaStreamCaptureModeThreadLocal). The ranks agree while
/// they capture, and not in replays: all ranks launch the graph equally often, in the same order with other steps. A
/// rank that does not launch it lets the others wait. Steps with Transport::mpi need the host; decode throws
/// InvalidArgument if exec captures.
template <class ExecutionSpace>
class ContextParallel {
 public:
  /// Collective over comm, which is duplicated and not used afterwards. Allocates all memory that steps need. Throws
  /// InvalidArgument on all ranks if the options differ, and PeerError if the constructor throws on another rank.
  ContextParallel(const ExecutionSpace& exec, MPI_Comm comm, const ContextParallelOptions& options);
  /// Collective: waits until the other ranks destroy theirs or find that this one is gone. Must come before
  /// MPI_Finalize.
  ~ContextParallel();
  /// The moved-from object can only be destroyed or assigned to.
  ContextParallel(ContextParallel&& other) noexcept;
  /// Destroys the object that is assigned to, which is collective.
  ContextParallel& operator=(ContextParallel&& other) noexcept;

  /// A step. q, kv and plan: as for pagoda::decode, for this rank's shard. out: (query token, q head, head_dim_v) and
  /// lse: (query token, q head) or an empty View, with the heads that merged_heads selects, in any strides. Their types
  /// are those of pagoda::merge. Throws what pagoda::decode throws, PeerError, MpiError, and InvalidArgument if the
  /// ranks' numbers of query tokens or their plans do not fit together.
  template <class Q, KVLayout KV, class Out, class Lse>
  void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv, const Out& out,
              const Lse& lse) {
    detail::check_decode_views<ExecutionSpace, Q, Out, Lse>();
    static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                  "the cache must lie in memory that the execution space can read");
    step(exec, plan, detail::Problem{kv.ref(), tensor_ref(q), tensor_ref(out), tensor_ref(lse)});
  }
  /// The same step without the log-sum-exp.
  template <class Q, KVLayout KV, class Out>
  void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv, const Out& out) {
    decode(exec, plan, q, kv, out, Kokkos::View<float**, typename ExecutionSpace::memory_space>{});
  }

  /// For a rank that cannot do its next step: takes the place of decode, which throws PeerError with this reason on the
  /// other ranks. Does nothing if the object is unusable already.
  void fail(const std::string& reason);

  int rank() const;                   ///< this rank
  int size() const;                   ///< number of ranks
  bool gpu_aware() const;             ///< whether messages lie in device memory
  std::size_t message_bytes() const;  ///< bytes that a step sends to each other rank

 private:
  struct Impl;
  void step(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const detail::Problem& problem);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagoda::mpi
