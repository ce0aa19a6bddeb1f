// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_quantized.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace pagoda::detail {

/// Bytes of a vector register, and how many there are.
#if defined(__AVX512F__)
inline constexpr int simd_bytes = 64, simd_registers = 32;
#elif defined(__AVX2__)
inline constexpr int simd_bytes = 32, simd_registers = 16;
#elif defined(__aarch64__)
inline constexpr int simd_bytes = 16, simd_registers = 32;
#else
inline constexpr int simd_bytes = 16, simd_registers = 16;
#endif

template <class Element, int W>
struct RegisterType {
  // GCC takes an attribute of dependent size in a typedef only.
  typedef Element type __attribute__((vector_size(W * sizeof(Element))));  // NOLINT(modernize-use-using)
};
template <class Element, int W>
using RegisterOf = typename RegisterType<Element, W>::type;

/// W numbers in vector registers, by the vector extension of GCC and Clang: the compiler picks SSE, AVX2, AVX-512 or
/// NEON by its target flags. Interface: ArrayVec.
template <class Acc, int W>
struct SimdVec {
  using Register = RegisterOf<Acc, W>;
  using Bits16   = RegisterOf<std::uint16_t, W>;
  using Bits32   = RegisterOf<std::uint32_t, W>;
  using Integers = RegisterOf<std::int32_t, W>;
  Register v;

  static SimdVec all(Acc x) { return {x - Register{}}; }
  Acc operator[](int j) const { return v[j]; }
  void set(int j, Acc x) { v[j] = x; }

  /// W consecutive dims, at any address.
  template <class T>
  static SimdVec load(const T* from) {
    SimdVec r;
    if constexpr (std::is_same_v<T, Acc>) {
      std::memcpy(&r.v, from, sizeof(r.v));
    } else if constexpr (std::is_same_v<T, bfloat16_t> && std::is_same_v<Acc, float>) {
#if defined(__AVX512BW__)
      if constexpr (W == 16) return load_bfloat16(from);
#endif
      Bits16 bits;
      std::memcpy(&bits, from, sizeof(bits));
      const Bits32 wide = __builtin_convertvector(bits, Bits32) << 16;
      std::memcpy(&r.v, &wide, sizeof(r.v));
    } else if constexpr (std::is_same_v<T, half_t> && std::is_same_v<Acc, float>) {
      load_half(from, r);
    } else if constexpr (is_quantized_v<T> && std::is_same_v<Acc, float>) {
      load_dims(from, r);
    } else {
      for (int j = 0; j < W; ++j) r.v[j] = static_cast<Acc>(from[j]);
    }
    return r;
  }
  void store(Acc* to) const { std::memcpy(to, &v, sizeof(v)); }

  SimdVec& operator+=(const SimdVec& b) {
    v += b.v;
    return *this;
  }
  void add_product(const SimdVec& x, const SimdVec& y) { v += x.v * y.v; }
  void add_product(Acc x, const SimdVec& y) { v += x * y.v; }
  void multiply(const SimdVec& x) { v *= x.v; }
  void raise_to(const SimdVec& b) { v = v < b.v ? b.v : v; }

  static SimdVec exp2_difference(const SimdVec& x, const SimdVec& base) {
    if constexpr (std::is_same_v<Acc, float>) {
      SimdVec r{x.v - base.v};
      exp2_nonpositive(r.v);
      return r;
    } else {
      SimdVec r;
      for (int j = 0; j < W; ++j) r.v[j] = std::exp2(x.v[j] - base.v[j]);
      return r;
    }
  }

  /// Keeps a vector that has several uses in a register: GCC would rather load it again for each.
  void keep() {
#if defined(__AVX512F__)
    if constexpr (sizeof(v) == simd_bytes) asm("" : "+v"(v));
#elif defined(__SSE2__)
    if constexpr (sizeof(v) == simd_bytes) asm("" : "+x"(v));
#endif
  }

  /// Lane j becomes lane (j + H) % W.
  template <int H>
  SimdVec turned() const {
    return turned<H>(std::make_integer_sequence<int, W>{});
  }
  /// Lanes from First on, each so many times, as many as fill a vector of V.
  template <int V, int Copies, int First>
  SimdVec<Acc, V> spread() const {
    return spread<V, Copies, First>(std::make_integer_sequence<int, V>{});
  }
  /// 0 where a lane is -infinity.
  SimdVec finite_or_zero() const { return {v == Register{} - std::numeric_limits<Acc>::infinity() ? Register{} : v}; }

  /// Lane i of x[0] becomes the sum of all lanes of x[i], i < W: a tree of W - 1 steps that transposes as it adds.
  template <int G>
  static void transpose_sum(SimdVec* x) {
    if constexpr (G > 1) {
      for (int i = 0; i < G / 2; ++i) x[i] = halves_added<G>(x[i], x[i + G / 2], std::make_integer_sequence<int, W>{});
      transpose_sum<G / 2>(x);
    }
  }

  /// A dot product in the making: W partial sums.
  struct Dot {
    Register sum{};
    void add_product(const SimdVec& x, const SimdVec& y) { sum += x.v * y.v; }
    Acc total() const {
      Acc part[W];
      std::memcpy(part, &sum, sizeof(sum));
      for (int half = W / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) part[j] += part[j + half];
      return part[0];
    }
  };

 private:
  template <int H, int... J>
  SimdVec turned(std::integer_sequence<int, J...>) const {
    return {__builtin_shufflevector(v, v, (J + H) % W...)};
  }
  template <int V, int Copies, int First, int... J>
  SimdVec<Acc, V> spread(std::integer_sequence<int, J...>) const {
    return {__builtin_shufflevector(v, v, (First + J / Copies)...)};
  }
  /// Of each run of G lanes of a and of b: its two halves added, a's result beside b's. Half of the lanes stay in place
  /// (a blend, cheaper than a shuffle).
  template <int G, int... J>
  static SimdVec halves_added(const SimdVec& a, const SimdVec& b, std::integer_sequence<int, J...>) {
    return {__builtin_shufflevector(a.v, b.v, (J % G < G / 2 ? J : W + J)...) +
            __builtin_shufflevector(a.v, b.v, (J % G < G / 2 ? J + G / 2 : W + J - G / 2)...)};
  }

#if defined(__AVX512BW__)
  /// One permutation that leaves zeros in the lower halves, where widening and shifting are two steps.
  static SimdVec load_bfloat16(const bfloat16_t* from) {
    static constexpr std::uint16_t upper[32] = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                                                0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
    const __m512i bits = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m512i x    = _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_loadu_si512(upper), bits);
    SimdVec r;
    std::memcpy(&r.v, &x, sizeof(x));
    return r;
  }
#endif

  static void load_half(const half_t* from, SimdVec& r) {
#if defined(__AVX512F__)
    if constexpr (W == 16) {
      // The masked form: GCC 12 warns of an uninitialised operand inside the plain one.
      const __m512 x = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      std::memcpy(&r.v, &x, sizeof(x));
      return;
    }
#elif defined(__F16C__)
    if constexpr (W % 8 == 0) {
      for (int j = 0; j < W; j += 8) {
        const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j)));
        std::memcpy(reinterpret_cast<float*>(&r.v) + j, &x, sizeof(x));
      }
      return;
    }
#endif
    for (int j = 0; j < W; ++j) r.v[j] = static_cast<float>(from[j]);
  }

  template <class T>
  static void load_dims(const T* from, SimdVec& r) {
#if defined(PAGODA_SIMD_QUANTIZED)
    if constexpr (W % quantized_width == 0) {
      for (int j = 0; j < W; j += quantized_width) {
        const auto x = load_quantized(from + j / dims_per_element_v<T>);
        std::memcpy(reinterpret_cast<float*>(&r.v) + j, &x, sizeof(x));
      }
      return;
    }
#endif
    for (int j = 0; j < W; ++j) r.v[j] = static_cast<float>(stored_dim(from, j, 1));
  }

  /// x becomes 2^x, for x <= 0, to about one unit in the last place; below 2^-126 it is 0, and NaN stays NaN. With x =
  /// n + f, |f| <= 1/2: the series of exp(f ln 2) up to the seventh power leaves 5e-9, and n goes into the exponent.
  static void exp2_nonpositive(Register& x) {  // by reference: vectors by value have an ABI per target flag
    const Register lowest = -127.0f - Register{};
    x                     = x < lowest ? lowest : x;
    const Register n      = (x + 0x1.8p23f) - 0x1.8p23f;  // nearest integer
    const Register f      = (x - n) * 0x1.62e43p-1f;
    Register p            = 1.0f / 5040 + Register{};
    p                     = p * f + 1.0f / 720;
    p                     = p * f + 1.0f / 120;
    p                     = p * f + 1.0f / 24;
    p                     = p * f + 1.0f / 6;
    p                     = p * f + 0.5f;
    p                     = p * f + 1.0f;
    p                     = p * f + 1.0f;
    const Integers bits   = (__builtin_convertvector(n, Integers) + 127) << 23;
    Register scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    x = p * scale;
  }
};

}  // namespace pagoda::detail
