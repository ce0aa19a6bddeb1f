// SPDX-License-Identifier: Apache-2.0
// The call below each "refused" must be an error with that message where PAGODA_TEST_SPACE is Elsewhere
// (check_calls.cmake checks each). The same file must compile where it is the execution space's memory.
#include <pagoda/pagoda.hpp>

#include <Kokkos_Core.hpp>

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using Here = Exec::memory_space;

/// Memory that no execution space can reach.
struct Elsewhere {
  using memory_space    = Elsewhere;
  using execution_space = Kokkos::DefaultHostExecutionSpace;
  using device_type     = Kokkos::Device<execution_space, memory_space>;
  using size_type       = std::size_t;
  static constexpr const char* name() { return "Elsewhere"; }
};

/// Requirements on a View in any space.
template <class T, int Rank, class Space>
struct AnyView {
  using value_type           = T;
  using non_const_value_type = std::remove_const_t<T>;
  using memory_space         = Space;
  static constexpr std::size_t rank() { return Rank; }
  std::size_t extent(int) const { return 1; }
  std::size_t stride(int) const { return 1; }
  T* data() const { return nullptr; }
};

template <class T, int Rank>
using Right = AnyView<T, Rank, Here>;
template <class T, int Rank>
using Wrong = AnyView<T, Rank, PAGODA_TEST_SPACE>;
/// Element types that Pagoda supports, but not for this argument.
constexpr bool right = std::is_same_v<PAGODA_TEST_SPACE, Here>;
using WrongLse       = std::conditional_t<right, float, pagoda::half_t>;
using WrongValue     = std::conditional_t<right, float, double>;

/// An execution space for which the library has no kernels.
struct OtherExec {
  using execution_space = OtherExec;
  using memory_space    = Here;
  using device_type     = Kokkos::Device<OtherExec, Here>;
};
using WrongExec = std::conditional_t<right, Exec, OtherExec>;

}  // namespace

// Each call has its own types, because a compiler reports an assertion once for each instance of a template.
void calls(const Exec& exec, const Kokkos::View<int*, Here>& ints, const Kokkos::View<int**, Here>& table) {
  using pagoda::half_t;
  // refused: k and v must lie in one memory space
  pagoda::ContiguousKV{Right<float, 4>(), Wrong<float, 4>(), ints};
  // refused: k and v must lie in one memory space
  pagoda::PagedKV{Right<double, 4>(), Wrong<double, 4>(), table, ints};
  // refused: k and v must lie in one memory space
  pagoda::PagedKV{Right<half_t, 4>(), Wrong<half_t, 4>(), ints, ints, ints, 1};
  // refused: k and v must have one element type
  pagoda::ContiguousKV{Right<const float, 4>(), Right<WrongValue, 4>(), ints};

  const Right<const float, 4> outs;
  const Right<const float, 3> lses, out_a;
  const Right<const float, 2> lse_a;
  const Right<float, 3> out;
  const Right<float, 2> lse;
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, Wrong<const float, 4>(), lses, out, lse);
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, outs, Wrong<const float, 3>(), out, lse);
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, outs, lses, Wrong<float, 3>(), lse);
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, outs, lses, out, Wrong<float, 2>());
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, Wrong<const float, 3>(), lse_a, out_a, lse_a, out, lse);
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, out_a, Wrong<const float, 2>(), out_a, lse_a, out, lse);
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, out_a, lse_a, Wrong<const double, 3>(), lse_a, out, lse);
  // refused: outputs and log-sum-exps must lie in memory that the execution space can reach
  pagoda::merge(exec, out_a, lse_a, out_a, Wrong<const double, 2>(), out, lse);
  // refused: log-sum-exps are Views of float or double
  pagoda::merge(exec, outs, Right<const WrongLse, 3>(), out, lse);
  // refused: log-sum-exps are Views of float or double
  pagoda::merge(exec, outs, lses, out, Right<WrongLse, 2>());

  // refused: Pagoda has kernels for Kokkos' default execution space and its default host execution space
  pagoda::merge(WrongExec(), outs, lses, out, lse);

  const Right<float, 4> cache;
  const Right<std::int64_t, 1> mapping;
  const Right<const float, 3> rows;
  // refused: the cache and slot_mapping must lie in memory that the execution space can reach
  pagoda::write_kv(exec, Wrong<float, 4>(), cache, mapping, rows, rows);
  // refused: the cache and slot_mapping must lie in memory that the execution space can reach
  pagoda::write_kv(exec, cache, Wrong<float, 4>(), mapping, rows, rows);
  // refused: the cache and slot_mapping must lie in memory that the execution space can reach
  pagoda::write_kv(exec, cache, cache, Wrong<std::int64_t, 1>(), rows, rows);
  // refused: new keys and values must lie in memory that the execution space can read
  pagoda::write_kv(exec, cache, cache, mapping, Wrong<const float, 3>(), rows);
  // refused: new keys and values must lie in memory that the execution space can read
  pagoda::write_kv(exec, cache, cache, mapping, rows, Wrong<const float, 3>());
}
