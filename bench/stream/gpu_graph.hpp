// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/stream/gpu_runtime.hpp"

#include <algorithm>
#include <vector>

namespace pagoda::bench::gpu {

/// A captured graph, timed as a whole. `launches` is called once, while the stream captures.
class Graph {
 public:
  template <class Launches>
  Graph(Stream stream, const Launches& launches) : stream_(stream) {
    PAGODA_GPU(Graph_t) graph = nullptr;
    check(PAGODA_GPU(StreamBeginCapture)(stream, PAGODA_GPU(StreamCaptureModeThreadLocal)), "StreamBeginCapture");
    try {
      launches();
    } catch (...) {  // ends the capture of the stream
      ignore(PAGODA_GPU(StreamEndCapture)(stream, &graph));
      ignore(PAGODA_GPU(GraphDestroy)(graph));
      throw;
    }
    check(PAGODA_GPU(StreamEndCapture)(stream, &graph), "StreamEndCapture");
    const Error made = PAGODA_GPU(GraphInstantiateWithFlags)(&exec_, graph, 0);
    ignore(PAGODA_GPU(GraphDestroy)(graph));
    check(made, "GraphInstantiate");
    check(PAGODA_GPU(EventCreate)(&begin_), "EventCreate");
    check(PAGODA_GPU(EventCreate)(&end_), "EventCreate");
  }
  ~Graph() {
    ignore(PAGODA_GPU(EventDestroy)(begin_));
    ignore(PAGODA_GPU(EventDestroy)(end_));
    ignore(PAGODA_GPU(GraphExecDestroy)(exec_));
  }
  Graph(const Graph&)            = delete;
  Graph& operator=(const Graph&) = delete;

  double seconds() const {
    float ms = 0;
    check(PAGODA_GPU(EventRecord)(begin_, stream_), "EventRecord");
    check(PAGODA_GPU(GraphLaunch)(exec_, stream_), "GraphLaunch");
    check(PAGODA_GPU(EventRecord)(end_, stream_), "EventRecord");
    check(PAGODA_GPU(EventSynchronize)(end_), "running a graph");
    check(PAGODA_GPU(EventElapsedTime)(&ms, begin_, end_), "EventElapsedTime");
    return ms * 1e-3;
  }

  /// Median of `samples` samples, after two that do not count. `before` runs before each, outside the time.
  template <class Before>
  double median_seconds(int samples, const Before& before) const {
    std::vector<double> x;
    for (int i = -2; i < samples; ++i) {
      before();
      const double s = seconds();
      if (i >= 0) x.push_back(s);
    }
    std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
    return x[x.size() / 2];
  }

 private:
  Stream stream_;
  PAGODA_GPU(GraphExec_t) exec_ = nullptr;
  PAGODA_GPU(Event_t) begin_ = nullptr, end_ = nullptr;
};

}  // namespace pagoda::bench::gpu
