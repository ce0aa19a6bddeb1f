// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda_prefix.h>
#include <pagoda/device_rates.hpp>
#include <pagoda/prefix.hpp>

/// Options, rates and reports of shared prefixes, which decoders and pools have.
namespace pagoda::c {

/// Checks a struct of the caller's and reads it.
DeviceRates rates_of(const char* who, const pagoda_device_rates* given);
/// The same for options; null: the defaults.
PrefixOptions prefix_options_of(const char* who, const pagoda_prefix_options* given);
/// Checks struct_size, and fills the fields that the caller's struct has.
void write_rates(const char* who, const DeviceRates& from, pagoda_device_rates* rates);
/// The same for a report.
void write_report(const char* who, const PrefixReport& from, pagoda_prefix_report* report);

}  // namespace pagoda::c
