// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include "backends/host/simd_quantized.hpp"
#include "backends/host/simd_target.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// f(0), f(1) ... f(N - 1), each with a constant: loops over arrays of registers, which GCC 12 would keep in memory.
template <int N, class F>
[[gnu::always_inline]] inline void for_constants(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) PAGODA_ISA_CODE __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

/// Copies the first `count` of N elements and sets the rest to zero. Reads no other memory, because the row may end
/// there.
template <class T, int N>
[[gnu::always_inline]] inline void copy_part(const T* from, int count, T (&to)[N]) {
#if defined(PAGODA_ISA_AVX512)
  constexpr int bytes = N * int(sizeof(T));
  // For N elements of up to 64 bytes, of which count is at least 1; of more, the mask is not used.
  const std::uint64_t mask = ~std::uint64_t(0) >> ((64 - count * int(sizeof(T))) & 63);
  if constexpr (bytes == 64) {
    const __m512i x = _mm512_maskz_loadu_epi8(mask, from);
    std::memcpy(static_cast<void*>(to), &x, bytes);
    return;
  } else if constexpr (bytes == 32) {
    const __m256i x = _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from);
    std::memcpy(static_cast<void*>(to), &x, bytes);
    return;
  } else if constexpr (bytes == 16 || bytes == 8) {
    const __m128i x = _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), from);
    std::memcpy(static_cast<void*>(to), &x, bytes);
    return;
  }
#endif
  // Copies halves of the rest: a copy of constant size is one load and one store.
  std::memset(static_cast<void*>(to), 0, sizeof(to));
  static_assert(std::has_single_bit(unsigned(N)));
  for_constants<std::bit_width(unsigned(N))>([&](auto i) PAGODA_ISA_CODE {
    constexpr int step = N >> i;
    if ((count & step) != 0) {
      const int at = step == N ? 0 : count & (N - 2 * step);  // what the larger steps have copied
      std::memcpy(static_cast<void*>(to + at), from + at, step * sizeof(T));
    }
  });
}

template <class Element, int W>
struct RegisterType {
  // GCC accepts an attribute of dependent size only in a typedef.
  typedef Element type __attribute__((vector_size(W * sizeof(Element))));  // NOLINT(modernize-use-using)
};
template <class Element, int W>
using RegisterOf = typename RegisterType<Element, W>::type;

/// W numbers in vector registers, with the vector extension of GCC and Clang, in the instructions of
/// simd_target.hpp. Interface: ArrayVec.
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
#if defined(PAGODA_ISA_AVX512)
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
  /// Loads the first `count` (1 to W) of W consecutive dims, at any address, and sets the rest to zero. Reads no
  /// other dims.
  template <class T>
  static SimdVec load_part(const T* from, int count) {
    T part[W / dims_per_element_v<T>];
    copy_part(from, count / dims_per_element_v<T>, part);
    return load(part);
  }
#if defined(PAGODA_ISA_PAIRS)
  /// W pairs of bfloat16 numbers, from 2 W dims of a type whose elements these hold exactly. The pairs of bfloat16_t
  /// are neighbours; those of quantized types are dims j and j + W.
  template <class T>
  static SimdVec load_pairs(const T* from) {
    if constexpr (std::is_same_v<T, bfloat16_t>) {
      return load(reinterpret_cast<const Acc*>(from));
    } else {
      const __m512 low = load_quantized(from), high = load_quantized(from + W / dims_per_element_v<T>);
      const __m512i pairs = upper_halves(_mm512_castps_si512(low), _mm512_castps_si512(high));
      SimdVec r;
      std::memcpy(&r.v, &pairs, sizeof(pairs));
      return r;
    }
  }
  /// The same of the first `count` (1 to 2 W) dims, and zeros.
  template <class T>
  static SimdVec load_pairs_of_part(const T* from, int count) {
    T part[2 * W / dims_per_element_v<T>];
    copy_part(from, count / dims_per_element_v<T>, part);
    return load_pairs(part);
  }
#endif
  /// W dims from dim d on of a row with a format of its own, at any address, scaled.
  template <class T>
  static SimdVec load_from_row(const T* row, int d) {
    using Places      = RowPlaces<T>;
    const T* const at = row + Places::number(d);
    if (d >= Places::scaled_dims) return load(reinterpret_cast<const bfloat16_t*>(at));
    float scale;
    std::memcpy(&scale, row + Places::scale(d), sizeof(scale));
    SimdVec x = load(reinterpret_cast<const fp8_e4m3_t*>(at));
    x.multiply(all(scale));
    return x;
  }
  void store(Acc* to) const { std::memcpy(to, &v, sizeof(v)); }
  /// Stores W numbers of another type, each rounded to nearest even.
  template <class T>
  void store_as(T* to) const {
    if constexpr (std::is_same_v<T, Acc>) {
      store(to);
    } else if constexpr (std::is_same_v<T, bfloat16_t> && std::is_same_v<Acc, float>) {
      Bits32 bits;
      std::memcpy(&bits, &v, sizeof(bits));
      const Bits32 upper   = bits >> 16;
      const Bits32 rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
      const Bits16 kept = __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? upper | 0x40u : rounded, Bits16);
      std::memcpy(static_cast<void*>(to), &kept, sizeof(kept));
    } else if constexpr (std::is_same_v<T, half_t> && std::is_same_v<Acc, float>) {
      store_half(to);
    } else {
      for (int j = 0; j < W; ++j) to[j] = static_cast<T>(v[j]);
    }
  }

  SimdVec& operator+=(const SimdVec& b) {
    v += b.v;
    return *this;
  }
  void add_product(const SimdVec& x, const SimdVec& y) {
#if defined(PAGODA_ISA_AVX512)
    // Inline assembly updates sums in place: GCC 12 chooses other forms, which copy and spill sums.
    if constexpr (std::is_same_v<Register, RegisterOf<float, 16>>) {
      Register sum = v;
      asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x.v), "v"(y.v));
      v = sum;
      return;
    }
#endif
    v += x.v * y.v;
  }
  void add_product(Acc x, const SimdVec& y) { v += x * y.v; }
  /// Like add_product, with x in memory. A load unit broadcasts it at no cost, so each product loads it again.
  void add_product_at(const Acc* x, const SimdVec& y) {
#if defined(PAGODA_ISA_AVX512)
    if constexpr (std::is_same_v<Register, RegisterOf<float, 16>>) {
      Register sum = v;
      asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(y.v), "m"(*x));
      v = sum;
      return;
    }
#endif
    v += *x * y.v;
  }
  void multiply(const SimdVec& x) { v *= x.v; }
#if defined(PAGODA_ISA_PAIRS)
  /// x and y hold pairs of bfloat16 numbers. Adds the exact products of each pair to one lane.
  void add_pairs(const SimdVec& x, const SimdVec& y) {
    Register sum = v;
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x.v), "v"(y.v));
    v = sum;
  }
#endif
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

  /// Keeps a vector that is used several times in a register. Otherwise GCC reloads it for each use.
  void keep() {
#if defined(PAGODA_ISA_AVX512)
    if constexpr (sizeof(v) == simd_bytes) {
      Register kept = v;
      asm volatile("" : "+v"(kept));
      v = kept;
    }
#elif defined(__SSE2__)
    if constexpr (sizeof(v) == simd_bytes) {
      Register kept = v;
      asm volatile("" : "+x"(kept));
      v = kept;
    }
#endif
  }

  /// Lane j becomes lane (j + H) % W.
  template <int H>
  SimdVec turned() const {
    return turned<H>(std::make_integer_sequence<int, W>{});
  }
  /// A vector of V lanes: the lanes from First on, each repeated Copies times.
  template <int V, int Copies, int First>
  SimdVec<Acc, V> spread() const {
    return spread<V, Copies, First>(std::make_integer_sequence<int, V>{});
  }
  /// 0 where a lane is -infinity.
  SimdVec finite_or_zero() const { return {v == Register{} - std::numeric_limits<Acc>::infinity() ? Register{} : v}; }

  /// Adds the two halves of each run of G lanes, for a and for b. The result of a comes first, then that of b.
  template <int G>
  static SimdVec halves_added(const SimdVec& a, const SimdVec& b) {
    return halves_added<G>(a, b, std::make_integer_sequence<int, W>{});
  }

  /// Exchanges the second half of each run of 2 H lanes of a with the first half of the same run of b.
  template <int H>
  static void exchange(SimdVec& a, SimdVec& b) {
    exchange<H>(a, b, std::make_integer_sequence<int, W>{});
  }

  /// Accumulates a dot product in W partial sums.
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
  /// Half of the lanes stay in place: a blend, which is cheaper than a shuffle.
  template <int G, int... J>
  static SimdVec halves_added(const SimdVec& a, const SimdVec& b, std::integer_sequence<int, J...>) {
    const Register moved = __builtin_shufflevector(a.v, b.v, (J % G < G / 2 ? J + G / 2 : W + J - G / 2)...);
#if defined(PAGODA_ISA_AVX512)
    // Uses the intrinsic: GCC turns most blends into shuffles, which fewer execution units support.
    if constexpr (sizeof(Register) == simd_bytes && std::is_same_v<Acc, float>) {
      constexpr unsigned from_b = (0u | ... | (J % G < G / 2 ? 0u : 1u << J));
      __m512 x, y;
      std::memcpy(&x, &a.v, sizeof(x));
      std::memcpy(&y, &b.v, sizeof(y));
      x = _mm512_mask_blend_ps(from_b, x, y);
      SimdVec stayed;
      std::memcpy(&stayed.v, &x, sizeof(x));
      return {stayed.v + moved};
    }
#endif
    return {__builtin_shufflevector(a.v, b.v, (J % G < G / 2 ? J : W + J)...) + moved};
  }

  template <int H, int... J>
  static void exchange(SimdVec& a, SimdVec& b, std::integer_sequence<int, J...>) {
    const Register x = a.v, y = b.v;
    a.v = __builtin_shufflevector(x, y, (J % (2 * H) < H ? J : W + J - H)...);
    b.v = __builtin_shufflevector(x, y, (J % (2 * H) < H ? J + H : W + J)...);
  }

#if defined(PAGODA_ISA_AVX512)
  /// Widens and shifts with one permutation that sets the lower halves to zero.
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
#if defined(PAGODA_ISA_AVX512)
    if constexpr (W == 16) {
      // The masked form: GCC 12 warns of an uninitialised operand inside the plain one.
      const __m512 x = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      std::memcpy(&r.v, &x, sizeof(x));
      return;
    }
#elif defined(PAGODA_ISA_AVX2)
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

  void store_half(half_t* to) const {
#if defined(PAGODA_ISA_AVX512)
    if constexpr (W == 16) {
      __m512 x;
      std::memcpy(&x, &v, sizeof(x));
      const __m256i half = _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
      return;
    }
#elif defined(PAGODA_ISA_AVX2)
    if constexpr (W % 8 == 0) {
      for (int j = 0; j < W; j += 8) {
        __m256 x;
        std::memcpy(&x, reinterpret_cast<const float*>(&v) + j, sizeof(x));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + j), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
      }
      return;
    }
#endif
    for (int j = 0; j < W; ++j) to[j] = half_t(v[j]);
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
  /// n + f, |f| <= 1/2: a polynomial within 1e-8 of 2^f, and n goes into the exponent.
  static void exp2_nonpositive(
      Register& x) {  // by reference: the ABI of vectors passed by value depends on target flags
#if defined(PAGODA_ISA_AVX512)
    if constexpr (W == 16) {
      __m512 y;
      std::memcpy(&y, &x, sizeof(y));
      const __mmask16 some = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-126), _CMP_NLT_UQ);
      const __m512 whole   = _mm512_maskz_roundscale_ps(0xffff, y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      y -= whole;
      std::memcpy(&x, &y, sizeof(y));
      exp2_fraction(x);
      std::memcpy(&y, &x, sizeof(y));
      y = _mm512_maskz_scalef_ps(some, y, whole);
      std::memcpy(&x, &y, sizeof(y));
      return;
    }
#endif
    const Register lowest = -127.0f - Register{};
    x                     = x < lowest ? lowest : x;
    const Register n      = (x + 0x1.8p23f) - 0x1.8p23f;  // nearest integer
    x -= n;
    exp2_fraction(x);
    const Integers bits = (__builtin_convertvector(n, Integers) + 127) << 23;
    Register scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    x *= scale;
  }
  static void exp2_fraction(Register& x) {
    Register p = 0x1.44138ap-13f + Register{};
    p          = p * x + 0x1.5f089p-10f;
    p          = p * x + 0x1.3b2a54p-7f;
    p          = p * x + 0x1.c6af6cp-5f;
    p          = p * x + 0x1.ebfbep-3f;
    p          = p * x + 0x1.62e43p-1f;
    x          = p * x + 1.0f;
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
