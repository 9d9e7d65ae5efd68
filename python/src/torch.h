// PyTorch by the few of its Python attributes that a call needs: no symbol of it is linked, nothing is
// imported.
#pragma once

#include <nanobind/nanobind.h>

#include "dlpack.h"

namespace onepass::python {

/// DLPack's C functions of a type's library, of a version that is known here; null where it has none.
const dlpack::ExchangeApi* exchange_api_of(nanobind::handle type);

class Torch {
 public:
  /// Null while this process has not imported torch: then no tensor of it can be here.
  static const Torch* loaded();

  bool is_tensor(nanobind::handle object) const;
  /// Null before torch 2.10.
  const dlpack::ExchangeApi* exchange_api() const { return exchange_api_; }

  /// A new tensor of like's dtype and strides' order.
  nanobind::object empty_like(nanobind::handle like) const { return empty_like_(like); }
  /// A new row-major tensor on like's device, of like's dtype or of float32.
  nanobind::object new_empty(nanobind::handle like, nanobind::handle shape, bool f32) const;
  /// Of the tensor's device.
  std::uintptr_t current_stream(nanobind::handle tensor) const;

  /// @throws NotSupported when torch would expect a gradient with respect to `tensor`, as the caller gives
  ///   none; InvalidArgument when the values in memory are not the tensor's (torch's lazy negation).
  void check_values(nanobind::handle tensor, const char* name) const;
  /// Whether torch has more to do with an operation on `tensor` than its values: it is of a subclass, on a
  /// device without memory, lazily negated, or a gradient with respect to it is recorded.
  bool is_more_than_values(nanobind::handle tensor) const;

 private:
  Torch() = default;
  bool records_gradient(nanobind::handle tensor) const;

  nanobind::handle tensor_type_, parameter_type_, is_grad_enabled_, empty_like_, float32_, torch_;
  nanobind::handle requires_grad_, is_neg_, is_cpu_, is_cuda_, new_empty_;  // names, as Python keeps them
  const dlpack::ExchangeApi* exchange_api_ = nullptr;
};

}  // namespace onepass::python
