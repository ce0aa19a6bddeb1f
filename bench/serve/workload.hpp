// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/contents.hpp"
#include "bench/serve/model.hpp"
#include "bench/serve/trace.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <vector>

namespace pagoda::serve {

/// The requests and the identity of their tokens, on the host and on the device.
template <class MemorySpace>
class Workload {
 public:
  Workload(const Trace& trace, const Model& model, std::uint64_t seed) : trace_(trace), model_(model), seed_(seed) {
    for (const Request& r : trace.requests) {
      first_id_.push_back(host_ids_.size());
      host_ids_.insert(host_ids_.end(), r.hash_ids.begin(), r.hash_ids.end());
    }
    device_ids_ = Kokkos::View<std::int64_t*, MemorySpace>(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "Pagoda::serve::hash_ids"), host_ids_.size());
    Kokkos::deep_copy(device_ids_,
                      Kokkos::View<const std::int64_t*, Kokkos::HostSpace>(host_ids_.data(), host_ids_.size()));
  }

  const std::vector<Request>& requests() const { return trace_.requests; }
  const Model& model() const { return model_; }
  std::uint64_t seed() const { return seed_; }

  Contents on_host(std::int64_t number) const { return contents(number, host_ids_.data()); }
  Contents on_device(std::int64_t number) const { return contents(number, device_ids_.data()); }

 private:
  Contents contents(std::int64_t number, const std::int64_t* ids) const {
    const auto i = static_cast<std::size_t>(number) % trace_.requests.size();
    return {ids + first_id_[i], trace_.block_tokens, trace_.requests[i].input_length, number, seed_};
  }

  Trace trace_;
  Model model_;
  std::uint64_t seed_;
  std::vector<std::size_t> first_id_;
  std::vector<std::int64_t> host_ids_;
  Kokkos::View<std::int64_t*, MemorySpace> device_ids_;
};

}  // namespace pagoda::serve
