// SPDX-License-Identifier: Apache-2.0
#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>

#include "src/dispatch/by_type.hpp"
#include "src/dispatch/launch.hpp"
#include "src/dispatch/spaces.hpp"
#include "src/kernel/machine.hpp"
#include "src/kernel/merge.hpp"
#include "src/plan/split.hpp"

namespace pagoda::detail {

namespace {

DeviceArray device_array(const TensorRef& t) { return {t.data, t.stride[0], t.stride[1], t.stride[2], t.type}; }

template <class ExecutionSpace>
KernelArgs kernel_args(const Plan<ExecutionSpace>& plan, const Problem& p) {
  const PlanState& s = plan.state();
  const CacheRef& kv = p.kv;
  KernelArgs a{};
  a.k = kv.k.data, a.k_page = kv.k.stride[0], a.k_token = kv.k.stride[1], a.k_head = kv.k.stride[2],
  a.k_dim = kv.k.stride[3];
  a.v = kv.v.data, a.v_page = kv.v.stride[0], a.v_token = kv.v.stride[1], a.v_head = kv.v.stride[2],
  a.v_dim = kv.v.stride[3];
  a.paged = kv.paged, a.table = kv.block_table, a.page_indptr = kv.page_indptr;
  a.table_row_stride = kv.table_row_stride, a.table_page_stride = kv.table_page_stride;
  a.seq_lens = kv.seq_lens, a.sequence_ids = kv.sequence_ids;
  a.page_size = kv.page_size(), a.num_pages = static_cast<int>(kv.num_pages());
  a.q = device_array(p.q), a.out = device_array(p.out), a.lse = device_array(p.lse);
  a.cu_seqlens_q      = s.cu_seqlens_q;
  a.uniform_query_len = kv.batch > 0 ? static_cast<int>(p.q.extent[0] / kv.batch) : 0;
  a.batch = kv.batch, a.num_kv_heads = s.num_kv_heads, a.group = s.num_q_heads / s.num_kv_heads;
  a.head_dim = s.head_dim, a.head_dim_v = s.head_dim_v;
  a.softmax_scale = s.softmax_scale;
  a.score         = s.score;
  a.row_tile = s.row_tile, a.target_items = s.target_items, a.max_cuts = s.max_cuts;
  a.min_piece = s.min_piece, a.max_piece = s.max_piece;
  std::byte* const w = plan.workspace().data();
  a.counts           = reinterpret_cast<WorkCounts*>(w + s.layout.counts);
  a.items            = reinterpret_cast<WorkItem*>(w + s.layout.items);
  a.merges           = reinterpret_cast<MergeItem*>(w + s.layout.merges);
  a.partial_lse      = w + s.layout.partial_lse;
  a.partial_out      = w + s.layout.partial_out;
  return a;
}

template <class ExecutionSpace>
void launch_split(const ExecutionSpace& exec, const KernelArgs& args, void* offsets) {
  using Kernel = SplitKernel<ExecutionSpace>;
  Kernel kernel{args, static_cast<RowOffsets*>(offsets)};
  Kokkos::parallel_for("Pagoda::decode::split", MachineOf<ExecutionSpace>::flat_policy(exec), kernel);
}

template <class ExecutionSpace>
void launch_merge(const ExecutionSpace& exec, const PlanState& s, const KernelArgs& args) {
  const auto launch = [&]<class Acc>(Acc) {
    MergeKernel<ExecutionSpace, PlanPieces<Acc>>::launch("Pagoda::decode::merge", exec,
                                                         std::int64_t(s.max_merges) * s.row_tile, {args}, s.head_dim_v);
  };
  s.kv_type == DType::fp64 ? launch(double()) : launch(float());
}

/// The three launches of a decode: what to do, the pieces, the rows that were cut.
template <class ExecutionSpace>
void launch(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const KernelArgs& args) {
  const PlanState& s = plan.state();
  launch_split(exec, args, plan.workspace().data() + s.layout.offsets);
  by_type(s.kv_type, [&]<class T>(T*) { launch_partial<ExecutionSpace, T>(exec, s, args); });
  launch_merge(exec, s, args);
}

void check(const PlanState& s, const Problem& p) {
  const char* const who = "pagoda::decode: ";
  const CacheRef& kv    = p.kv;
  require(kv.k.type == s.kv_type && kv.v.type == s.kv_type, who, "the cache holds ", name_of(kv.k.type), " keys and ",
          name_of(kv.v.type), " values; the plan was made for ", name_of(s.kv_type));
  require(kv.num_kv_heads() == s.num_kv_heads, who, "the cache has ", kv.num_kv_heads(),
          " kv heads; the plan was made for ", s.num_kv_heads);
  require(kv.head_dim() == s.head_dim && kv.head_dim_v() == s.head_dim_v, who, "the cache has head_dim ", kv.head_dim(),
          " (keys) and ", kv.head_dim_v(), " (values); the plan was made for ", s.head_dim, " and ", s.head_dim_v);
  require(kv.batch <= s.max_batch, who, "the cache's batch is ", kv.batch,
          "; allowed: up to the plan's max_batch = ", s.max_batch);
  require(!s.wide || readable_in_vectors(kv), who,
          "the cache's strides or alignment are not those the plan was made for: every row must start on 16 bytes "
          "and be dense; make the plan from this cache");
  const std::int64_t tokens = p.q.extent[0];
  require(tokens <= s.max_query_tokens, who, "q has ", tokens,
          " query tokens; allowed: up to the plan's max_query_tokens = ", s.max_query_tokens);
  if (!s.cu_seqlens_q) {
    require(kv.batch == 0 ? tokens == 0 : tokens % kv.batch == 0 && tokens / kv.batch <= s.max_query_len, who, "q has ",
            tokens, " query tokens for a batch of ", kv.batch,
            "; allowed: the same number for each, up to max_query_len = ", s.max_query_len,
            " (or cu_seqlens_q in the plan's options)");
  }
  require(p.q.extent[1] == s.num_q_heads && p.q.extent[2] == s.head_dim, who, "q has (heads, head_dim) = (",
          p.q.extent[1], ", ", p.q.extent[2], "); allowed: (", s.num_q_heads, ", ", s.head_dim, ")");
  require(p.out.extent[0] == tokens && p.out.extent[1] == s.num_q_heads && p.out.extent[2] == s.head_dim_v, who,
          "out is (", p.out.extent[0], ", ", p.out.extent[1], ", ", p.out.extent[2], "); allowed: (", tokens, ", ",
          s.num_q_heads, ", ", s.head_dim_v, ")");
  require(!p.lse.data || (p.lse.extent[0] == tokens && p.lse.extent[1] == s.num_q_heads), who, "lse is (",
          p.lse.extent[0], ", ", p.lse.extent[1], "); allowed: (", tokens, ", ", s.num_q_heads, ") or an empty View");
}

}  // namespace

template <class ExecutionSpace>
void decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem) {
  check(plan.state(), problem);
  if (problem.q.extent[0] == 0) return;
  launch(exec, plan, kernel_args(plan, problem));
}

template <class ExecutionSpace>
void warm_up(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  // A batch of none: the planner finds no items, and the teams of the other kernels leave at once.
  KernelArgs args = kernel_args(plan, Problem{});
  args.batch      = 0;
  launch(exec, plan, args);
}

#define PAGODA_INSTANTIATE(Space)                                                \
  template void decode<Space>(const Space&, const Plan<Space>&, const Problem&); \
  template void warm_up<Space>(const Space&, const Plan<Space>&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
