// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/isa.hpp"
#include "backends/host/many_rows_tile.hpp"
#include "backends/host/simd_tile.hpp"
#include "pagoda_enabled_isas.hpp"

/// The code of each instruction set: tiles for SimdFragment and ManyRowsFragment.
namespace pagoda::detail {

/// make_tile makes the tile at `object`, of sizeof(SimdTile<T, R>) bytes. Both functions are defined in translation
/// units of the instruction set (simd_tiles.cpp.in), and `Code` passes them as a type.
#define PAGODA_DECLARE(isa)                                                                \
  namespace isa {                                                                          \
  template <class T, int R>                                                                \
  SimdTile<T, R>* make_tile(void* object, const KernelArgsOf<T>& args, char* memory);      \
  template <class T>                                                                       \
  ManyRowsCode<T> many_rows_code();                                                        \
  struct Code {                                                                            \
    template <class T, int R>                                                              \
    static SimdTile<T, R>* tile(void* object, const KernelArgsOf<T>& args, char* memory) { \
      return make_tile<T, R>(object, args, memory);                                        \
    }                                                                                      \
    template <class T>                                                                     \
    static ManyRowsCode<T> many_rows() {                                                   \
      return many_rows_code<T>();                                                          \
    }                                                                                      \
  };                                                                                       \
  }
PAGODA_FOR_EACH_HOST_ISA(PAGODA_DECLARE)
#undef PAGODA_DECLARE

/// Whether the instruction set has code of its own for tiles of T. Otherwise they use the code of the one before it.
template <class T>
constexpr bool has_tiles(HostIsa isa) {
  return isa != HostIsa::amx && (isa != HostIsa::avx512_bf16 || has_bf16_code<T>);
}

/// Calls f(isa::Code()) with the code that an instruction set has for tiles of T.
template <class T, class F>
auto by_isa(HostIsa isa, const F& f) {
  HostIsa last = HostIsa::plain;
#define PAGODA_CHOOSE(name)                                                                          \
  if (has_tiles<T>(HostIsa::name) && (isa == HostIsa::amx ? HostIsa::avx512 : isa) >= HostIsa::name) \
    last = HostIsa::name;
  PAGODA_FOR_EACH_HOST_ISA(PAGODA_CHOOSE)
#undef PAGODA_CHOOSE
#define PAGODA_CALL(name)                    \
  if constexpr (has_tiles<T>(HostIsa::name)) \
    if (last == HostIsa::name) return f(name::Code{});
  PAGODA_FOR_EACH_HOST_ISA(PAGODA_CALL)
#undef PAGODA_CALL
  return f(plain::Code{});
}

}  // namespace pagoda::detail
