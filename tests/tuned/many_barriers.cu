// SPDX-License-Identifier: Apache-2.0
// Why ci/sanitize.sh tells synccheck how many barriers a block has. The kernel is correct, and the tool makes it fail
// (compute-sanitizer 2025.3.1 on an H100: "Detected overflow of tracked cuda::barrier structures", then "unspecified
// launch failure"):
//   nvcc -std=c++20 -arch=sm_90 -o many_barriers tests/tuned/many_barriers.cu
//   ./many_barriers                                                                  # passes
//   compute-sanitizer --tool synccheck ./many_barriers                               # fails
//   compute-sanitizer --tool synccheck --num-cuda-barriers 64 ./many_barriers        # passes
#include <cstdint>
#include <cstdio>

/// Eight warps, each with six barriers of its own, as the hand-tuned kernels have. A warp uses each of them once.
__global__ void __launch_bounds__(256) use_barriers() {
  __shared__ std::uint64_t barriers[48];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers + 6 * warp));
  if (lane < 6) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at + 8 * lane) : "memory");
  __syncwarp();
  for (int i = 0; i < 6; ++i) {
    if (lane == i) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at + 8 * i) : "memory");
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n"
        "}" ::"r"(at + 8 * i)
        : "memory");
  }
}

int main() {
  use_barriers<<<132, 256>>>();
  const cudaError_t error = cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : 1;
}
