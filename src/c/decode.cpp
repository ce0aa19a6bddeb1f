// SPDX-License-Identifier: Apache-2.0
// Plans, decodes, checks, merges and writes of the C interface.
#include "src/c/plans.hpp"

#include <cstddef>
#include <cstring>
#include <limits>

using namespace pagoda::c;

pagoda_status pagoda_workspace_bytes(const pagoda_exec* exec, const pagoda_cache* kv,
                                     const pagoda_decode_options* options, std::size_t* bytes) {
  return guarded([&] {
    const char* const who = "pagoda_workspace_bytes";
    not_null(who, "bytes", bytes);
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      const Cache described = cache(who, kv, Reach::of<Space>());
      *bytes = pagoda::workspace_bytes(instance, described, decode_options<Space>(read_options(who, options)));
    });
  });
}

pagoda_status pagoda_plan_create(const pagoda_exec* exec, const pagoda_cache* kv, const pagoda_decode_options* options,
                                 pagoda_plan** plan) {
  return guarded([&] {
    const char* const who = "pagoda_plan_create";
    not_null(who, "plan", plan);
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      using Workspace       = typename PlanOf<Space>::Workspace;
      const Cache described = cache(who, kv, Reach::of<Space>());
      const auto o          = read_options(who, options);
      const Workspace workspace =
          o.workspace ? Workspace(static_cast<std::byte*>(o.workspace), o.workspace_bytes) : Workspace();
      auto made           = pagoda::plan(instance, described, decode_options<Space>(o), workspace);
      std::string text    = made.describe();
      std::string backend = made.backend();
      *plan               = make_handle<pagoda_plan>(std::move(made), std::move(text), std::move(backend),
                                                     std::vector<pagoda::TableFault>());
    });
  });
}

void pagoda_plan_destroy(pagoda_plan* plan) { destroy_handle(plan); }

const char* pagoda_plan_describe(const pagoda_plan* plan) {
  return guarded_pointer([&] { return not_null("pagoda_plan_describe", "plan", plan).description.c_str(); });
}

const char* pagoda_plan_backend(const pagoda_plan* plan) {
  return guarded_pointer([&] { return not_null("pagoda_plan_backend", "plan", plan).backend.c_str(); });
}

pagoda_status pagoda_plan_workspace_bytes(const pagoda_plan* plan, std::size_t* bytes) {
  return guarded([&] {
    const char* const who = "pagoda_plan_workspace_bytes";
    std::size_t& to       = not_null(who, "bytes", bytes);
    std::visit([&](const auto& p) { to = p.workspace_bytes(); }, not_null(who, "plan", plan).plan);
  });
}

pagoda_status pagoda_plan_persistent_bytes(const pagoda_plan* plan, std::size_t* bytes) {
  return guarded([&] {
    const char* const who = "pagoda_plan_persistent_bytes";
    std::size_t& to       = not_null(who, "bytes", bytes);
    std::visit([&](const auto& p) { to = p.persistent_bytes(); }, not_null(who, "plan", plan).plan);
  });
}

pagoda_status pagoda_decode(const pagoda_exec* exec, const pagoda_plan* plan, const pagoda_tensor* q,
                            const pagoda_cache* kv, const pagoda_tensor* out, const pagoda_tensor* lse) {
  return guarded([&] {
    const char* const who = "pagoda_decode";
    with_plan(who, exec, plan, [&]<class Space>(const PlanOf<Space>& with, const Space& instance) {
      const Reach reach = Reach::of<Space>();
      pagoda::decode(instance, with, array<3>(who, "q", q, reach), cache(who, kv, reach),
                     array<3>(who, "out", out, reach), optional_lse<2>(who, "lse", lse, reach));
    });
  });
}

pagoda_status pagoda_check(const pagoda_exec* exec, const pagoda_cache* kv, const pagoda_plan* plan,
                           const pagoda_tensor* q) {
  return guarded([&] {
    const char* const who = "pagoda_check";
    if (plan) {
      with_plan(who, exec, plan, [&]<class Space>(const PlanOf<Space>& with, const Space& instance) {
        const Reach reach = Reach::of<Space>();
        pagoda::check(instance, with, array<3>(who, "q", q, reach), cache(who, kv, reach));
      });
    } else {
      with_exec(who, exec, [&]<class Space>(const Space& instance) {
        pagoda::check(instance, cache(who, kv, Reach::of<Space>()));
      });
    }
  });
}

pagoda_status pagoda_plan_read_faults(const pagoda_exec* exec, pagoda_plan* plan, std::int32_t* count) {
  return guarded([&] {
    const char* const who = "pagoda_plan_read_faults";
    std::int32_t& to      = not_null(who, "count", count);
    with_plan(who, exec, plan, [&]<class Space>(const PlanOf<Space>& with, const Space& instance) {
      plan->faults = pagoda::faults(instance, with);
      to           = static_cast<std::int32_t>(plan->faults.size());
    });
  });
}

pagoda_status pagoda_plan_get_fault(const pagoda_plan* plan, std::int32_t index, pagoda_table_fault* fault) {
  return guarded([&] {
    const char* const who   = "pagoda_plan_get_fault";
    const auto& faults      = not_null(who, "plan", plan).faults;
    const std::size_t bytes = common_bytes(who, "fault", fault, sizeof(pagoda_table_fault));
    require(index >= 0 && static_cast<std::size_t>(index) < faults.size(), who, ": index is ", index,
            "; allowed: 0 or more, and less than the ", faults.size(), " faults of the last pagoda_plan_read_faults");
    const pagoda::TableFault& from = faults[static_cast<std::size_t>(index)];
    pagoda_table_fault to{};
    to.struct_size = fault->struct_size;
    to.entry = from.entry, to.sequence = from.sequence, to.page = from.page, to.value = from.value;
    to.message = from.message.c_str();
    std::memcpy(fault, &to, bytes);
  });
}

pagoda_status pagoda_merge(const pagoda_exec* exec, const pagoda_tensor* outs, const pagoda_tensor* lses,
                           const pagoda_tensor* out, const pagoda_tensor* lse) {
  return guarded([&] {
    const char* const who = "pagoda_merge";
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      const Reach reach = Reach::of<Space>();
      pagoda::merge(instance, array<4>(who, "outs", outs, reach), lse_array<3>(who, "lses", lses, reach),
                    array<3>(who, "out", out, reach), optional_lse<2>(who, "lse", lse, reach));
    });
  });
}

pagoda_status pagoda_merge_pair(const pagoda_exec* exec, const pagoda_tensor* out_a, const pagoda_tensor* lse_a,
                                const pagoda_tensor* out_b, const pagoda_tensor* lse_b, const pagoda_tensor* out,
                                const pagoda_tensor* lse) {
  return guarded([&] {
    const char* const who = "pagoda_merge_pair";
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      const Reach reach = Reach::of<Space>();
      pagoda::merge(instance, array<3>(who, "out_a", out_a, reach), lse_array<2>(who, "lse_a", lse_a, reach),
                    array<3>(who, "out_b", out_b, reach), lse_array<2>(who, "lse_b", lse_b, reach),
                    array<3>(who, "out", out, reach), optional_lse<2>(who, "lse", lse, reach));
    });
  });
}

pagoda_status pagoda_write_kv(const pagoda_exec* exec, const pagoda_tensor* k_cache, const pagoda_tensor* v_cache,
                              pagoda_order order, const std::int64_t* slot_mapping, std::int64_t num_tokens,
                              const pagoda_tensor* k, const pagoda_tensor* v) {
  return guarded([&] {
    const char* const who = "pagoda_write_kv";
    require(num_tokens >= 0 && num_tokens <= std::numeric_limits<int>::max(), who, ": num_tokens is ", num_tokens,
            "; allowed: 0 to 2^31 - 1");
    require(slot_mapping || num_tokens == 0, who, ": slot_mapping is NULL; allowed: memory for ", num_tokens,
            " positions");
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      const Reach reach     = Reach::of<Space>();
      const auto kv_order   = order_of(who, "order", order);
      const Array<4> k_to   = cache_tensor(who, "k_cache", k_cache, kv_order, reach);
      const Array<4> v_to   = cache_tensor(who, "v_cache", v_cache, kv_order, reach);
      const Array<3> k_from = array<3>(who, "k", k, reach), v_from = array<3>(who, "v", v, reach);
      check_extents(who, k_to, v_to);
      write_kv(instance, k_to.ref, v_to.ref, slot_mapping, num_tokens, k_from.ref, v_from.ref);
    });
  });
}
