// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "src/dispatch/by_type.hpp"

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <string>
#include <type_traits>

/// The lists that typed tests run over: the execution spaces of this build, and the element types it has kernels for.
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
template <class, class First, class... Rest>
struct TypesOn {
  template <class Space>
  using of  = testing::Types<On<Space, First>, On<Space, Rest>...>;
  using any = std::conditional_t<(std::is_same_v<half_t, Rest> || ...), half_t, First>;
};

#define PAGODA_TEST_TYPE(name) , pagoda::detail::type_##name
using Enabled = TypesOn<void PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_TEST_TYPE)>;
#undef PAGODA_TEST_TYPE

}  // namespace lists

/// For tests that ask nothing of the type: fp16 where the build has it.
using AnyType = lists::Enabled::any;

inline constexpr bool one_space = std::is_same_v<Device, Host>;

using Spaces = std::conditional_t<one_space, testing::Types<Host>, testing::Types<Device, Host>>;
using SpacesAndTypes =
    std::conditional_t<one_space, lists::Enabled::of<Host>,
                       typename lists::Join<lists::Enabled::of<Device>, lists::Enabled::of<Host>>::type>;

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
