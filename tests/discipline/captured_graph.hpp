// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cuda_runtime.h>

#include <cstddef>

namespace pagoda::test {

inline void check_cuda_call(cudaError_t status, const char* what) {
  ASSERT_EQ(status, cudaSuccess) << what << ": " << cudaGetErrorString(status);
}
#define PAGODA_TEST_CUDA(call) check_cuda_call(call, #call)

/// A captured decode, for replays.
class Graph {
 public:
  template <class Decode>
  Graph(cudaStream_t stream, cudaStreamCaptureMode mode, const Decode& decode) : stream_(stream) {
    PAGODA_TEST_CUDA(cudaStreamBeginCapture(stream, mode));
    decode();
    PAGODA_TEST_CUDA(cudaStreamEndCapture(stream, &graph_));
    if (graph_ == nullptr) return;
    PAGODA_TEST_CUDA(cudaGraphInstantiateWithFlags(&executable_, graph_, 0));
    PAGODA_TEST_CUDA(cudaGraphGetNodes(graph_, nullptr, &nodes_));
  }
  Graph(const Graph&)            = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable_) cudaGraphExecDestroy(executable_);
    if (graph_) cudaGraphDestroy(graph_);
  }
  bool ok() const { return executable_ != nullptr && nodes_ > 0; }
  void launch() const {
    PAGODA_TEST_CUDA(cudaGraphLaunch(executable_, stream_));
    PAGODA_TEST_CUDA(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_          = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::size_t nodes_          = 0;
};

}  // namespace pagoda::test
