// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/batch_pages.hpp>
#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>
#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/kv_write.hpp>
#include <pagoda/plan.hpp>
#include <pagoda/prefix.hpp>
#include <pagoda/prefix_index.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// @file
/// Pools: memory for the keys and values of many sequences, tables of the pages that each sequence holds, and decodes
/// over them.
///
///   pagoda::PagedPool<pagoda::half_t> pool(exec, {.num_kv_heads = 8, .head_dim = 128, .max_seq_len = 4096,
///                                                 .max_sequences = 64, .num_pages = 8192, .num_q_heads = 32});
///   const int slot = pool.admit(exec, k, v);                  // a prompt; its slot identifies the sequence
///   pool.append(exec, slots, k_new, v_new);                   // every step: a token for each of many sequences
///   pool.decode(exec, slots, q, out);                         // all of them in one call
///   pool.release(slot);
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.C (two pools
/// behind one interface); Kwon et al., PagedAttention, sections 4.2 to 4.4 (pages, sharing, copy on write); Zheng et
/// al., SGLang, section 3 (the prefix index: see prefix_index.hpp).
namespace pagoda {

/// How decodes of a pool read pages that several of their sequences hold.
enum class SharePrefixes {
  automatic,  ///< once for all of them where that is predicted to be faster; see PrefixDecoder
  never       ///< once for each sequence
};

/// Shape of a pool. Zero selects the default given beside the field. Lengths are in tokens.
struct PoolOptions {
  int num_kv_heads  = 0;   ///< required
  int head_dim      = 0;   ///< required
  int head_dim_v    = 0;   ///< dims of a value; default: head_dim
  int max_seq_len   = 0;   ///< required: the longest sequence
  int max_sequences = 0;   ///< required: slots, the most sequences held at a time
  int page_size     = 16;  ///< paged only: tokens in a page
  int num_pages     = 0;   ///< paged only; default: enough for max_sequences of max_seq_len, which never runs out
  KVOrder order     = KVOrder::NHD;  ///< order of the token and head axes
  int num_q_heads   = 0;  ///< for the plan made at construction; default: no plan, call prepare before decode
  SharePrefixes share_prefixes = SharePrefixes::automatic;  ///< paged only: how decodes read shared pages
  PrefixOptions prefix{};  ///< paged only: bounds, state type and rates of the decoder that prepare makes
};

namespace detail {
template <class T, class ExecutionSpace>
struct PoolState;
template <class ExecutionSpace>
struct SlotSelection;
}  // namespace detail

/// The interface of both pools. A pool consists of its storage (allocated once, at construction), a table on the host
/// that lists the pages of each sequence, and a copy of that table on the device, which kernels read. In a contiguous
/// pool each sequence has one page of max_seq_len tokens.
///
/// Execution: Every call that takes exec is asynchronous on it. Afterwards the device's tables are correct for all
/// sequences. Use one instance for all calls of a pool, or order the instances yourself. The caller's rows are read
/// when the kernel runs. Changes of the tables are passed through a ring of host memory that the device can read; exec
/// is fenced when the ring is full, about once in 64 steps of a full batch. kv never fences, allocates or copies, and
/// neither does a decode that reads no list (see decode).
///
/// T: double, float, half_t or bfloat16_t. There are no pools of quantized elements: the kernel that writes them must
/// choose their scales.
///
/// Errors: Calls throw InvalidArgument for arguments that are not allowed, OutOfCapacity if there is no room now,
/// std::bad_alloc, and what Kokkos or the device's runtime throws if a launch fails (std::runtime_error). Strong
/// guarantee: after any exception the pool, its prefix index, its tables on the device and the caches that kv returned
/// are as they were before the call. One case differs: if a call of several kernels evicted pages, and a kernel after
/// the first fails to launch, those pages stay evicted, since the first may have written to them.
///
/// A pool is not thread-safe: it has one owner at a time. It cannot be copied or moved.
template <class T, class ExecutionSpace>
class PAGODA_EXPORT KVPool {
  static_assert(!is_quantized_v<T>, "pools hold fp64, fp32, fp16 or bf16; quantized caches are written by yourself");

 public:
  using value_type      = T;                                      ///< element type of keys and values
  using execution_space = ExecutionSpace;                         ///< space of all kernels
  using memory_space    = typename ExecutionSpace::memory_space;  ///< space of all device memory

  virtual ~KVPool();
  KVPool(const KVPool&)            = delete;
  KVPool& operator=(const KVPool&) = delete;

  // ---- sequences are added and removed

  /// Adds a sequence that holds these rows, and returns its slot. One kernel copies the rows. k: (token, kv head,
  /// head_dim), v: the same with head_dim_v; any strides, 0 to max_seq_len tokens, fp64, fp32, fp16 or bf16 (converted
  /// to the pool's type).
  template <class K, class V>
  int admit(const ExecutionSpace& exec, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    return admit_rows(exec, tensor_ref(k), tensor_ref(v));
  }
  /// Adds a sequence of num_tokens tokens, whose rows `write` sets later. Until then their contents are undefined.
  int admit(const ExecutionSpace& exec, int num_tokens);
  /// Adds a sequence that starts with the first num_tokens tokens (default: all) of the sequence in `slot`. Paged: both
  /// hold the same pages, and nothing is copied until one of them writes into a page that is not full. Contiguous: the
  /// rows are copied.
  int fork(const ExecutionSpace& exec, int slot, int num_tokens = -1);
  /// Removes a sequence. Its slot, and the pages that no other sequence holds, are free at once, because later calls
  /// run after earlier ones on exec. Those of them that are in the prefix index stay cached. The entries on the device
  /// are cleared by the next call that changes the tables.
  void release(int slot);

  // ---- sequences that share prefixes (paged pools; a contiguous pool finds nothing and keeps no names)

  /// Number of tokens with which a sequence of this prompt would begin now, because the index has their pages: a
  /// multiple of page_size, and less than the length of the prompt, so that its last token is always computed. May be
  /// less after calls that take pages (admit, append, reserve), as these may evict.
  int match(const Prompt& prompt) const;
  /// Adds a sequence that holds this prompt, and names its tokens. It shares the pages that the index has. k and v:
  /// rows of the last tokens of the prompt, at least of those behind match(prompt); the rows of shared tokens are not
  /// read. Otherwise as admit above.
  template <class K, class V>
  int admit(const ExecutionSpace& exec, const Prompt& prompt, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    return admit_rows(exec, prompt, tensor_ref(k), tensor_ref(v));
  }
  /// Adds a sequence that consists of the first match(prompt) tokens of the prompt. These stay until the sequence is
  /// released. Append the others, at once or in chunks, and name them.
  int admit(const ExecutionSpace& exec, const Prompt& prompt);
  /// Names the next tokens of a sequence, from named_tokens(slot) on: ids, 0 or more each. The rows must have been
  /// written by earlier calls, and the rows of a named page must not be written again. A page enters the index when its
  /// last token is named, unless the index has a page of that name. A fork has the names of the tokens it shares.
  void name(int slot, std::span<const int> token_ids);
  /// Names the next full pages of a sequence by hashes, one for each page.
  void name(int slot, std::span<const std::uint64_t> page_hashes);
  /// Number of tokens of a sequence that have names: always its first.
  int named_tokens(int slot) const;
  /// True if the page is in the index.
  bool is_indexed(int page) const;
  /// Evicts up to num_pages pages that the index caches and no sequence needs. Returns how many.
  int evict(int num_pages);
  /// Hits, misses, saved bytes and evictions. A contiguous pool counts misses only.
  PrefixStats prefix_stats() const;
  /// Sets all counts of prefix_stats to 0, except indexed_pages.
  void reset_prefix_stats();

  // ---- sequences grow

  /// Appends counts[i] tokens to sequence slots[i] (counts empty: one token each). k and v: (token, kv head, dim), any
  /// strides, with the rows of one sequence after those of the one before. One kernel for all sequences, and one more
  /// if a shared page must be copied first. No slot may occur twice.
  template <class K, class V>
  void append(const ExecutionSpace& exec, std::span<const int> slots, std::span<const int> counts, const K& k,
              const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    append_rows(exec, slots, counts, tensor_ref(k), tensor_ref(v));
  }
  /// Appends one token to each: row i of k and v belongs to slots[i].
  template <class K, class V>
  void append(const ExecutionSpace& exec, std::span<const int> slots, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    append_rows(exec, slots, {}, tensor_ref(k), tensor_ref(v));
  }
  /// Lengthens sequences as append does, without rows: `write` sets them later.
  void reserve(const ExecutionSpace& exec, std::span<const int> slots, std::span<const int> counts);
  /// Writes row i of k and v to position mapping(i); see write_kv and slot_mapping. Lengths do not change, and every
  /// sequence that shares the page sees the row.
  template <class Mapping, class K, class V>
  void write(const ExecutionSpace& exec, const Mapping& mapping, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename Mapping::memory_space>::accessible,
                  "slot_mapping must lie in memory that the execution space can read");
    write_rows(exec, detail::slot_mapping_ref(mapping), tensor_ref(k), tensor_ref(v));
  }

  // ---- decode

  /// Makes the plan of later decodes. The default of options.max_batch is max_sequences here. Throws what pagoda::plan
  /// throws. Throws InvalidArgument for programmatic_launch, because the kernel before the decode is the pool's own and
  /// writes lengths, sequence ids and pages, which such a decode reads before it waits for that kernel. See
  /// LayoutPool::kv. Throws InvalidArgument for options.entries, because a pool makes its own lists.
  ///
  /// A paged pool plans with a PrefixDecoder of PoolOptions::prefix, which allocates memory for lists and partial
  /// states here: by default, four partial states for each of max_query_tokens. Smaller bounds (max_states) and a
  /// state_type of 16 bits need less memory, and SharePrefixes::never needs none. Throws what PrefixDecoder throws
  /// for these options.
  void prepare(const ExecutionSpace& exec, const DecodeOptions<memory_space>& options);
  /// Decodes these sequences, at most max_sequences, in this order. q, out, lse and exceptions: see pagoda::decode. If
  /// the slots differ from those of the last decode, one small kernel is launched first. All arguments are checked
  /// before anything is launched. To capture a graph, call kv outside of the capture, and capture pagoda::decode.
  ///
  /// Shared prefixes (SharePrefixes::automatic): Where sequences begin with the same pages, and reading these once is
  /// predicted to be faster, the decode carries out a list of entries (PrefixDecoder). Results then differ by rounding
  /// from those of a plain decode. The host plans if the slots or query counts differ from those of the last decode, or
  /// if a sequence has been released since; otherwise the last plan serves. Planning allocates host memory while a plan
  /// is larger than all before. A new list is copied asynchronously on exec; the host waits for the copy of the list
  /// before the last one only. Decodes are plain if nothing is shared, and for the reasons of PrefixDecoder. They also
  /// are plain with cu_seqlens_q, because the pool plans on the host. prefix_report() says which.
  template <class Q, class Out, class Lse>
  void decode(const ExecutionSpace& exec, std::span<const int> slots, const Q& q, const Out& out, const Lse& lse) {
    detail::check_decode_views<ExecutionSpace, Q, Out, Lse>();
    decode_erased(exec, slots, tensor_ref(q), tensor_ref(out), tensor_ref(lse));
  }
  /// The same decode without the log-sum-exp.
  template <class Q, class Out>
  void decode(const ExecutionSpace& exec, std::span<const int> slots, const Q& q, const Out& out) {
    decode(exec, slots, q, out, Kokkos::View<float**, memory_space>{});
  }
  /// The plan that plain decodes use. Throws InvalidArgument if there is none.
  const Plan<ExecutionSpace>& plan() const;
  /// What the planning of the last decode found. plain_because: why it was plain; null if it read a list.
  const PrefixReport& prefix_report() const;
  /// The rates that decodes plan from. Throws InvalidArgument if decodes are always plain.
  const DeviceRates& rates() const;
  /// Changes the rates that later decodes plan from, until the next prepare (PoolOptions::prefix has rates that stay).
  /// Throws InvalidArgument if decodes are
  /// always plain, and as PrefixDecoder::set_rates does.
  void set_rates(const DeviceRates& rates);
  /// The tables of these sequences on the host, for planners: query_len query tokens of each. The result refers to
  /// `slots` and to the pool. It is valid until the next call of batch_pages, decode, or a function that changes a
  /// sequence. Contiguous: without pages.
  BatchPages batch_pages(std::span<const int> slots, int query_len = 1) const;

  // ---- tables

  /// The options that the pool was made with, and their defaults.
  const PoolOptions& options() const;
  /// True if a sequence is in this slot.
  bool holds(int slot) const;
  /// Tokens of a sequence.
  int seq_len(int slot) const;
  /// Page ids of a sequence in order, ceil(seq_len / page_size) of them; contiguous: its slot. Valid until the sequence
  /// changes.
  std::span<const int> block_table(int slot) const;
  /// Number of sequences that hold a page.
  int page_ref_count(int page) const;
  /// Positions of the tokens from `first` to first + count - 1 of a sequence: entries of a slot mapping, on the host.
  std::vector<std::int64_t> slot_mapping(int slot, int first, int count) const;

  // ---- capacity

  int free_slots() const;  ///< sequences that could be added now, given the pages
  int page_size() const;   ///< contiguous: max_seq_len
  int num_pages() const;   ///< contiguous: max_sequences
  int free_pages() const;  ///< pages that calls can take: unused ones and those of evictable_pages
  /// Pages that the prefix index caches and gives up when a call needs them. No sequence holds them, or a page that
  /// follows them in the index.
  int evictable_pages() const;
  /// True if admit(exec, num_tokens) would succeed now.
  bool can_admit(int num_tokens) const;
  /// True if admit(exec, prompt, k, v) would succeed now with the right rows.
  bool can_admit(const Prompt& prompt) const;
  /// Sum of the lengths of all sequences.
  std::int64_t tokens_held() const;
  /// Tokens of sequences whose rows are stored. Tokens in a page that several sequences share count once. Takes time in
  /// num_pages.
  std::int64_t tokens_stored() const;
  std::int64_t bytes_per_token() const;  ///< size of a key and a value for each kv head
  std::int64_t bytes_allocated() const;  ///< keys and values of all pages
  std::int64_t bytes_reserved() const;   ///< size of the pages that sequences hold
  std::int64_t bytes_used() const;       ///< size of tokens_stored
  /// Unused fraction of bytes_reserved, 0 if nothing is reserved. Source: Heidari et al., section I.b (fragmentation).
  double waste() const;

 protected:
  /// Allocates the pool. Throws InvalidArgument for options that are not allowed.
  KVPool(const ExecutionSpace& exec, const PoolOptions& options, bool contiguous);
  /// The type-erased layout of the first `batch` sequences that decode selected.
  virtual CacheRef cache(int batch) const = 0;
  /// A plan for that layout.
  virtual Plan<ExecutionSpace> make_plan(const ExecutionSpace&, const DecodeOptions<memory_space>&) const = 0;
  std::unique_ptr<detail::PoolState<T, ExecutionSpace>> state_;  ///< storage and tables

 private:
  int admit_rows(const ExecutionSpace& exec, const TensorRef& k, const TensorRef& v);
  int admit_rows(const ExecutionSpace& exec, const Prompt& prompt, const TensorRef& k, const TensorRef& v);
  void append_rows(const ExecutionSpace& exec, std::span<const int> slots, std::span<const int> counts,
                   const TensorRef& k, const TensorRef& v);
  void write_rows(const ExecutionSpace& exec, const detail::SlotMapping& mapping, const TensorRef& k,
                  const TensorRef& v);
  void decode_erased(const ExecutionSpace& exec, std::span<const int> slots, const TensorRef& q, const TensorRef& out,
                     const TensorRef& lse);
};

/// A pool that is read through one of the two layouts: see ContiguousPool and PagedPool.
template <template <class, class> class KV, class T, class ExecutionSpace>
class PAGODA_EXPORT LayoutPool final : public KVPool<T, ExecutionSpace> {
 public:
  using typename KVPool<T, ExecutionSpace>::memory_space;
  using Layout = KV<T, memory_space>;  ///< ContiguousKV or PagedKV

  /// Allocates the pool on exec. Throws InvalidArgument for options that are not allowed, and what Kokkos throws if
  /// there is not enough memory.
  LayoutPool(const ExecutionSpace& exec, const PoolOptions& options);
  /// Returns the cache in which batch entry b is the sequence in slots[b], for pagoda::decode or your own kernels.
  /// Columns of the block table behind a sequence's pages are -1. The Views refer to the pool's memory and must not
  /// outlive it. Their lengths and tables are always current. The next call of kv changes the selected sequences of all
  /// layouts that kv has returned; decode does not.
  ///
  /// With your own plan and programmatic_launch, the decode reads lengths, ids and tables while the previous kernel on
  /// exec may still run. So that kernel must not be the pool's (admit, fork, append, reserve, write, and a kv that
  /// selects other sequences launch one), and it must start only after the pool's last kernel has ended. A kernel
  /// launched in the usual way between the pool's last call and the decode meets both conditions, for example the one
  /// that writes the queries.
  Layout kv(const ExecutionSpace& exec, std::span<const int> slots);

 private:
  Layout layout(const detail::SlotSelection<ExecutionSpace>& selection, int batch) const;
  CacheRef cache(int batch) const override;
  Plan<ExecutionSpace> make_plan(const ExecutionSpace&, const DecodeOptions<memory_space>&) const override;
};

/// A pool that reserves memory for max_seq_len tokens of every sequence, from admission to release. Kernels read no
/// page table, but the unused memory of a sequence is wasted. Source: Heidari et al., section III.C, "ContiguousPool".
template <class T, class ExecutionSpace = Kokkos::DefaultExecutionSpace>
using ContiguousPool = LayoutPool<ContiguousKV, T, ExecutionSpace>;

/// A pool of pages of page_size tokens, which sequences take as they grow: at most page_size - 1 tokens of a sequence
/// are wasted. Forked sequences share pages, and so do prompts with a common prefix (Prompt). Source: Heidari et al.,
/// section III.C, "PagedPool"; Kwon et al., PagedAttention, sections 4.2 to 4.4; Zheng et al., SGLang, section 3.
template <class T, class ExecutionSpace = Kokkos::DefaultExecutionSpace>
using PagedPool = LayoutPool<PagedKV, T, ExecutionSpace>;

}  // namespace pagoda
