// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned_backend.hpp"

#include <pagoda/error.hpp>

#include "src/base/spaces.hpp"
#include "src/plan/faster_backend.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/stream.hpp"
#include "backends/cuda/tuned_problem.hpp"
#endif

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <type_traits>

namespace pagoda::detail {

namespace {

template <class ExecutionSpace>
class AbsentBackend : public Backend<ExecutionSpace> {
 public:
  const char* name() const override { return "tuned"; }
  const char* why_not(const ExecutionSpace&, const Schedule&, const Problem&) const override {
    return "there are hand-tuned kernels for NVIDIA GPUs only";
  }
  void prepare(const ExecutionSpace&, const Plan<ExecutionSpace>&, std::byte*) const override {}
  const char* decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& p,
                     std::byte*) const override {
    return why_not(exec, plan.schedule(), p);
  }
};

#if defined(KOKKOS_ENABLE_CUDA)

/// Properties of the instance's device, queried once for each device, with the multiprocessors that the plan counts on.
tuned::Device device_of(const Kokkos::Cuda& exec, const Schedule& s) {
  static std::mutex mutex;
  static std::map<int, tuned::Device> known;
  const int id = exec.cuda_device();
  const std::lock_guard lock(mutex);
  auto found = known.find(id);
  if (found == known.end()) {
    const CudaDeviceGuard guard(id);
    found = known.emplace(id, tuned::Device::current()).first;
  }
  tuned::Device device = found->second;
  device.num_sms       = std::min(device.num_sms, s.multiprocessors);
  return device;
}

/// Reports a launch to Kokkos tools while it lives.
class ToolsRegion {
 public:
  ToolsRegion(const Kokkos::Cuda& exec, DType type) : active_(Kokkos::Tools::profileLibraryLoaded()) {
    if (active_)
      Kokkos::Tools::beginParallelFor(concat("Pagoda::decode[tuned,", name_of(type), "]"),
                                      Kokkos::Tools::Experimental::device_id(exec), &id_);
  }
  ToolsRegion(const ToolsRegion&)            = delete;
  ToolsRegion& operator=(const ToolsRegion&) = delete;
  ~ToolsRegion() {
    if (active_) Kokkos::Tools::endParallelFor(id_);
  }

 private:
  bool active_;
  std::uint64_t id_ = 0;
};

class TunedBackend : public Backend<Kokkos::Cuda> {
 public:
  const char* name() const override { return "tuned"; }

  const char* why_not(const Kokkos::Cuda& exec, const Schedule& s, const Problem& p) const override {
    tuned::Problem t;
    if (const char* reason = tuned_problem(s, p, t)) return reason;
    return tuned::why_not(t, device_of(exec, s));
  }

  const char* why_slower(const Kokkos::Cuda& exec, const Schedule& s, const CacheRef& kv) const override {
    if (s.bounds.max_entries > 0) return nullptr;
    const tuned::Device device = device_of(exec, s);
    return why_generic_is_faster({.type            = s.shape.kv_type,
                                  .group           = s.shape.group(),
                                  .head_dim        = s.shape.head_dim,
                                  .max_query_len   = s.bounds.max_query_len,
                                  .paged           = kv.paged,
                                  .small_pages     = kv.paged && kv.page_size() % 8 != 0,
                                  .rows            = std::int64_t(s.bounds.max_batch) * s.shape.num_kv_heads,
                                  .max_seq_len     = max_visible_tokens(s.options, s.bounds.max_seq_len),
                                  .capacity_tokens = kv.num_pages() * kv.page_size(),
                                  .num_kv_heads    = s.shape.num_kv_heads,
                                  .sm              = device.sm,
                                  .num_sms         = device.num_sms,
                                  .changes_scores  = s.options.changes_scores(),
                                  .changes_tokens  = s.options.changes_tokens(),
                                  .fixed_splits    = s.fixed_splits});
  }

  /// With fixed splits, fewer blocks give the same results.
  bool needs_all_multiprocessors(const Schedule& s) const override { return !s.fixed_splits; }

  std::size_t persistent_bytes(const Kokkos::Cuda& exec, const Schedule& s) const override {
    return tuned::workspace_bytes(tuned_shape(s), device_of(exec, s));
  }

  void prepare(const Kokkos::Cuda& exec, const Plan<Kokkos::Cuda>& plan, std::byte* persistent) const override {
    const Schedule& s = plan.schedule();
    const CudaDeviceGuard guard(exec.cuda_device());
    tuned::prepare(tuned_shape(s), device_of(exec, s), persistent, exec.cuda_stream());
  }

  const char* decode(const Kokkos::Cuda& exec, const Plan<Kokkos::Cuda>& plan, const Problem& p,
                     std::byte* persistent) const override {
    const Schedule& s          = plan.schedule();
    const tuned::Device device = device_of(exec, s);
    tuned::Problem t;
    if (const char* reason = tuned_problem(s, p, t)) return reason;
    if (const char* reason = tuned::why_not(t, device)) return reason;
    const CudaDeviceGuard guard(exec.cuda_device());
    const ToolsRegion region(exec, s.shape.kv_type);
    const bool launched = tuned::decode(t, device, persistent, exec.cuda_stream());
    return launched ? nullptr : "its blocks do not fit the multiprocessors that exec may use at the same time";
  }
};

template <class ExecutionSpace>
using BackendOf =
    std::conditional_t<std::is_same_v<ExecutionSpace, Kokkos::Cuda>, TunedBackend, AbsentBackend<ExecutionSpace>>;

#else

template <class ExecutionSpace>
using BackendOf = AbsentBackend<ExecutionSpace>;

#endif

}  // namespace

template <class ExecutionSpace>
const Backend<ExecutionSpace>& tuned_backend() {
  static const BackendOf<ExecutionSpace> backend;
  return backend;
}

#define PAGODA_INSTANTIATE(Space) template const Backend<Space>& tuned_backend<Space>();
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
