// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/batch_pages.hpp>
#include <pagoda/decode.hpp>
#include <pagoda/device_rates.hpp>
#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

/// @file
/// Decodes that read shared prefixes once.
///
///   pagoda::PrefixDecoder decoder(exec, kv, {.num_q_heads = 32, .max_batch = 256});
///   // every step, with the block table, lengths and sequence ids on the host:
///   decoder.update(exec, tables);
///   for (auto& layer : layers) decoder.decode(exec, layer.q, layer.kv, layer.out, layer.lse);
///
/// Source: Yi et al., "PAT: accelerating LLM decoding via prefix-aware attention" (pack, forward, merge); Yao et al.,
/// "DeFT" (trees of prefixes).
namespace pagoda {

/// Bounds and rates of a PrefixDecoder. Zero or empty selects the default given beside the field.
struct PrefixOptions {
  int max_entries = 0;  ///< bound on the entries of a list; default: 4 for each query token
  int max_states  = 0;  ///< bound on its partial states; default: 4 for each query token
  /// fp32, fp16 or bf16. Default: on GPUs that of each decode's outputs, if it is fp16 or bf16; otherwise fp32. States
  /// of 16 bits have half the traffic, and each is rounded once, as outputs are. Memory is allocated for states of this
  /// type; by default for fp32, as outputs may be.
  std::optional<DType> state_type{};
  /// Rates that planning predicts times from. Default: those of the machine (PrefixDecoder::rates). On NVIDIA GPUs they
  /// follow the measurements of pagoda-tune. On AMD GPUs they are predicted; there and on hosts pagoda-tune prints
  /// measured ones, to be passed here.
  std::optional<DeviceRates> rates{};
};

/// What the last call of PrefixDecoder::plan found.
struct PrefixReport {
  bool new_plan             = false;    ///< a new plan was made; otherwise the plan before still holds
  const char* plain_because = nullptr;  ///< why decodes are plain; null: they read a list
  int entries               = 0;        ///< entries of the list
  int states                = 0;        ///< partial states of the list
  double planning_us        = 0;        ///< time that the call took on the host
  double plain_us           = 0;        ///< predicted time of a plain decode; 0: no page is shared
  double packed_us          = 0;        ///< predicted time of a decode of the list; 0: no page is shared
};

namespace detail {
template <class ExecutionSpace>
struct PrefixState;
}  // namespace detail

/// Decodes batches of a paged cache. Where sequences begin with the same pages, and reading these once is predicted to
/// be faster, a decode carries out a list of entries and merges partial states. Otherwise it is the plain decode. Both
/// give the same results, up to rounding.
///
/// The decoder owns a plan for plain decodes, plans for lists, and memory for lists and partial states. Everything is
/// allocated at construction. If a list exceeds the bounds, decodes are plain, and report() says so. They also are
/// plain if the cache is contiguous or holds fp64, if there is a sliding window, and if the forced backend does not
/// decode lists. On sm_90 a decode of fp16 or bf16 is plain too if the hand-tuned kernels do not support its queries
/// and outputs (fp64, rows that do not start on 16 bytes), as only they carry out chains (Entry::chain).
///
/// Order: call update() before the decodes of a step, on the instance of the decodes. To plan on another thread, while
/// decodes run, call plan() there, and then install() on the thread of the decodes. plan() may overlap decode(), but
/// not install(), update() or report().
///
/// Graphs: decode() can be captured, update() and install() cannot. A captured decode is right for all tables whose
/// graph_key() is that of the capture, as it reads the list when it runs. So an engine keeps a graph for each key, as
/// it keeps one for each batch size.
template <class ExecutionSpace>
class PAGODA_EXPORT PrefixDecoder {
 public:
  using execution_space = ExecutionSpace;                         ///< space of the decodes
  using memory_space    = typename ExecutionSpace::memory_space;  ///< memory space of cache, queries and outputs

  /// exec, kv, options and exceptions: see pagoda::plan. Decodes may pass other caches of the same shape, such as those
  /// of other layers. Throws InvalidArgument for bounds that are negative and for other state types.
  template <KVLayout KV>
  PrefixDecoder(const ExecutionSpace& exec, const KV& kv, const DecodeOptions<memory_space>& options,
                const PrefixOptions& prefix = {})
      : PrefixDecoder(exec, kv.ref(), options, prefix) {}
  /// The same for a cache without types.
  PrefixDecoder(const ExecutionSpace& exec, const CacheRef& kv, const DecodeOptions<memory_space>& options,
                const PrefixOptions& prefix = {});
  ~PrefixDecoder();
  PrefixDecoder(PrefixDecoder&&) noexcept;             ///< the moved-from decoder can be destroyed or assigned to
  PrefixDecoder& operator=(PrefixDecoder&&) noexcept;  ///< the moved-from decoder can be destroyed or assigned to

  /// Plans for the batch of the next decodes, unless the last plan still holds: it holds while the batch has the same
  /// sequences and query counts, and their shared pages stay as they are. Growth needs no new plan. Returns whether
  /// install() has to be called. Runs on the host only. Throws InvalidArgument if lengths, sequence ids or offsets are
  /// outside of their arrays, or a count exceeds the decoder's bounds; the decoder then keeps its last plan.
  bool plan(const BatchPages& tables);
  /// Makes later decodes follow the last plan. A list is copied asynchronously on exec. Returns whether decodes read a
  /// list. Waits on the host only for the copy of the list before the last one.
  bool install(const ExecutionSpace& exec);
  /// plan and install. Returns whether decodes read a list.
  bool update(const ExecutionSpace& exec, const BatchPages& tables) {
    plan(tables);
    return install(exec);
  }
  /// What the last plan() found.
  const PrefixReport& report() const;

  /// Decodes the batch of the last install(). q, kv, out, lse and exceptions: see pagoda::decode. kv must have the
  /// tables that plan() was given, in device memory. Asynchronous on exec; nothing is allocated, copied or fenced. A
  /// decode of a list launches two or three kernels. One decode may be in flight.
  template <class Q, KVLayout KV, class Out, class Lse>
  void decode(const ExecutionSpace& exec, const Q& q, const KV& kv, const Out& out, const Lse& lse) {
    detail::check_decode_views<ExecutionSpace, Q, Out, Lse>();
    decode_erased(exec, kv.ref(), tensor_ref(q), tensor_ref(out), tensor_ref(lse));
  }
  /// The same decode without the log-sum-exp.
  template <class Q, KVLayout KV, class Out>
  void decode(const ExecutionSpace& exec, const Q& q, const KV& kv, const Out& out) {
    decode(exec, q, kv, out, Kokkos::View<float**, memory_space>{});
  }
  /// The same decode for Views without types.
  void decode_erased(const ExecutionSpace& exec, const CacheRef& kv, const TensorRef& q, const TensorRef& out,
                     const TensorRef& lse);

  /// True if decodes read a list.
  bool packed() const;
  /// Identifies the launches of a decode: 0 for a plain decode, otherwise the padded numbers of entries and query
  /// tokens. Decodes of the same batch size and the same key may replay the same graph.
  std::uint64_t graph_key() const;
  /// The plan of plain decodes.
  const Plan<ExecutionSpace>& plain_plan() const;
  /// The plan of lists. Throws InvalidArgument, with the reason, if the decoder has none.
  const Plan<ExecutionSpace>& list_plan() const;
  /// The rates that planning predicts times from.
  const DeviceRates& rates() const;
  /// Changes the rates. The next plan() makes a new plan. Throws InvalidArgument for rates that are not positive, and
  /// for tiles of more than 128 rows.
  void set_rates(const DeviceRates& rates);

 private:
  std::unique_ptr<detail::PrefixState<ExecutionSpace>> state_;
};

}  // namespace pagoda
