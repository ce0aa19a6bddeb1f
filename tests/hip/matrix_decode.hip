// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/matrix_storage.hpp"
#include "backends/hip/matrix_tile.hpp"
#include "backends/hip/tuning.hpp"
#include "src/base/unroll.hpp"

#include <hip/hip_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

/// Attention by hip::MatrixTile alone, without Kokkos: one wave takes one kv head of a contiguous cache. ci/checks.sh
/// hip compiles this file for each architecture with matrix instructions (-DPAGODA_RDNA3 for gfx1100: the host's pass
/// cannot know the target) and inspects the code (check_kernels.py). The program compares the results with attention in
/// float64; it needs a GPU.
namespace {

using namespace pagoda::detail::hip;

#if defined(PAGODA_RDNA3)
using Arch = Rdna3;
#else
using Arch = Cdna;
#endif

struct Args {
  const char *q, *k, *v;           ///< q: [head][rows][KeyDims]; k, v: [token][head][KeyDims or ValueDims]
  const float *k_scale, *v_scale;  ///< [token]
  float *out, *lse;                ///< [head][rows][ValueDims], [head][rows]; lse to base 2
  std::uint32_t k_token, v_token;  ///< bytes from a token to the next
  int tokens;
  float scale;  ///< of scores to base 2
};

template <class Storage, int KeyDims, int RowTiles>
constexpr MatrixTuning tuning_of = matrix_tuning(Arch::lanes, Storage::bits, KeyDims, RowTiles);
template <class Storage, int KeyDims, int RowTiles>
using TileOf = MatrixTile<Arch, Storage, KeyDims, tuning_of<Storage, KeyDims, RowTiles>.value_dims, RowTiles,
                          tuning_of<Storage, KeyDims, RowTiles>.token_blocks>;

/// Scaled: tokens have scales.
template <class Storage, int KeyDims, int RowTiles, bool Scaled>
__global__ __launch_bounds__(Arch::lanes, (tuning_of<Storage, KeyDims, RowTiles>.waves_per_simd))  //
    void matrix_decode(Args args) {
  using Tile           = TileOf<Storage, KeyDims, RowTiles>;
  constexpr bool ahead = tuning_of<Storage, KeyDims, RowTiles>.loads_ahead;
  constexpr int values = tuning_of<Storage, KeyDims, RowTiles>.value_dims;
  const auto bytes     = [](int dims) { return dims * Storage::bits / 8; };
  const int lane       = static_cast<int>(threadIdx.x);
  Tile tile(lane);
  const char *const k = args.k + bytes(KeyDims) * blockIdx.x, *const v = args.v + bytes(values) * blockIdx.x;
  typename Tile::Queries q;
  PAGODA_UNROLL_ALL
  for (int n = 0; n < RowTiles; ++n) {
    PAGODA_UNROLL_ALL
    for (int s = 0; s < Tile::query_loads; ++s)
      q.at[n][s] = load_global<Words4>(
          args.q + 2 * (KeyDims * (Tile::rows * blockIdx.x + 16 * n + tile.column()) + tile.query_dim(s)));
  }
  Tile::order_queries(q);
  const auto token     = [&](int u) { return static_cast<std::uint32_t>(std::min(u, args.tokens - 1)); };
  const auto load_keys = [&](int u) {
    tile.load_keys([&](int b, int s) {
      return k + (token(u + 16 * b + tile.key_token()) * args.k_token + 16 * tile.key_chunk(0)) +
             16 * Arch::operand_groups * s;
    });
  };
  const auto load_values = [&](int u) {
    tile.load_values([&](int b, int i, int h) {
      return v +
             (token(u + 16 * b + tile.value_token() + i) * args.v_token + bytes(Tile::value_dim(0, tile.column()))) +
             bytes(Tile::value_dim(h, 0));
    });
  };
  if (ahead) load_keys(0), load_values(0);
  for (int u = 0; u < args.tokens; u += Tile::tokens) {
    if (!ahead) load_keys(u);
    tile.multiply_keys(q);
    keep_order();
    if (ahead) {
      load_keys(u + Tile::tokens);
    } else {
      load_values(u);
    }
    keep_order();
    if constexpr (Scaled) tile.scale_scores(args.k_scale[token(u + lane % Tile::tokens)]);
    tile.finish_scores(args.scale, args.tokens - u);
    if constexpr (Scaled) {
      tile.softmax_scaled(false, args.v_scale[token(u + lane % Tile::tokens)]);
    } else {
      tile.softmax(false);
    }
    tile.multiply_values();
    if (ahead) load_values(u + Tile::tokens);
    keep_order();
  }
  tile.sum_lanes();
  PAGODA_UNROLL_ALL
  for (int n = 0; n < RowTiles; ++n) {
    const int row = Tile::rows * blockIdx.x + 16 * n + tile.column();
    PAGODA_UNROLL_ALL
    for (int h = 0; h < Tile::value_loads; ++h) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < Tile::sums; ++i)
        for (int j = 0; j < Tile::value_dims; ++j)
          args.out[row * values + Tile::value_dim(h, tile.sum_row(i)) + j] = tile.output(n, h, i, j) / tile.sum(n);
    }
    if (tile.group() == 0) args.lse[row] = tile.most(n) + log2f(tile.sum(n));
  }
}

void check(hipError_t error) {
  if (error != hipSuccess) throw std::runtime_error(hipGetErrorString(error));
}

template <class T>
struct DeviceArray {
  T* at = nullptr;
  explicit DeviceArray(const std::vector<T>& from) {
    check(hipMalloc(&at, from.size() * sizeof(T)));
    check(hipMemcpy(at, from.data(), from.size() * sizeof(T), hipMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&)            = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { (void)hipFree(at); }
  std::vector<T> read(std::size_t count) const {
    std::vector<T> to(count);
    check(hipMemcpy(to.data(), at, count * sizeof(T), hipMemcpyDeviceToHost));
    return to;
  }
};

/// 16 bits of fp16 or bf16, rounded to nearest.
template <MatrixType Type>
std::uint16_t to_bits(double from) {
  const auto x = static_cast<float>(from);
  if constexpr (Type == MatrixType::fp16) return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x));
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <MatrixType Type>
double to_double(std::uint16_t bits) {
  if constexpr (Type == MatrixType::fp16) return __builtin_bit_cast(_Float16, bits);
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

/// The number that a code of the storage type stands for, computed as its definition says.
template <class Storage>
double value_of(unsigned code) {
  const auto floating = [&](int fraction_bits, int bias) {
    const int exponent = static_cast<int>(code >> fraction_bits) & (fraction_bits == 3 ? 15 : 31);
    const int fraction = static_cast<int>(code) & ((1 << fraction_bits) - 1);
    const double size  = exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                       : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return (code & 0x80) != 0 ? -size : size;
  };
  if constexpr (Storage::bits == 16) return to_double<Storage::type>(static_cast<std::uint16_t>(code));
  if constexpr (std::is_same_v<Storage, StoredE4m3>) return floating(3, 7);
  if constexpr (std::is_same_v<Storage, StoredE5m2>) return floating(2, 15);
  if constexpr (std::is_same_v<Storage, StoredInt8>) return code < 128 ? int(code) : int(code) - 256;
  return code < 8 ? int(code) : int(code) - 16;
}
template <class Storage>
bool is_finite(unsigned code) {
  if constexpr (std::is_same_v<Storage, StoredE4m3>) return (code & 0x7f) != 0x7f;
  if constexpr (std::is_same_v<Storage, StoredE5m2>) return (code & 0x7c) != 0x7c;
  return true;
}

/// Numbers of a storage type.
template <class Storage>
struct Stored {
  std::vector<std::uint8_t> bytes;
  explicit Stored(std::size_t count) : bytes(count * Storage::bits / 8) {}

  double operator[](std::size_t i) const {
    if constexpr (Storage::bits == 16) return value_of<Storage>(bytes[2 * i] | unsigned(bytes[2 * i + 1]) << 8);
    if constexpr (Storage::bits == 8) return value_of<Storage>(bytes[i]);
    return value_of<Storage>(bytes[i / 2] >> i % 2 * 4 & 15);
  }
  void set_code(std::size_t i, unsigned code) {
    if constexpr (Storage::bits == 16) {
      bytes[2 * i] = static_cast<std::uint8_t>(code), bytes[2 * i + 1] = static_cast<std::uint8_t>(code >> 8);
    } else if constexpr (Storage::bits == 8) {
      bytes[i] = static_cast<std::uint8_t>(code);
    } else {
      bytes[i / 2] = static_cast<std::uint8_t>((bytes[i / 2] & (i % 2 != 0 ? 15 : 240)) | code << i % 2 * 4);
    }
  }
  /// Stores the nearest number.
  void set(std::size_t i, double x) {
    if constexpr (Storage::bits == 16) return set_code(i, to_bits<Storage::type>(x));
    unsigned best = 0;
    for (unsigned code = 0; code < 1u << Storage::bits; ++code)
      if (is_finite<Storage>(code) && std::abs(value_of<Storage>(code) - x) < std::abs(value_of<Storage>(best) - x))
        best = code;
    set_code(i, best);
  }
};

/// Returns whether a decode of `tokens` tokens agrees with float64.
template <class Storage, int KeyDims, int RowTiles, bool Scaled>
bool agrees_at(int tokens) {
  using Tile          = TileOf<Storage, KeyDims, RowTiles>;
  constexpr int heads = 2, rows = Tile::rows, value_dims = tuning_of<Storage, KeyDims, RowTiles>.value_dims;
  constexpr double unit = std::is_same_v<Storage, StoredInt8> ? 32 : std::is_same_v<Storage, StoredInt4> ? 2 : 1;
  using Query           = Plain16<Storage::type>;
  std::mt19937 random(static_cast<unsigned>(KeyDims + RowTiles + tokens));
  std::normal_distribution<double> normal;
  Stored<Query> q(std::size_t(heads) * rows * KeyDims);
  for (std::size_t i = 0; i < q.bytes.size() / 2; ++i) q.set(i, normal(random));
  Stored<Storage> k(std::size_t(heads) * tokens * KeyDims), v(std::size_t(heads) * tokens * value_dims);
  for (std::size_t i = 0; i < k.bytes.size() * 8 / Storage::bits; ++i) k.set(i, unit * normal(random));
  for (std::size_t i = 0; i < v.bytes.size() * 8 / Storage::bits; ++i) {
    if constexpr (Storage::bits == 16) {
      v.set(i, normal(random));
    } else {  // all numbers of the type
      unsigned code = 0;
      do code = random() % (1u << Storage::bits);
      while (!is_finite<Storage>(code));
      v.set_code(i, code);
    }
  }
  // Each row has a heavy token of its own, so that rows and tokens that are exchanged show.
  for (int h = 0; h < heads; ++h)
    for (int r = 0; r < rows; ++r)
      for (int d = 0; d < KeyDims; ++d)
        k.set(std::size_t(r * 7 % tokens * heads + h) * KeyDims + d, unit * q[std::size_t(h * rows + r) * KeyDims + d]);
  std::vector<float> k_scale(tokens, 1.0f), v_scale(tokens, 1.0f);
  if (Scaled)
    for (int t = 0; t < tokens; ++t)
      k_scale[t] = 0.5f + random() % 256 / 256.0f, v_scale[t] = std::ldexp(1.0f + random() % 256 / 256.0f, t % 13 - 9);

  const DeviceArray<std::uint8_t> q_there(q.bytes), k_there(k.bytes), v_there(v.bytes);
  const DeviceArray<float> k_scale_there(k_scale), v_scale_there(v_scale);
  const DeviceArray<float> out_there(std::vector<float>(heads * rows * value_dims)),
      lse_there(std::vector<float>(heads * rows));
  const float scale = 0.5f / std::sqrt(float(KeyDims)) * 1.44269504f / float(unit);
  const auto bytes  = [](const auto& array) { return reinterpret_cast<const char*>(array.at); };
  matrix_decode<Storage, KeyDims, RowTiles, Scaled><<<heads, Arch::lanes>>>(
      {bytes(q_there), bytes(k_there), bytes(v_there), k_scale_there.at, v_scale_there.at, out_there.at, lse_there.at,
       heads * KeyDims * Storage::bits / 8, heads * value_dims * Storage::bits / 8, tokens, scale});
  check(hipDeviceSynchronize());
  const auto out = out_there.read(heads * rows * value_dims), lse = lse_there.read(heads * rows);

  double error = 0, size = 0, lse_error = 0, lse_bound = 0;
  for (int h = 0; h < heads; ++h)
    for (int r = 0; r < rows; ++r) {
      std::vector<double> p(tokens), o(value_dims);
      double most = -HUGE_VAL, sum = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int d = 0; d < KeyDims; ++d)
          p[t] += q[std::size_t(h * rows + r) * KeyDims + d] * k[std::size_t(t * heads + h) * KeyDims + d];
        p[t] *= double(scale) * k_scale[t];
        most = std::max(most, p[t]);
      }
      for (double& x : p) sum += x = std::exp2(x - most);
      for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < value_dims; ++d)
          o[d] += p[t] / sum * v_scale[t] * v[std::size_t(t * heads + h) * value_dims + d];
      double row_error = 0, row_size = 0;
      for (int d = 0; d < value_dims; ++d) {
        const double off = out[std::size_t(h * rows + r) * value_dims + d] - o[d];
        row_error += off * off, row_size += o[d] * o[d];
      }
      error += row_error / row_size, size += 1;
      lse_bound = std::max(lse_bound, 4e-6 + std::abs(most) * KeyDims / 16 * 0x1p-23);  // a rounding for each product
      lse_error = std::max(lse_error, std::abs(lse[h * rows + r] - (most + std::log2(sum))));
    }
  error              = std::sqrt(error / size);
  const double bound = Storage::type == MatrixType::fp16 ? 0x1p-10 : 0x1p-7;  // twice the rounding of the probabilities
  const bool right   = error <= bound && lse_error <= lse_bound;
  const char* name   = Storage::bits == 16                   ? (Storage::type == MatrixType::fp16 ? "fp16" : "bf16")
                       : std::is_same_v<Storage, StoredE4m3> ? "fp8_e4m3"
                       : std::is_same_v<Storage, StoredE5m2> ? "fp8_e5m2"
                       : std::is_same_v<Storage, StoredInt8> ? "int8"
                                                             : "int4";
  std::printf("%s%s, %d dims, %d rows, %d tokens: relative error %.2g, of lse %.2g%s\n", name,
              Scaled ? " with scales" : "", KeyDims, rows, tokens, error, lse_error, right ? "" : "  WRONG");
  return right;
}

template <class Storage, int KeyDims, int RowTiles>
bool agrees() {
  bool right = true;
  if constexpr (tuning_of<Storage, KeyDims, RowTiles>.lanes != 0)
    for (const int tokens : {1, 15, 16, 17, 33, 200}) {
      right &= agrees_at<Storage, KeyDims, RowTiles, false>(tokens);
      if constexpr (Storage::bits < 16) right &= agrees_at<Storage, KeyDims, RowTiles, true>(tokens);
    }
  return right;
}
/// All rows of the tuning for this type.
template <class Storage>
bool all_agree() {
  bool right = true;
  right &= agrees<Storage, 64, 1>();
  right &= agrees<Storage, 64, 2>();
  right &= agrees<Storage, 128, 1>();
  right &= agrees<Storage, 128, 2>();
  right &= agrees<Storage, 256, 1>();
  right &= agrees<Storage, 576, 1>();
  return right;
}

}  // namespace

int main() {
  bool right = true;
  right &= all_agree<Plain16<MatrixType::fp16>>();
  right &= all_agree<Plain16<MatrixType::bf16>>();
  right &= all_agree<StoredE4m3>();
  right &= all_agree<StoredE5m2>();
  right &= all_agree<StoredInt8>();
  right &= all_agree<StoredInt4>();
  return right ? 0 : 1;
}
