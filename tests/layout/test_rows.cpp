// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <climits>
#include <cstring>

namespace pagoda::test {
namespace {

/// Reads all keys and values of a batch through a layout, on the device: (entry, token, head, dim), as double.
template <class Space, class KV>
struct ReadAll {
  using Memory = typename Space::memory_space;
  KV kv;
  Kokkos::View<double****, Memory> k, v;
  Kokkos::View<int*, Memory> lengths;

  ReadAll(const KV& cache, int batch, int tokens)
      : kv(cache),
        k("keys", batch, tokens, cache.k.extent(2), cache.ref().head_dim()),
        v("values", batch, tokens, cache.v.extent(2), cache.ref().head_dim_v()),
        lengths("lengths", batch) {}

  KOKKOS_FUNCTION void operator()(int b) const {
    lengths(b) = kv.seq_len(b);
    for (int t = 0; t < kv.seq_len(b); ++t) {
      for (int h = 0; h < static_cast<int>(k.extent(2)); ++h) {
        for (int d = 0; d < static_cast<int>(k.extent(3)); ++d) k(b, t, h, d) = static_cast<double>(kv.key(b, t, h, d));
        for (int d = 0; d < static_cast<int>(v.extent(3)); ++d)
          v(b, t, h, d) = static_cast<double>(kv.value(b, t, h, d));
      }
    }
  }
};

/// The value of dim d of a row. Quantized numbers are multiplied by their scale in float.
template <class T>
double meant(const T* row, int d, float scale, const typename Sample<T>::BlockScale* blocks) {
  if constexpr (block_dims_v<T> > 0) {
    return static_cast<float>(load_dim(row, d)) * scale * static_cast<float>(blocks[d / block_dims_v<T>]);
  } else if constexpr (is_quantized_v<T>) {
    return static_cast<float>(load_dim(row, d)) * scale;
  } else {
    return load_dim(row, d);
  }
}

template <class Space, class T, class KV>
void expect_rows(const Sample<T>& sample, const KV& kv) {
  const std::vector<int>& lengths = sample.shape().lengths;
  ASSERT_EQ(kv.batch(), sample.batch());
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  EXPECT_GE(kv.max_seq_len(), longest);
  const ReadAll<Space, KV> read(kv, sample.batch(), longest);
  Kokkos::parallel_for("read all", Kokkos::RangePolicy<Space>(0, sample.batch()), read);
  const auto k = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), read.k);
  const auto v = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), read.v);
  const auto n = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), read.lengths);
  int wrong    = 0;
  for (int b = 0; b < sample.batch(); ++b) {
    EXPECT_EQ(n(b), lengths[b]);
    for (int t = 0; t < lengths[b]; ++t) {
      for (int h = 0; h < sample.shape().num_kv_heads; ++h) {
        for (int d = 0; d < sample.shape().head_dim; ++d)
          wrong +=
              k(b, t, h, d) != meant(sample.key(b, t, h), d, sample.key_scale(b, t, h), sample.key_blocks(b, t, h));
        for (int d = 0; d < sample.head_dim_v(); ++d)
          wrong += v(b, t, h, d) !=
                   meant(sample.value(b, t, h), d, sample.value_scale(b, t, h), sample.value_blocks(b, t, h));
      }
    }
  }
  EXPECT_EQ(wrong, 0) << "elements were not where the layout says";
}

template <class Param>
struct Rows : testing::Test {};
TYPED_TEST_SUITE(Rows, SpacesAndTypes, Names);

TYPED_TEST(Rows, LieWhereTheSceneLaidThem) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(
      {.lengths = {33, 0, 7, 64}, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 12, .head_dim_v = 5});
  for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr}) {
    for (const KVOrder order : {KVOrder::NHD, KVOrder::HND}) {
      for (const Strides strides : {Strides::dense, Strides::padded, Strides::left}) {
        for (const bool indirect : {false, true}) {
          const Placement placement{
              .layout = layout, .page_size = 7, .order = order, .strides = strides, .indirect = indirect};
          SCOPED_TRACE(describe(placement));
          const Scene<Space, T> scene(sample, placement);
          std::visit([&](const auto& kv) { expect_rows<Space>(sample, kv); }, scene.cache());
        }
      }
    }
  }
}

#if defined(PAGODA_TEST_QUANTIZED)
template <class Param>
struct QuantizedRows : testing::Test {};
TYPED_TEST_SUITE(QuantizedRows, SpacesAndQuantizedTypes, Names);

// Layouts return scaled numbers, for every kind of scale.
TYPED_TEST(QuantizedRows, AreTheNumbersThatAreMeant) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const Scales scales : {Scales::per_tensor, Scales::per_head, Scales::per_token_and_head}) {
    const Sample<T> sample({.lengths      = {33, 0, 7, 64},
                            .num_q_heads  = 3,
                            .num_kv_heads = 3,
                            .head_dim     = 70,
                            .head_dim_v   = 38,
                            .k_scales     = scales,
                            .v_scales     = scales});
    for (const Layout layout : {Layout::contiguous, Layout::paged, Layout::csr}) {
      for (const KVOrder order : {KVOrder::NHD, KVOrder::HND}) {
        for (const Strides strides : {Strides::dense, Strides::padded, Strides::left}) {
          const Placement placement{.layout      = layout,
                                    .page_size   = 7,
                                    .order       = order,
                                    .scale_order = order,
                                    .strides     = strides,
                                    .indirect    = true};
          SCOPED_TRACE(describe(placement));
          const Scene<Space, T> scene(sample, placement);
          std::visit([&](const auto& kv) { expect_rows<Space>(sample, kv); }, scene.cache());
        }
      }
    }
  }
}
#endif

TYPED_TEST(Rows, ValuesMayBeAPrefixOfTheKeys) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {33, 7}, .head_dim = 12, .head_dim_v = 5, .values_in_keys = true});
  const Scene<Space, T> scene(sample, {.layout = Layout::paged});
  std::visit([&](const auto& kv) { expect_rows<Space>(sample, kv); }, scene.cache());
}

// Two entries of a batch may read one sequence: beams that still share all tokens.
TYPED_TEST(Rows, OneSequenceTwiceInABatch) {
  using T      = typename TypeParam::type;
  using Space  = typename TypeParam::space;
  using Memory = typename Space::memory_space;
  const Sample<T> two({.lengths = {90, 20}, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 16});
  const Scene<Space, T> scene(two);
  const auto& of_two = std::get<ContiguousKV<T, Memory>>(scene.cache());
  const Ints<Space> ids(scene.exec(), {1, 0, 1, 1});
  const ContiguousKV<T, Memory> kv(of_two.k, of_two.v, of_two.seq_lens, KVOrder::NHD, ids.view());
  EXPECT_EQ(kv.batch(), 4);

  Array<Space> q(dtype_v<T>, {4, 2, 16}, Strides::dense), out(dtype_v<T>, {4, 2, 16}, Strides::dense);
  for (int b = 0; b < 4; ++b)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < 16; ++d) q.set({b, h, d}, two.query(b == 1 ? 0 : 1, h)[d]);
  q.upload(scene.exec()), out.upload(scene.exec());
  const auto plan = pagoda::plan(scene.exec(), kv, {.num_q_heads = 2});
  pagoda::decode(scene.exec(), plan, q.template view<const T, 3>(), kv, out.template view<T, 3>());
  out.download(scene.exec());
  for (int h = 0; h < 2; ++h)
    for (int d = 0; d < 16; ++d)
      EXPECT_TRUE(out.get({0, h, d}) == out.get({2, h, d}) && out.get({0, h, d}) == out.get({3, h, d}) &&
                  out.get({0, h, d}) != out.get({1, h, d}));
}

}  // namespace
}  // namespace pagoda::test
