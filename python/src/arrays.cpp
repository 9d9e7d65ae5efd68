#include "arrays.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "dlpack.h"
#include "support/message.h"
#include "torch.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

/// What `object` has under `name`; invalid when it has nothing.
nb::object attribute(nb::handle object, const char* name) { return nb::getattr(object, name, nb::handle()); }

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

/// Of an exception; torch adds its call stack, and a blank line before it at times.
std::string first_line(nb::handle exception) {
  const std::string text = text_of(exception);
  return text.substr(0, text.find('\n'));
}

struct NumpyType {
  std::string_view name;  ///< numpy.dtype.name
  dlpack::DataType value;
};

constexpr std::array kNumpyTypes = {
    NumpyType{"float32", {2, 32, 1}},    NumpyType{"float16", {2, 16, 1}},
    NumpyType{"bfloat16", {4, 16, 1}},   NumpyType{"int32", {0, 32, 1}},
    NumpyType{"int8", {0, 8, 1}},        NumpyType{"float8_e4m3fn", {10, 8, 1}},
    NumpyType{"float8_e5m2", {12, 8, 1}}};

dlpack::DataType numpy_type(nb::handle dtype) {
  const std::string name = text_of(nb::getattr(dtype, "name"));
  const bool native = nb::cast<bool>(nb::getattr(dtype, "isnative"));
  for (const NumpyType& type : kNumpyTypes) {
    if (native && type.name == name) return type.value;
  }
  throw_invalid("array", fmt::format("dtype is {}{}", name, native ? "" : " in another byte order"),
                "float32, float16, int32, int8, and from ml_dtypes bfloat16, float8_e4m3fn, float8_e5m2",
                "convert it with astype");
}

std::vector<std::int64_t> integers(nb::handle sequence) {
  std::vector<std::int64_t> values;
  for (const nb::handle value : sequence) values.push_back(nb::cast<std::int64_t>(value));
  return values;
}

/// NumPy counts strides in bytes; a field of a structured array need not lie at multiples of its own size.
std::vector<std::int64_t> in_elements(std::vector<std::int64_t> strides, std::int64_t element_bytes) {
  for (std::int64_t& stride : strides) {
    if (stride % element_bytes != 0) {
      throw_invalid("array",
                    fmt::format("a stride is {} bytes, and an element has {}", stride, element_bytes),
                    "strides of whole elements", "copy it with numpy.ascontiguousarray");
    }
    stride /= element_bytes;
  }
  return strides;
}

/// The message with the argument's name for the call's: "from_dlpack: tensor has ndim 0" of "q".
std::string renamed(const char* name, std::string_view message) {
  const auto colon = message.find(": ");
  return fmt::format("{}{}", name, colon == std::string_view::npos ? message : message.substr(colon));
}

}  // namespace

Array::Array(nb::handle object, const char* name, std::uintptr_t stream) {
  try {
    if (from_exchange_api(object) || from_array_interface(object) || from_dlpack_method(object, stream))
      return;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(renamed(name, error.what()));
  } catch (const nb::python_error& error) {
    throw_invalid(name,
                  fmt::format("its library does not hand out its memory ({})", first_line(error.value())),
                  "arrays in memory of the CPU or of an NVIDIA GPU",
                  "pass a plain array: not sparse, not on the meta device");
  }
  const std::string message =
      format_message(name, fmt::format("a {} is given", text_of(nb::getattr(object.type(), "__name__"))),
                     "an array of NumPy, PyTorch, CuPy, JAX, or any other with __dlpack__",
                     "convert it, as numpy.asarray does");
  throw nb::type_error(message.c_str());
}

bool Array::from_exchange_api(nb::handle object) {
  const Torch* const torch = Torch::loaded();
  const dlpack::ExchangeApi* const api =
      torch != nullptr && torch->is_tensor(object) ? torch->exchange_api() : exchange_api_of(object.type());
  if (api == nullptr) return false;
  dlpack::Tensor tensor;
  if (api->tensor_from_py_object(object.ptr(), &tensor) != 0) throw nb::python_error();
  view_ = from_dlpack(tensor);
  return true;
}

bool Array::from_array_interface(nb::handle object) {
  const nb::object interface = attribute(object, "__array_interface__");
  const nb::object dtype = attribute(object, "dtype");
  if (!interface.is_valid() || !dtype.is_valid()) return false;
  const dlpack::DataType type = numpy_type(dtype);
  std::vector<std::int64_t> shape = integers(interface["shape"]);
  std::vector<std::int64_t> strides;
  if (const nb::object bytes = interface["strides"]; !bytes.is_none()) {
    strides = in_elements(integers(bytes), type.bits / 8);
  }
  const nb::object data = interface["data"];
  view_ = from_dlpack(dlpack::Tensor{reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0])),
                                     {dlpack::kCpu, 0},
                                     static_cast<std::int32_t>(shape.size()),
                                     type,
                                     shape.data(),
                                     strides.empty() ? nullptr : strides.data(),
                                     0});
  read_only_ = nb::cast<bool>(data[1]);
  return true;
}

bool Array::from_dlpack_method(nb::handle object, std::uintptr_t stream) {
  if (!attribute(object, "__dlpack__").is_valid()) return false;
  // Those before DLPack's C table refuse tensors with requires_grad, which are looked at in Python.
  const nb::object detach = attribute(object, "detach");
  const nb::object array = detach.is_valid() ? nb::object(detach()) : nb::borrow(object);
  const auto device_type = nb::cast<std::int32_t>(array.attr("__dlpack_device__")()[0]);
  const bool on_host = device_type == dlpack::kCpu || device_type == dlpack::kCudaHost;
  // 1 is the legacy default stream, 0 is not allowed.
  const nb::object wait =
      on_host ? nb::object(nb::none()) : nb::cast(stream == 0 ? std::uintptr_t{1} : stream);
  try {
    keeper_ = array.attr("__dlpack__")(nb::arg("stream") = wait,
                                       nb::arg("max_version") = nb::make_tuple(dlpack::kMajor, 0));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // a producer from before max_version
    keeper_ = array.attr("__dlpack__")(nb::arg("stream") = wait);
  }
  // The capsule keeps its name: unconsumed, it frees what it holds when it goes.
  if (PyCapsule_IsValid(keeper_.ptr(), "dltensor_versioned") != 0) {
    const auto* managed = static_cast<const dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(keeper_.ptr(), "dltensor_versioned"));
    if (managed->version.major == dlpack::kMajor) {
      view_ = from_dlpack(managed->dl_tensor);
      read_only_ = (managed->flags & dlpack::ManagedTensorVersioned::kReadOnly) != 0;
      return true;
    }
  }
  if (PyCapsule_IsValid(keeper_.ptr(), "dltensor") == 0) return false;
  view_ = from_dlpack(
      static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(keeper_.ptr(), "dltensor"))->dl_tensor);
  return true;
}

}  // namespace onepass::python
