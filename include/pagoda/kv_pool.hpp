// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>
#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/kv_write.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// Pools: memory for the keys and values of many sequences, who holds which part of it, and decodes over it.
///
///   pagoda::PagedPool<pagoda::half_t> pool(exec, {.num_kv_heads = 8, .head_dim = 128, .max_seq_len = 4096,
///                                                 .max_sequences = 64, .num_pages = 8192, .num_q_heads = 32});
///   const int slot = pool.admit(exec, k, v);                  // a prompt; its slot is its name
///   pool.append(exec, slots, k_new, v_new);                   // every step: a token for each of many sequences
///   pool.decode(exec, slots, q, out);                         // all of them in one call
///   pool.release(slot);
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.C (two pools
/// behind one interface); Kwon et al., PagedAttention, sections 4.2 to 4.4 (pages, sharing, copy on write).
namespace pagoda {

/// Shape of a pool; zero means the default beside the field. Lengths are in tokens.
struct PoolOptions {
  int num_kv_heads  = 0;   ///< required
  int head_dim      = 0;   ///< required
  int head_dim_v    = 0;   ///< of values; default: head_dim
  int max_seq_len   = 0;   ///< required: the longest sequence
  int max_sequences = 0;   ///< required: slots, the sequences held at a time
  int page_size     = 16;  ///< paged only: tokens in a page
  int num_pages     = 0;   ///< paged only; default: enough for max_sequences of max_seq_len, which never runs out
  KVOrder order     = KVOrder::NHD;
  int num_q_heads   = 0;  ///< of the plan made at construction; default: none is made, call prepare before decode
};

namespace detail {
template <class T, class ExecutionSpace>
struct PoolState;
template <class ExecutionSpace>
struct SlotSelection;
}  // namespace detail

/// What both pools do. A pool is its storage (allocated once, at construction), a table on the host of which pages each
/// sequence holds, and a copy of that table on the device, which kernels read. A contiguous pool is the case of one
/// page of max_seq_len tokens per sequence.
///
/// Order: every call that takes exec is asynchronous on it, and leaves the device's tables right for all sequences. Use
/// one instance for all calls of a pool, or order them yourself. The caller's rows are read when the call runs. What
/// changes in the tables, and only that, is read by the kernel that writes the rows, out of a ring of host memory that
/// the device sees; exec is fenced when the ring is full, about once in 64 steps of a full batch. decode and kv never
/// fence, allocate or copy.
///
/// T: double, float, half_t or bfloat16_t. Quantized caches have no pools: who writes them chooses their scales.
///
/// Errors: InvalidArgument for what cannot be, OutOfCapacity where there is no room now, and whatever the system throws
/// (std::bad_alloc, a launch that fails). Strong guarantee: after any exception the pool, its copy on the device and
/// the caches that kv returned are as they were before the call.
///
/// Not thread-safe: one owner at a time. Neither copied nor moved.
template <class T, class ExecutionSpace>
class PAGODA_EXPORT KVPool {
  static_assert(!is_quantized_v<T>, "pools hold fp64, fp32, fp16 or bf16; quantized caches are written by yourself");

 public:
  using value_type      = T;
  using execution_space = ExecutionSpace;
  using memory_space    = typename ExecutionSpace::memory_space;

  virtual ~KVPool();
  KVPool(const KVPool&)            = delete;
  KVPool& operator=(const KVPool&) = delete;

  // ---- sequences come and go

  /// A new sequence holding these rows, copied by one kernel. k: (token, kv head, head_dim), v: the same with
  /// head_dim_v; any strides, 0 to max_seq_len tokens, the pool's element type or another (converted). Returns its
  /// slot.
  template <class K, class V>
  int admit(const ExecutionSpace& exec, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    return admit_rows(exec, tensor_ref(k), tensor_ref(v));
  }
  /// A new sequence of num_tokens tokens whose rows `write` brings later. What they hold until then is undefined.
  int admit(const ExecutionSpace& exec, int num_tokens);
  /// A new sequence that begins as the first num_tokens tokens (default: all) of another. Paged: both hold the same
  /// pages, and nothing is copied until one of them writes into a page that is not full. Contiguous: the rows are
  /// copied.
  int fork(const ExecutionSpace& exec, int slot, int num_tokens = -1);
  /// Ends a sequence. Its slot and the pages that nobody else holds are free for the next, at once: later calls are
  /// behind earlier ones on exec. The device's table is cleared with the next call that changes it.
  void release(int slot);

  // ---- sequences grow

  /// The next counts[i] tokens of sequence slots[i] (counts empty: one each), their rows one sequence behind the other
  /// in k and v: (token, kv head, dim), any strides. One kernel for all (two where a shared page must be copied first).
  /// Each slot at most once.
  template <class K, class V>
  void append(const ExecutionSpace& exec, std::span<const int> slots, std::span<const int> counts, const K& k,
              const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    append_rows(exec, slots, counts, tensor_ref(k), tensor_ref(v));
  }
  /// The next token of each: row i of k and v belongs to slots[i].
  template <class K, class V>
  void append(const ExecutionSpace& exec, std::span<const int> slots, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    append_rows(exec, slots, {}, tensor_ref(k), tensor_ref(v));
  }
  /// append without the rows: sequences grow, `write` brings the rows later.
  void reserve(const ExecutionSpace& exec, std::span<const int> slots, std::span<const int> counts);
  /// Row i of k and v to position slot_mapping(i); see write_kv and slot_mapping. Lengths stay as they are, and whoever
  /// shares the page sees the row.
  template <class Mapping, class K, class V>
  void write(const ExecutionSpace& exec, const Mapping& mapping, const K& k, const V& v) {
    detail::check_row_views<ExecutionSpace, K, V>();
    static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename Mapping::memory_space>::accessible,
                  "slot_mapping must lie in memory that the execution space can read");
    write_rows(exec, detail::slot_mapping_ref(mapping), tensor_ref(k), tensor_ref(v));
  }

  // ---- decode

  /// Makes the plan of later decodes: num_q_heads, score options, bounds. max_batch: default max_sequences. Throws
  /// InvalidArgument for programmatic_launch: the kernel before the decode is the pool's own, and writes lengths,
  /// sequence ids and pages that such a decode reads before it waits for that kernel. See LayoutPool::kv.
  void prepare(const ExecutionSpace& exec, const DecodeOptions<memory_space>& options);
  /// pagoda::decode over these sequences, in this order: q, out and lse as there; at most max_sequences slots. One
  /// small kernel more where slots differ from the last decode's. Nothing is launched before all arguments are checked.
  /// To capture a graph, call kv outside and capture pagoda::decode.
  template <class Q, class Out, class Lse>
  void decode(const ExecutionSpace& exec, std::span<const int> slots, const Q& q, const Out& out, const Lse& lse) {
    static_assert(Q::rank() == 3 && Out::rank() == 3 && Lse::rank() == 2,
                  "q is (query token, q head, head_dim), out the same with head_dim_v, lse (query token, q head)");
    static_assert(!std::is_const_v<typename Out::value_type> && !std::is_const_v<typename Lse::value_type>,
                  "out and lse are written: their elements cannot be const");
    static_assert(std::is_floating_point_v<typename Lse::value_type>, "lse is a View of float or double");
    static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename Q::memory_space>::accessible &&
                      Kokkos::SpaceAccessibility<ExecutionSpace, typename Out::memory_space>::accessible &&
                      Kokkos::SpaceAccessibility<ExecutionSpace, typename Lse::memory_space>::accessible,
                  "q, out and lse must lie in memory that the execution space can reach");
    decode_erased(exec, slots, tensor_ref(q), tensor_ref(out), tensor_ref(lse));
  }
  template <class Q, class Out>
  void decode(const ExecutionSpace& exec, std::span<const int> slots, const Q& q, const Out& out) {
    decode(exec, slots, q, out, Kokkos::View<float**, memory_space>{});
  }
  /// The plan that decode uses. Throws InvalidArgument where none was made.
  const Plan<ExecutionSpace>& plan() const;

  // ---- what is where

  const PoolOptions& options() const;
  bool holds(int slot) const;
  /// Tokens of a sequence.
  int seq_len(int slot) const;
  /// Pages of a sequence in order, ceil(seq_len / page_size) of them; contiguous: its slot. Valid until it changes.
  std::span<const int> block_table(int slot) const;
  /// Sequences that hold a page.
  int page_ref_count(int page) const;
  /// Positions of tokens first .. first + count of a sequence: entries of a slot_mapping, on the host.
  std::vector<std::int64_t> slot_mapping(int slot, int first, int count) const;

  // ---- how full

  int free_slots() const;
  int page_size() const;  ///< contiguous: max_seq_len
  int num_pages() const;  ///< contiguous: max_sequences
  int free_pages() const;
  /// True where admit(exec, num_tokens) would succeed now.
  bool can_admit(int num_tokens) const;
  /// Sum of all seq_len.
  std::int64_t tokens_held() const;
  /// Tokens whose rows are stored: those of a page that several sequences share count once. Takes time in num_pages.
  std::int64_t tokens_stored() const;
  std::int64_t bytes_per_token() const;
  std::int64_t bytes_allocated() const;  ///< keys and values of all pages
  std::int64_t bytes_reserved() const;   ///< of the pages that sequences hold
  std::int64_t bytes_used() const;       ///< of tokens_stored
  /// Share of bytes_reserved that is not used, 0 where nothing is reserved: what the study calls fragmentation (I.b).
  double waste() const;

 protected:
  KVPool(const ExecutionSpace& exec, const PoolOptions& options, bool contiguous);
  /// The layout with the first `batch` sequences that decode selected, erased; and a plan for it.
  virtual CacheRef cache(int batch) const                                                                 = 0;
  virtual Plan<ExecutionSpace> make_plan(const ExecutionSpace&, const DecodeOptions<memory_space>&) const = 0;
  std::unique_ptr<detail::PoolState<T, ExecutionSpace>> state_;

 private:
  int admit_rows(const ExecutionSpace& exec, const TensorRef& k, const TensorRef& v);
  void append_rows(const ExecutionSpace& exec, std::span<const int> slots, std::span<const int> counts,
                   const TensorRef& k, const TensorRef& v);
  void write_rows(const ExecutionSpace& exec, const detail::SlotMapping& mapping, const TensorRef& k,
                  const TensorRef& v);
  void decode_erased(const ExecutionSpace& exec, std::span<const int> slots, const TensorRef& q, const TensorRef& out,
                     const TensorRef& lse);
};

/// A pool whose memory is read through one of the two layouts.
template <template <class, class> class KV, class T, class ExecutionSpace>
class PAGODA_EXPORT LayoutPool final : public KVPool<T, ExecutionSpace> {
 public:
  using typename KVPool<T, ExecutionSpace>::memory_space;
  using Layout = KV<T, memory_space>;

  LayoutPool(const ExecutionSpace& exec, const PoolOptions& options);
  /// The cache with batch entry b = slots[b], for pagoda::decode or kernels of your own; columns of a block table
  /// beyond a sequence are -1. The Views are of the pool's memory, live no longer than it, and follow it: lengths and
  /// tables are those of now at any time, and the next kv changes which sequences all of them select (decode does not).
  ///
  /// A plan of your own with programmatic_launch: its decode reads lengths, ids and tables while the kernel before it
  /// on exec may still run. So that kernel must not be the pool's (admit, fork, append, reserve, write, and a kv that
  /// selects other sequences than the last launch one), and it must start only after the pool's last kernel has ended.
  /// A kernel launched in the usual way between the pool's last call and the decode sees to both, for instance the one
  /// that writes the queries.
  Layout kv(const ExecutionSpace& exec, std::span<const int> slots);

 private:
  Layout layout(const detail::SlotSelection<ExecutionSpace>& selection, int batch) const;
  CacheRef cache(int batch) const override;
  Plan<ExecutionSpace> make_plan(const ExecutionSpace&, const DecodeOptions<memory_space>&) const override;
};

/// max_seq_len tokens of memory for every sequence, from admission to release: no table to read, and as much waste as
/// sequences are shorter than max_seq_len. Source: Heidari et al., section III.C, "ContiguousPool".
template <class T, class ExecutionSpace = Kokkos::DefaultExecutionSpace>
using ContiguousPool = LayoutPool<ContiguousKV, T, ExecutionSpace>;

/// Pages of page_size tokens, taken as sequences grow: at most page_size - 1 tokens of waste per sequence. Forks share.
/// Source: Heidari et al., section III.C, "PagedPool"; Kwon et al., PagedAttention, sections 4.2 to 4.4.
template <class T, class ExecutionSpace = Kokkos::DefaultExecutionSpace>
using PagedPool = LayoutPool<PagedKV, T, ExecutionSpace>;

}  // namespace pagoda
