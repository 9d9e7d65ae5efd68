#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "onepass/attention.h"
#include "support/message.h"
#include "threads.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

template <class Arguments>
struct Member {
  const char* name;
  TensorView Arguments::*view;
  bool written = false;
};

constexpr std::array<Member<ForwardArguments>, 15> kForwardMembers = {
    {{"q", &ForwardArguments::q},
     {"k", &ForwardArguments::k},
     {"v", &ForwardArguments::v},
     {"out", &ForwardArguments::out, true},
     {"softmax_lse", &ForwardArguments::softmax_lse, true},
     {"cu_seqlens_q", &ForwardArguments::cu_seqlens_q},
     {"cu_seqlens_k", &ForwardArguments::cu_seqlens_k},
     {"seqused_q", &ForwardArguments::seqused_q},
     {"seqused_k", &ForwardArguments::seqused_k},
     {"block_table", &ForwardArguments::block_table},
     {"alibi_slopes", &ForwardArguments::alibi_slopes},
     {"bias", &ForwardArguments::bias},
     {"sinks", &ForwardArguments::sinks},
     {"k_descale", &ForwardArguments::k_descale},
     {"v_descale", &ForwardArguments::v_descale}}};

constexpr std::array<Member<MergeArguments>, 6> kMergeMembers = {{{"out_a", &MergeArguments::out_a},
                                                                  {"lse_a", &MergeArguments::lse_a},
                                                                  {"out_b", &MergeArguments::out_b},
                                                                  {"lse_b", &MergeArguments::lse_b},
                                                                  {"out", &MergeArguments::out, true},
                                                                  {"lse", &MergeArguments::lse, true}}};

/// The names as Python has them in keyword arguments, so that a look-up compares addresses. They stay.
template <class Arguments, std::size_t count>
std::array<nb::handle, count> interned(const std::array<Member<Arguments>, count>& members) {
  std::array<nb::handle, count> names;
  for (std::size_t i = 0; i < count; ++i) names[i] = PyUnicode_InternFromString(members[i].name);
  return names;
}

/// The tensors of a call from keyword arguments named as the members; None is absent.
template <class Arguments>
class Tensors {
 public:
  template <std::size_t count>
  Tensors(const nb::kwargs& given, const std::array<Member<Arguments>, count>& members,
          std::uintptr_t stream) {
    arrays_.reserve(count);
    static const std::array<nb::handle, count> names = interned(members);
    std::size_t num_known = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Member<Arguments>& member = members[i];
      PyObject* object = PyDict_GetItemWithError(given.ptr(), names[i].ptr());
      if (object == nullptr) continue;
      ++num_known;
      if (object == Py_None) continue;
      const Array& array = arrays_.emplace_back(object, member.name, stream);
      if (member.written && array.read_only()) {
        throw_invalid(member.name, "the array is read-only", "an array that may be written",
                      "pass another array");
      }
      arguments_.*member.view = array.view();
    }
    if (num_known != given.size()) throw nb::type_error("unknown tensor name");
  }

  const Arguments& arguments() const { return arguments_; }

 private:
  std::vector<Array> arrays_;  // what keeps the memory during the call
  Arguments arguments_;
};

using ForwardTensors = Tensors<ForwardArguments>;

Stream stream_of(std::uintptr_t handle) { return {reinterpret_cast<void*>(handle)}; }

DeviceInfo device_named(const std::string& name) {
  if (name == "this-cpu") return this_cpu();
  if (const std::optional<DeviceInfo> device = find_device(name)) return *device;
  std::vector<std::string> known = known_devices();
  known.insert(known.begin(), "this-cpu");
  throw_invalid("plan", fmt::format("device is '{}'", name), joined(known), "pass one of these names");
}

void forward_call(const ForwardOptions& options, std::uintptr_t stream, const nb::kwargs& given) {
  const ForwardTensors tensors(given, kForwardMembers, stream);
  const nb::gil_scoped_release others_run;
  forward(tensors.arguments(), options, stream_of(stream));
}

Plan plan_call(const ForwardOptions& options, const std::optional<std::string>& device,
               const nb::kwargs& given) {
  const ForwardTensors tensors(given, kForwardMembers, 0);
  return device ? plan(tensors.arguments(), options, device_named(*device))
                : plan(tensors.arguments(), options);
}

void merge_call(int num_threads, std::uintptr_t stream, const nb::kwargs& given) {
  const Tensors<MergeArguments> tensors(given, kMergeMembers, stream);
  const nb::gil_scoped_release others_run;
  merge(tensors.arguments(), threads_to_use(num_threads), stream_of(stream));
}

}  // namespace

void bind_calls(nb::module_& module) {
  module.def("forward", forward_call, nb::arg("options"), nb::arg("stream"), nb::arg("tensors"),
             "onepass::forward; the tensors are named as the members of ForwardArguments.");
  module.def("plan", plan_call, nb::arg("options"), nb::arg("device").none(), nb::arg("tensors"),
             "onepass::plan, for a device by name or, with None, for the one that the tensors are on.");
  module.def("merge", merge_call, nb::arg("num_threads"), nb::arg("stream"), nb::arg("tensors"),
             "onepass::merge; the tensors are named as the members of MergeArguments.");
}

}  // namespace onepass::python
