// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/baseline/cuda_three_kernels.hpp"
#include "bench/baseline/three_kernels.hpp"

#include <Kokkos_Core.hpp>

#include <cmath>

namespace pagoda::bench {

/// The CUDA kernels with the interface of ThreeKernels: fp32, dims with stride 1.
class CudaThreeKernels {
 public:
  /// max_rows: batch entries times query heads.
  CudaThreeKernels(const Kokkos::Cuda& exec, int max_rows, int max_seq_len)
      : exec_(exec),
        scores_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::scores"), max_rows, max_seq_len) {
  }

  /// q and out are Views (batch, query head, dim). Asynchronous. The output of an empty sequence is 0.
  template <class Q, KVLayout KV, class Out>
  void operator()(const Q& q, const KV& kv, const Out& out) const {
    constexpr const char* name = "pagoda::bench::CudaThreeKernels";
    three_kernels::require_fits(name, q, kv, scores_.extent(0), scores_.extent(1));
    const CacheRef ref = kv.ref();
    pagoda::detail::require(q.stride(2) == 1 && out.stride(2) == 1 && ref.k.stride[3] == 1 && ref.v.stride[3] == 1,
                            name, ": dims do not lie side by side in q, out, keys and values; nothing else is allowed");
    cuda::Queries x{};
    x.batch = kv.batch(), x.num_q_heads = q.extent_int(1), x.num_kv_heads = ref.num_kv_heads();
    x.head_dim = q.extent_int(2), x.head_dim_v = out.extent_int(2), x.max_seq_len = kv.max_seq_len();
    x.softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(x.head_dim)));
    x.seq_lens = ref.seq_lens, x.sequence_ids = ref.sequence_ids;
    x.q = q.data(), x.q_batch = stride(q, 0), x.q_head = stride(q, 1);
    x.out = out.data(), x.out_batch = stride(out, 0), x.out_head = stride(out, 1);
    const cuda::CacheRows k = rows(ref.k), v = rows(ref.v);
    if (ref.paged) {
      const cuda::PagedRows paged{
          k, v, ref.page_size(), ref.block_table, ref.page_indptr, ref.table_row_stride, ref.table_page_stride};
      cuda::three_kernels(x, paged, scores_.data(), exec_.cuda_stream());
    } else {
      cuda::three_kernels(x, cuda::ContiguousRows{k, v}, scores_.data(), exec_.cuda_stream());
    }
  }

 private:
  template <class View>
  static std::int64_t stride(const View& view, int axis) {
    return static_cast<std::int64_t>(view.stride(axis));
  }
  static cuda::CacheRows rows(const TensorRef& t) {
    return {static_cast<const float*>(t.data), t.stride[0], t.stride[1], t.stride[2]};
  }

  Kokkos::Cuda exec_;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::CudaSpace> scores_;
};

}  // namespace pagoda::bench
