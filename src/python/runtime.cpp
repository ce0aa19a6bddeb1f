// SPDX-License-Identifier: Apache-2.0
#include "src/python/runtime.hpp"

#include <cstdlib>
#include <new>

namespace pagoda::python {

namespace {

/// Sets a variable of the environment for a scope, unless the user has set it.
class DefaultVariable {
 public:
  DefaultVariable(const char* name, const std::string& value, bool wanted = true)
      : name_(wanted && !std::getenv(name) ? name : nullptr) {
    if (name_) setenv(name_, value.c_str(), 1);
  }
  ~DefaultVariable() {
    if (name_) unsetenv(name_);
  }
  DefaultVariable(const DefaultVariable&)            = delete;
  DefaultVariable& operator=(const DefaultVariable&) = delete;

 private:
  const char* name_;
};

#if defined(PAGODA_PYTHON_CUDA)
constexpr std::int32_t gpu = dlpack::kCUDA;
#elif defined(PAGODA_PYTHON_HIP)
constexpr std::int32_t gpu = dlpack::kROCM;
#else
constexpr std::int32_t gpu = 0;  // none
#endif

const char* allowed_devices() {
  return gpu == dlpack::kCUDA ? "cpu or cuda" : gpu == dlpack::kROCM ? "cpu or rocm" : "cpu";
}

}  // namespace

void Outcome::raise() const {
  switch (status) {
    case PAGODA_SUCCESS:
      return;
    case PAGODA_INVALID_ARGUMENT:
      throw nb::value_error(message.c_str());
    case PAGODA_OUT_OF_MEMORY:
      PyErr_SetString(PyExc_MemoryError, message.c_str());
      throw nb::python_error();
    case PAGODA_OUT_OF_CAPACITY:
      throw OutOfCapacity(message);
    default:
      throw std::runtime_error(message);
  }
}

Owned::Owned() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex_);
  runtime.alive_.insert(this);
}

Owned::~Owned() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex_);
  runtime.alive_.erase(this);
}

void Owned::leave() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex_);
  if (runtime.alive_.erase(this) != 0 && !runtime.forked_) close();
}

Runtime& Runtime::instance() {
  static Runtime* const runtime = new Runtime;  // never destroyed: objects may outlive static destructors
  return *runtime;
}

void Runtime::require_not_forked() const {
  if (forked_)
    throw std::runtime_error(
        "pagoda: this process was forked from one that had used Pagoda; Kokkos does not work here. Use the start "
        "method \"spawn\" of multiprocessing, or use Pagoda first in the child");
}

void Runtime::start(Device device) {
  const std::lock_guard lock(mutex_);
  if (shut_down_) throw std::runtime_error("pagoda: the interpreter is exiting, and Kokkos is finalized");
  require_not_forked();
  if (started_) return;
  // Kokkos recommends OMP_PROC_BIND, which would pin the threads of PyTorch and NumPy as well.
  const DefaultVariable quiet("KOKKOS_DISABLE_WARNINGS", "1");
  const bool choose = !device.on_cpu() && !std::getenv("KOKKOS_MAP_DEVICE_ID_BY");
  const DefaultVariable number("KOKKOS_DEVICE_ID", std::to_string(device.id), choose);
  Outcome(pagoda_initialize()).raise();
  started_ = true;
}

const pagoda_exec* Runtime::exec(const char* who, Device device, std::uintptr_t stream) {
  require_not_forked();
  if (!device.on_cpu() && device.type != gpu)
    refuse(who, ": the arrays are on ", device.name(), "; allowed: ", allowed_devices(), ", the devices of this build");
  if (device.on_cpu() && gpu == 0) return nullptr;
  if (device.on_cpu()) stream = 0;
  const std::lock_guard lock(mutex_);
  if (shut_down_) return nullptr;
  pagoda_exec*& made = execs_[{device, stream}];
  if (!made) {
    const pagoda_space space = device.on_cpu() ? PAGODA_SPACE_HOST : PAGODA_SPACE_DEFAULT;
    Outcome(pagoda_exec_create(space, reinterpret_cast<void*>(stream), &made)).raise();
  }
  return made;
}

void Runtime::fence(const std::string& device, std::uintptr_t stream) {
  Outcome outcome;
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, exec] : execs_)
    if (key.first.name() == device && key.second == stream && outcome.status == PAGODA_SUCCESS)
      outcome = pagoda_exec_fence(exec);
  if (outcome.status != PAGODA_SUCCESS) throw std::runtime_error(outcome.message);
}

void Runtime::shut_down() {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  if (shut_down_ || forked_) return;
  shut_down_ = true;
  if (!started_) return;
  for (Owned* const one : alive_) {
    const std::lock_guard use(one->use);
    one->close();
  }
  alive_.clear();
  for (const auto& entry : execs_) pagoda_exec_destroy(entry.second);
  execs_.clear();
  // If this fails (another user of the same C interface has objects), Kokkos stays as it is and the process ends
  // anyway.
  static_cast<void>(pagoda_finalize());
}

}  // namespace pagoda::python
