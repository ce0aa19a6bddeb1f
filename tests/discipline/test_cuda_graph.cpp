// SPDX-License-Identifier: Apache-2.0
#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA)

#include "tests/discipline/captured_graph.hpp"
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

namespace pagoda::test {
namespace {

/// Captures the very first decode of a plan, and compares each replay with the reference and, bit for bit, with an
/// eager decode of another plan.
template <class T>
void expect_capturable(const Shape& shape, Layout layout, cudaStreamCaptureMode mode) {
  using Space = Kokkos::Cuda;
  const Sample<T> sample(shape);
  Scene<Space, T> scene(sample, {.layout = layout}, instances<Space>()[0]);
  const auto plan = scene.plan(), eager = scene.plan();
  scene.exec().fence();
  const Graph graph(scene.exec().cuda_stream(), mode, [&] { scene.decode(plan); });
  ASSERT_TRUE(graph.ok());

  const auto expect_same = [&](const Sample<T>& now, const char* what) {
    scene.poison_outputs();
    graph.launch();
    EXPECT_TRUE(scene.right(now)) << what;
    const auto replayed = scene.results();
    scene.poison_outputs();
    scene.decode(eager);
    EXPECT_EQ(scene.results(), replayed) << what;
  };
  expect_same(sample, "as captured");
  expect_same(sample, "once more");
  if (layout != Layout::contiguous) {
    scene.shuffle_pages(77);
    expect_same(sample, "pages moved");
  }
  Shape shorter = shape;
  for (int& length : shorter.lengths) length -= length / 3;
  // Only the lengths differ; tokens and queries stay the same.
  scene.set_lengths(shorter.lengths);
  expect_same(Sample<T>(shorter), "shorter");
  shorter.lengths.assign(shape.lengths.size(), 0);
  scene.set_lengths(shorter.lengths);
  expect_same(Sample<T>(shorter), "empty");
  scene.set_lengths(shape.lengths);
  expect_same(sample, "as captured, again");
}

template <class Param>
struct CudaGraph : testing::Test {};
TYPED_TEST_SUITE(CudaGraph, lists::Plain::of<Kokkos::Cuda>, Names);

const Shape cut{.lengths = {20000, 7, 0}, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
const Shape scored{.lengths = {5000, 40}, .head_dim = 64, .query_lens = {3, 3}, .alibi = true, .sinks = true};
const Shape narrow{.lengths = {500, 40}, .head_dim = 33};

// In the strictest capture mode no thread of the process may make a call that is not allowed during capture.
TYPED_TEST(CudaGraph, CapturedRightAfterPlanStrictly) {
  using T = typename TypeParam::type;
  expect_capturable<T>(cut, Layout::paged, cudaStreamCaptureModeGlobal);
  expect_capturable<T>(scored, Layout::contiguous, cudaStreamCaptureModeGlobal);
  expect_capturable<T>(narrow, Layout::csr, cudaStreamCaptureModeGlobal);
}

TYPED_TEST(CudaGraph, CapturedRightAfterPlan) {
  using T = typename TypeParam::type;
  expect_capturable<T>(cut, Layout::csr, cudaStreamCaptureModeThreadLocal);
  expect_capturable<T>(scored, Layout::paged, cudaStreamCaptureModeThreadLocal);
  expect_capturable<T>(narrow, Layout::contiguous, cudaStreamCaptureModeThreadLocal);
}

}  // namespace
}  // namespace pagoda::test

#endif
