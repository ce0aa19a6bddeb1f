// SPDX-License-Identifier: Apache-2.0
#include "src/dispatch/tuned.hpp"

#include <pagoda/error.hpp>

#include "src/dispatch/spaces.hpp"
#include "src/plan/faster_backend.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/stream.hpp"
#include "src/dispatch/tuned_problem.hpp"
#endif

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <type_traits>

namespace pagoda::detail {

Problem usual_problem(const PlanState& s, const CacheRef& kv) {
  const auto rows = [&](int dims) {
    TensorRef t;
    t.type   = is_quantized(s.kv_type) ? DType::fp16 : s.kv_type;
    t.rank   = 3;
    t.extent = {std::int64_t(kv.batch) * s.max_query_len, s.num_q_heads, dims, 0};
    t.stride = {std::int64_t(s.num_q_heads) * dims, dims, 1, 0};
    return t;
  };
  return {kv, rows(s.head_dim), rows(s.head_dim_v), {}};
}

namespace {

template <class ExecutionSpace>
struct None {
  static const char* why_not(const ExecutionSpace&, const PlanState&, const Problem&) {
    return "there are hand-tuned kernels for NVIDIA GPUs only";
  }
  static const char* why_not_faster(const ExecutionSpace&, const PlanState&, const CacheRef&) { return nullptr; }
  static std::size_t workspace_bytes(const ExecutionSpace&, const PlanState&) { return 0; }
  static void prepare(const ExecutionSpace&, const PlanState&, void*) {}
  static const char* decode(const ExecutionSpace& exec, const PlanState& s, const Problem& p, void*) {
    return why_not(exec, s, p);
  }
};

#if defined(KOKKOS_ENABLE_CUDA)

/// Properties of the instance's device, asked for once for each device, with the multiprocessors that the plan counts
/// on.
tuned::Device device_of(const Kokkos::Cuda& exec, const PlanState& s) {
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

struct Cuda {
  static const char* why_not(const Kokkos::Cuda& exec, const PlanState& s, const Problem& p) {
    tuned::Problem t;
    return why_not(device_of(exec, s), s, p, t);
  }
  static const char* why_not_faster(const Kokkos::Cuda& exec, const PlanState& s, const CacheRef& kv) {
    const tuned::Device device = device_of(exec, s);
    return why_generic_is_faster({.type            = s.kv_type,
                                  .group           = s.num_q_heads / s.num_kv_heads,
                                  .head_dim        = s.head_dim,
                                  .max_query_len   = s.max_query_len,
                                  .paged           = kv.paged,
                                  .rows            = std::int64_t(s.max_batch) * s.num_kv_heads,
                                  .max_seq_len     = s.max_seq_len,
                                  .capacity_tokens = kv.num_pages() * kv.page_size(),
                                  .num_kv_heads    = s.num_kv_heads,
                                  .sm              = device.sm,
                                  .num_sms         = device.num_sms});
  }
  static std::size_t workspace_bytes(const Kokkos::Cuda& exec, const PlanState& s) {
    return tuned::workspace_bytes(tuned_shape(s), device_of(exec, s));
  }
  static void prepare(const Kokkos::Cuda& exec, const PlanState& s, void* memory) {
    const CudaDeviceGuard guard(exec.cuda_device());
    tuned::prepare(tuned_shape(s), device_of(exec, s), memory, exec.cuda_stream());
  }
  static const char* decode(const Kokkos::Cuda& exec, const PlanState& s, const Problem& p, void* memory) {
    tuned::Problem t;
    const tuned::Device device = device_of(exec, s);
    if (const char* reason = why_not(device, s, p, t)) return reason;
    const CudaDeviceGuard guard(exec.cuda_device());
    const bool told  = Kokkos::Tools::profileLibraryLoaded();  // tools that listen to Kokkos
    std::uint64_t id = 0;
    if (told)
      Kokkos::Tools::beginParallelFor(concat("Pagoda::decode[tuned,", name_of(s.kv_type), "]"),
                                      Kokkos::Tools::Experimental::device_id(exec), &id);
    const bool launched = tuned::decode(t, device, memory, exec.cuda_stream());
    if (told) Kokkos::Tools::endParallelFor(id);
    return launched ? nullptr : "its blocks do not fit the multiprocessors that exec may use at the same time";
  }

 private:
  static const char* why_not(const tuned::Device& device, const PlanState& s, const Problem& p, tuned::Problem& t) {
    if (const char* reason = tuned_problem(s, p, t)) return reason;
    return tuned::why_not(t, device);
  }
};

template <class ExecutionSpace>
using Tuned = std::conditional_t<std::is_same_v<ExecutionSpace, Kokkos::Cuda>, Cuda, None<ExecutionSpace>>;

#else

template <class ExecutionSpace>
using Tuned = None<ExecutionSpace>;

#endif

}  // namespace

template <class ExecutionSpace>
const char* why_not_tuned(const ExecutionSpace& exec, const PlanState& state, const Problem& problem) {
  return Tuned<ExecutionSpace>::why_not(exec, state, problem);
}
template <class ExecutionSpace>
const char* why_not_faster(const ExecutionSpace& exec, const PlanState& state, const CacheRef& kv) {
  return Tuned<ExecutionSpace>::why_not_faster(exec, state, kv);
}
template <class ExecutionSpace>
std::size_t tuned_workspace_bytes(const ExecutionSpace& exec, const PlanState& state) {
  return Tuned<ExecutionSpace>::workspace_bytes(exec, state);
}
template <class ExecutionSpace>
void prepare_tuned(const ExecutionSpace& exec, const PlanState& state, void* memory) {
  Tuned<ExecutionSpace>::prepare(exec, state, memory);
}
template <class ExecutionSpace>
const char* decode_tuned(const ExecutionSpace& exec, const PlanState& state, const Problem& problem, void* memory) {
  return Tuned<ExecutionSpace>::decode(exec, state, problem, memory);
}

#define PAGODA_INSTANTIATE(Space)                                                              \
  template const char* why_not_tuned<Space>(const Space&, const PlanState&, const Problem&);   \
  template const char* why_not_faster<Space>(const Space&, const PlanState&, const CacheRef&); \
  template std::size_t tuned_workspace_bytes<Space>(const Space&, const PlanState&);           \
  template void prepare_tuned<Space>(const Space&, const PlanState&, void*);                   \
  template const char* decode_tuned<Space>(const Space&, const PlanState&, const Problem&, void*);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
