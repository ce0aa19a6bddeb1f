// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/device_rates.hpp>

#include <span>

namespace pagoda::detail {

/// The rates of exec's machine for plain decodes with this schedule, and decodes of lists whose parts have these
/// schedules, those of the most query rows first. state_bytes: of a number of a partial state.
template <class ExecutionSpace>
DeviceRates list_rates(const ExecutionSpace& exec, const Schedule& plain, std::span<const Schedule* const> parts,
                       int page_size, int state_bytes);

}  // namespace pagoda::detail
