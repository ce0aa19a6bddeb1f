// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/device_rates.hpp>

namespace pagoda::detail {

/// The rates of exec's machine for decodes of lists with this schedule.
template <class ExecutionSpace>
DeviceRates list_rates(const ExecutionSpace& exec, const Schedule& lists);

}  // namespace pagoda::detail
