// Arrays of any Python library as views, without a copy. No rule of the interface is checked here.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "onepass/tensor_view.h"

namespace onepass::python {

/// What an object says about its memory, and what keeps that memory: the caller holds the object, this the
/// rest. Three ways are tried: DLPack's C table (torch), __array_interface__ (NumPy, which cannot say through
/// DLPack the bfloat16 and 8-bit floats of ml_dtypes), __dlpack__ (all others).
class Array {
 public:
  /// `stream` is where GPU work will be queued: producers order their own work before it.
  /// @throws nanobind::type_error when `object` is no array, InvalidArgument when a view cannot describe it;
  ///   both name `name`, the argument.
  Array(nanobind::handle object, const char* name, std::uintptr_t stream);

  const TensorView& view() const { return view_; }
  bool read_only() const { return read_only_; }

 private:
  bool from_exchange_api(nanobind::handle object);
  bool from_array_interface(nanobind::handle object);
  bool from_dlpack_method(nanobind::handle object, std::uintptr_t stream);

  TensorView view_;
  bool read_only_ = false;
  nanobind::object keeper_;  ///< the capsule that __dlpack__ gave
};

}  // namespace onepass::python
