// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/scene.hpp"

#include <cuda_runtime.h>

#include <variant>
#include <vector>

namespace pagoda::test {

/// The unit of copies: 16 bytes.
struct alignas(16) Chunk {
  std::uint32_t words[4];
};

/// The keys or the values of the newest `tokens` tokens of every sequence and kv head of a paged cache, as chunks.
struct NewestRows {
  std::byte* data;
  std::int64_t page, token, head;  ///< distances in bytes
  const int *seq_lens, *block_table;
  std::int64_t table_row, table_page;
  int page_size, num_kv_heads, num_sequences, tokens, row_chunks;

  static NewestRows of(const CacheRef& kv, const TensorRef& rows, int tokens) {
    const auto size = static_cast<std::int64_t>(size_of(rows.type));
    return {static_cast<std::byte*>(rows.data),
            rows.stride[0] * size,
            rows.stride[1] * size,
            rows.stride[2] * size,
            kv.seq_lens,
            kv.block_table,
            kv.table_row_stride,
            kv.table_page_stride,
            kv.page_size(),
            kv.num_kv_heads(),
            kv.batch,
            tokens,
            static_cast<int>(rows.extent[3] * size / static_cast<std::int64_t>(sizeof(Chunk)))};
  }
  KOKKOS_FUNCTION int count() const { return num_sequences * tokens * num_kv_heads * row_chunks; }
  /// Null: the sequence has fewer tokens, or no query token sees the page (Scene gives it no id).
  KOKKOS_FUNCTION Chunk* at(int i) const {
    const int row = i / row_chunks, head_index = row % num_kv_heads, age = row / num_kv_heads % tokens;
    const int sequence = row / num_kv_heads / tokens, t = seq_lens[sequence] - 1 - age;
    if (t < 0) return nullptr;
    const std::int64_t id = block_table[sequence * table_row + t / page_size * table_page];
    if (id < 0) return nullptr;
    return reinterpret_cast<Chunk*>(data + id * page + t % page_size * token + head_index * head) + i % row_chunks;
  }
};

/// Replaces the queries and the newest tokens of each sequence by NaNs. A kernel before the decode lets it start at
/// once, and restores them late. Both are one graph: outside of graphs, CUDA 13.0 starts a cooperative launch only when
/// the kernel before has ended. The late kernel is one block: the decode, which starts only when all of its blocks fit,
/// finds room on the other multiprocessors.
class LateWrites {
 public:
  using Chunks = Kokkos::View<Chunk*, Kokkos::CudaSpace>;

  /// tokens: number of late tokens of each sequence.
  template <class T>
  static void decode(Scene<Kokkos::Cuda, T>& scene, const Plan<Kokkos::Cuda>& plan, int tokens) {
    using Query       = std::conditional_t<is_quantized_v<T>, half_t, T>;
    const CacheRef kv = std::visit([](const auto& cache) { return cache.ref(); }, scene.cache());
    const auto q      = scene.q().template view<Query, 3>();
    Work work{};
    work.keys = NewestRows::of(kv, kv.k, tokens), work.values = NewestRows::of(kv, kv.v, tokens);
    work.queries = reinterpret_cast<Chunk*>(q.data());
    work.count   = work.keys.count() + work.values.count() + static_cast<int>(q.size() * sizeof(Query) / sizeof(Chunk));
    work.kept    = Chunks("Pagoda::test::kept", work.count);
    const auto run = [&](auto tag, const char* label) {
      Kokkos::parallel_for(label, Kokkos::TeamPolicy<Kokkos::Cuda, decltype(tag)>(scene.exec(), 1, threads), work);
    };
    run(Hide{}, "Pagoda::test::hide");
    scene.exec().fence();
    const cudaStream_t stream = scene.exec().cuda_stream();
    cudaGraph_t graph         = nullptr;
    cudaGraphExec_t launched  = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    run(BringBack{}, "Pagoda::test::bring_back");
    scene.decode(plan);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&launched, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(launched, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaGraphExecDestroy(launched);
    cudaGraphDestroy(graph);
  }

  // Public, because nvcc names the kernels' types outside of this class.
  static constexpr int threads = 512;
  struct Hide {};
  struct BringBack {};
  struct Work {
    NewestRows keys, values;
    Chunk* queries;
    int count;
    Chunks kept;
    using Member = Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;

    KOKKOS_FUNCTION Chunk* place(int i) const {
      if (i < keys.count()) return keys.at(i);
      i -= keys.count();
      return i < values.count() ? values.at(i) : queries + (i - values.count());
    }
    KOKKOS_FUNCTION void operator()(Hide, const Member& team) const {
      for (int i = team.team_rank(); i < count; i += threads) {
        Chunk* const at = place(i);
        if (!at) continue;
        kept(i) = *at;
        *at     = {{~0u, ~0u, ~0u, ~0u}};  // NaNs of every type
      }
    }
    KOKKOS_FUNCTION void operator()(BringBack, const Member& team) const {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
      asm volatile("griddepcontrol.launch_dependents;");
#endif
      for (const long long start = clock64(); clock64() - start < 100000;) {
      }
#endif
      for (int i = team.team_rank(); i < count; i += threads)
        if (Chunk* const at = place(i)) *at = kept(i);
    }
  };
};

/// The hand-tuned kernels, launched programmatically, with each of these numbers of late tokens in turn.
template <class T>
void expect_right_with_late_tokens(const Shape& shape, const Placement& placement,
                                   const std::vector<int>& late_tokens) {
  const Sample<T> sample(shape);
  Scene<Kokkos::Cuda, T> scene(sample, placement);
  scene.options().backend             = "tuned";
  scene.options().programmatic_launch = true;
  const auto plan                     = scene.plan();
  for (const int tokens : late_tokens) {
    scene.poison_outputs();
    LateWrites::decode(scene, plan, tokens);
    EXPECT_TRUE(scene.right()) << describe(shape) << ", " << tokens << " late tokens";
  }
}

}  // namespace pagoda::test
