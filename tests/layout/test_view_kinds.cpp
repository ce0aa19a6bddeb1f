// SPDX-License-Identifier: Apache-2.0
// Decodes of Views of every kind: managed and unmanaged, LayoutRight, LayoutLeft and LayoutStride, subviews, const
// elements, and memory that host and device share.
#include "tests/support/placement.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/pagoda.hpp>

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagoda::test {
namespace {

enum class Kind { right, left, strided, part, unmanaged };

using Extents = std::array<std::size_t, 4>;

template <class T, int rank>
using Pointers = std::conditional_t<rank == 2, T**, std::conditional_t<rank == 3, T***, T****>>;

/// A View, and all memory that it lies in.
template <class View>
struct Made {
  using Whole = Kokkos::View<typename View::value_type*, typename View::memory_space>;
  View view;  ///< owns the memory, or else `whole` does
  Whole whole;
  Made(const View& v, const Whole& all) : view(v), whole(all) {}
};
template <class View, class All>
Made<View> made(const View& view, const All& all) {
  return Made<View>(view, typename Made<View>::Whole(all.data(), all.span()));
}
template <class View>
Made<View> made(const View& view) {
  return made(view, view);
}

template <class Layout, int rank>
Layout layout_of(const Extents& n) {
  Layout layout;
  for (int axis = 0; axis < rank; ++axis) layout.dimension[axis] = n[axis];
  return layout;
}

template <Kind kind, class T, int rank, class Memory>
auto make(const Extents& n) {
  using P          = Pointers<T, rank>;
  using Right      = Kokkos::LayoutRight;
  const auto fresh = Kokkos::view_alloc(Kokkos::WithoutInitializing, "Pagoda::test::view");
  if constexpr (kind == Kind::right) {
    return made(Kokkos::View<P, Right, Memory>(fresh, layout_of<Right, rank>(n)));
  } else if constexpr (kind == Kind::left) {
    return made(Kokkos::View<P, Kokkos::LayoutLeft, Memory>(fresh, layout_of<Kokkos::LayoutLeft, rank>(n)));
  } else if constexpr (kind == Kind::strided) {  // the first axis is the fastest, and all have gaps
    auto layout        = layout_of<Kokkos::LayoutStride, rank>(n);
    std::size_t stride = 3;
    for (int axis = 0; axis < rank; ++axis) layout.stride[axis] = stride, stride *= n[axis] + 1;
    return made(Kokkos::View<P, Kokkos::LayoutStride, Memory>(fresh, layout));
  } else if constexpr (kind == Kind::part) {
    Extents more = n;
    for (auto& extent : more) extent += 2;
    const Kokkos::View<P, Right, Memory> all(fresh, layout_of<Right, rank>(more));
    const auto inner = [&](int axis) { return std::pair<std::size_t, std::size_t>(1, n[axis] + 1); };
    const auto part  = [&] {
      if constexpr (rank == 2) {
        return Kokkos::subview(all, inner(0), inner(1));
      } else if constexpr (rank == 3) {
        return Kokkos::subview(all, inner(0), inner(1), inner(2));
      } else {
        return Kokkos::subview(all, inner(0), inner(1), inner(2), inner(3));
      }
    }();
    return made(part, all);
  } else {
    std::size_t size = 1;
    for (int axis = 0; axis < rank; ++axis) size *= n[axis];
    const Kokkos::View<T*, Memory> whole(fresh, size + 32);
    using View = Kokkos::View<P, Right, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    return Made<View>(View(whole.data() + 16, layout_of<Right, rank>(n)), whole);
  }
}

/// Numbers that every type holds exactly.
KOKKOS_INLINE_FUNCTION double number(unsigned seed, std::size_t i) {
  const unsigned x = (static_cast<unsigned>(i) + 977u * seed) * 2654435761u;
  return (static_cast<int>((x >> 13) % 129u) - 64) / 64.0;
}

/// Element i of a View in the order of LayoutRight.
template <class View>
KOKKOS_FUNCTION auto& element(const View& v, std::size_t i) {
  if constexpr (View::rank() == 2) {
    return v(i / v.extent(1), i % v.extent(1));
  } else {
    const std::size_t last = i % v.extent(2), rest = i / v.extent(2);
    if constexpr (View::rank() == 3) {
      return v(rest / v.extent(1), rest % v.extent(1), last);
    } else {
      const std::size_t head = i / v.extent(3);
      const std::size_t page = head / v.extent(2) / v.extent(1);
      return v(page, head / v.extent(2) % v.extent(1), head % v.extent(2), i % v.extent(3));
    }
  }
}

template <class View>
struct Fill {
  View view;
  unsigned seed;
  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    element(view, i) = typename View::value_type(static_cast<float>(number(seed, i)));
  }
};
/// The page of the table's entry i is the i-th last.
template <class View>
struct FillTable {
  View view;
  int last;
  KOKKOS_FUNCTION void operator()(std::size_t i) const { element(view, i) = last - static_cast<int>(i); }
};
template <class View>
struct Poison {
  View view;
  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    using T = typename View::value_type;
    if constexpr (std::is_integral_v<T>) {
      view(i) = -1;
    } else {
      view(i) = T(std::numeric_limits<float>::quiet_NaN());
    }
  }
};
template <class View, class To>
struct Read {
  View view;
  To to;
  KOKKOS_FUNCTION void operator()(std::size_t i) const { to(i) = static_cast<double>(element(view, i)); }
};
template <class View>
struct CountWritten {
  View view;
  KOKKOS_FUNCTION void operator()(std::size_t i, int& count) const {
    count += !Kokkos::isnan(static_cast<float>(view(i)));
  }
};

template <class Space, class F>
void each(const Space& exec, std::size_t n, const F& f) {
  Kokkos::parallel_for("Pagoda::test::each", Kokkos::RangePolicy<Space>(exec, 0, n), f);
}

template <class Space, class T, Kind kind, class Memory>
struct Problem {
  static constexpr int batch = 3, each_pages = 3, page = 16, pages = 9, q_heads = 8, kv_heads = 2, dim = 64;
  const Space exec{};
  const std::vector<int> lengths{33, 5, 48};

  template <class E, int rank>
  auto poisoned(const Extents& n) const {
    const auto a = make<kind, E, rank, Memory>(n);
    each(exec, a.whole.size(), Poison<std::remove_const_t<decltype(a.whole)>>{a.whole});
    return a;
  }
  template <class E, int rank>
  auto filled(const Extents& n, unsigned seed) const {
    const auto a = poisoned<E, rank>(n);
    each(exec, a.view.size(), Fill<std::remove_const_t<decltype(a.view)>>{a.view, seed});
    return a;
  }
  /// A part of a longer array.
  Kokkos::View<const int*, Memory> integers(const std::vector<int>& from) const {
    const Kokkos::View<int*, Memory> all("Pagoda::test::integers", from.size() + 5);
    const Kokkos::View<int*, Memory> part =
        Kokkos::subview(all, std::pair<std::size_t, std::size_t>(3, from.size() + 3));
    Kokkos::deep_copy(part, Kokkos::View<const int*, Kokkos::HostSpace>(from.data(), from.size()));
    return part;
  }
  template <class View>
  std::vector<double> numbers(const View& view) const {
    const Kokkos::View<double*, Memory> to("Pagoda::test::numbers", view.size());
    each(exec, view.size(), Read<View, Kokkos::View<double*, Memory>>{view, to});
    exec.fence();
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), to);
    return {host.data(), host.data() + host.size()};
  }
  template <class View>
  int written(const View& whole) const {
    int count = 0;
    Kokkos::parallel_reduce("Pagoda::test::count", Kokkos::RangePolicy<Space>(exec, 0, whole.size()),
                            CountWritten<View>{whole}, count);
    return count;
  }

  void expect_right(Layout layout) const {
    const bool paged = layout != Layout::contiguous;
    const Extents shape =
        paged ? Extents{pages, page, kv_heads, dim} : Extents{batch, each_pages * page, kv_heads, dim};
    const auto k = filled<T, 4>(shape, 1), v = filled<T, 4>(shape, 2);
    const auto q   = filled<T, 3>({batch, q_heads, dim, 0}, 3);
    const auto out = poisoned<T, 3>({batch, q_heads, dim, 0});
    const auto lse = poisoned<float, 2>({batch, q_heads, 0, 0});
    const auto ids = poisoned<int, 2>({batch, each_pages, 0, 0});
    each(exec, ids.view.size(), FillTable<std::remove_const_t<decltype(ids.view)>>{ids.view, pages - 1});
    exec.fence();
    using Cache  = typename decltype(k.view)::const_type;
    using Table  = typename decltype(ids.view)::const_type;
    const auto n = integers(lengths);
    if (layout == Layout::contiguous) {
      decode(ContiguousKV{Cache(k.view), Cache(v.view), n}, q.view, out.view, lse.view);
    } else if (layout == Layout::paged) {
      decode(PagedKV{Cache(k.view), Cache(v.view), Table(ids.view), n}, q.view, out.view, lse.view);
    } else {
      std::vector<int> list(pages);
      for (int i = 0; i < pages; ++i) list[i] = pages - 1 - i;
      decode(PagedKV(Cache(k.view), Cache(v.view), integers({0, 3, 6, 9}), integers(list), n, each_pages * page),
             q.view, out.view, lse.view);
    }
    compare(paged, numbers(out.view), numbers(lse.view));
    EXPECT_EQ(written(out.whole), batch * q_heads * dim) << "elements of out and beside it";
    EXPECT_EQ(written(lse.whole), batch * q_heads) << "elements of lse and beside it";
  }

  template <class KV, class Q, class Out, class Lse>
  void decode(const KV& kv, const Q& q, const Out& out, const Lse& lse) const {
    const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
    pagoda::decode(exec, plan, typename Q::const_type(q), kv, out, lse);
    exec.fence();
  }

  void compare(bool paged, const std::vector<double>& out, const std::vector<double>& lse) const {
    for (int row = 0; row < batch * q_heads; ++row) {
      const int b = row / q_heads, head = row % q_heads / (q_heads / kv_heads);
      const auto read = [&](unsigned seed) {
        return [=](int t, std::span<double> to) {
          const int token =
              paged ? (pages - 1 - (b * each_pages + t / page)) * page + t % page : b * each_pages * page + t;
          for (int d = 0; d < dim; ++d) to[d] = number(seed, (std::size_t(token) * kv_heads + head) * dim + d);
        };
      };
      std::vector<double> query(dim);
      for (int d = 0; d < dim; ++d) query[d] = number(3, std::size_t(row) * dim + d);
      const auto right       = reference::attend(query, lengths[b], lengths[b] - 1, dim, read(1), read(2),
                                                 {.softmax_scale = 1 / std::sqrt(double(dim))});
      const DType arithmetic = std::is_same_v<T, double> ? DType::fp64 : DType::fp32;
      const double allowed   = reference::tolerance(right, dtype_v<T>, dtype_v<T>, arithmetic);
      double error           = 0;
      for (int d = 0; d < dim; ++d) error += std::pow(out[row * dim + d] - right.out[d], 2);
      EXPECT_LE(std::sqrt(error), allowed * right.norm) << "row " << row;
      EXPECT_NEAR(lse[row], right.lse, std::max(allowed, 1e-6 * std::abs(right.lse))) << "row " << row;
    }
  }
};

template <class Param>
struct ViewKinds : testing::Test {};
TYPED_TEST_SUITE(ViewKinds, SpacesAndTypes, Names);

template <class Space, class T, Kind kind, class Memory>
void expect_right_in_all_layouts() {
  for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr}) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", layout " << static_cast<int>(layout));
    Problem<Space, T, kind, Memory>{}.expect_right(layout);
  }
}

TYPED_TEST(ViewKinds, AreReadAndWrittenWhereTheyLie) {
  using T      = typename TypeParam::type;
  using Space  = typename TypeParam::space;
  using Memory = typename Space::memory_space;
  expect_right_in_all_layouts<Space, T, Kind::right, Memory>();
  expect_right_in_all_layouts<Space, T, Kind::left, Memory>();
  expect_right_in_all_layouts<Space, T, Kind::strided, Memory>();
  expect_right_in_all_layouts<Space, T, Kind::part, Memory>();
  expect_right_in_all_layouts<Space, T, Kind::unmanaged, Memory>();
}

/// Memory that host and device reach.
template <class Space, class T, class Memory>
void expect_right_in_memory(const char* name) {
  if constexpr (std::is_same_v<Memory, Kokkos::HostSpace>) {
    GTEST_SKIP() << "in this build, " << name << " is HostSpace";
  } else if constexpr (!Kokkos::SpaceAccessibility<Space, Memory>::accessible) {
    GTEST_SKIP() << Space::name() << " cannot reach " << name;
  } else {
    expect_right_in_all_layouts<Space, T, Kind::right, Memory>();
    expect_right_in_all_layouts<Space, T, Kind::part, Memory>();
  }
}

TYPED_TEST(ViewKinds, InSharedSpace) {
  if constexpr (Kokkos::has_shared_space) {
    expect_right_in_memory<typename TypeParam::space, typename TypeParam::type, Kokkos::SharedSpace>("SharedSpace");
  } else {
    GTEST_SKIP() << "this Kokkos has no SharedSpace";
  }
}

TYPED_TEST(ViewKinds, InSharedHostPinnedSpace) {
  if constexpr (Kokkos::has_shared_host_pinned_space) {
    expect_right_in_memory<typename TypeParam::space, typename TypeParam::type, Kokkos::SharedHostPinnedSpace>(
        "SharedHostPinnedSpace");
  } else {
    GTEST_SKIP() << "this Kokkos has no SharedHostPinnedSpace";
  }
}

}  // namespace
}  // namespace pagoda::test
