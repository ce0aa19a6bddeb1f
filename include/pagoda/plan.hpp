// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/execution_space.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace pagoda {

/// Bounds of the lists that a plan decodes (decode_entries).
struct EntryBounds {
  int max_entries = 0;  ///< entries of a list; 0: the plan decodes batches, not lists
  int max_queries = 1;  ///< query tokens of an entry, for tuning
  /// Sum of the query tokens of all entries, for tuning; default: max_entries * max_queries.
  int max_listed = 0;
  /// Whether lists may have chains (Entry::chain). Only the hand-tuned kernels of sm_90 carry these out, with at most
  /// 128 query rows; plans for other problems are refused.
  bool chains = false;
};

/// How the bits of results depend on the rest of a batch and on the machine (src/NUMERICS.md). Of one backend and one
/// instruction set, batch_invariant and reproducible give the same bits: both split each sequence after fixed numbers
/// of tokens, which follow from the shape of the problem alone.
enum class Exactness {
  /// Splits suit the machine and the batch: the last bits of a sequence's results may change with the other sequences.
  fast,
  /// The bits of a sequence's rows of out and lse depend on its own queries, tokens and options only: not on the other
  /// sequences, its place in the batch, the plan's bounds on batches and lengths, or page ids. Its length must be at
  /// most max_seq_len.
  batch_invariant,
  /// The same bits in every run, whatever the number of multiprocessors or threads.
  reproducible
};

/// The name, as in the enum.
constexpr const char* name_of(Exactness e) {
  return e == Exactness::batch_invariant ? "batch_invariant" : e == Exactness::reproducible ? "reproducible" : "fast";
}

/// What a decode computes, besides the cache itself. Zero or empty selects the default given beside each field. The
/// Views are in memory of the execution space. Each decode reads their contents on the device, so they may change
/// between decodes. The plan keeps its own copy of each View, so managed Views live as long as the plan.
template <class MemorySpace>
struct DecodeOptions {
  int num_q_heads   = 0;  ///< required; a multiple of the cache's num_kv_heads
  int max_batch     = 0;  ///< bound on the batch of later decodes; default: the cache's batch
  int max_seq_len   = 0;  ///< bound on every seq_len, for tuning; default: what the cache can hold. Truncates nothing
  int max_query_len = 1;  ///< bound on the query tokens of one sequence

  /// Ragged query counts: tokens cu_seqlens_q(b) .. cu_seqlens_q(b + 1) of q belong to batch entry b. At least
  /// max_batch + 1 entries, or batch + 1 without max_batch; a decode reads the first batch + 1. They must start at 0 or
  /// more, not decrease, increase by at most max_query_len, and end at q.extent(0) or less. Anything else is undefined
  /// behaviour; check(exec, plan, q, kv) finds it. Query tokens that belong to no batch entry are not decoded. Default:
  /// every entry has q.extent(0) / batch query tokens.
  Kokkos::View<const int*, MemorySpace> cu_seqlens_q{};
  int max_query_tokens = 0;  ///< bound on q.extent(0); default: max_batch * max_query_len
  EntryBounds entries{};     ///< of a plan for lists of entries; cu_seqlens_q and max_query_len are then unused

  std::optional<double> softmax_scale{};  ///< default: 1 / sqrt(head_dim)
  /// True: query token i of n, which are the newest n tokens of the sequence, sees the tokens up to its own position
  /// seq_len - n + i. False: every query token sees every token.
  bool causal = true;
  /// Sliding window: how many tokens before its own position a query token sees; -1: all. With causal = false the
  /// window has no right end: all tokens from the window's first on are visible.
  int window_left        = -1;
  int num_initial_tokens = 0;  ///< first tokens of the sequence that stay visible besides the window
  /// A score becomes cap * tanh(score / cap), before ALiBi is added; 0: off.
  double logit_soft_cap = 0;
  Kokkos::View<const float*, MemorySpace> alibi_slopes{};  ///< [num_q_heads], adds slope * (token - query position)
  Kokkos::View<const float*, MemorySpace> sinks{};         ///< [num_q_heads], logit of one extra token with value 0

  /// "tuned" (hand-written CUDA kernels; a cooperative launch, so a decode starts when all of its blocks can run) or
  /// "generic" (Kokkos kernels, all execution spaces). A problem that the named backend does not support is refused
  /// with the reason. Default: the environment variable PAGODA_BACKEND, or else tuned if it supports the problem and is
  /// not slower for equal lengths near max_seq_len, and generic otherwise.
  std::string backend{};
  /// Lets a tuned decode on sm_90 start while the kernel before it on the stream still runs (CUDA's programmatic
  /// dependent launch). That kernel allows the start with cudaTriggerProgrammaticLaunchCompletion(); otherwise the
  /// decode starts when that kernel ends. The decode must be in a CUDA graph: outside of graphs, CUDA 13.0 starts a
  /// cooperative launch only when the kernel before has ended. No effect elsewhere.
  ///  - The kernel before the decode may write the queries and the keys and values of the newest 16 tokens of each
  ///    sequence. The decode waits until that kernel has completed and its writes are visible before it reads these,
  ///    and before it writes outputs or workspace.
  ///  - The decode reads lengths, page tables, sequence ids and older tokens without waiting. The kernels that write
  ///    these must have completed before the kernel before the decode starts.
  ///  - The decode waits for that one kernel only. If that kernel was itself launched programmatically, it must call
  ///    cudaGridDependencySynchronize(), at the latest before it ends: otherwise it may complete before its own
  ///    predecessor does, and the predecessor's writes are not ordered before the decode. Every tuned decode makes this
  ///    call before it lets the kernel behind it start, so decodes may follow each other.
  bool programmatic_launch = false;
  /// Examines seq_lens, sequence_ids, the page table and cu_seqlens_q on the device in each decode, before the decode
  /// reads them. A sequence with a fault gets NaN in its rows of out and lse; the other sequences are right, and
  /// nothing outside of the cache is read. faults() and fault_count() report them (checked.hpp). Costs two more
  /// kernels. The arrays must not change while the decode runs. Caches of later decodes have at most as many sequences
  /// as the one that the plan was made with, or max_batch if that is more. Not with entries, programmatic_launch or
  /// PrefixDecoder.
  bool checked = false;
  /// What results may depend on. Other values than fast need more workspace (workspace_bytes), about in proportion to
  /// max_batch * max_seq_len, and cost time where few sequences could use the whole device. The hand-tuned kernels run
  /// if they support the problem, else the generic ones; what they cost: bench/NOTES.md, "What exactness costs". Not
  /// with entries or PrefixDecoder; a pool that shares prefixes decodes plainly.
  Exactness exactness = Exactness::fast;
};

namespace detail {

/// The device memory that a plan owns; orders decodes after its initialization (src/dispatch/plan_memory.hpp).
template <class ExecutionSpace>
class PlanMemory;

}  // namespace detail

/// Made once per shape by pagoda::plan, used by every decode of that shape.
///
/// A plan owns device memory for data that persists between decodes (persistent_bytes()). It allocates a workspace
/// unless the caller passes one. A workspace is scratch: between decodes it may be overwritten, and plans may share one
/// if their decodes do not run at the same time.
///
/// One decode may be in flight on a plan at a time; make one plan for each stream that decodes concurrently. Copies of
/// a plan share its memory and workspace. Decodes may be queued on any instance of the plan's device.
template <class ExecutionSpace>
class Plan {
 public:
  using execution_space = ExecutionSpace;                          ///< space of the decodes
  using memory_space    = typename ExecutionSpace::memory_space;   ///< memory space of cache, queries and outputs
  using Options         = DecodeOptions<memory_space>;             ///< what a decode computes
  using Workspace       = Kokkos::View<std::byte*, memory_space>;  ///< scratch

  /// Used by pagoda::plan.
  Plan(const detail::Schedule& schedule, const Options& options, const Workspace& workspace,
       std::shared_ptr<detail::PlanMemory<ExecutionSpace>> memory)
      : schedule_(schedule), options_(options), workspace_(workspace), memory_(std::move(memory)) {}
  Plan(const Plan&)            = default;  ///< shares memory and workspace; a move is a copy, so that no plan is empty
  Plan& operator=(const Plan&) = default;  ///< as the copy
  ~Plan()                      = default;

  /// Exact bytes of workspace that a decode of this plan may write.
  std::size_t workspace_bytes() const { return schedule_.workspace.bytes; }
  /// Bytes of device memory that the plan owns besides the workspace.
  std::size_t persistent_bytes() const { return schedule_.persistent.bytes; }
  /// The name of the backend that will run, if queries and outputs are dense and of the cache's type (fp16 for a
  /// quantized cache): "tuned" or "generic".
  std::string backend() const { return schedule_.backend.name; }
  /// One line of text: shape, tiles, bounds, and the reason if the plan cannot run at full speed.
  std::string describe() const { return detail::describe(schedule_); }
  /// The options that the plan was made with.
  const Options& options() const { return options_; }

  /// For the library.
  const detail::Schedule& schedule() const { return schedule_; }
  /// The workspace: the caller's, or the one that the plan allocated.
  const Workspace& workspace() const { return workspace_; }
  /// For the library.
  detail::PlanMemory<ExecutionSpace>& memory() const { return *memory_; }

 private:
  detail::Schedule schedule_;
  Options options_;
  Workspace workspace_;
  std::shared_ptr<detail::PlanMemory<ExecutionSpace>> memory_;
};

namespace detail {

/// Checks and decides; launches and allocates nothing.
template <class ExecutionSpace>
PAGODA_EXPORT Schedule make_schedule(const ExecutionSpace& exec, const CacheRef& kv,
                                     const DecodeOptions<typename ExecutionSpace::memory_space>& options);

/// The plan behind pagoda::plan; an empty workspace is allocated.
template <class ExecutionSpace>
PAGODA_EXPORT Plan<ExecutionSpace> make_plan(const ExecutionSpace& exec, const CacheRef& kv,
                                             const DecodeOptions<typename ExecutionSpace::memory_space>& options,
                                             typename Plan<ExecutionSpace>::Workspace workspace);

}  // namespace detail

/// Bytes of workspace that plan(exec, kv, options) needs, for callers who allocate it themselves. Throws what plan
/// throws.
template <class ExecutionSpace, KVLayout KV>
std::size_t workspace_bytes(const ExecutionSpace& exec, const KV& kv,
                            const DecodeOptions<typename ExecutionSpace::memory_space>& options) {
  detail::check_execution_space<ExecutionSpace>();
  return detail::make_schedule(exec, kv.ref(), options).workspace.bytes;
}

/// Makes a plan: decides how decodes of this shape run, from bounds alone. Reads no device memory and fences nothing.
///
///  - exec: decodes run on this instance or on another one of its device. If they run on another one, the first of them
///    waits on the device for the plan's initialization. On an instance that may use only some of the device's
///    multiprocessors (a CUDA green context), the plan counts on those, and decodes need at least that number.
///  - kv: a cache with the shape, types and strides of the decodes. Decodes may pass other caches of the same shape.
///  - workspace: at least workspace_bytes(exec, kv, options) bytes, aligned to 16. If the View is empty, the plan
///    allocates it.
///
/// Throws InvalidArgument if the problem is not supported, std::runtime_error with the runtime's message if a CUDA or
/// HIP call fails, and what Kokkos throws if there is not enough memory.
///
/// Prints one line with the reason on standard error the first time that a plan of the process cannot run at full
/// speed, for example because rows are read element by element. The environment variable PAGODA_WARN=0 turns this off.
///
/// On a CPU, decodes use the best instructions that the library and the processor have. The environment variable
/// PAGODA_HOST_ISA (plain, avx2, avx512, avx512_bf16 or amx) names others. Throws InvalidArgument if it names none that
/// are there.
///
/// Source: Dao et al., "Flash-Decoding for long-context inference" (splits along the tokens).
template <class ExecutionSpace, KVLayout KV>
Plan<ExecutionSpace> plan(const ExecutionSpace& exec, const KV& kv,
                          const DecodeOptions<typename ExecutionSpace::memory_space>& options,
                          typename Plan<ExecutionSpace>::Workspace workspace = {}) {
  detail::check_execution_space<ExecutionSpace>();
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  return detail::make_plan(exec, kv.ref(), options, std::move(workspace));
}

}  // namespace pagoda
