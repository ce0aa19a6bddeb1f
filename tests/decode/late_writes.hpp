// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/scene.hpp"

#include <variant>

namespace pagoda::test {

/// Rows of bytes: of the newest token of every sequence and kv head, in the keys or the values of a paged cache.
struct NewestRows {
  std::byte* data;
  std::int64_t page, token, head, bytes;  ///< distances; bytes: of a row
  const int *seq_lens, *block_table;
  std::int64_t table_row, table_page;
  int page_size, num_kv_heads;

  static NewestRows of(const CacheRef& kv, const TensorRef& rows) {
    const auto size = static_cast<std::int64_t>(size_of(rows.type));
    return {static_cast<std::byte*>(rows.data),
            rows.stride[0] * size,
            rows.stride[1] * size,
            rows.stride[2] * size,
            rows.extent[3] * size,
            kv.seq_lens,
            kv.block_table,
            kv.table_row_stride,
            kv.table_page_stride,
            kv.page_size(),
            kv.num_kv_heads()};
  }
  /// Byte i of all such rows; null: its sequence is empty.
  KOKKOS_FUNCTION std::byte* at(std::int64_t i) const {
    const std::int64_t row = i / bytes, sequence = row / num_kv_heads;
    const int newest = seq_lens[sequence] - 1;
    if (newest < 0) return nullptr;
    const std::int64_t id = block_table[sequence * table_row + newest / page_size * table_page];
    return data + id * page + newest % page_size * token + row % num_kv_heads * head + i % bytes;
  }
};

/// Takes queries and newest tokens away, leaving NaNs, and brings them back late: in a kernel that lets the one behind
/// it start at once.
class LateWrites {
 public:
  using Bytes = Kokkos::View<std::byte*, Kokkos::CudaSpace>;

  template <class T>
  explicit LateWrites(Scene<Kokkos::Cuda, T>& scene) {
    using Query                = std::conditional_t<is_quantized_v<T>, half_t, T>;
    const CacheRef kv          = std::visit([](const auto& cache) { return cache.ref(); }, scene.cache());
    const auto q               = scene.q().template view<Query, 3>();
    const NewestRows places[2] = {NewestRows::of(kv, kv.k), NewestRows::of(kv, kv.v)};
    const std::int64_t rows    = std::int64_t(kv.batch) * kv.num_kv_heads();
    const std::int64_t bytes[] = {rows * places[0].bytes, rows * places[1].bytes,
                                  static_cast<std::int64_t>(q.size() * sizeof(Query))};
    const Work work{{places[0], places[1]},
                    reinterpret_cast<std::byte*>(q.data()),
                    {bytes[0], bytes[0] + bytes[1], bytes[0] + bytes[1] + bytes[2]},
                    kept_ = Bytes("Pagoda::test::kept", bytes[0] + bytes[1] + bytes[2])};
    const auto run = [&](auto tag, const char* label) {
      Kokkos::parallel_for(label, Kokkos::RangePolicy<Kokkos::Cuda, decltype(tag)>(scene.exec(), 0, work.ends[2]),
                           work);
    };
    run(Hide{}, "Pagoda::test::hide");
    scene.exec().fence();
    run(BringBack{}, "Pagoda::test::bring_back");
  }

  // What kernels are made of is public: nvcc names it outside of this class.
  struct Hide {};
  struct BringBack {};
  struct Work {
    NewestRows places[2];
    std::byte* queries;
    std::int64_t ends[3];
    Bytes kept;

    KOKKOS_FUNCTION std::byte* place(std::int64_t i) const {
      if (i < ends[0]) return places[0].at(i);
      if (i < ends[1]) return places[1].at(i - ends[0]);
      return queries + (i - ends[1]);
    }
    KOKKOS_FUNCTION void operator()(Hide, std::int64_t i) const {
      std::byte* const at = place(i);
      if (!at) return;
      kept(i) = *at;
      *at     = std::byte{0xff};  // every type's words of ones are NaNs
    }
    KOKKOS_FUNCTION void operator()(BringBack, std::int64_t i) const {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
      asm volatile("griddepcontrol.launch_dependents;");
#endif
      for (const long long start = clock64(); clock64() - start < 200000;) {
      }
#endif
      if (std::byte* const at = place(i)) *at = kept(i);
    }
  };

 private:
  Bytes kept_;
};

}  // namespace pagoda::test
