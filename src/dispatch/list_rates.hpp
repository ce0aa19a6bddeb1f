// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/device_rates.hpp>

namespace pagoda::detail {

/// The rates of exec's machine for plain decodes and decodes of lists with these schedules.
template <class ExecutionSpace>
DeviceRates list_rates(const ExecutionSpace& exec, const Schedule& plain, const Schedule& lists);

}  // namespace pagoda::detail
