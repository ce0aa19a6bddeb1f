// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <Kokkos_Core.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>

/// What the dispatch asks of a Kokkos::Cuda instance: its device, its stream, and events.
namespace pagoda::detail {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("pagoda: ") + what + ": " + cudaGetErrorString(error));
}

/// Makes a device the current one of the thread while it lives.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device) {
    cudaGetDevice(&before_);
    changed_ = device != before_;
    if (changed_) cudaSetDevice(device);
  }
  CudaDeviceGuard(const CudaDeviceGuard&)            = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;
  ~CudaDeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_   = 0;
  bool changed_ = false;
};

/// An entry of the CUDA driver, which the library is not linked to; null where the driver is older than `version`.
template <class Function>
Function* cuda_driver_entry([[maybe_unused]] const char* name, [[maybe_unused]] unsigned version) {
  void* entry = nullptr;
#if CUDART_VERSION >= 12050
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found) != cudaSuccess)
    entry = nullptr;
#endif
  return reinterpret_cast<Function*>(entry);
}

struct CudaStream {
  static int device(const Kokkos::Cuda& exec) { return exec.cuda_device(); }

  /// The stream's address. (cudaStreamGetId would tell a stream from one that had the address before, but a capture of
  /// the stream does not permit it.)
  static std::uintptr_t handle(const Kokkos::Cuda& exec) {
    return reinterpret_cast<std::uintptr_t>(exec.cuda_stream());
  }

  /// Multiprocessors that kernels of the instance's stream may run on: fewer than the device's in a green context.
  static int multiprocessors(const Kokkos::Cuda& exec) {
    int all = 0;
    check_cuda(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, exec.cuda_device()),
               "cudaDeviceGetAttribute");
#if CUDART_VERSION >= 12050
    using GetContext                       = CUresult(CUstream, CUcontext*, CUgreenCtx*);
    using GetResource                      = CUresult(CUgreenCtx, CUdevResource*, CUdevResourceType);
    static GetContext* const get_context   = cuda_driver_entry<GetContext>("cuStreamGetCtx", 12050);
    static GetResource* const get_resource = cuda_driver_entry<GetResource>("cuGreenCtxGetDevResource", 12040);
    CUcontext context{};
    CUgreenCtx green{};
    CUdevResource resource{};
    if (get_context && get_resource && get_context(exec.cuda_stream(), &context, &green) == CUDA_SUCCESS && green &&
        get_resource(green, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS)
      all = static_cast<int>(resource.sm.smCount);
#endif
    return all;
  }

  static bool capturing(const Kokkos::Cuda& exec) {
    cudaStreamCaptureStatus status{};
    check_cuda(cudaStreamIsCapturing(exec.cuda_stream(), &status), "cudaStreamIsCapturing");
    return status == cudaStreamCaptureStatusActive;
  }

  /// A point in the work of one instance, for which other instances and the host can wait.
  class Event {
   public:
    explicit Event(const Kokkos::Cuda& exec) : device_(exec.cuda_device()) {
      const CudaDeviceGuard guard(device_);
      check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    Event(const Event&)            = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
      const CudaDeviceGuard guard(device_);
      cudaEventDestroy(event_);
    }
    void record(const Kokkos::Cuda& exec) {
      check_cuda(cudaEventRecord(event_, exec.cuda_stream()), "cudaEventRecord");
    }
    /// What is queued on exec from now on runs after the event.
    void precede(const Kokkos::Cuda& exec) const {
      check_cuda(cudaStreamWaitEvent(exec.cuda_stream(), event_, 0), "cudaStreamWaitEvent");
    }
    bool passed() const {
      const RelaxedCapture relaxed;
      const cudaError_t now = cudaEventQuery(event_);
      if (now != cudaErrorNotReady) check_cuda(now, "cudaEventQuery");
      return now == cudaSuccess;
    }
    /// Waits on the host.
    void synchronize() const {
      const RelaxedCapture relaxed;
      check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    }

   private:
    /// Lets the thread ask about work outside of a capture while it captures a stream.
    class RelaxedCapture {
     public:
      RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
      RelaxedCapture(const RelaxedCapture&)            = delete;
      RelaxedCapture& operator=(const RelaxedCapture&) = delete;
      ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

     private:
      cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
    };

    int device_;
    cudaEvent_t event_{};
  };
};

}  // namespace pagoda::detail
