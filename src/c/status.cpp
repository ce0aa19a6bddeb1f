// SPDX-License-Identifier: Apache-2.0
// Errors, versions, initialization and execution instances of the C interface.
#include "src/c/boundary.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>

namespace pagoda::c {

namespace {

thread_local char last_message[1024] = "";

pagoda_status keep(const char* text, pagoda_status status) noexcept {
  std::snprintf(last_message, sizeof last_message, "%s", text);
  return status;
}

/// Number of calls of pagoda_initialize, and whether the first call initialized Kokkos.
std::mutex initialization;
int initializations = 0;
bool owns_kokkos    = false;

}  // namespace

pagoda_status record_exception() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& e) {
    return keep(e.what(), PAGODA_INVALID_ARGUMENT);
  } catch (const OutOfCapacity& e) {
    return keep(e.what(), PAGODA_OUT_OF_CAPACITY);
  } catch (const NotInitialized& e) {
    return keep(e.what(), PAGODA_NOT_INITIALIZED);
  } catch (const std::bad_alloc& e) {
    return keep(e.what(), PAGODA_OUT_OF_MEMORY);
  } catch (const std::exception& e) {
    // Kokkos throws std::runtime_error with these words if an allocation fails.
    const bool no_memory = std::strstr(e.what(), "memory space failed to allocate") != nullptr;
    return keep(e.what(), no_memory ? PAGODA_OUT_OF_MEMORY : PAGODA_RUNTIME_ERROR);
  } catch (...) {
    return keep("pagoda: an exception of an unknown type", PAGODA_RUNTIME_ERROR);
  }
}

void require_kokkos(const char* who) {
  if (!Kokkos::is_initialized())
    throw NotInitialized(detail::concat(who, ": Kokkos is ", Kokkos::is_finalized() ? "finalized" : "not initialized",
                                        "; allowed: between pagoda_initialize and pagoda_finalize"));
}

}  // namespace pagoda::c

using namespace pagoda::c;

const char* pagoda_status_name(pagoda_status status) {
  switch (status) {
    case PAGODA_SUCCESS:
      return "PAGODA_SUCCESS";
    case PAGODA_INVALID_ARGUMENT:
      return "PAGODA_INVALID_ARGUMENT";
    case PAGODA_OUT_OF_MEMORY:
      return "PAGODA_OUT_OF_MEMORY";
    case PAGODA_OUT_OF_CAPACITY:
      return "PAGODA_OUT_OF_CAPACITY";
    case PAGODA_NOT_INITIALIZED:
      return "PAGODA_NOT_INITIALIZED";
    case PAGODA_RUNTIME_ERROR:
      return "PAGODA_RUNTIME_ERROR";
    default:
      return "unknown status";
  }
}

const char* pagoda_last_error() { return last_message; }

void pagoda_version(std::int32_t* major, std::int32_t* minor, std::int32_t* patch) {
  if (major) *major = PAGODA_VERSION_MAJOR;
  if (minor) *minor = PAGODA_VERSION_MINOR;
  if (patch) *patch = PAGODA_VERSION_PATCH;
}

const char* pagoda_version_string() { return pagoda::version(); }
const char* pagoda_configuration() { return pagoda::configuration(); }

pagoda_status pagoda_initialize() {
  return guarded([] {
    const std::lock_guard lock(initialization);
    if (Kokkos::is_finalized())
      throw NotInitialized("pagoda_initialize: Kokkos is finalized; allowed: once in a process");
    if (!Kokkos::is_initialized()) {
      Kokkos::initialize();
      owns_kokkos = true;
    }
    ++initializations;
  });
}

pagoda_status pagoda_finalize() {
  return guarded([] {
    const std::lock_guard lock(initialization);
    require(initializations > 0, "pagoda_finalize: there was no pagoda_initialize before; allowed: one call for each");
    const bool last = initializations == 1 && owns_kokkos && Kokkos::is_initialized();
    require(!last || live_handles == 0, "pagoda_finalize: ", live_handles.load(),
            " plans, pools and execution instances exist; allowed: 0, as Kokkos is finalized now");
    if (last) {
      Kokkos::finalize();
      owns_kokkos = false;
    }
    --initializations;
  });
}

pagoda_status pagoda_exec_create(pagoda_space space, void* stream, pagoda_exec** exec) {
  return guarded([&] {
    const char* const who = "pagoda_exec_create";
    not_null(who, "exec", exec);
    require_kokkos(who);
    require(space == PAGODA_SPACE_DEFAULT || space == PAGODA_SPACE_HOST, who, ": space is ", space,
            "; allowed: PAGODA_SPACE_DEFAULT (0) or PAGODA_SPACE_HOST (1)");
    require(space == PAGODA_SPACE_DEFAULT || AllSpaces::has_host, who, ": space is PAGODA_SPACE_HOST; allowed: ",
            "PAGODA_SPACE_DEFAULT, the only space that this build has kernels for");
    pagoda_exec made{AllSpaces::Default()};
    if (space == PAGODA_SPACE_HOST) made.instance = AllSpaces::Host();
    if (stream) {
      bool known = false;
#if defined(KOKKOS_ENABLE_CUDA)
      if (Kokkos::Cuda* const cuda = std::get_if<Kokkos::Cuda>(&made.instance)) {
        const auto of_caller = static_cast<cudaStream_t>(stream);
        auto status          = cudaStreamCaptureStatusNone;
        require(cudaStreamIsCapturing(of_caller, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone, who,
                ": stream is being captured; allowed: a stream that is not, because Kokkos allocates for a new one");
        *cuda = Kokkos::Cuda(of_caller), known = true;
      }
#elif defined(KOKKOS_ENABLE_HIP)
      if (Kokkos::HIP* const hip = std::get_if<Kokkos::HIP>(&made.instance))
        *hip = Kokkos::HIP(static_cast<hipStream_t>(stream)), known = true;
#endif
      require(known, who, ": stream is not NULL; allowed: NULL, as this execution space has no streams");
    }
    *exec = make_handle<pagoda_exec>(std::move(made));
  });
}

void pagoda_exec_destroy(pagoda_exec* exec) { destroy_handle(exec); }

pagoda_status pagoda_exec_fence(const pagoda_exec* exec) {
  return guarded(
      [&] { with_exec("pagoda_exec_fence", exec, [](const auto& instance) { instance.fence("pagoda_exec_fence"); }); });
}
