// onepass._core: the C++ interface for the Python package, which wraps every call (python/onepass/calls.py).
#include "module.h"

#include "onepass/error.h"
#include "threads.h"

namespace nb = nanobind;

namespace {

/// What the library throws as Python's own exceptions, with its text; std::bad_alloc is MemoryError already.
void translate(const std::exception_ptr& error, void* /*unused*/) {
  try {
    std::rethrow_exception(error);
  } catch (const onepass::InvalidArgument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const onepass::NotSupported& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what());
  } catch (const onepass::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The compiled part of onepass; use the functions of the package instead.";
  onepass::python::watch_forks();
  nb::register_exception_translator(translate);
  onepass::python::bind_options(module);
  onepass::python::bind_plan(module);
  onepass::python::bind_calls(module);
  onepass::python::bind_append(module);
  onepass::python::bind_info(module);
}
