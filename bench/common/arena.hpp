// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/random.hpp"
#include "src/pool/huge_pages.hpp"

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#if defined(__unix__)
#include <unistd.h>
#endif

namespace pagoda::bench {

/// Numbers of the arena from this index on are for queries; no cache uses them.
constexpr auto query_from = std::uint64_t(1) << 60;

/// Number i of an arena: N(0, 1), the same on host and device, so checks need no copy.
KOKKOS_INLINE_FUNCTION float arena_number(std::uint64_t i) {
  constexpr int block     = 20;
  const std::uint64_t key = mix((i >> block) + 0x9e3779b97f4a7c15u);
  return normal(key, static_cast<std::uint32_t>(i & ((1u << block) - 1)));
}

/// Standard deviation of the stored numbers of a quantized cache. It uses most of the type's range.
template <class T>
inline constexpr float stored_deviation = facts_of(dtype_v<T>).deviation;

/// Rounds to nearest and clamps to the range of an 8-bit type.
template <class Number>
KOKKOS_INLINE_FUNCTION Number as_stored(float x) {
  if constexpr (std::is_integral_v<Number>) {
    return static_cast<Number>(Kokkos::clamp(Kokkos::round(x), -127.0f, 127.0f));
  } else {
    return Number(x);
  }
}

/// Number i of an arena, as an element of T.
template <class T>
KOKKOS_INLINE_FUNCTION T arena_number_as(std::uint64_t i) {
  const auto number = [](std::uint64_t n) { return stored_deviation<T> * arena_number(n); };
  if constexpr (dims_per_element_v<T> == 2) {
    using Number = std::remove_cvref_t<decltype(T()[0])>;
    return T(as_stored<Number>(number(2 * i)), as_stored<Number>(number(2 * i + 1)));
  } else if constexpr (is_quantized_v<T>) {
    return as_stored<T>(number(i));
  } else {
    return T(arena_number(i));
  }
}

/// Scale i of a quantized cache, keys' first. It maps the stored numbers back to N(0, 1), within a third.
template <class T>
KOKKOS_INLINE_FUNCTION float arena_scale(std::uint64_t i) {
  return (1 + 0.3f * Kokkos::sin(arena_number(i))) / stored_deviation<T>;
}

/// Byte i of an arena of rows of fp8_ds_mla.
KOKKOS_INLINE_FUNCTION std::uint8_t arena_row_byte(std::uint64_t i) {
  using T              = fp8_ds_mla_t;
  constexpr int bytes  = row_format_of(dtype_v<T>).bytes;
  constexpr int scales = pagoda::detail::RowPlaces<T>::scale(0);
  constexpr int scaled = pagoda::detail::RowPlaces<T>::scaled_dims;
  constexpr int rope   = pagoda::detail::RowPlaces<T>::number(scaled);
  static_assert(bytes % 4 == 0 && scales % 4 == 0 && rope % 2 == 0, "numbers do not cross multiples of their size");
  const int at       = static_cast<int>(i % bytes);
  const auto byte_of = [](std::uint32_t bits, int byte) { return static_cast<std::uint8_t>(bits >> 8 * byte); };
  if (at < scales) return as_stored<fp8_e4m3_t>(stored_deviation<T> * arena_number(i)).bits;
  if (at >= rope) return byte_of(bfloat16_t(arena_number(i & ~std::uint64_t(1))).bits, at & 1);
  return byte_of(Kokkos::bit_cast<std::uint32_t>(arena_scale<T>(i & ~std::uint64_t(3))), at & 3);
}

/// Element i of an arena.
template <class T>
KOKKOS_INLINE_FUNCTION T arena_element(std::uint64_t i) {
  if constexpr (has_row_format_v<T>) {
    T byte;
    byte.bits = arena_row_byte(i);
    return byte;
  } else {
    return arena_number_as<T>(i);
  }
}

/// Size of the block scales of types that also have a per-tensor scale; 1 for the others.
template <class T>
inline constexpr float block_size = facts_of(dtype_v<T>).scales == ScaleUse::required ? 8.0f : 1.0f;

/// Per-tensor scale of a cache with block scales: it makes up for block_size.
template <class T>
inline constexpr float tensor_scale =
    facts_of(dtype_v<T>).scales == ScaleUse::required ? 1 / (stored_deviation<T> * block_size<T>) : 1.0f;

/// Block scale i of a cache, keys' first. Together with tensor_scale it maps the stored numbers back to N(0, 1), within
/// a factor of two.
template <class T>
KOKKOS_INLINE_FUNCTION block_scale_t<T> arena_block_scale(std::uint64_t i) {
  return block_scale_t<T>(block_size<T> * 0.8f * (1 + 0.3f * Kokkos::sin(arena_number(i))) /
                          (facts_of(dtype_v<T>).scales == ScaleUse::required ? 1 : stored_deviation<T>));
}

template <class T, class MemorySpace>
struct FillBlockScales {
  Kokkos::View<block_scale_t<T>*, MemorySpace> scales;

  KOKKOS_FUNCTION void operator()(std::size_t i) const { scales(i) = arena_block_scale<T>(i); }
};

/// Elements of the endless arena from `first` on.
template <class T, class MemorySpace>
struct FillElements {
  Kokkos::View<T*, MemorySpace, Kokkos::MemoryUnmanaged> elements;
  std::uint64_t first;

  KOKKOS_FUNCTION void operator()(std::size_t i) const { elements(i) = arena_element<T>(first + i); }
};

template <class T, class MemorySpace>
struct FillScales {
  Kokkos::View<float*, MemorySpace> scales;

  KOKKOS_FUNCTION void operator()(std::size_t i) const { scales(i) = arena_scale<T>(i); }
};

/// Fills any dense View.
template <class ExecutionSpace, class View>
void fill(const ExecutionSpace& exec, const View& view, std::uint64_t first = 0) {
  using T      = typename View::value_type;
  using Filler = FillElements<T, typename ExecutionSpace::memory_space>;
  Kokkos::parallel_for("Pagoda::bench::fill",
                       Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::size_t>>(exec, 0, view.size()),
                       Filler{decltype(Filler::elements)(view.data(), view.size()), first});
}

/// Nine tenths of the free device memory; on a host at most 4 GiB.
template <class ExecutionSpace>
std::size_t room() {
  std::size_t free = 0;
#if defined(KOKKOS_ENABLE_CUDA)
  [[maybe_unused]] std::size_t total = 0;
  if constexpr (std::is_same_v<ExecutionSpace, Kokkos::Cuda>)
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) return free / 10 * 9;
#elif defined(KOKKOS_ENABLE_HIP)
  [[maybe_unused]] std::size_t total = 0;
  if constexpr (std::is_same_v<ExecutionSpace, Kokkos::HIP>)
    if (hipMemGetInfo(&free, &total) == hipSuccess) return free / 10 * 9;
#endif
  constexpr std::size_t most = std::size_t(1) << 32;
#if defined(__unix__)
  free = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return std::min(most, free / 10 * 9);
#else
  return most;
#endif
}

/// The memory that all caches are part of. It is filled once for each element type, not for each case.
template <class ExecutionSpace>
class Arena {
 public:
  using memory_space = typename ExecutionSpace::memory_space;

  explicit Arena(const ExecutionSpace& exec) : exec_(exec) {}

  /// The largest size that `get` can provide now.
  std::size_t limit() const {
    // get would free the current memory first.
    return std::max(held(), std::min(room<ExecutionSpace>() + held(), ceiling) - alignment);
  }

  /// At least `elements` elements of random data.
  template <class T>
  const T* get(std::size_t elements) {
    const std::size_t wanted = elements * sizeof(T);
    if (wanted > held()) {
      const std::size_t most = limit(), spare = std::min(2 * held(), most / 4 * 3);
      bytes_ = {};  // frees it before the next allocation
      type_.reset();
      // Allocates more than needed, for later cases, but leaves a quarter of the memory to others.
      bytes_ = Bytes(Kokkos::view_alloc(exec_, Kokkos::WithoutInitializing, "Pagoda::bench::arena"),
                     std::max(wanted, spare) + alignment);
      if constexpr (std::is_same_v<memory_space, Kokkos::HostSpace>)
        pagoda::detail::ask_for_huge_pages(bytes_.data(), bytes_.extent(0));  // as pools do
    }
    if (type_ != dtype_v<T>) {
      const Kokkos::View<T*, memory_space, Kokkos::MemoryUnmanaged> all(reinterpret_cast<T*>(start()),
                                                                        held() / sizeof(T));
      fill(exec_, all);
      exec_.fence("Pagoda::bench::fill");
      type_ = dtype_v<T>;
    }
    asked_ = wanted;
    return reinterpret_cast<const T*>(start());
  }
  /// The memory of the last `get`.
  std::span<const std::byte> memory() const { return {start(), asked_}; }

 private:
  using Bytes = Kokkos::View<std::byte*, memory_space>;
  static constexpr std::size_t ceiling =
      std::is_same_v<memory_space, Kokkos::HostSpace> ? std::size_t(1) << 32 : ~std::size_t(0);

  /// A View's data begins 128 bytes after its allocation, behind a header of Kokkos. Rows of 256 bytes would then each
  /// cross two channels of a GPU's memory (4 to 6% of a decode).
  static constexpr std::size_t alignment = 4096;

  std::size_t held() const { return bytes_.extent(0) > alignment ? bytes_.extent(0) - alignment : 0; }
  std::byte* start() const {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return bytes_.data() + ((at + alignment - 1) / alignment * alignment - at);
  }

  ExecutionSpace exec_;
  Bytes bytes_;
  std::size_t asked_ = 0;
  std::optional<DType> type_;  ///< element type of its contents
};

}  // namespace pagoda::bench
