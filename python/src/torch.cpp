#include "torch.h"

#include <fmt/format.h>

#include "onepass/error.h"
#include "support/message.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

bool truth(const nb::object& object) { return PyObject_IsTrue(object.ptr()) == 1; }

bool same(nb::handle type, nb::handle other) { return type.ptr() == other.ptr(); }

}  // namespace

const dlpack::ExchangeApi* exchange_api_of(nb::handle type) {
  static const nb::handle name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  const nb::object capsule = nb::getattr(type, name, nb::handle());
  if (!capsule.is_valid()) return nullptr;
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) throw nb::python_error();
  while (api != nullptr && api->version.major > dlpack::kMajor) api = api->previous;
  const bool known = api != nullptr && api->version.major == dlpack::kMajor;
  return known && api->tensor_from_py_object != nullptr ? api : nullptr;
}

const Torch* Torch::loaded() {
  static const Torch* known = nullptr;
  if (known != nullptr) return known;
  const nb::object module = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!module.is_valid() || !nb::hasattr(module, "nn")) return nullptr;  // absent, or being imported
  auto* const torch = new Torch;                                         // stays, as the module does
  torch->torch_ = module.inc_ref();
  torch->tensor_type_ = module.attr("Tensor").inc_ref();
  torch->parameter_type_ = module.attr("nn").attr("Parameter").inc_ref();
  torch->is_grad_enabled_ = module.attr("is_grad_enabled").inc_ref();
  torch->empty_like_ = module.attr("empty_like").inc_ref();
  torch->float32_ = module.attr("float32").inc_ref();
  torch->requires_grad_ = PyUnicode_InternFromString("requires_grad");
  torch->is_neg_ = PyUnicode_InternFromString("is_neg");
  torch->is_cpu_ = PyUnicode_InternFromString("is_cpu");
  torch->is_cuda_ = PyUnicode_InternFromString("is_cuda");
  torch->new_empty_ = PyUnicode_InternFromString("new_empty");
  torch->exchange_api_ = exchange_api_of(torch->tensor_type_);
  return known = torch;
}

bool Torch::is_tensor(nb::handle object) const {
  auto* const type = reinterpret_cast<PyTypeObject*>(tensor_type_.ptr());
  return Py_TYPE(object.ptr()) == type || PyType_IsSubtype(Py_TYPE(object.ptr()), type) != 0;
}

nb::object Torch::new_empty(nb::handle like, nb::handle shape, bool f32) const {
  const nb::object method = nb::getattr(like, new_empty_);
  return f32 ? method(shape, nb::arg("dtype") = float32_) : method(shape);
}

std::uintptr_t Torch::current_stream(nb::handle tensor) const {
  if (exchange_api_ != nullptr) {
    dlpack::Tensor seen;
    void* stream = nullptr;
    if (exchange_api_->tensor_from_py_object(tensor.ptr(), &seen) != 0) {
      PyErr_Clear();  // no memory, no stream: who reads the tensor says so
      return 0;
    }
    if (seen.device.device_type != dlpack::kCuda) return 0;
    if (exchange_api_->current_work_stream(dlpack::kCuda, seen.device.device_id, &stream) != 0)
      throw nb::python_error();
    return reinterpret_cast<std::uintptr_t>(stream);
  }
  if (!truth(nb::getattr(tensor, is_cuda_))) return 0;
  return nb::cast<std::uintptr_t>(
      torch_.attr("cuda").attr("current_stream")(tensor.attr("device")).attr("cuda_stream"));
}

bool Torch::records_gradient(nb::handle tensor) const {
  return truth(nb::getattr(tensor, requires_grad_)) && truth(is_grad_enabled_());
}

void Torch::check_values(nb::handle tensor, const char* name) const {
  if (records_gradient(tensor)) {
    throw NotSupported(format_message(
        "onepass", fmt::format("{} requires a gradient, and the functions for any array give none", name),
        "tensors without requires_grad, or any tensors under torch.no_grad()",
        fmt::format("call onepass.scaled_dot_product_attention or onepass.flash_attn, or pass {}.detach()",
                    name)));
  }
  if (truth(nb::getattr(tensor, is_neg_)())) {
    throw_invalid("onepass", fmt::format("{} is negated lazily, so its memory holds other values", name),
                  "tensors whose memory holds their values", fmt::format("pass {}.resolve_neg()", name));
  }
}

bool Torch::is_more_than_values(nb::handle tensor) const {
  const nb::handle type = tensor.type();
  return !(same(type, tensor_type_) || same(type, parameter_type_)) ||
         !(truth(nb::getattr(tensor, is_cuda_)) || truth(nb::getattr(tensor, is_cpu_))) ||
         truth(nb::getattr(tensor, is_neg_)()) || records_gradient(tensor);
}

}  // namespace onepass::python
