// SPDX-License-Identifier: Apache-2.0
// The extension module pagoda._core. What users see is in src/python/pagoda.
#include "src/python/cache.hpp"

#include <nanobind/stl/string.h>

using namespace pagoda::python;

NB_MODULE(_core, m) {
  m.doc() = "Compiled part of pagoda.";
  nb::set_leak_warnings(false);  // modules that keep plans in globals are no errors
  nb::exception<OutOfCapacity>(m, "OutOfCapacity", PyExc_RuntimeError);
  bind_cache(m);
  bind_plan(m);
  bind_memory(m);
  bind_pool(m);
  bind_prefix(m);
  m.def("version", [] { return std::string(pagoda_version_string()); });
  m.def("configuration", [] { return std::string(pagoda_configuration()); });
  m.def("types", [] {
    nb::list names;
    for (pagoda_type type = PAGODA_FP64; type <= PAGODA_FP8_DS_MLA; ++type)
      if (pagoda_type_is_enabled(type)) names.append(pagoda_type_name(type));
    return names;
  });
  m.def("fence", [](const std::string& device, std::uintptr_t stream) { Runtime::instance().fence(device, stream); });
  m.def("start", [] { Runtime::instance().start(Device()); });
  m.def("forked", [] { Runtime::instance().forked(); });
  m.def("shut_down", [] { Runtime::instance().shut_down(); });
}
