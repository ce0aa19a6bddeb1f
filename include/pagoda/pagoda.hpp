// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Includes all public headers.
#include <pagoda/batch_pages.hpp>
#include <pagoda/cache_ref.hpp>
#include <pagoda/check.hpp>
#include <pagoda/checked.hpp>
#include <pagoda/decode.hpp>
#include <pagoda/device_rates.hpp>
#include <pagoda/entries.hpp>
#include <pagoda/entry.hpp>
#include <pagoda/error.hpp>
#include <pagoda/kv_cache.hpp>
#include <pagoda/kv_capacity.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/kv_pool.hpp>
#include <pagoda/kv_scales.hpp>
#include <pagoda/kv_write.hpp>
#include <pagoda/merge.hpp>
#include <pagoda/plan.hpp>
#include <pagoda/prefix.hpp>
#include <pagoda/prefix_index.hpp>
#include <pagoda/quantized_types.hpp>
#include <pagoda/reference.hpp>
#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>
#include <pagoda/version.hpp>
