// The parts of the extension module onepass._core, one per file.
#pragma once

#include <nanobind/nanobind.h>

namespace onepass::python {

void bind_options(nanobind::module_& module);
void bind_plan(nanobind::module_& module);
void bind_calls(nanobind::module_& module);
void bind_append(nanobind::module_& module);
void bind_info(nanobind::module_& module);

}  // namespace onepass::python
