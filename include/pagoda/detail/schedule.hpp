// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/export.hpp>
#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

/// What a plan has decided. Plain data: it does not depend on the type of the execution space. src/plan makes it,
/// src/dispatch and the backends read it.
namespace pagoda::detail {

/// The shape of the problem that a plan is made for.
struct ProblemShape {
  DType kv_type{};
  int num_q_heads{}, num_kv_heads{}, head_dim{}, head_dim_v{};

  /// Query heads that share a kv head.
  int group() const { return num_q_heads / num_kv_heads; }
};

/// Bounds of every decode of a plan. They come from the options and the cache; src/plan/bounds.hpp derives the other
/// bounds from them.
struct Bounds {
  int max_batch{};           ///< batch entries
  int max_seq_len{};         ///< tokens of a sequence; longer ones are decoded too, but not at full speed
  int max_query_len{};       ///< query tokens of a batch entry
  int max_query_tokens{};    ///< query tokens of a batch
  int cu_seqlens_entries{};  ///< entries of AttentionOptions::cu_seqlens_q
  int max_entries{};         ///< entries of a list; 0: the plan decodes batches, not lists
  int max_entry_queries{};   ///< query tokens of an entry of a list
  int max_listed_queries{};  ///< query tokens of all entries of a list
  bool chains{};             ///< whether lists may have chains
};

/// The values of the options that kernels read. Kernels take this struct as it is (KernelArgs::options); the order of
/// its members is part of their machine code. The hand-tuned kernels know neither Kokkos nor this struct:
/// tuned_problem() copies what they take.
struct AttentionOptions {
  const int* cu_seqlens_q   = nullptr;  ///< [batch + 1] first query token of each entry; null: uniform_query_len
  int uniform_query_len     = 0;        ///< query tokens of each entry; each decode sets it from its queries
  double softmax_scale      = 1.0;      ///< factor of q . k
  bool causal               = true;     ///< query token i of n sees tokens up to seq_len - n + i
  int window_left           = -1;       ///< tokens before the query's own that it sees; -1: all
  int num_initial_tokens    = 0;        ///< first tokens that stay visible besides the window
  double logit_soft_cap     = 0.0;      ///< s -> cap * tanh(s / cap); 0: off
  const float* alibi_slopes = nullptr;  ///< [num_q_heads] adds slope * (token - query position)
  const float* sinks        = nullptr;  ///< [num_q_heads] logit of an extra token without value

  /// Whether an option changes scores or hides tokens. The causal mask does not count: it hides nothing from a single
  /// query token.
  bool changes_scores() const { return changes_tokens() || sinks; }
  /// The same without sinks, which are a number for a whole row.
  bool changes_tokens() const { return window_left >= 0 || logit_soft_cap > 0 || alibi_slopes; }
};

/// The generic kernel of a plan, and what it requires of the caches and queries that it decodes.
struct KernelChoice {
  int fragment{};                ///< index in the machine's list of fragments
  int row_tile{};                ///< query rows that share one pass over the keys
  int num_workers{};             ///< threads of a team; each processes its own tiles of tokens
  int heads_per_item{1};         ///< kv heads of a work item
  int row_alignment{};           ///< bytes on which KV rows begin; 0: rows of any strides, read element by element
  std::int64_t max_row_units{};  ///< largest distance from the first to the last KV row of a cache (see row_units)
  bool values_in_keys{};         ///< values are read as the keys' first elements
  bool any_query{};              ///< the instance without options takes queries of any type
  bool general{};                ///< the instance with all options: several query tokens a sequence, or an option is on
  DType query_type{};            ///< type of queries that the fragment takes without conversion
  DType probability_type{};      ///< type that probabilities are rounded to before they multiply the values
  int isa{};                     ///< instruction set of fragments that have several (HostIsa)
  const char* isa_name{};        ///< its name; null: the fragment has one only
  const char* slow_because{};    ///< why the kernel cannot run at full speed; null if it can
};

/// How rows (the query rows that share one pass over a kv head's tokens) are split over the machine.
struct SplitBounds {
  int num_teams{};     ///< teams that are resident on the machine at the same time
  int even_waves{};    ///< rounds of splits for rows of equal lengths; 0: splits have max_chunks
  int waves{};         ///< least rounds of splits for rows of unequal lengths; 0: splits have max_chunks
  int chunk_shift{};   ///< splits are multiples of a chunk, 2^chunk_shift tokens
  int split_shift{};   ///< a split has at least 2^split_shift chunks, if the row is that long
  int round_shift{};   ///< the workers of a team take 2^round_shift chunks in a round
  bool deals_tiles{};  ///< splits interleave rounds; otherwise they are runs of tokens
  int max_chunks{};    ///< chunks of a split
  int max_cuts{};      ///< splits of all rows beyond one for each row; the workspace has room for these
  int max_waves{};     ///< most rounds of splits for rows of unequal lengths
  float density{};     ///< cuts per chunk of such rows, if that takes from `waves` to `max_waves` rounds
  int row_teams{};     ///< most teams that a batch of one row is split among; 0: num_teams
};

/// Byte offsets of the parts of a workspace, and its size.
struct WorkspaceLayout {
  std::size_t states = 0, values = 0, bytes = 0;
};

/// The arrays that a decode of a checked plan examines before the decode reads them (src/dispatch/checked.hpp).
struct CheckedTables {
  bool on                 = false;
  int max_sequences       = 0;        ///< bound on the cache's num_sequences
  const int* cu_seqlens_q = nullptr;  ///< the caller's; AttentionOptions has the plan's copy
};

/// Byte offsets of the memory that the plan owns, and its size. Backends keep there what persists between decodes:
/// `last` is the part of the last backend of the list, `chosen` that of the plan's backend.
struct PersistentLayout {
  std::size_t last = 0, chosen = 0, bytes = 0;
  std::size_t checked = 0;  ///< the arrays of a checked plan
};

/// The backend of a plan. A decode that it does not support goes to the last backend of the list.
struct BackendChoice {
  int index{};              ///< in the list of backends
  const char* name{};       ///< name of the backend
  bool forced{};            ///< by the option or by PAGODA_BACKEND: no other backend may run a decode
  const char* faster_on{};  ///< batches for which the plan skipped a slower backend; null: it skipped none
};

/// Everything that a plan has decided.
struct Schedule {
  ProblemShape shape{};
  Bounds bounds{};
  AttentionOptions options{};
  KernelChoice kernel{};
  SplitBounds split{};
  int max_slots{};             ///< partial states in the workspace
  int multiprocessors{};       ///< that the plan's instance may use; 0 on hosts
  bool programmatic_launch{};  ///< decodes may start before the previous kernel has ended
  bool fixed_splits{};         ///< the splits of a row follow from its own length and the shape (Exactness)
  WorkspaceLayout workspace{};
  PersistentLayout persistent{};
  BackendChoice backend{};
  CheckedTables checked{};
};

/// One line of text: Plan::describe().
PAGODA_EXPORT std::string describe(const Schedule& schedule);

}  // namespace pagoda::detail
