// SPDX-License-Identifier: Apache-2.0
// Instances that may use fewer multiprocessors than the device has (green contexts), and a second device.
#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_CUDA)

#include "backends/cuda/stream.hpp"
#include "tests/decode/tuned_suite.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <optional>
#include <type_traits>
#include <vector>

namespace pagoda::test {
namespace {

/// A stream whose kernels run on a few multiprocessors of the current device. ok() is false if the driver has no green
/// contexts.
class GreenStream {
 public:
  explicit GreenStream(unsigned multiprocessors) {
    using detail::cuda_driver_entry;
    using GetDevice    = CUresult(CUdevice*, int);
    using GetResource  = CUresult(CUdevice, CUdevResource*, CUdevResourceType);
    using Split        = CUresult(CUdevResource*, unsigned*, const CUdevResource*, CUdevResource*, unsigned, unsigned);
    using Describe     = CUresult(CUdevResourceDesc*, CUdevResource*, unsigned);
    using Create       = CUresult(CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned);
    using CreateStream = CUresult(CUstream*, CUgreenCtx, unsigned, int);
    auto* const get_device    = cuda_driver_entry<GetDevice>("cuDeviceGet", 12040);
    auto* const get_resource  = cuda_driver_entry<GetResource>("cuDeviceGetDevResource", 12040);
    auto* const split         = cuda_driver_entry<Split>("cuDevSmResourceSplitByCount", 12040);
    auto* const describe      = cuda_driver_entry<Describe>("cuDevResourceGenerateDesc", 12040);
    auto* const create        = cuda_driver_entry<Create>("cuGreenCtxCreate", 12040);
    auto* const create_stream = cuda_driver_entry<CreateStream>("cuGreenCtxStreamCreate", 12050);
    destroy_                  = cuda_driver_entry<CUresult(CUgreenCtx)>("cuGreenCtxDestroy", 12040);
    if (!get_device || !get_resource || !split || !describe || !create || !create_stream || !destroy_) return;
    int id = 0;
    cudaGetDevice(&id);
    CUdevice device{};
    CUdevResource all{}, some{}, rest{};
    CUdevResourceDesc description{};
    unsigned groups = 1;
    if (get_device(&device, id) != CUDA_SUCCESS || get_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS)
      return;
    if (split(&some, &groups, &all, &rest, 0, multiprocessors) != CUDA_SUCCESS || groups != 1) return;
    if (describe(&description, &some, 1) != CUDA_SUCCESS) return;
    if (create(&context_, description, device, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) return;
    if (create_stream(&stream_, context_, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS) exec_.emplace(stream_);
  }
  GreenStream(const GreenStream&)            = delete;
  GreenStream& operator=(const GreenStream&) = delete;
  ~GreenStream() {
    if (exec_) exec_->fence();
    exec_.reset();
    if (stream_) cudaStreamDestroy(stream_);
    if (context_) destroy_(context_);
  }
  bool ok() const { return exec_.has_value(); }
  const Kokkos::Cuda& exec() const { return *exec_; }

 private:
  CUresult (*destroy_)(CUgreenCtx) = nullptr;
  CUgreenCtx context_{};
  CUstream stream_{};
  std::optional<Kokkos::Cuda> exec_;
};

/// Problems whose kernels require all blocks to run at the same time, and others.
template <class Param>
struct CudaDevices : Tuned<Param> {
  using T = typename Param::type;

  static std::vector<Shape> shapes() {
    std::vector<Shape> all{
        {.lengths = {20000}, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128},
        {.lengths = {9000, 30, 700}, .num_q_heads = 16, .num_kv_heads = 2, .head_dim = 128},
        {.lengths = std::vector<int>(40, 300), .num_q_heads = 8, .num_kv_heads = 8, .head_dim = 128}};
    if constexpr (std::is_same_v<T, half_t> || std::is_same_v<T, bfloat16_t>) {
      if (tuned::Device::current().sm90a)
        for (const Shape& shape : TunedMany<Param>::shapes({5000, 40, 700})) all.push_back(shape);
    }
    return all;
  }
  static Placement pages() { return {.layout = Layout::paged, .page_size = 64}; }
};
TYPED_TEST_SUITE(CudaDevices, TunedTypes, Names);

TYPED_TEST(CudaDevices, PlansOfFewMultiprocessors) {
  const GreenStream green(16);
  if (!green.ok()) GTEST_SKIP() << "the driver has no green contexts";
  ASSERT_LT(detail::CudaStream::multiprocessors(green.exec()), detail::CudaStream::multiprocessors(Kokkos::Cuda()));
  for (const Shape& asked : this->shapes()) {
    const Shape shape = this->taken(asked);
    const Sample<typename TypeParam::type> sample(shape);
    Scene<Kokkos::Cuda, typename TypeParam::type> scene(sample, this->pages(), green.exec());
    scene.options().backend = "tuned";
    const auto plan         = scene.plan();
    for (int call = 0; call < 3; ++call) {
      scene.poison_outputs();
      scene.decode(plan);
      EXPECT_TRUE(scene.right()) << describe(shape) << ", call " << call;
    }
    scene.poison_outputs();
    scene.decode(Kokkos::Cuda(), plan);  // more multiprocessors than the plan counts on
    Kokkos::Cuda().fence();
    EXPECT_TRUE(scene.right()) << describe(shape) << ", on the whole device";
  }
}

// A plan that counts on the whole device, used where its blocks may not all run at the same time: the generic kernel
// runs, which needs no such thing, or a plan that must be of the tuned backend refuses.
TYPED_TEST(CudaDevices, DecodesOnFewerMultiprocessorsThanPlanned) {
  const GreenStream green(16);
  if (!green.ok()) GTEST_SKIP() << "the driver has no green contexts";
  for (const Shape& asked : this->shapes()) {
    const Shape shape = this->taken(asked);
    const Sample<typename TypeParam::type> sample(shape);
    Scene<Kokkos::Cuda, typename TypeParam::type> scene(sample, this->pages());
    const auto plan = scene.plan();
    for (int call = 0; call < 3; ++call) {
      scene.poison_outputs();
      scene.exec().fence();
      scene.decode(call == 1 ? Kokkos::Cuda() : green.exec(), plan);
      Kokkos::fence();
      EXPECT_TRUE(scene.right()) << describe(shape) << ", call " << call;
    }
    scene.options().backend = "tuned";
    const auto tuned        = scene.plan();
    scene.exec().fence();
    expect_refusal([&] { scene.decode(green.exec(), tuned); },
                   {"exec may use fewer multiprocessors than the plan counts on"});
  }
}

// Plans with an exactness: the hand-tuned kernels run with fewer blocks, and the bits are the same.
TYPED_TEST(CudaDevices, ExactBitsOnFewerMultiprocessorsThanPlanned) {
  const GreenStream green(16);
  if (!green.ok()) GTEST_SKIP() << "the driver has no green contexts";
  for (const Shape& shape : this->shapes()) {
    const Sample<typename TypeParam::type> sample(shape);
    Scene<Kokkos::Cuda, typename TypeParam::type> scene(sample, this->pages());
    scene.options().exactness = Exactness::reproducible;
    const auto plan           = scene.plan();
    scene.poison_outputs();
    scene.decode(plan);
    EXPECT_TRUE(scene.right()) << describe(shape);
    const auto expected = scene.results();
    scene.poison_outputs();
    scene.exec().fence();
    scene.decode(green.exec(), plan);
    Kokkos::fence();
    EXPECT_TRUE(scene.right()) << describe(shape) << ", on fewer multiprocessors";
    EXPECT_EQ(scene.results() == expected, true) << describe(shape) << ", backend " << plan.backend();
  }
}

/// Instances of the second device. The first is the current one throughout.
TYPED_TEST(CudaDevices, PlansOfTheSecondDevice) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) GTEST_SKIP() << "there is one device";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t stream{};
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  {
    const Kokkos::Cuda second(stream);
    ASSERT_EQ(second.cuda_device(), 1);
    for (const Shape& asked : this->shapes()) {
      const Shape shape = this->taken(asked);
      const Sample<typename TypeParam::type> sample(shape);
      Scene<Kokkos::Cuda, typename TypeParam::type> scene(sample, this->pages(), second);
      Scene<Kokkos::Cuda, typename TypeParam::type> first(sample, this->pages());
      for (const char* const backend : {"tuned", "generic"}) {
        cudaSetDevice(0);
        scene.options().backend = first.options().backend = backend;
        const auto plan = scene.plan(), plan_of_first = first.plan();
        for (int call = 0; call < 2; ++call) {
          scene.poison_outputs();
          first.poison_outputs();
          scene.decode(plan);
          first.decode(plan_of_first);
          int current = -1;
          cudaGetDevice(&current);
          EXPECT_EQ(current, 0) << "the current device is the caller's";
          EXPECT_TRUE(scene.right()) << backend << ", second device: " << describe(shape);
          EXPECT_TRUE(first.right()) << backend << ", first device: " << describe(shape);
        }
        expect_refusal([&] { scene.decode(first.exec(), plan); }, {"exec is an instance of device 0"});
      }
    }
  }
  cudaSetDevice(1);
  cudaStreamDestroy(stream);
  cudaSetDevice(0);
}

}  // namespace
}  // namespace pagoda::test

#endif
