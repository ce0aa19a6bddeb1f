// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <string>
#include <type_traits>

/// The instruction sets that host kernels choose from at run time.
namespace pagoda::detail {

/// In order of preference: each has the instructions of those before it.
enum class HostIsa : int {
  plain,        ///< what the compiler's flags allow
  avx2,         ///< AVX2, FMA, F16C
  avx512,       ///< AVX-512 F, BW, VL, DQ
  avx512_bf16,  ///< AVX-512 BF16 and VNNI: products of bfloat16 pairs and of bytes
  amx,          ///< AVX-512 (without pairs), and tile registers of bfloat16: AMX
};
inline constexpr HostIsa last_host_isa = HostIsa::amx;

/// Whether avx512_bf16 and amx have code of their own for caches of T, whose elements are numbers of bfloat16: the same
/// types as PAGODA_BF16_CODE_TYPES (cmake/PagodaHostIsas.cmake).
template <class T>
inline constexpr bool has_bf16_code =
    std::is_same_v<T, bfloat16_t> || (is_quantized_v<T> && block_dims_v<T> == 0 && !has_row_format_v<T>);

const char* name_of(HostIsa isa);

/// Whether this build has kernels for the instruction set, and the processor and the operating system support it.
bool has(HostIsa isa);

/// The instruction set for plans on this processor: the last one that it has, but avx512 on a processor where products
/// of bfloat16 pairs are slower than multiply-adds.
HostIsa best_host_isa();

/// The instruction set that the environment variable PAGODA_HOST_ISA names, or else the best one. Throws
/// InvalidArgument if the variable has another name, or names one that this build or this machine lacks.
HostIsa host_isa();

/// The names of the instruction sets that this build and this machine have, separated by commas.
std::string host_isas();

}  // namespace pagoda::detail
