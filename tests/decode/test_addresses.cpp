// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <Kokkos_Core.hpp>

#include <sys/mman.h>

#include <array>
#include <cmath>
#include <exception>
#include <memory>

/// Caches of more than 2^31 elements, of which only the few of a sequence are used.
namespace pagoda::test {
namespace {

/// Address space of the host, with memory behind the pages that are written.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  Sparse(const Sparse&)            = delete;
  Sparse& operator=(const Sparse&) = delete;
  ~Sparse() {
    if (ok()) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

using T = AnyType;

constexpr std::int64_t two_to_31 = std::int64_t(1) << 31;

/// Memory of a space, filled with NaN if there is room; null if there is not enough.
template <class Space>
std::shared_ptr<void> vast_memory(const Space& exec, std::size_t bytes) {
  using Memory = typename Space::memory_space;
  if constexpr (Kokkos::SpaceAccessibility<Host, Memory>::accessible) {
    const auto sparse = std::make_shared<Sparse>(bytes);
    return sparse->ok() ? std::shared_ptr<void>(sparse, sparse->data()) : nullptr;
  } else {
    try {
      const std::shared_ptr<void> memory(Kokkos::kokkos_malloc<Memory>("test pool", bytes),
                                         [](void* p) { Kokkos::kokkos_free<Memory>(p); });
      Kokkos::deep_copy(exec, Kokkos::View<unsigned char*, Memory>(static_cast<unsigned char*>(memory.get()), bytes),
                        static_cast<unsigned char>(0xff));
      return memory;
    } catch (const std::exception&) {
      return nullptr;
    }
  }
}

template <class Space>
struct LargePool : testing::Test {};
TYPED_TEST_SUITE(LargePool, Spaces, Names);

// A pool of slightly more than 2^31 elements, in real memory on a device, with pages at its ends and around each power
// of two. Values are a prefix of the keys, so that one pool is enough.
TYPED_TEST(LargePool, PagesBeyondTwoToThe31Elements) {
  using Space             = TypeParam;
  using Memory            = typename Space::memory_space;
  constexpr int page_size = 16, dims = 128, dims_v = 64, page_elements = page_size * dims;
  constexpr int pages = static_cast<int>(two_to_31 / page_elements) + 8;
  const Space exec;

  const auto memory = vast_memory(exec, std::size_t(pages) * page_elements * sizeof(T));
  if (!memory) GTEST_SKIP() << Space::name() << " has not so much to give";
  T* const pool = static_cast<T*>(memory.get());

  constexpr int half = static_cast<int>(two_to_31 / page_elements);
  const std::vector<int> used{half, 0, half - 1, pages - 1, half / 2, half / 2 - 1, half + 1};
  const Sample<T> sample({.lengths        = {page_size * static_cast<int>(used.size()) - 3},
                          .num_q_heads    = 2,
                          .num_kv_heads   = 1,
                          .head_dim       = dims,
                          .head_dim_v     = dims_v,
                          .values_in_keys = true});
  for (int t = 0; t < sample.shape().lengths[0]; ++t) {
    const std::int64_t at = std::int64_t(used[t / page_size]) * page_elements + t % page_size * dims;
    Kokkos::deep_copy(exec, Kokkos::View<T*, Memory>(pool + at, dims),
                      Kokkos::View<const T*, Kokkos::HostSpace>(sample.key(0, t, 0), dims));
  }
  const Kokkos::View<const T****, Kokkos::LayoutRight, Memory> k(pool, pages, page_size, 1, dims);
  const auto v = Kokkos::subview(k, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, std::pair(0, dims_v));
  const Ints<Space> table(exec, used), lengths(exec, sample.shape().lengths);
  const PagedKV kv{k, v, Kokkos::View<const int**, Kokkos::LayoutRight, Memory>(table.view().data(), 1, used.size()),
                   lengths.view()};

  Array<Space> q(dtype_v<T>, {1, 2, dims}, Strides::dense), out(dtype_v<T>, {1, 2, dims_v}, Strides::dense),
      lse(DType::fp32, {1, 2}, Strides::dense);
  for (int h = 0; h < 2; ++h)
    for (int d = 0; d < dims; ++d) q.set({0, h, d}, sample.query(0, h)[d]);
  q.upload(exec), out.upload(exec), lse.upload(exec);
  const auto plan = pagoda::plan(exec, kv, {.num_q_heads = 2});
  pagoda::decode(exec, plan, q.template view<const T, 3>(), kv, out.template view<T, 3>(),
                 lse.template view<float, 2>());
  out.download(exec), lse.download(exec);
  const Comparison difference = compare<Space>(sample, out, &lse, plan.schedule().kernel.probability_type);
  EXPECT_EQ(difference.wrong, 0) << difference.report;
}

/// Strides, in elements, of an array one of whose axes spans more than 2^31 of them.
struct Spread {
  std::array<std::int64_t, 4> stride{};
  std::size_t elements = 1;

  /// The last axis varies fastest, except that steps of axis `huge` are of `step` elements.
  Spread(const std::vector<int>& extent, int huge, std::int64_t step) {
    std::int64_t next = 1;
    for (int axis = static_cast<int>(extent.size()) - 1; axis >= 0; --axis) {
      if (axis == huge) {
        stride[axis] = step;
      } else {
        stride[axis] = next;
        next *= extent[axis];
      }
      elements += static_cast<std::size_t>(extent[axis] - 1) * static_cast<std::size_t>(stride[axis]);
    }
  }
};

/// Views of the host with one huge axis, -1: none. Step 2^30 + 16 keeps rows aligned, 2^30 + 1 does not.
struct HugeAxes {
  int cache = -1, q = -1, out = -1, lse = -1, table = -1;
};

void expect_right_with(const HugeAxes& huge, std::int64_t step) {
  constexpr int batch = 4, len = 5, q_heads = 4, kv_heads = 4, dims = 16;
  const Sample<T> sample(
      {.lengths = {len, 3, 0, 4}, .num_q_heads = q_heads, .num_kv_heads = kv_heads, .head_dim = dims});
  const Spread c({batch, len, kv_heads, dims}, huge.cache, step), qs({batch, q_heads, dims}, huge.q, step),
      os({batch, q_heads, dims}, huge.out, step), ls({batch, q_heads}, huge.lse, step),
      ts({batch, 1}, huge.table, step);
  const Sparse k_memory(c.elements * sizeof(T)), v_memory(c.elements * sizeof(T)), q_memory(qs.elements * sizeof(T)),
      o_memory(os.elements * sizeof(T)), l_memory(ls.elements * sizeof(float)), t_memory(ts.elements * sizeof(int));
  for (const Sparse* memory : {&k_memory, &v_memory, &q_memory, &o_memory, &l_memory, &t_memory})
    if (!memory->ok()) GTEST_SKIP() << "the host has not enough address space to give";
  const auto size  = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const auto view4 = [&](const Sparse& memory, const Spread& s, auto n0, auto n1, auto n2, auto n3) {
    return Kokkos::View<T****, Kokkos::LayoutStride, Kokkos::HostSpace>(
        static_cast<T*>(memory.data()), Kokkos::LayoutStride(n0, size(s.stride[0]), n1, size(s.stride[1]), n2,
                                                             size(s.stride[2]), n3, size(s.stride[3])));
  };
  const auto view3 = [&](const Sparse& memory, const Spread& s) {
    return Kokkos::View<T***, Kokkos::LayoutStride, Kokkos::HostSpace>(
        static_cast<T*>(memory.data()),
        Kokkos::LayoutStride(batch, size(s.stride[0]), q_heads, size(s.stride[1]), dims, size(s.stride[2])));
  };
  const auto k = view4(k_memory, c, batch, len, kv_heads, dims), v = view4(v_memory, c, batch, len, kv_heads, dims);
  const auto q = view3(q_memory, qs), out = view3(o_memory, os);
  const Kokkos::View<float**, Kokkos::LayoutStride, Kokkos::HostSpace> lse(
      static_cast<float*>(l_memory.data()),
      Kokkos::LayoutStride(batch, size(ls.stride[0]), q_heads, size(ls.stride[1])));
  const Kokkos::View<int**, Kokkos::LayoutStride, Kokkos::HostSpace> table(
      static_cast<int*>(t_memory.data()), Kokkos::LayoutStride(batch, size(ts.stride[0]), 1, size(ts.stride[1])));

  // Kokkos 5 computes offsets in the widest type among the indices, so one of them has 64 bits.
  const int page_of[batch] = {2, 0, 3, 1};
  for (int b = 0; b < batch; ++b) {
    const int page    = huge.table >= 0 ? page_of[b] : b;
    table(size(b), 0) = page;
    for (int t = 0; t < sample.shape().lengths[b]; ++t)
      for (int h = 0; h < kv_heads; ++h)
        for (int d = 0; d < dims; ++d)
          k(size(page), t, h, d) = sample.key(b, t, h)[d], v(size(page), t, h, d) = sample.value(b, t, h)[d];
    for (int h = 0; h < q_heads; ++h)
      for (int d = 0; d < dims; ++d) q(size(b), h, d) = T(static_cast<float>(sample.query(b, h)[d]));
  }
  const Host exec;
  const Ints<Host> lengths(exec, sample.shape().lengths);
  DType probability{};
  const auto decode = [&](const auto& kv) {
    const auto plan = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
    probability     = plan.schedule().kernel.probability_type;
    pagoda::decode(exec, plan, q, kv, out, lse);
    exec.fence();
  };
  huge.table >= 0 ? decode(PagedKV{k, v, table, lengths.view()}) : decode(ContiguousKV{k, v, lengths.view()});

  Array<Host> dense_out(dtype_v<T>, {batch, q_heads, dims}, Strides::dense),
      dense_lse(DType::fp32, {batch, q_heads}, Strides::dense);
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < q_heads; ++h) {
      dense_lse.set({b, h}, lse(size(b), h));
      for (int d = 0; d < dims; ++d) dense_out.set({b, h, d}, out(size(b), h, d));
    }
  }
  const Comparison difference = compare<Host>(sample, dense_out, &dense_lse, probability);
  EXPECT_EQ(difference.wrong, 0) << difference.report;
}

constexpr std::int64_t aligned_step = two_to_31 / 2 + 16, odd_step = two_to_31 / 2 + 1;

TEST(LargeStrides, OfSequences) {
  for (const std::int64_t step : {aligned_step, odd_step}) expect_right_with({.cache = 0}, step);
}
TEST(LargeStrides, OfTokens) {
  for (const std::int64_t step : {aligned_step, odd_step}) expect_right_with({.cache = 1}, step);
}
TEST(LargeStrides, OfHeads) {
  for (const std::int64_t step : {aligned_step, odd_step}) expect_right_with({.cache = 2}, step);
}
TEST(LargeStrides, OfDims) { expect_right_with({.cache = 3}, two_to_31 / 8 + 1); }
TEST(LargeStrides, OfQueries) {
  for (const int axis : {0, 1}) expect_right_with({.q = axis}, odd_step);
  expect_right_with({.q = 2}, two_to_31 / 8 + 1);
}
TEST(LargeStrides, OfOutputs) {
  for (const int axis : {0, 1}) expect_right_with({.out = axis, .lse = axis}, odd_step);
  expect_right_with({.out = 2}, two_to_31 / 8 + 1);
}
TEST(LargeStrides, OfBlockTables) { expect_right_with({.table = 0}, odd_step); }

}  // namespace
}  // namespace pagoda::test
