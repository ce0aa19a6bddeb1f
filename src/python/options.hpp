// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/cache.hpp"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace pagoda::python {

/// Options of a decode: the values, and the arrays that live as long as a plan.
class Options {
 public:
  /// Reads keyword arguments. who: "pagoda.plan".
  Options(const char* who, Device device, std::uintptr_t stream, const nb::kwargs& given)
      : who_(who), device_(device), stream_(stream) {
    o_.struct_size = sizeof o_;
    for (const auto& [key, value] : given) set(nb::cast<std::string>(key), value);
    check_heads();
  }
  Options(const Options&)            = delete;  // o_ points to backend_
  Options& operator=(const Options&) = delete;

  const pagoda_decode_options* described() const { return &o_; }

 private:
  void set(const std::string& name, nb::handle value) {
    if (name == "num_q_heads") return read(name, value, o_.num_q_heads);
    if (name == "max_batch") return read(name, value, o_.max_batch);
    if (name == "max_seq_len") return read(name, value, o_.max_seq_len);
    if (name == "max_query_len") return read(name, value, o_.max_query_len);
    if (name == "max_query_tokens") return read(name, value, o_.max_query_tokens);
    if (name == "max_entries") return read(name, value, o_.max_entries);
    if (name == "max_entry_queries") return read(name, value, o_.max_entry_queries);
    if (name == "max_listed_queries") return read(name, value, o_.max_listed_queries);
    if (name == "entry_chains") {
      bool on = false;
      read(name, value, on);
      o_.entry_chains = on ? 1 : 0;
      return;
    }
    if (name == "num_initial_tokens") return read(name, value, o_.num_initial_tokens);
    if (name == "logit_soft_cap") return read(name, value, o_.logit_soft_cap);
    if (name == "softmax_scale") {
      if (value.is_none()) return;
      read(name, value, o_.softmax_scale);
      if (o_.softmax_scale == 0)
        refuse(who_, ": softmax_scale is 0; allowed: another number, or None (1 / sqrt(head_dim))");
    } else if (name == "causal") {
      bool causal = true;
      read(name, value, causal);
      o_.not_causal = causal ? 0 : 1;
    } else if (name == "window_left") {
      std::int32_t left = -1;
      read(name, value, left);
      if (left < -1) refuse(who_, ": window_left is ", left, "; allowed: -1 (all tokens) or more");
      o_.window = left + 1;
    } else if (name == "programmatic_launch") {
      bool on = false;
      read(name, value, on);
      o_.programmatic_launch = on ? 1 : 0;
    } else if (name == "exactness") {
      std::string text;
      read(name, value, text);
      const char* const names[] = {"fast", "batch_invariant", "reproducible"};
      for (o_.exactness = 0; o_.exactness < 3 && text != names[o_.exactness];) ++o_.exactness;
      if (o_.exactness == 3)
        refuse(who_, ": exactness is \"", text, "\"; allowed: \"fast\", \"batch_invariant\" or \"reproducible\"");
    } else if (name == "checked") {
      bool on = false;
      read(name, value, on);
      o_.checked = on ? 1 : 0;
    } else if (name == "backend") {
      if (value.is_none()) return;
      read(name, value, backend_);
      o_.backend = backend_.c_str();
    } else if (name == "cu_seqlens_q") {
      if (const Array* const array = keep(cu_seqlens_q_, "cu_seqlens_q", value)) {
        o_.cu_seqlens_q     = array->vector_of<std::int32_t>(who_, "cu_seqlens_q");
        o_.num_cu_seqlens_q = static_cast<std::int32_t>(array->tensor().extent[0]);
      }
    } else if (name == "alibi_slopes") {
      if (const Array* const array = keep(alibi_slopes_, "alibi_slopes", value))
        o_.alibi_slopes = array->vector_of<float>(who_, "alibi_slopes");
    } else if (name == "sinks") {
      if (const Array* const array = keep(sinks_, "sinks", value)) o_.sinks = array->vector_of<float>(who_, "sinks");
    } else if (name == "workspace") {
      if (value.is_none()) return;
      workspace_ = Array(who_, "workspace", value, Access::keep_write, stream_);
      workspace_.require_on(who_, "workspace", device_, "the cache's device");
      o_.workspace       = workspace_.vector_of<std::uint8_t>(who_, "workspace");
      o_.workspace_bytes = static_cast<std::size_t>(workspace_.tensor().extent[0]);
    } else {
      PyErr_Format(PyExc_TypeError, "%s: there is no option %s", who_, name.c_str());
      throw nb::python_error();
    }
  }

  template <class T>
  void read(const std::string& name, nb::handle value, T& to) {
    // nanobind would convert texts to numbers.
    const bool number = !std::is_arithmetic_v<T> || std::is_same_v<T, bool> ||
                        (std::is_integral_v<T> ? PyIndex_Check(value.ptr()) : PyNumber_Check(value.ptr()));
    if (number && nb::try_cast<T>(value, to)) return;
    PyErr_Format(PyExc_TypeError, "%s: %s is %R; allowed: %s", who_, name.c_str(), value.ptr(),
                 std::is_same_v<T, bool>          ? "a bool"
                 : std::is_same_v<T, std::string> ? "a str"
                 : std::is_floating_point_v<T>    ? "a float"
                                                  : "an int of 32 bits");
    throw nb::python_error();
  }

  const Array* keep(Array& to, const char* name, nb::handle value) {
    if (value.is_none()) return nullptr;
    to = Array(who_, name, value, Access::keep, stream_);
    to.require_on(who_, name, device_, "the cache's device");
    return &to;
  }

  void check_heads() const {
    const auto check = [&](const char* name, const Array& array) {
      if (array && array.tensor().extent[0] != o_.num_q_heads)
        refuse(who_, ": ", name, " has ", array.tensor().extent[0], " entries; allowed: ", o_.num_q_heads,
               ", one for each query head");
    };
    check("alibi_slopes", alibi_slopes_);
    check("sinks", sinks_);
  }

  const char* who_;
  Device device_;
  std::uintptr_t stream_;
  pagoda_decode_options o_{};
  std::string backend_;
  Array cu_seqlens_q_, alibi_slopes_, sinks_, workspace_;
};

}  // namespace pagoda::python
