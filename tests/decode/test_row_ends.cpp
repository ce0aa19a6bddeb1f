// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

/// Caches that end where readable memory ends: a host's kernels must not read beyond the last row, whatever its length.
namespace pagoda::test {
namespace {

/// Memory whose last byte is followed by a page that cannot be read, and whose first byte is preceded by another.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    inner_                 = (bytes + page - 1) / page * page;
    all_                   = inner_ + 2 * page;
    base_                  = static_cast<char*>(mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ok_                    = base_ != MAP_FAILED && mprotect(base_ + page, inner_, PROT_READ | PROT_WRITE) == 0;
    first_                 = base_ + page;
  }
  Guarded(const Guarded&)            = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    if (base_ != MAP_FAILED) munmap(base_, all_);
  }
  bool ok() const { return ok_; }
  char* at_begin() const { return first_; }
  char* at_end() const { return first_ + inner_ - bytes_; }

 private:
  std::size_t bytes_, inner_ = 0, all_ = 0;
  char *base_ = nullptr, *first_ = nullptr;
  bool ok_ = false;
};

template <class Param>
struct RowEnds : testing::Test {};
using HostTypes = lists::Join<lists::Plain::of<Host>, lists::Quantized::of<Host>>::type;
TYPED_TEST_SUITE(RowEnds, HostTypes, Names);

template <class T>
void expect_right_at_the_end(int dims, int dims_v, int q_heads, DType q_type) {
  constexpr int length = 37, kv_heads = 2;
  const Sample<T> sample({.lengths      = {length},
                          .num_q_heads  = q_heads,
                          .num_kv_heads = kv_heads,
                          .head_dim     = dims,
                          .head_dim_v   = dims_v,
                          .q_type       = q_type,
                          .k_scales     = Scales::per_tensor,
                          .v_scales     = Scales::per_tensor});
  const int k_row = Sample<T>::elements(dims), v_row = Sample<T>::elements(dims_v);
  const std::size_t rows = std::size_t(length) * kv_heads;
  const Guarded k_memory(rows * k_row * sizeof(T)), v_memory(rows * v_row * sizeof(T));
  ASSERT_TRUE(k_memory.ok() && v_memory.ok());
  const Host exec;
  const Ints<Host> lengths(exec, {length});
  for (const bool at_end : {true, false}) {
    T* const k = reinterpret_cast<T*>(at_end ? k_memory.at_end() : k_memory.at_begin());
    T* const v = reinterpret_cast<T*>(at_end ? v_memory.at_end() : v_memory.at_begin());
    std::memcpy(static_cast<void*>(k), sample.key(0, 0, 0), rows * k_row * sizeof(T));
    std::memcpy(static_cast<void*>(v), sample.value(0, 0, 0), rows * v_row * sizeof(T));
    using Rows = Kokkos::View<const T****, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
    const ContiguousKV<T, Kokkos::HostSpace> plain(Rows(k, 1, length, kv_heads, k_row),
                                                   Rows(v, 1, length, kv_heads, v_row), lengths.view());
    const Kokkos::View<float, Kokkos::HostSpace> k_scale("test scale"),
        v_scale("test scale");  // kv does not own them
    const auto kv = [&] {
      if constexpr (block_dims_v<T> > 0) {
        k_scale() = sample.key_scale(0, 0, 0), v_scale() = sample.value_scale(0, 0, 0);
        using Blocks =
            Kokkos::View<const block_scale_t<T>****, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
        auto scales = block_scales(Blocks(sample.key_blocks(0, 0, 0), 1, length, kv_heads, sample.blocks(dims)),
                                   Blocks(sample.value_blocks(0, 0, 0), 1, length, kv_heads, sample.blocks(dims_v)));
        if (sample.shape().k_scales == Scales::per_tensor) scales.per_tensor = per_tensor_scales(k_scale, v_scale);
        return plain.with_scales(scales);
      } else if constexpr (is_quantized_v<T>) {
        k_scale() = sample.key_scale(0, 0, 0), v_scale() = sample.value_scale(0, 0, 0);
        return plain.with_scales(per_tensor_scales(Kokkos::View<const float, Kokkos::HostSpace>(k_scale),
                                                   Kokkos::View<const float, Kokkos::HostSpace>(v_scale)));
      } else {
        return plain;
      }
    }();
    Array<Host> q(q_type, {1, q_heads, dims}, Strides::dense), out(DType::fp32, {1, q_heads, dims_v}, Strides::dense),
        lse(DType::fp32, {1, q_heads}, Strides::dense);
    for (int h = 0; h < q_heads; ++h)
      for (int d = 0; d < dims; ++d) q.set({0, h, d}, sample.query(0, h)[d]);
    q.upload(exec), out.upload(exec), lse.upload(exec);
    const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
#if !defined(KOKKOS_ENABLE_CUDA)  // nvcc has no vector types
    EXPECT_EQ(plan.describe().find("element-wise"), std::string::npos) << plan.describe();
#endif
    with_type(q_type, [&]<class Q>(Q*) {
      pagoda::decode(exec, plan, q.template view<const Q, 3>(), kv, out.template view<float, 3>(),
                     lse.template view<float, 2>());
    });
    exec.fence();
    out.download(exec), lse.download(exec);
    const Comparison difference = compare<Host>(sample, out, &lse, plan.schedule().kernel.probability_type);
    EXPECT_EQ(difference.wrong, 0) << describe(sample.shape()) << difference.report;
  }
}

TYPED_TEST(RowEnds, AreNotReadBeyond) {
  using T = typename TypeParam::type;
  // bf16 queries have a separate path: products of pairs.
  const DType q_type = dtype_v<T> == DType::bf16 ? DType::bf16 : DType::fp32;
  for (const int q_heads : {2, 8, 16})
    for (const int dim : {2, 4, 10, 14, 16, 18, 30, 34, 72, 96, 100, 120, 126, 128, 130, 250})
      expect_right_at_the_end<T>(dim, dim, q_heads, q_type);
  expect_right_at_the_end<T>(34, 100, 8, q_type);
  expect_right_at_the_end<T>(100, 34, 8, q_type);
  if (dims_per_element_v<T> == 1)
    for (const int dim : {1, 3, 15, 17, 33, 63, 65, 119, 127, 129}) expect_right_at_the_end<T>(dim, dim, 8, q_type);
}

}  // namespace
}  // namespace pagoda::test
