// SPDX-License-Identifier: Apache-2.0
#include <pagoda/detail/schedule.hpp>
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include "src/base/spaces.hpp"
#include "src/plan/backend_choice.hpp"
#include "src/plan/bounds.hpp"
#include "src/plan/kernel_choice.hpp"
#include "src/plan/options.hpp"
#include "src/plan/split_bounds.hpp"
#include "src/plan/workspace.hpp"

#include <cstdint>
#include <string>

namespace pagoda::detail {

/// The steps of the planner, in order. Each reads what the steps before it decided.
template <class ExecutionSpace>
Schedule make_schedule(const ExecutionSpace& exec, const CacheRef& kv,
                       const DecodeOptions<typename ExecutionSpace::memory_space>& o) {
  Schedule s;
  s.shape = problem_shape(o, kv);
  check_options(o, s.shape.kv_type);
  s.bounds  = interface_bounds(o, kv);
  s.options = attention_options(o, s.shape);

  const FragmentChoice choice =
      choose_fragment<ExecutionSpace>(exec, s.shape.kv_type, fragment_shape(s.shape, s.bounds, kv));
  s.kernel          = choose_kernel(choice, s.shape, s.bounds, s.options, kv);
  s.multiprocessors = choice.machine.multiprocessors;

  s.fixed_splits = o.exactness != Exactness::fast;
  s.split        = s.fixed_splits ? fixed_split_lengths(choice, s.shape) : split_lengths(choice, s.shape);
  require_countable_items(s.bounds, s.shape, s.kernel, max_split_tokens(s.split));
  const std::int64_t row_tiles = max_row_tiles(s.bounds, s.shape, s.kernel);
  s.split                      = bound_splits(s.split, row_tiles, s.bounds.max_seq_len);
  s.max_slots                  = max_slots(s.split, row_tiles, s.bounds.max_seq_len);
  s.workspace                  = workspace_layout(s.shape, s.bounds, s.kernel, s.max_slots);

  const BackendList<ExecutionSpace> list = backends<ExecutionSpace>();
  s.programmatic_launch                  = o.programmatic_launch;
  s.backend                              = choose_backend(exec, list, o.backend, s, kv);
  s.persistent                           = persistent_layout(exec, list, s);
  return s;
}

Problem usual_problem(const Schedule& s, const CacheRef& kv) {
  const auto rows = [&](int dims) {
    TensorRef t;
    t.type   = usual_row_type(s.shape.kv_type);
    t.rank   = 3;
    t.extent = {std::int64_t(kv.batch) * s.bounds.max_query_len, s.shape.num_q_heads, dims, 0};
    t.stride = {std::int64_t(s.shape.num_q_heads) * dims, dims, 1, 0};
    return t;
  };
  Problem p{kv, rows(s.shape.head_dim), rows(s.shape.head_dim_v), {}};
  if (of_lists(s.bounds)) {
    p.q.extent[0] = p.out.extent[0] = s.bounds.max_listed_queries;
    p.entries.num_entries           = s.bounds.max_entries;
    p.entries.num_queries           = s.bounds.max_listed_queries;
  }
  return p;
}

std::string describe(const Schedule& s) {
  const ProblemShape& p = s.shape;
  const KernelChoice& k = s.kernel;
  return concat(
      s.backend.name, " ", name_of(p.kv_type), " heads ", p.num_q_heads, "/", p.num_kv_heads, " head_dim ", p.head_dim,
      p.head_dim_v != p.head_dim ? concat("/", p.head_dim_v) : std::string(), ": ", k.row_tile, " query rows an item, ",
      s.split.num_teams, " teams of ", k.num_workers, k.num_workers == 1 ? " worker, " : " workers, ",
      s.workspace.bytes, " bytes of workspace", size_of(k.probability_type) == 2 ? ", matrix products" : "",
      k.isa_name ? concat(", instructions ", k.isa_name) : std::string(),
      k.slow_because ? concat(", slow: ", k.slow_because) : std::string(), k.values_in_keys ? ", values in keys" : "",
      k.general ? ", all options" : "", of_lists(s.bounds) ? ", lists of entries" : "",
      s.fixed_splits ? concat(", splits of ", max_split_tokens(s.split), " tokens") : std::string(),
      s.backend.faster_on ? concat(", faster on ", s.backend.faster_on) : std::string());
}

#define PAGODA_INSTANTIATE(Space)                                                     \
  template PAGODA_EXPORT Schedule make_schedule<Space>(const Space&, const CacheRef&, \
                                                       const DecodeOptions<Space::memory_space>&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
