// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <cmath>
#include <fstream>
#include <string>

/// Attention of a real model (data/smollm2_attention.json names it). Its keys are far from N(0, 1), with norms up to
/// 16, scores from -22 to 9 and single probabilities of 0.92.
namespace pagoda::test {
namespace {

constexpr int query_tokens = 4, tokens = 500, q_heads = 9, kv_heads = 3, head_dim = 64;

/// One layer, with float64 results for the last four tokens of its sequence, from the program that made the file.
struct Layer {
  std::vector<half_t> q, k, v;
  std::vector<double> out, lse;
};

template <class T>
std::vector<T> read(std::istream& file, std::size_t count) {
  std::vector<T> values(count);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
  return values;
}

/// The file stores its parts layer by layer.
std::vector<Layer> read_layers() {
  std::ifstream file(PAGODA_TEST_DATA "/smollm2_attention.bin", std::ios::binary);
  std::vector<Layer> layers(2);
  for (Layer& layer : layers) {
    layer.q   = read<half_t>(file, query_tokens * q_heads * head_dim);
    layer.k   = read<half_t>(file, tokens * kv_heads * head_dim);
    layer.v   = read<half_t>(file, tokens * kv_heads * head_dim);
    layer.out = read<double>(file, query_tokens * q_heads * head_dim);
    layer.lse = read<double>(file, query_tokens * q_heads);
  }
  EXPECT_TRUE(file) << "cannot read " PAGODA_TEST_DATA "/smollm2_attention.bin";
  return layers;
}

/// The sequence up to token `length`, asked by its newest `count` tokens.
template <class T>
Sample<T> sample_of(const Layer& layer, int length, int count) {
  Sample<T> sample({.lengths      = {length},
                    .num_q_heads  = q_heads,
                    .num_kv_heads = kv_heads,
                    .head_dim     = head_dim,
                    .query_lens   = {count}});
  for (int t = 0; t < length; ++t) {
    for (int h = 0; h < kv_heads; ++h) {
      for (int d = 0; d < head_dim; ++d) {
        const int i              = (t * kv_heads + h) * head_dim + d;
        sample.key(0, t, h)[d]   = T(static_cast<float>(layer.k[i]));
        sample.value(0, t, h)[d] = T(static_cast<float>(layer.v[i]));
      }
    }
  }
  const int first = query_tokens - (tokens - length) - count;
  for (int i = 0; i < count; ++i)
    for (int h = 0; h < q_heads; ++h)
      for (int d = 0; d < head_dim; ++d)
        sample.query(i, h)[d] = rounded(layer.q[((first + i) * q_heads + h) * head_dim + d], sample.q_type());
  return sample;
}

template <class Param>
struct RealModel : testing::Test {};
TYPED_TEST_SUITE(RealModel, SpacesAndTypes, Names);

const std::vector<Placement> layouts_of_model = {{.layout = Layout::contiguous},
                                                 {.layout = Layout::paged},
                                                 {.layout = Layout::csr, .page_size = 7, .order = KVOrder::HND}};

TYPED_TEST(RealModel, FourTokensAtOnce) {
  using T = typename TypeParam::type;
  for (const Layer& layer : read_layers())
    expect_right<typename TypeParam::space>(sample_of<T>(layer, tokens, query_tokens), layouts_of_model);
}

TYPED_TEST(RealModel, OneTokenAfterTheOther) {
  using T = typename TypeParam::type;
  for (const Layer& layer : read_layers())
    for (int length = tokens - query_tokens + 1; length <= tokens; ++length)
      expect_right<typename TypeParam::space>(sample_of<T>(layer, length, 1), layouts_of_model);
}

// The reference of all tests agrees with results from another program.
TEST(RealModelReference, AgreesWithTheFile) {
  for (const Layer& layer : read_layers()) {
    const Sample<double> sample = sample_of<double>(layer, tokens, query_tokens);
    for (std::size_t i = 0; i < sample.rows().size(); ++i) {
      EXPECT_NEAR(sample.rows()[i].lse, layer.lse[i], 1e-12);
      for (int d = 0; d < head_dim; ++d)
        EXPECT_NEAR(sample.rows()[i].out[d], layer.out[i * head_dim + d], 1e-13 + 1e-12 * sample.rows()[i].norm);
    }
  }
}

}  // namespace
}  // namespace pagoda::test
