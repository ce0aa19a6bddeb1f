// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hip/hip_runtime.h>
#include <Kokkos_Core.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>

/// What the dispatch asks of a Kokkos::HIP instance: its device, its stream, and events.
namespace pagoda::detail {

inline void check_hip(hipError_t error, const char* what) {
  if (error != hipSuccess) throw std::runtime_error(std::string("pagoda: ") + what + ": " + hipGetErrorString(error));
}

struct HipStream {
  static int device(const Kokkos::HIP& exec) { return exec.hip_device(); }
  static std::uintptr_t handle(const Kokkos::HIP& exec) { return reinterpret_cast<std::uintptr_t>(exec.hip_stream()); }
  static int multiprocessors(const Kokkos::HIP& exec) {
    int all = 0;
    check_hip(hipDeviceGetAttribute(&all, hipDeviceAttributeMultiprocessorCount, exec.hip_device()),
              "hipDeviceGetAttribute");
    return all;
  }
  static bool capturing(const Kokkos::HIP& exec) {
    hipStreamCaptureStatus status{};
    check_hip(hipStreamIsCapturing(exec.hip_stream(), &status), "hipStreamIsCapturing");
    return status == hipStreamCaptureStatusActive;
  }

  /// A point in the work of one instance, for which other instances and the host can wait.
  class Event {
   public:
    explicit Event(const Kokkos::HIP&) {
      check_hip(hipEventCreateWithFlags(&event_, hipEventDisableTiming), "hipEventCreateWithFlags");
    }
    Event(const Event&)            = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { (void)hipEventDestroy(event_); }
    void record(const Kokkos::HIP& exec) { check_hip(hipEventRecord(event_, exec.hip_stream()), "hipEventRecord"); }
    void precede(const Kokkos::HIP& exec) const {
      check_hip(hipStreamWaitEvent(exec.hip_stream(), event_, 0), "hipStreamWaitEvent");
    }
    bool passed() const {
      const hipError_t now = hipEventQuery(event_);
      if (now != hipErrorNotReady) check_hip(now, "hipEventQuery");
      return now == hipSuccess;
    }
    void synchronize() const { check_hip(hipEventSynchronize(event_), "hipEventSynchronize"); }

   private:
    hipEvent_t event_{};
  };
};

}  // namespace pagoda::detail
