// SPDX-License-Identifier: Apache-2.0
// Plans, decodes, merges, checks and writes.
#include "src/python/lists.hpp"
#include "src/python/options.hpp"

#include <nanobind/stl/string.h>

#include <chrono>
#include <vector>

using namespace nanobind::literals;

namespace pagoda::python {

namespace {

class Plan final : public Owned {
 public:
  Plan(const Cache& cache, std::uintptr_t stream, const nb::kwargs& options)
      : device_(cache.device()),
        head_dim_v_(cache.head_dim_v()),
        options_("pagoda.plan", cache.device(), stream, options) {
    Runtime::instance().start(device_);
    const pagoda_exec* const exec = Runtime::instance().exec("pagoda.plan", device_, stream);
    without_gil([&] { return pagoda_plan_create(exec, cache.described(), options_.described(), &plan_); });
  }
  ~Plan() override { leave(); }

  void decode(nb::handle q, const Cache& cache, nb::handle out, nb::handle lse, std::uintptr_t stream) {
    const char* const who = "pagoda.Plan.decode";
    const Array queries(who, "q", q, Access::read, stream), outputs(who, "out", out, Access::write, stream);
    const Array sums = Array::optional(who, "lse", lse, Access::write, stream);
    require_here(who, "q", queries), require_here(who, "out", outputs), require_here(who, "lse", sums);
    require_same(who, "the cache", cache.device());
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    call([&] {
      return finish(
          pagoda_decode(exec, plan_, &queries.tensor(), cache.described(), &outputs.tensor(), sums.tensor_or_null()),
          device_, exec);
    });
  }

  void check(const Cache& cache, nb::handle q, std::uintptr_t stream) {
    const char* const who = "pagoda.check";
    const Array queries(who, "q", q, Access::read, stream);
    require_here(who, "q", queries);
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    call([&]() -> Outcome { return pagoda_check(exec, cache.described(), plan_, &queries.tensor()); });
  }

  /// (entry, sequence, page, value, message) of each fault.
  nb::list faults(std::uintptr_t stream) {
    const pagoda_exec* const exec = Runtime::instance().exec("pagoda.Plan.faults", device_, stream);
    struct Fault {
      pagoda_table_fault numbers{};
      std::string message;
    };
    std::vector<Fault> found;
    call([&]() -> Outcome {
      std::int32_t count   = 0;
      pagoda_status status = pagoda_plan_read_faults(exec, plan_, &count);
      for (std::int32_t i = 0; i < count && status == PAGODA_SUCCESS; ++i) {
        Fault f;
        f.numbers.struct_size = sizeof f.numbers;
        status                = pagoda_plan_get_fault(plan_, i, &f.numbers);
        if (status == PAGODA_SUCCESS) f.message = f.numbers.message, found.push_back(std::move(f));
      }
      return status;
    });
    nb::list all;
    for (const auto& [f, message] : found) all.append(nb::make_tuple(f.entry, f.sequence, f.page, f.value, message));
    return all;
  }

  void decode_entries(nb::handle q, const Cache& cache, const Entries& list, nb::handle out, nb::handle lse,
                      nb::handle state_out, nb::handle state_lse, std::uintptr_t stream) {
    const char* const who = "pagoda.Plan.decode_entries";
    const Array queries(who, "q", q, Access::read, stream), outputs(who, "out", out, Access::write, stream);
    const Array sums    = Array::optional(who, "lse", lse, Access::write, stream);
    const Array states  = Array::optional(who, "states[0]", state_out, Access::write, stream);
    const Array weights = Array::optional(who, "states[1]", state_lse, Access::write, stream);
    require_here(who, "q", queries), require_here(who, "out", outputs), require_here(who, "lse", sums);
    require_here(who, "states[0]", states), require_here(who, "states[1]", weights);
    require_same(who, "the cache", cache.device()), require_same(who, "the list", list.device());
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    call([&] {
      return finish(
          pagoda_decode_entries(exec, plan_, &queries.tensor(), cache.described(), list.described(), &outputs.tensor(),
                                sums.tensor_or_null(), states.tensor_or_null(), weights.tensor_or_null()),
          device_, exec);
    });
  }

  void merge_entries(const Entries& list, nb::handle state_out, nb::handle state_lse, nb::handle out, nb::handle lse,
                     std::uintptr_t stream) {
    const char* const who = "pagoda.Plan.merge_entries";
    const Array states(who, "states[0]", state_out, Access::read, stream);
    const Array weights(who, "states[1]", state_lse, Access::read, stream);
    const Array outputs(who, "out", out, Access::write, stream);
    const Array sums = Array::optional(who, "lse", lse, Access::write, stream);
    require_here(who, "states[0]", states), require_here(who, "states[1]", weights);
    require_here(who, "out", outputs), require_here(who, "lse", sums);
    require_same(who, "the list", list.device());
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    call([&] {
      return finish(pagoda_merge_entries(exec, plan_, list.described(), &states.tensor(), &weights.tensor(),
                                         &outputs.tensor(), sums.tensor_or_null()),
                    device_, exec);
    });
  }

  void check_entries(const Cache& cache, nb::handle q, const Entries& list, int num_states, std::uintptr_t stream) {
    const char* const who = "pagoda.check";
    const Array queries(who, "q", q, Access::read, stream);
    require_here(who, "q", queries);
    require_same(who, "the cache", cache.device()), require_same(who, "the list", list.device());
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    call([&]() -> Outcome {
      return pagoda_check_entries(exec, plan_, &queries.tensor(), cache.described(), list.described(), num_states);
    });
  }

  /// Seconds of one decode as a C++ program calls it: the mean of `calls`. For measuring what a call from Python adds.
  double seconds_per_call(nb::handle q, const Cache& cache, nb::handle out, int calls) {
    const char* const who = "pagoda.Plan.decode";
    const Array queries(who, "q", q, Access::read, 0), outputs(who, "out", out, Access::write, 0);
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, 0);
    double seconds                = 0;
    call([&]() -> Outcome {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) {
        const pagoda_status done =
            pagoda_decode(exec, plan_, &queries.tensor(), cache.described(), &outputs.tensor(), nullptr);
        if (done != PAGODA_SUCCESS) return done;
        if (device_.on_cpu()) static_cast<void>(pagoda_exec_fence(exec));
      }
      const Outcome end = pagoda_exec_fence(exec);
      seconds           = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
      return end;
    });
    return seconds;
  }

  std::string describe() {
    std::string text;
    call([&]() -> Outcome { return text = pagoda_plan_describe(plan_), PAGODA_SUCCESS; });
    return text;
  }
  std::string backend() {
    std::string text;
    call([&]() -> Outcome { return text = pagoda_plan_backend(plan_), PAGODA_SUCCESS; });
    return text;
  }
  template <pagoda_status (*Query)(const pagoda_plan*, std::size_t*)>
  std::size_t bytes() {
    std::size_t count = 0;
    call([&]() -> Outcome { return Query(plan_, &count); });
    return count;
  }
  int head_dim_v() const { return head_dim_v_; }
  std::string device() const { return device_.name(); }
  bool on_cpu() const { return device_.on_cpu(); }

 private:
  void close() override {
    pagoda_plan_destroy(plan_);
    plan_ = nullptr;
  }
  void require_here(const char* who, const char* name, const Array& array) const {
    array.require_on(who, name, device_, "the plan's device");
    if (array && array.tensor().type == 0)
      refuse(who, ": ", name, " holds ", array.type_name(), "; allowed: float64, float32, float16 or bfloat16");
  }

  void require_same(const char* who, const char* name, Device device) const {
    if (device != device_)
      refuse(who, ": ", name, " is on ", device.name(), "; allowed: ", device_.name(), ", the plan's device");
  }

  /// One call at a time, as a plan takes one decode at a time.
  template <class F>
  void call(F&& f) {
    without_gil([&]() -> Outcome {
      const std::lock_guard lock(use);
      if (!plan_) throw std::runtime_error("pagoda: the interpreter is exiting, and the plan is closed");
      return f();
    });
  }

  Device device_;
  int head_dim_v_;
  Options options_;
  pagoda_plan* plan_ = nullptr;
};

std::size_t workspace_bytes(const Cache& cache, const nb::kwargs& given) {
  const char* const who = "pagoda.workspace_bytes";
  const Options options(who, cache.device(), 0, given);
  Runtime::instance().start(cache.device());
  const pagoda_exec* const exec = Runtime::instance().exec(who, cache.device(), 0);
  std::size_t bytes             = 0;
  without_gil(
      [&]() -> Outcome { return pagoda_workspace_bytes(exec, cache.described(), options.described(), &bytes); });
  return bytes;
}

void check(const Cache& cache, std::uintptr_t stream) {
  Runtime::instance().start(cache.device());
  const pagoda_exec* const exec = Runtime::instance().exec("pagoda.check", cache.device(), stream);
  without_gil([&]() -> Outcome { return pagoda_check(exec, cache.described(), nullptr, nullptr); });
}

void merge(nb::handle outs, nb::handle lses, nb::handle out, nb::handle lse, std::uintptr_t stream) {
  const char* const who = "pagoda.merge";
  const Array from(who, "outs", outs, Access::read, stream), sums(who, "lses", lses, Access::read, stream);
  const Array to(who, "out", out, Access::write, stream), sum = Array::optional(who, "lse", lse, Access::write, stream);
  const Device device = from.device();
  for (const auto& [name, array] : {std::pair("lses", &sums), std::pair("out", &to), std::pair("lse", &sum)})
    array->require_on(who, name, device, "the device of outs");
  Runtime::instance().start(device);
  const pagoda_exec* const exec = Runtime::instance().exec(who, device, stream);
  without_gil([&] {
    return finish(pagoda_merge(exec, &from.tensor(), &sums.tensor(), &to.tensor(), sum.tensor_or_null()), device, exec);
  });
}

void merge_pair(nb::handle out_a, nb::handle lse_a, nb::handle out_b, nb::handle lse_b, nb::handle out, nb::handle lse,
                std::uintptr_t stream) {
  const char* const who = "pagoda.merge_pair";
  const Array a(who, "out_a", out_a, Access::read, stream), sum_a(who, "lse_a", lse_a, Access::read, stream);
  const Array b(who, "out_b", out_b, Access::read, stream), sum_b(who, "lse_b", lse_b, Access::read, stream);
  const Array to(who, "out", out, Access::write, stream), sum = Array::optional(who, "lse", lse, Access::write, stream);
  const Device device = a.device();
  for (const auto& [name, array] : {std::pair("lse_a", &sum_a), std::pair("out_b", &b), std::pair("lse_b", &sum_b),
                                    std::pair("out", &to), std::pair("lse", &sum)})
    array->require_on(who, name, device, "the device of out_a");
  Runtime::instance().start(device);
  const pagoda_exec* const exec = Runtime::instance().exec(who, device, stream);
  without_gil([&] {
    return finish(pagoda_merge_pair(exec, &a.tensor(), &sum_a.tensor(), &b.tensor(), &sum_b.tensor(), &to.tensor(),
                                    sum.tensor_or_null()),
                  device, exec);
  });
}

void write_kv(const Cache& cache, nb::handle slot_mapping, nb::handle k, nb::handle v, std::uintptr_t stream) {
  const char* const who = "pagoda.write_kv";
  const Array mapping(who, "slot_mapping", slot_mapping, Access::read, stream);
  const Array keys(who, "k", k, Access::read, stream), values(who, "v", v, Access::read, stream);
  for (const auto& [name, array] :
       {std::pair("slot_mapping", &mapping), std::pair("k", &keys), std::pair("v", &values)})
    array->require_on(who, name, cache.device(), "the cache's device");
  const std::int64_t* const positions = mapping.vector_of<std::int64_t>(who, "slot_mapping");
  Runtime::instance().start(cache.device());
  const pagoda_exec* const exec = Runtime::instance().exec(who, cache.device(), stream);
  const pagoda_cache& kv        = *cache.described();
  without_gil([&] {
    return finish(pagoda_write_kv(exec, &kv.k, &kv.v, kv.order, positions, mapping.tensor().extent[0], &keys.tensor(),
                                  &values.tensor()),
                  cache.device(), exec);
  });
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Entries>(m, "Entries", "A list of entries, described once for many calls.")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, std::uintptr_t>(), "entries"_a, "queries"_a,
           "state_begin"_a.none(), "masks"_a.none(), "stream"_a)
      .def_prop_ro("num_entries", &Entries::num_entries, "Entries of the list.")
      .def_prop_ro("num_queries", &Entries::num_queries, "Query tokens of the list.");
  nb::class_<Plan>(m, "Plan", "How decodes of one shape run.")
      .def(
          "__init__",
          [](Plan* self, const Cache& cache, std::uintptr_t stream, const nb::kwargs& options) {
            new (self) Plan(cache, stream, options);
          },
          "cache"_a, "stream"_a, "options"_a)
      .def("_decode", &Plan::decode, "q"_a, "cache"_a, "out"_a, "lse"_a.none(), "stream"_a)
      .def("_decode_entries", &Plan::decode_entries, "q"_a, "cache"_a, "entries"_a, "out"_a, "lse"_a.none(),
           "state_out"_a.none(), "state_lse"_a.none(), "stream"_a)
      .def("_merge_entries", &Plan::merge_entries, "entries"_a, "state_out"_a, "state_lse"_a, "out"_a, "lse"_a.none(),
           "stream"_a)
      .def("_check_entries", &Plan::check_entries, "cache"_a, "q"_a, "entries"_a, "num_states"_a, "stream"_a)
      .def("_seconds_per_call", &Plan::seconds_per_call, "q"_a, "cache"_a, "out"_a, "calls"_a)
      .def("_faults", &Plan::faults, "stream"_a)
      .def("_check", &Plan::check, "cache"_a, "q"_a, "stream"_a)
      .def("describe", &Plan::describe, "One line: shape, tiles, bounds, and why the plan is slow if it is.")
      .def_prop_ro("backend", &Plan::backend, "The backend that runs: \"tuned\" or \"generic\".")
      .def_prop_ro("workspace_bytes", &Plan::bytes<pagoda_plan_workspace_bytes>, "Bytes of scratch that decodes write.")
      .def_prop_ro("persistent_bytes", &Plan::bytes<pagoda_plan_persistent_bytes>, "Bytes that the plan owns besides.")
      .def_prop_ro("head_dim_v", &Plan::head_dim_v, "Dims of an output row.")
      .def_prop_ro("on_cpu", &Plan::on_cpu, "Whether decodes run on the CPU.")
      .def_prop_ro("device", &Plan::device, "\"cpu\" or \"cuda:0\".");
  m.def("workspace_bytes", &workspace_bytes, "cache"_a, "options"_a);
  m.def("check", &check, "cache"_a, "stream"_a);
  m.def("merge", &merge, "outs"_a, "lses"_a, "out"_a, "lse"_a.none(), "stream"_a);
  m.def("merge_pair", &merge_pair, "out_a"_a, "lse_a"_a, "out_b"_a, "lse_b"_a, "out"_a, "lse"_a.none(), "stream"_a);
  m.def("write_kv", &write_kv, "cache"_a, "slot_mapping"_a, "k"_a, "v"_a, "stream"_a);
}

}  // namespace pagoda::python
