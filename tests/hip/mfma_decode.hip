// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/mfma_tile.hpp"
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
#include <vector>

/// Attention by hip::MfmaTile alone, without Kokkos: one wave takes one kv head of a contiguous cache. ci/checks.sh hip
/// compiles this file for each architecture with matrix instructions and inspects the code (check_kernels.py). The
/// program compares the results with attention in float64; it needs a GPU.
namespace {

using namespace pagoda::detail::hip;

struct Args {
  const char *q, *k, *v;      ///< q: [head][rows][DimTile]; k, v: [token][head][DimTile]
  float *out, *lse;           ///< [head][rows][DimTile], [head][rows]; lse to base 2
  std::uint32_t token_bytes;  ///< from a token to the next
  int tokens;
  float scale;  ///< of scores to base 2
};

template <MfmaType Type, int DimTile, int RowTiles>
__global__ __launch_bounds__(64, mfma_tuning(DimTile, RowTiles).waves_per_simd) void mfma_decode(Args args) {
  using Tile = MfmaTile<Type, DimTile, RowTiles, mfma_tuning(DimTile, RowTiles).token_blocks>;
  Tile tile(static_cast<int>(threadIdx.x));
  const char *const keys = args.k + 2 * DimTile * blockIdx.x, *const values = args.v + 2 * DimTile * blockIdx.x;
  typename Tile::Queries q;
  PAGODA_UNROLL_ALL
  for (int n = 0; n < RowTiles; ++n)
    for (int s = 0; s < Tile::key_loads; ++s)
      q.at[n][s] = load_global<Words4>(args.q + 2 * DimTile * (Tile::rows * blockIdx.x + 16 * n + tile.column()) +
                                       16 * tile.key_chunk(s));
  const auto offset    = [&](int token) { return std::min(token, args.tokens - 1) * args.token_bytes; };
  const auto load_keys = [&](int u) {
    tile.load_keys(
        [&](int b, int s) { return keys + (offset(u + 16 * b + tile.column()) + 16 * tile.key_chunk(0)) + 64 * s; });
  };
  const auto load_values = [&](int u) {
    tile.load_values([&](int b, int i, int h) {
      return values + (offset(u + tile.token(b, i)) + 2 * Tile::value_dim(0, tile.column())) +
             2 * Tile::value_dim(h, 0);
    });
  };
  load_keys(0);
  load_values(0);
  for (int u = 0; u < args.tokens; u += Tile::tokens) {
    tile.multiply_keys(q);
    load_keys(u + Tile::tokens);
    keep_order();
    tile.finish_scores(args.scale, args.tokens - u);
    tile.softmax(false);
    tile.multiply_values();
    load_values(u + Tile::tokens);
    keep_order();
  }
  tile.sum_lanes();
  PAGODA_UNROLL_ALL
  for (int n = 0; n < RowTiles; ++n) {
    const int row = Tile::rows * blockIdx.x + 16 * n + tile.column();
    for (int h = 0; h < Tile::value_loads; ++h)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < Tile::value_dims; ++j)
          args.out[row * DimTile + Tile::value_dim(h, 4 * tile.group() + i) + j] =
              tile.output(n, h, i, j) / tile.sum(n);
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
template <MfmaType Type>
std::uint16_t to_bits(float x) {
  if constexpr (Type == MfmaType::fp16) return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x));
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <MfmaType Type>
double to_double(std::uint16_t bits) {
  if constexpr (Type == MfmaType::fp16) return __builtin_bit_cast(_Float16, bits);
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

/// Returns whether a decode of `tokens` tokens agrees with float64.
template <MfmaType Type, int DimTile, int RowTiles>
bool agrees(int tokens) {
  constexpr int heads = 2, rows = 16 * RowTiles;
  std::mt19937 random(static_cast<unsigned>(DimTile + RowTiles + tokens));
  std::normal_distribution<float> normal;
  const auto fill = [&](std::size_t count) {
    std::vector<std::uint16_t> x(count);
    for (auto& bits : x) bits = to_bits<Type>(normal(random));
    return x;
  };
  const auto q = fill(std::size_t(heads) * rows * DimTile), v = fill(std::size_t(heads) * tokens * DimTile);
  auto k = fill(std::size_t(heads) * tokens * DimTile);
  // Each row has a heavy token of its own, so that rows and tokens that are exchanged show.
  for (int h = 0; h < heads; ++h)
    for (int r = 0; r < rows; ++r)
      for (int d = 0; d < DimTile; ++d)
        k[std::size_t(r * 7 % tokens * heads + h) * DimTile + d] = q[std::size_t(h * rows + r) * DimTile + d];

  const DeviceArray<std::uint16_t> q_there(q), k_there(k), v_there(v);
  const DeviceArray<float> out_there(std::vector<float>(q.size())), lse_there(std::vector<float>(heads * rows));
  const float scale = 0.5f / std::sqrt(float(DimTile)) * 1.44269504f;
  const auto bytes  = [](const auto& array) { return reinterpret_cast<const char*>(array.at); };
  mfma_decode<Type, DimTile, RowTiles><<<heads, 64>>>(
      {bytes(q_there), bytes(k_there), bytes(v_there), out_there.at, lse_there.at, heads * DimTile * 2, tokens, scale});
  check(hipDeviceSynchronize());
  const auto out = out_there.read(q.size()), lse = lse_there.read(heads * rows);

  double error = 0, size = 0, lse_error = 0;
  for (int h = 0; h < heads; ++h)
    for (int r = 0; r < rows; ++r) {
      const auto at = [&](const std::vector<std::uint16_t>& x, int t, int d) {
        return to_double<Type>(x[std::size_t(t * heads + h) * DimTile + d]);
      };
      std::vector<double> p(tokens), o(DimTile);
      double most = -HUGE_VAL, sum = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int d = 0; d < DimTile; ++d)
          p[t] += to_double<Type>(q[std::size_t(h * rows + r) * DimTile + d]) * at(k, t, d) * scale;
        most = std::max(most, p[t]);
      }
      for (double& x : p) sum += x = std::exp2(x - most);
      for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < DimTile; ++d) o[d] += p[t] / sum * at(v, t, d);
      for (int d = 0; d < DimTile; ++d) {
        const double off = out[std::size_t(h * rows + r) * DimTile + d] - o[d];
        error += off * off, size += o[d] * o[d];
      }
      lse_error = std::max(lse_error, std::abs(lse[h * rows + r] - (most + std::log2(sum))));
    }
  error              = std::sqrt(error / size);
  const double bound = Type == MfmaType::fp16 ? 0x1p-10 : 0x1p-7;  // twice the rounding of the probabilities
  const bool right   = error <= bound && lse_error <= 2e-5;
  std::printf("%s, %d dims, %d rows, %d tokens: relative error %.2g, of lse %.2g%s\n",
              Type == MfmaType::fp16 ? "fp16" : "bf16", DimTile, rows, tokens, error, lse_error,
              right ? "" : "  WRONG");
  return right;
}

template <MfmaType Type>
bool all_agree() {
  bool right = true;
  for (const int tokens : {1, 15, 16, 17, 33, 200}) {
    right &= agrees<Type, 64, 1>(tokens);
    right &= agrees<Type, 64, 2>(tokens);
    right &= agrees<Type, 128, 1>(tokens);
    right &= agrees<Type, 128, 2>(tokens);
    right &= agrees<Type, 256, 1>(tokens);
  }
  return right;
}

}  // namespace

int main() {
  const bool fp16 = all_agree<MfmaType::fp16>(), bf16 = all_agree<MfmaType::bf16>();
  return fp16 && bf16 ? 0 : 1;
}
