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
  const char *q, *k, *v;            ///< q: [head][rows][KeyDims]; k, v: [token][head][KeyDims or ValueDims]
  const float *k_scale, *v_scale;   ///< [token]
  const char *k_blocks, *v_blocks;  ///< block scales, [token][head][block]
  float *out, *lse;                 ///< [head][rows][ValueDims], [head][rows]; lse to base 2
  std::uint32_t k_token, v_token;   ///< bytes from a token to the next
  std::uint32_t k_blocks_token, v_blocks_token;  ///< block scales from a token to the next
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
  const auto load_key_scales = [&]([[maybe_unused]] int u) {
    if constexpr (Storage::block_dims > 0)
      tile.load_key_scales([&](int b, int s) {
        return args.k_blocks + KeyDims / Storage::block_dims * blockIdx.x +
               (token(u + 16 * b + tile.key_token()) * args.k_blocks_token + tile.key_block()) +
               Tile::key_block_step * s;
      });
  };
  const auto load_value_scales = [&]([[maybe_unused]] int u) {
    if constexpr (Storage::block_dims > 0)
      tile.load_value_scales([&](int b, int i) {
        return args.v_blocks + values / Storage::block_dims * blockIdx.x +
               (token(u + 16 * b + tile.value_token() + i) * args.v_blocks_token + tile.value_block());
      });
  };
  if (ahead) load_keys(0), load_key_scales(0), load_values(0), load_value_scales(0);
  for (int u = 0; u < args.tokens; u += Tile::tokens) {
    if (!ahead) load_keys(u), load_key_scales(u);
    tile.multiply_keys(q);
    keep_order();
    if (ahead) {
      load_keys(u + Tile::tokens), load_key_scales(u + Tile::tokens);
    } else {
      load_values(u), load_value_scales(u);
    }
    keep_order();
    if constexpr (Scaled) tile.scale_scores(args.k_scale[token(u + lane % Tile::tokens)]);
    tile.finish_scores(args.scale, args.tokens - u);
    if constexpr (Scaled) {
      tile.softmax_scaled(false, args.v_scale[token(u + lane % Tile::tokens)]);
    } else {
      tile.softmax(false);
    }
    tile.multiply_values(false);
    if (ahead) load_values(u + Tile::tokens), load_value_scales(u + Tile::tokens);
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

/// A number with a sign, `exponent_bits` and `fraction_bits`.
double floating(unsigned code, int exponent_bits, int fraction_bits, int bias) {
  const int exponent = static_cast<int>(code >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = static_cast<int>(code) & ((1 << fraction_bits) - 1);
  const double size  = exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                     : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return (code >> (exponent_bits + fraction_bits) & 1) != 0 ? -size : size;
}
/// The number that a code of the storage type stands for, computed as its definition says.
template <class Storage>
double value_of(unsigned code) {
  if constexpr (Storage::bits == 16) return to_double<Storage::type>(static_cast<std::uint16_t>(code));
  if constexpr (std::is_same_v<Storage, StoredE4m3>) return floating(code, 4, 3, 7);
  if constexpr (std::is_same_v<Storage, StoredE5m2>) return floating(code, 5, 2, 15);
  if constexpr (std::is_same_v<Storage, StoredInt8>) return code < 128 ? int(code) : int(code) - 256;
  if constexpr (Storage::block_dims > 0) return floating(code, 2, 1, 1);
  return code < 8 ? int(code) : int(code) - 16;
}
/// The same of a block scale.
template <class Storage>
double scale_of([[maybe_unused]] unsigned code) {
  if constexpr (Storage::block_dims == 32) return code == 255 ? NAN : std::ldexp(1.0, int(code) - 127);
  return (code & 0x7f) == 0x7f ? NAN : floating(code, 4, 3, 7);
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

/// Which block scales a cache has. rising: scales of later values are larger, and some keys have the smallest scale.
/// wide: scales of a tile differ by more than fp16 numbers do. not_a_number: so is one of the values' scales.
enum class Blocks { none, usual, rising, wide, not_a_number };

/// Block scales of rows of keys or values.
template <class Storage>
struct StoredScales {
  int row;
  std::vector<std::uint8_t> codes;
  StoredScales(int rows, int dims)
      : row(Storage::block_dims > 0 ? dims / Storage::block_dims : 0), codes(std::size_t(rows) * row + 1) {}
  double at(std::size_t r, int d) const {
    return Storage::block_dims > 0 ? scale_of<Storage>(codes[r * row + d / Storage::block_dims]) : 1;
  }
  void set(Blocks kind, bool key, int heads, std::mt19937& random) {
    for (std::size_t i = 0; i + 1 < codes.size(); ++i) {
      const int token = int(i) / row / heads, block = int(i) % row;
      const bool e8m0 = Storage::block_dims == 32;
      codes[i]        = static_cast<std::uint8_t>((e8m0 ? 124 : 0x28) + random() % (e8m0 ? 5 : 0x20));  // 1/8 .. 2, 4
      if (kind == Blocks::rising && e8m0) {
        if (!key) codes[i] = static_cast<std::uint8_t>(70 + token / 4);
        if (key && block == 1) codes[i] = 0;
      }
      if (kind == Blocks::wide && key)
        codes[i] = static_cast<std::uint8_t>(!e8m0 ? random() % 127 : block == 0 ? 67 + random() % 120 : codes[i]);
      if (kind == Blocks::wide && !key)  // scales of a block's tokens are alike, or probabilities of 0 in fp16 matter
        codes[i] = static_cast<std::uint8_t>(e8m0 ? 20 + 40 * (block % 5) + random() % 20
                                                  : 15 * (block % 8) + 1 + random() % 7 + random() % 2 * 128);
      if (kind == Blocks::not_a_number && !key && block == 1 && token == 3) codes[i] = 255;
    }
  }
};

/// Returns whether a decode of `tokens` tokens agrees with float64.
template <class Storage, int KeyDims, int RowTiles, bool Scaled>
bool agrees_at(int tokens, Blocks blocks) {
  using Tile          = TileOf<Storage, KeyDims, RowTiles>;
  constexpr int heads = 2, rows = Tile::rows, value_dims = tuning_of<Storage, KeyDims, RowTiles>.value_dims;
  constexpr double unit = std::is_same_v<Storage, StoredInt8> ? 32 : std::is_same_v<Storage, StoredInt4> ? 2 : 1;
  using Query           = Plain16<Storage::type>;
  std::mt19937 random(static_cast<unsigned>(KeyDims + RowTiles + tokens));
  std::normal_distribution<double> normal;
  Stored<Query> q(std::size_t(heads) * rows * KeyDims);
  for (std::size_t i = 0; i < q.bytes.size() / 2; ++i)  // keys of block 0 may be so large that others do not matter
    q.set(i, blocks == Blocks::wide && i / KeyDims % 2 == 1 && i % KeyDims < 32 ? 0 : normal(random));
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
  StoredScales<Storage> k_blocks(tokens * heads, KeyDims), v_blocks(tokens * heads, value_dims);
  k_blocks.set(blocks, true, heads, random), v_blocks.set(blocks, false, heads, random);
  std::vector<float> k_scale(tokens, 1.0f), v_scale(tokens, 1.0f);
  if (Scaled)
    for (int t = 0; t < tokens; ++t)
      k_scale[t] = 0.5f + random() % 256 / 256.0f, v_scale[t] = std::ldexp(1.0f + random() % 256 / 256.0f, t % 13 - 9);

  const DeviceArray<std::uint8_t> q_there(q.bytes), k_there(k.bytes), v_there(v.bytes);
  const DeviceArray<std::uint8_t> k_blocks_there(k_blocks.codes), v_blocks_there(v_blocks.codes);
  const DeviceArray<float> k_scale_there(k_scale), v_scale_there(v_scale);
  const DeviceArray<float> out_there(std::vector<float>(heads * rows * value_dims)),
      lse_there(std::vector<float>(heads * rows));
  const float scale = 0.5f / std::sqrt(float(KeyDims)) * 1.44269504f / float(unit);
  const auto bytes  = [](const auto& array) { return reinterpret_cast<const char*>(array.at); };
  matrix_decode<Storage, KeyDims, RowTiles, Scaled><<<heads, Arch::lanes>>>(
      {bytes(q_there), bytes(k_there), bytes(v_there), k_scale_there.at, v_scale_there.at, bytes(k_blocks_there),
       bytes(v_blocks_there), out_there.at, lse_there.at, heads * KeyDims * Storage::bits / 8,
       heads * value_dims * Storage::bits / 8, std::uint32_t(heads * k_blocks.row), std::uint32_t(heads * v_blocks.row),
       tokens, scale});
  check(hipDeviceSynchronize());
  const auto out = out_there.read(heads * rows * value_dims), lse = lse_there.read(heads * rows);

  double error = 0, size = 0, lse_error = 0, lse_bound = 0;
  for (int h = 0; h < heads; ++h)
    for (int r = 0; r < rows; ++r) {
      std::vector<double> p(tokens), o(value_dims);
      double most = -HUGE_VAL, sum = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int d = 0; d < KeyDims; ++d)
          p[t] += q[std::size_t(h * rows + r) * KeyDims + d] * k[std::size_t(t * heads + h) * KeyDims + d] *
                  k_blocks.at(t * heads + h, d);
        p[t] *= double(scale) * k_scale[t];
        most = std::max(most, p[t]);
      }
      for (double& x : p) sum += x = std::exp2(x - most);
      for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < value_dims; ++d)
          o[d] +=
              p[t] / sum * v_scale[t] * v[std::size_t(t * heads + h) * value_dims + d] * v_blocks.at(t * heads + h, d);
      constexpr int part = Storage::block_dims > 0 ? Storage::block_dims : value_dims;
      for (int first = 0; first < value_dims; first += part) {
        double part_error = 0, part_size = 0;
        for (int d = first; d < first + part; ++d) {
          const double got = out[std::size_t(h * rows + r) * value_dims + d], off = got - o[d];
          if (std::isnan(got) && std::isnan(o[d])) continue;
          part_error += off * off, part_size += o[d] * o[d];
        }
        error += part_size > 0 ? part_error / part_size : part_error, size += 1;
      }
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
                       : Storage::block_dims == 32           ? "mxfp4"
                       : Storage::block_dims == 16           ? "nvfp4"
                                                             : "int4";
  const char* kinds[] = {"", "", ", rising scales", ", wide scales", ", a scale of NaN"};
  std::printf("%s%s%s, %d dims, %d rows, %d tokens: relative error %.2g, of lse %.2g%s\n", name,
              Scaled ? " with scales" : "", kinds[static_cast<int>(blocks)], KeyDims, rows, tokens, error, lse_error,
              right ? "" : "  WRONG");
  return right;
}

template <class Storage, int KeyDims, int RowTiles>
bool agrees() {
  bool right = true;
  if constexpr (tuning_of<Storage, KeyDims, RowTiles>.lanes != 0)
    for (const int tokens : {1, 15, 16, 17, 33, 200}) {
      if constexpr (Storage::block_dims > 0) {
        for (const Blocks blocks : {Blocks::usual, Blocks::rising, Blocks::wide, Blocks::not_a_number})
          right &= agrees_at<Storage, KeyDims, RowTiles, false>(tokens, blocks);
      } else {
        right &= agrees_at<Storage, KeyDims, RowTiles, false>(tokens, Blocks::none);
        if constexpr (Storage::bits < 16) right &= agrees_at<Storage, KeyDims, RowTiles, true>(tokens, Blocks::none);
      }
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
  if constexpr (Arch::lanes == 64) right &= agrees<StoredMxfp4, 128, 1>();  // others need too many registers
  right &= all_agree<StoredNvfp4>();
  return right ? 0 : 1;
}
