// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/elements.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace pagoda::test {

/// All bits set: a NaN in every floating-point type, and -1 as an integer.
inline constexpr std::byte poison{0xff};

/// Bytes in the memory of a space and their copy on the host.
template <class Space>
class Bytes {
 public:
  using Memory = typename Space::memory_space;

  /// exec: an instance of the device that holds the memory.
  explicit Bytes(std::size_t size, const Space& exec = Space())
      : host_(size, poison), there_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "test bytes"), size) {}

  std::byte* host() { return host_.data(); }
  const std::byte* host() const { return host_.data(); }
  std::byte* there() const { return there_.data(); }
  std::size_t size() const { return host_.size(); }

  void upload(const Space& exec) const { Kokkos::deep_copy(exec, there_, on_host(host_)); }
  void poison_all(const Space& exec) {
    std::fill(host_.begin(), host_.end(), poison);
    upload(exec);
  }
  std::vector<std::byte> download(const Space& exec) const {
    std::vector<std::byte> now(size());
    Kokkos::deep_copy(exec, Kokkos::View<std::byte*, Kokkos::HostSpace, Unmanaged>(now.data(), now.size()), there_);
    exec.fence();
    return now;
  }
  /// Whether the memory still holds what was uploaded last.
  bool unchanged(const Space& exec) const { return download(exec) == host_; }

 private:
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  static auto on_host(const std::vector<std::byte>& v) {
    return Kokkos::View<const std::byte*, Kokkos::HostSpace, Unmanaged>(v.data(), v.size());
  }

  std::vector<std::byte> host_;
  Kokkos::View<std::byte*, Memory> there_;
};

/// Integers in the memory of a space.
template <class Space>
class Ints {
 public:
  using View = Kokkos::View<const int*, typename Space::memory_space>;

  Ints() = default;
  Ints(const Space& exec, const std::vector<int>& values)
      : host_(values), there_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "test ints"), values.size()) {
    assign(exec, values);
  }
  void assign(const Space& exec, const std::vector<int>& values) {
    host_ = values;
    Kokkos::deep_copy(exec, there_, Kokkos::View<const int*, Kokkos::HostSpace>(host_.data(), host_.size()));
    exec.fence();
  }
  View view() const { return there_; }
  bool unchanged(const Space& exec) const {
    if (host_.empty()) return true;
    std::vector<int> now(host_.size());
    Kokkos::deep_copy(exec, Kokkos::View<int*, Kokkos::HostSpace>(now.data(), now.size()), there_);
    exec.fence();
    return now == host_;
  }

 private:
  std::vector<int> host_;
  Kokkos::View<int*, typename Space::memory_space> there_;
};

/// Memory orders that most tests use.
enum class Strides {
  dense,   ///< the last axis fastest, nothing between rows
  padded,  ///< the last axis fastest, gaps after every row, and the first element off by one: nothing is aligned
  left     ///< the first axis fastest
};

inline const char* name_of(Strides s) {
  return s == Strides::dense ? "dense" : s == Strides::padded ? "padded" : "left";
}

/// Any memory order of an array of up to four axes. Entries for axes that an array lacks are ignored.
struct Arrangement {
  std::array<int, 4> order{0, 1, 2, 3};  ///< axes, from the slowest to the fastest
  std::array<int, 4> gap{};              ///< unused elements before the next index of each axis but the fastest
  int step  = 1;                         ///< stride of the fastest axis
  int first = 0;                         ///< offset of the first element from an aligned address, in elements

  Arrangement() = default;
  Arrangement(Strides strides) {
    if (strides == Strides::padded) gap = {3, 3, 3, 3}, first = 1;
    if (strides == Strides::left) order = {3, 2, 1, 0};
  }
  bool operator==(const Arrangement&) const = default;

  /// Strides of an array of these extents, in elements.
  std::vector<std::int64_t> strides(const std::vector<std::int64_t>& extent) const {
    const int rank = static_cast<int>(extent.size());
    std::vector<std::int64_t> stride(extent.size());
    std::int64_t next = 0;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      if (*axis >= rank) continue;
      stride[*axis] = next == 0 ? step : next + gap[*axis];
      next          = stride[*axis] * std::max<std::int64_t>(extent[*axis], 1);
    }
    return stride;
  }
};

inline std::string describe(const Arrangement& a) {
  for (const Strides s : {Strides::dense, Strides::padded, Strides::left})
    if (a == Arrangement(s)) return name_of(s);
  std::ostringstream text;
  text << "axes";
  for (const int axis : a.order) text << " " << axis;
  text << " with gaps";
  for (const int gap : a.gap) text << " " << gap;
  text << ", step " << a.step << " and offset " << a.first;
  return text.str();
}

/// A strided array of up to four axes in the memory of a space, with addresses computed here and not by the library.
/// The memory between and around its elements is poison; untouched_around() checks that it stays so.
template <class Space>
class Array {
 public:
  using Memory  = typename Space::memory_space;
  using Extents = std::vector<std::int64_t>;

  Array(DType type, const Extents& extent, const Arrangement& arrangement, const Space& exec = Space())
      : type_(type),
        extent_(extent),
        stride_(arrangement.strides(extent)),
        first_(guard + arrangement.first),
        bytes_(static_cast<std::size_t>(first_ + span() + guard) * size_of(type), exec) {}

  std::int64_t index(const std::array<std::int64_t, 4>& at) const {
    std::int64_t i = first_;
    for (std::size_t axis = 0; axis < extent_.size(); ++axis) i += at[axis] * stride_[axis];
    return i;
  }
  std::byte* element(const std::array<std::int64_t, 4>& at) { return bytes_.host() + index(at) * size_of(type_); }
  double get(const std::array<std::int64_t, 4>& at) const {
    return load(bytes_.host() + index(at) * size_of(type_), type_);
  }
  void set(const std::array<std::int64_t, 4>& at, double x) { store(element(at), type_, x); }

  DType type() const { return type_; }
  std::int64_t stride(int axis) const { return stride_[axis]; }
  void upload(const Space& exec) const { bytes_.upload(exec); }
  void poison_all(const Space& exec) { bytes_.poison_all(exec); }
  void download(const Space& exec) {
    const auto now = bytes_.download(exec);
    std::memcpy(bytes_.host(), now.data(), now.size());
  }
  bool unchanged(const Space& exec) const { return bytes_.unchanged(exec); }

  /// Whether every byte of the host's copy outside elements is poison.
  bool untouched_around() const {
    const std::size_t size = size_of(type_);
    std::vector<bool> element(bytes_.size() / size, false);
    for_each_index([&](std::int64_t i) { element[i] = true; });
    for (std::size_t i = 0; i < element.size(); ++i)
      for (std::size_t byte = 0; !element[i] && byte < size; ++byte)
        if (bytes_.host()[i * size + byte] != poison) return false;
    return true;
  }
  /// The bytes of all elements of the host's copy, in order of the axes.
  std::vector<std::byte> elements() const {
    std::vector<std::byte> all;
    for_each_index([&](std::int64_t i) {
      const std::byte* const at = bytes_.host() + i * size_of(type_);
      all.insert(all.end(), at, at + size_of(type_));
    });
    return all;
  }

  /// As a View of `Rank` axes of T; last: another extent of the last axis (a prefix of every row).
  template <class T, int Rank>
  auto view(std::int64_t last = -1) const {
    Extents n = extent_;
    if (last >= 0) n.back() = last;
    T* const data   = reinterpret_cast<T*>(bytes_.there()) + first_;
    const auto size = [&](int axis) { return static_cast<std::size_t>(n[axis]); };
    const auto step = [&](int axis) { return static_cast<std::size_t>(stride_[axis]); };
    if constexpr (Rank == 0) {
      return Kokkos::View<T, Memory>(data);
    } else if constexpr (Rank == 1) {  // the first column of an array of two axes
      return Kokkos::View<T*, Kokkos::LayoutStride, Memory>(data, Kokkos::LayoutStride(size(0), step(0)));
    } else if constexpr (Rank == 2) {
      return Kokkos::View<T**, Kokkos::LayoutStride, Memory>(data,
                                                             Kokkos::LayoutStride(size(0), step(0), size(1), step(1)));
    } else if constexpr (Rank == 3) {
      return Kokkos::View<T***, Kokkos::LayoutStride, Memory>(
          data, Kokkos::LayoutStride(size(0), step(0), size(1), step(1), size(2), step(2)));
    } else {
      static_assert(Rank == 4);
      return Kokkos::View<T****, Kokkos::LayoutStride, Memory>(
          data, Kokkos::LayoutStride(size(0), step(0), size(1), step(1), size(2), step(2), size(3), step(3)));
    }
  }

 private:
  static constexpr std::int64_t guard = 64;  // elements, so that a dense array stays aligned

  std::int64_t span() const {
    std::int64_t last = 0;
    for (std::size_t axis = 0; axis < extent_.size(); ++axis) {
      if (extent_[axis] == 0) return 0;
      last += (extent_[axis] - 1) * stride_[axis];
    }
    return last + 1;
  }
  template <class F>
  void for_each_index(const F& f) const {
    std::array<std::int64_t, 4> n{1, 1, 1, 1}, at{};
    std::copy(extent_.begin(), extent_.end(), n.begin());
    for (at[0] = 0; at[0] < n[0]; ++at[0])
      for (at[1] = 0; at[1] < n[1]; ++at[1])
        for (at[2] = 0; at[2] < n[2]; ++at[2])
          for (at[3] = 0; at[3] < n[3]; ++at[3]) f(index(at));
  }

  DType type_;
  Extents extent_, stride_;
  std::int64_t first_;
  Bytes<Space> bytes_;
};

}  // namespace pagoda::test
