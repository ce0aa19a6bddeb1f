// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "src/base/by_type.hpp"

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <string>
#include <type_traits>

/// The lists that typed tests run over: the execution spaces of this build, and the element types it has kernels for:
/// the plain ones, and apart from them those of quantized caches and those with a row format.
namespace pagoda::test {

using Device = Kokkos::DefaultExecutionSpace;
using Host   = Kokkos::DefaultHostExecutionSpace;

/// An execution space and an element type.
template <class Space, class T>
struct On {
  using space = Space;
  using type  = T;
};

namespace lists {

template <class...>
struct Join;
template <class... A>
struct Join<testing::Types<A...>> {
  using type = testing::Types<A...>;
};
template <class... A, class... B, class... Rest>
struct Join<testing::Types<A...>, testing::Types<B...>, Rest...> : Join<testing::Types<A..., B...>, Rest...> {};

/// The list of macros cannot say where it begins; `void` stands there.
template <class, class... T>
struct TypesOn {
  template <class Space>
  using of = testing::Types<On<Space, T>...>;
};
template <class, class First, class... Rest>
struct HalfOr {
  using type = std::conditional_t<(std::is_same_v<half_t, Rest> || ...), half_t, First>;
};

/// All quantized types of the table without a row format, whether or not the build has kernels for them.
#define PAGODA_TEST_IF_QUANTIZED(name, T, ...) \
  , std::conditional_t<is_quantized_v<T> && !has_row_format_v<T>, testing::Types<T>, testing::Types<>>
template <class, class... Lists>
using Joined       = typename Join<testing::Types<>, Lists...>::type;
using AllQuantized = Joined<void PAGODA_FOR_EACH_TYPE(PAGODA_TEST_IF_QUANTIZED)>;
#undef PAGODA_TEST_IF_QUANTIZED

#define PAGODA_TEST_TYPE(name) , pagoda::detail::type_##name
using Plain       = TypesOn<void PAGODA_FOR_EACH_PLAIN_TYPE(PAGODA_TEST_TYPE)>;
using Quantized   = TypesOn<void PAGODA_FOR_EACH_QUANTIZED_TYPE(PAGODA_TEST_TYPE)>;
using FloatScaled = TypesOn<void PAGODA_FOR_EACH_FLOAT_SCALED_TYPE(PAGODA_TEST_TYPE)>;
using BlockScaled = TypesOn<void PAGODA_FOR_EACH_BLOCK_SCALED_TYPE(PAGODA_TEST_TYPE)>;
using RowFormats  = TypesOn<void PAGODA_FOR_EACH_ROW_FORMAT_TYPE(PAGODA_TEST_TYPE)>;
using Any         = HalfOr<void PAGODA_FOR_EACH_PLAIN_TYPE(PAGODA_TEST_TYPE)>;
#undef PAGODA_TEST_TYPE

template <class Types, class Device, class Host>
using OnSpaces =
    std::conditional_t<std::is_same_v<Device, Host>, typename Types::template of<Host>,
                       typename Join<typename Types::template of<Device>, typename Types::template of<Host>>::type>;

}  // namespace lists

/// For tests that work with any type: fp16 if the build has it.
using AnyType = lists::Any::type;

/// The types that samples, scenes and comparisons are compiled for: those this build has kernels for, and all plain
/// ones, so that tests can check the error of one without kernels. X(name).
#define PAGODA_TEST_FOR_EACH_TYPE(X) \
  X(fp64) X(fp32) X(fp16) X(bf16) PAGODA_FOR_EACH_QUANTIZED_TYPE(X) PAGODA_FOR_EACH_ROW_FORMAT_TYPE(X)

/// Whether this build has kernels and, for a type that is not quantized, pools of T.
#define PAGODA_TEST_IS(name) || std::is_same_v<T, pagoda::detail::type_##name>
template <class T>
inline constexpr bool has_kernels_v = false PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_TEST_IS);
#undef PAGODA_TEST_IS

inline constexpr bool one_space = std::is_same_v<Device, Host>;

using Spaces                    = std::conditional_t<one_space, testing::Types<Host>, testing::Types<Device, Host>>;
using SpacesAndTypes            = lists::OnSpaces<lists::Plain, Device, Host>;
using SpacesAndAnyType          = lists::OnSpaces<lists::TypesOn<void, AnyType>, Device, Host>;
using SpacesAndQuantizedTypes   = lists::OnSpaces<lists::Quantized, Device, Host>;  ///< may be empty, like those below
using SpacesAndFloatScaledTypes = lists::OnSpaces<lists::FloatScaled, Device, Host>;
using SpacesAndBlockScaledTypes = lists::OnSpaces<lists::BlockScaled, Device, Host>;
using SpacesAndRowFormatTypes   = lists::OnSpaces<lists::RowFormats, Device, Host>;

/// Names of typed tests: decode.Shapes/OpenMP_fp16.StudyGrid.
struct Names {
  template <class Param>
  static std::string GetName(int) {
    if constexpr (requires { typename Param::space; }) {
      return std::string(Param::space::name()) + "_" + name_of(dtype_v<typename Param::type>);
    } else {
      return Param::name();
    }
  }
};

}  // namespace pagoda::test
