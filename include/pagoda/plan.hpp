// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/kv_layout.hpp>
#include <pagoda/problem.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace pagoda {

/// What a decode computes, beyond the cache itself. Zero or empty means the default that stands beside each field.
/// The Views live in the execution space's memory and are read by every decode, so their contents may change.
template <class MemorySpace>
struct DecodeOptions {
  int num_q_heads   = 0;  ///< required; a multiple of the cache's num_kv_heads
  int max_batch     = 0;  ///< bound on the batch of later calls; default: the cache's batch now
  int max_seq_len   = 0;  ///< bound on every seq_len; default: what the cache can hold. Only tunes, never truncates
  int max_query_len = 1;  ///< bound on the query tokens of one sequence

  /// Ragged query counts: [batch + 1], tokens cu_seqlens_q(b) .. cu_seqlens_q(b + 1) of q belong to sequence b.
  /// Default: every sequence has q.extent(0) / batch query tokens.
  Kokkos::View<const int*, MemorySpace> cu_seqlens_q{};
  int max_query_tokens = 0;  ///< bound on q.extent(0); default: max_batch * max_query_len

  std::optional<double> softmax_scale{};  ///< default: 1 / sqrt(head_dim)
  /// Query token i of n, the newest n tokens of the sequence, sees tokens up to seq_len - n + i (its own included).
  /// False: every query token sees every token.
  bool causal            = true;
  int window_left        = -1;  ///< tokens before its own that a query token sees; -1: all
  int num_initial_tokens = 0;   ///< first tokens of the sequence that stay visible beside a window
  double logit_soft_cap  = 0;   ///< scores become cap * tanh(score / cap); 0: off
  Kokkos::View<const float*, MemorySpace> alibi_slopes{};  ///< [num_q_heads], adds slope * (token - query position)
  Kokkos::View<const float*, MemorySpace> sinks{};         ///< [num_q_heads], logit of one extra token with value 0

  /// "tuned" (hand-written kernels, on NVIDIA; launched cooperatively, so that a decode starts once all of its blocks
  /// can run) or "generic"; decodes that cannot run so are refused with the reason. Default: PAGODA_BACKEND in the
  /// environment, or else tuned where that can carry out the problem, and generic everywhere else.
  std::string backend{};
  /// Lets a tuned decode on sm_90 start while the kernel before it on the stream still runs (CUDA's programmatic
  /// dependent launch; that kernel says from when on, or else it is when it ends). Until that kernel has ended the
  /// decode reads lengths, page tables and tokens older than each sequence's newest 16: these must stand before it
  /// starts. Queries, the newest tokens, outputs and the workspace are not touched before. No effect elsewhere.
  bool programmatic_launch = false;
};

namespace detail {

/// How rows are cut to fit the machine and the workspace.
struct SplitBounds {
  int teams{};         ///< resident on the machine at once
  int even_waves{};    ///< rounds of pieces that even lengths are cut into
  int waves{};         ///< and uneven ones
  int chunk_shift{};   ///< pieces are multiples of 2^chunk_shift tokens (chunks)
  int piece_shift{};   ///< of 2^piece_shift chunks at least, where a row has so many
  int round_shift{};   ///< a team's workers take 2^round_shift chunks at a time
  bool deals_tiles{};  ///< pieces are dealt out in such rounds; otherwise they are runs of tokens
  int max_chunks{};    ///< of a piece
  int max_cuts{};      ///< pieces beyond one for each row, at most: what the workspace has room for
};

/// Byte offsets of the parts of a workspace. Filling it in is the size query and the plan at once.
struct WorkspaceLayout {
  std::size_t teams = 0, arrived = 0, states = 0, values = 0, tuned = 0, bytes = 0;
};

/// Which kernels carry a decode out.
enum class Backend { tuned, generic };

/// All that a plan has decided, without the execution space.
struct PlanState {
  // the problem's shape
  DType kv_type{};
  int num_q_heads{}, num_kv_heads{}, head_dim{}, head_dim_v{};
  int max_batch{}, max_seq_len{}, max_query_len{}, max_query_tokens{};
  double softmax_scale{};
  ScoreOptions score{};
  const int* cu_seqlens_q{};
  // how it is carried out
  int fragment{};                ///< which of the machine's ways to multiply
  DType query_type{};            ///< of queries that the fragment takes as they are
  DType probability_type{};      ///< what probabilities are rounded to before they meet the values
  std::int64_t max_row_units{};  ///< how far from the first the last row of a cache may lie (see row_units)
  bool any_query{};              ///< the plain kernel takes queries of any type
  bool all{};                    ///< several query tokens a sequence, or some score option is on
  bool wide{};                   ///< rows can be read in aligned vectors
  bool values_in_keys{};         ///< values are read as the keys' first elements
  int row_tile{};                ///< query rows (query token x head of the group) that share one pass over the keys
  int num_workers{};             ///< team threads: each walks its own tiles of tokens
  int heads_per_item{1};         ///< kv heads that a tile of tokens is taken through
  SplitBounds split{};
  int max_slots{};  ///< partial states
  // by which kernels
  bool tuned{};                     ///< the hand-tuned ones, where they take the problem
  std::optional<Backend> forced{};  ///< these, or none
  bool programmatic{};              ///< may start before the kernel before has ended
  WorkspaceLayout layout{};
};

std::string describe(const PlanState& state);

}  // namespace detail

/// Made once per shape by pagoda::plan, used by every decode of that shape. Owns its workspace unless the caller gave
/// one. One decode may be in flight on a plan at a time; make one plan for each stream that decodes concurrently.
/// Copies share the workspace.
template <class ExecutionSpace>
class Plan {
 public:
  using execution_space = ExecutionSpace;
  using memory_space    = typename ExecutionSpace::memory_space;
  using Workspace       = Kokkos::View<std::byte*, memory_space>;

  Plan(const detail::PlanState& state, const Workspace& workspace) : state_(state), workspace_(workspace) {}

  /// Exact bytes of device memory a decode of this plan writes beside its outputs.
  std::size_t workspace_bytes() const { return state_.layout.bytes; }
  /// Name of the backend that will run, where queries and outputs are of the cache's type (fp16 for a quantized one)
  /// and dense.
  std::string backend() const { return state_.tuned ? "tuned" : "generic"; }
  /// One line for people: shape, tiles, bounds.
  std::string describe() const { return detail::describe(state_); }

  const detail::PlanState& state() const { return state_; }
  const Workspace& workspace() const { return workspace_; }

 private:
  detail::PlanState state_;
  Workspace workspace_;
};

namespace detail {

/// Options without the memory space.
struct OptionsRef {
  int num_q_heads{}, max_batch{}, max_seq_len{}, max_query_len{}, max_query_tokens{};
  std::optional<double> softmax_scale{};
  ScoreOptions score{};
  const int* cu_seqlens_q{};
  int alibi_extent = 0, sinks_extent = 0, cu_seqlens_extent = 0;
  std::string backend{};
  bool programmatic_launch = false;
};

template <class MemorySpace>
OptionsRef options_ref(const DecodeOptions<MemorySpace>& o) {
  OptionsRef r;
  r.num_q_heads = o.num_q_heads, r.max_batch = o.max_batch, r.max_seq_len = o.max_seq_len;
  r.max_query_len = o.max_query_len, r.max_query_tokens = o.max_query_tokens;
  r.softmax_scale = o.softmax_scale;
  r.score = {o.causal, o.window_left, o.num_initial_tokens, o.logit_soft_cap, o.alibi_slopes.data(), o.sinks.data()};
  r.cu_seqlens_q        = o.cu_seqlens_q.data();
  r.alibi_extent        = static_cast<int>(o.alibi_slopes.extent(0));
  r.sinks_extent        = static_cast<int>(o.sinks.extent(0));
  r.cu_seqlens_extent   = static_cast<int>(o.cu_seqlens_q.extent(0));
  r.backend             = o.backend;
  r.programmatic_launch = o.programmatic_launch;
  return r;
}

/// Checks and decides; launches and allocates nothing.
template <class ExecutionSpace>
PlanState make_plan_state(const ExecutionSpace& exec, const CacheRef& kv, const OptionsRef& options);

/// Launches every kernel of the plan once on no work, so that loading code, host scratch and the like never happen
/// inside a later decode or graph capture.
template <class ExecutionSpace>
void warm_up(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan);

}  // namespace detail

/// Bytes of workspace that plan(exec, kv, options) needs: for callers who bring their own.
template <class ExecutionSpace, KVLayout KV>
std::size_t workspace_bytes(const ExecutionSpace& exec, const KV& kv,
                            const DecodeOptions<typename ExecutionSpace::memory_space>& options) {
  return detail::make_plan_state(exec, kv.ref(), detail::options_ref(options)).layout.bytes;
}

/// Decides how decodes of this shape run, from bounds alone: it reads no device memory and never waits for the device.
/// Throws InvalidArgument where the shape cannot be served.
///
/// exec: the instance decodes will run on (or another of its device). kv: a cache of the shape, types and strides to
/// come; later calls may pass other caches of the same shape. workspace: at least workspace_bytes(exec, kv, options)
/// bytes aligned to 16; allocated here if not given.
template <class ExecutionSpace, KVLayout KV>
Plan<ExecutionSpace> plan(const ExecutionSpace& exec, const KV& kv,
                          const DecodeOptions<typename ExecutionSpace::memory_space>& options,
                          typename Plan<ExecutionSpace>::Workspace workspace = {}) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  const auto state = detail::make_plan_state(exec, kv.ref(), detail::options_ref(options));
  if (!workspace.data()) {
    workspace = typename Plan<ExecutionSpace>::Workspace(
        Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::plan::workspace"), state.layout.bytes);
  }
  detail::require(workspace.extent(0) >= state.layout.bytes, "pagoda::plan: workspace has ", workspace.extent(0),
                  " bytes; allowed: at least ", state.layout.bytes);
  detail::require(reinterpret_cast<std::uintptr_t>(workspace.data()) % 16 == 0,
                  "pagoda::plan: workspace is at address ", workspace.data(), "; allowed: aligned to 16 bytes");
  Plan<ExecutionSpace> made(state, workspace);
  detail::warm_up(exec, made);
  return made;
}

}  // namespace pagoda
