// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/array.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

/// Kokkos in a Python process: initialized by the first call that needs it, finalized when the interpreter exits.
namespace pagoda::python {

/// Raised as pagoda.OutOfCapacity.
class OutOfCapacity : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The status of a call of the C interface and its message, both of the calling thread.
struct Outcome {
  pagoda_status status = PAGODA_SUCCESS;
  std::string message;

  Outcome() = default;
  Outcome(pagoda_status s) : status(s), message(s == PAGODA_SUCCESS ? "" : pagoda_last_error()) {}
  /// Raises the exception of the status. The caller holds the GIL.
  void raise() const;
};

/// Something of the C interface that must be destroyed before Kokkos is finalized. Python objects may live longer; then
/// they are closed, and their calls raise RuntimeError.
class Owned {
 public:
  Owned();
  virtual ~Owned();
  Owned(const Owned&)            = delete;
  Owned& operator=(const Owned&) = delete;

 protected:
  friend class Runtime;
  /// Destroys the handle. Called with `use` locked.
  virtual void close() = 0;
  /// Derived classes call it in their destructors, while close is still theirs.
  void leave();

  std::mutex use;  ///< held by each call on the handle; lock it without the GIL
};

class Runtime {
 public:
  static Runtime& instance();

  /// Initializes Kokkos if it is not. A GPU's number is the device that Kokkos uses, unless the environment names one.
  void start(Device device);
  bool started() const { return started_; }

  /// The execution instance for arrays of this device. stream: a cudaStream_t or hipStream_t as a number; 0: Kokkos'
  /// default instance. Null stands for the default instance of the default space. Every call that launches asks for it
  /// first, and raises RuntimeError here in the child of a fork, where it would wait for threads that do not exist.
  const pagoda_exec* exec(const char* who, Device device, std::uintptr_t stream);

  /// Waits for the instance of this device, by its name, and stream.
  void fence(const std::string& device, std::uintptr_t stream);

  /// In the child of a fork, whose copy of Kokkos has lost its threads and its device.
  void forked() { forked_ = started_; }

  /// Destroys everything that is alive and finalizes Kokkos. Called once, when the interpreter exits.
  void shut_down();

 private:
  friend class Owned;
  void require_not_forked() const;

  std::mutex mutex_;  ///< of all members; locked before the `use` of an object
  bool started_ = false, forked_ = false, shut_down_ = false;
  std::set<Owned*> alive_;
  std::map<std::pair<Device, std::uintptr_t>, pagoda_exec*> execs_;
};

/// Runs a call of the C interface without the GIL and raises what it reports.
template <class F>
void without_gil(F&& call) {
  Outcome outcome;
  {
    const nb::gil_scoped_release release;
    outcome = call();
  }
  outcome.raise();
}

/// A call that ends when its work on the CPU is done. On a GPU it is asynchronous.
inline Outcome finish(pagoda_status status, Device device, const pagoda_exec* exec) {
  return status == PAGODA_SUCCESS && device.on_cpu() ? pagoda_exec_fence(exec) : status;
}

}  // namespace pagoda::python
