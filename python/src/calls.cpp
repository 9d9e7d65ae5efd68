#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/prepared.h"
#include "arrays.h"
#include "backends/launch.h"
#include "library.h"
#include "module.h"
#include "onepass/attention.h"
#include "onepass/cascade.h"
#include "support/message.h"
#include "threads.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

template <class Arguments>
struct Member {
  const char* name;
  TensorView Arguments::*view;
};

/// A call's tensors: those that it reads, in the order in which Python gives them, then the two that it
/// writes.
constexpr std::array<Member<ForwardArguments>, 15> kForwardMembers = {
    {{"q", &ForwardArguments::q},
     {"k", &ForwardArguments::k},
     {"v", &ForwardArguments::v},
     {"cu_seqlens_q", &ForwardArguments::cu_seqlens_q},
     {"cu_seqlens_k", &ForwardArguments::cu_seqlens_k},
     {"seqused_q", &ForwardArguments::seqused_q},
     {"seqused_k", &ForwardArguments::seqused_k},
     {"block_table", &ForwardArguments::block_table},
     {"alibi_slopes", &ForwardArguments::alibi_slopes},
     {"bias", &ForwardArguments::bias},
     {"sinks", &ForwardArguments::sinks},
     {"k_descale", &ForwardArguments::k_descale},
     {"v_descale", &ForwardArguments::v_descale},
     {"out", &ForwardArguments::out},
     {"softmax_lse", &ForwardArguments::softmax_lse}}};

constexpr std::array<Member<MergeArguments>, 6> kMergeMembers = {{{"out_a", &MergeArguments::out_a},
                                                                  {"lse_a", &MergeArguments::lse_a},
                                                                  {"out_b", &MergeArguments::out_b},
                                                                  {"lse_b", &MergeArguments::lse_b},
                                                                  {"out", &MergeArguments::out},
                                                                  {"lse", &MergeArguments::lse}}};

Stream stream_of(std::uintptr_t handle) { return {reinterpret_cast<void*>(handle)}; }

using Extents = std::span<const std::int64_t>;

/// The tensors of a call and what keeps their memory while it runs.
template <class Arguments, std::size_t count>
class Tensors {
 public:
  using Members = std::array<Member<Arguments>, count>;

  /// `given` has those that are read; None is absent. `stream` is the caller's, or None for the current one
  /// of the first tensor's library. With `check_values`, torch's tensors are refused whose gradient or values
  /// the call would miss.
  Tensors(const Members& members, const nb::tuple& given, nb::handle stream, bool check_values)
      : members_(members), library_(first(given), members[0].name), stream_given_(!stream.is_none()) {
    stream_ = stream_given_ ? handle_of(stream) : library_.current_stream();
    const Torch* const torch = check_values ? Torch::loaded() : nullptr;
    arrays_.reserve(count);
    for (std::size_t i = 0; i < kInputs; ++i) {
      const nb::handle object = PyTuple_GetItem(given.ptr(), static_cast<Py_ssize_t>(i));
      if (object.is_none()) continue;
      if (torch != nullptr && torch->is_tensor(object)) torch->check_values(object, members[i].name);
      read(i, object);
    }
  }

  /// Adds what is written: `out`, or for None a new array of that shape; and with `return_lse` a new lse.
  void add_outputs(nb::handle out, Extents out_shape, bool return_lse, Extents lse_shape) {
    const TensorView& like = arguments_.*members_[0].view;
    if (out.is_none()) {
      out_ = library_.empty(like, out_shape);
    } else {
      check_out(out);
      given_out_ = nb::borrow(out);
    }
    write(kInputs, out.is_none() ? out_ : given_out_);
    if (!return_lse) return;
    lse_ = library_.empty(like, lse_shape, /*f32=*/true);
    write(kInputs + 1, lse_);
  }

  /// What the caller gets: out, or (out, lse).
  nb::object results() const {
    nb::object out = out_.is_valid() ? library_.finish(out_) : given_out_;
    return lse_.is_valid() ? nb::object(nb::make_tuple(out, library_.finish(lse_))) : out;
  }

  const Arguments& arguments() const { return arguments_; }
  Stream stream() const { return stream_of(stream_); }
  /// Of device memory for this call; null when the library shall take its own.
  const dlpack::ExchangeApi* allocator() const { return stream_given_ ? nullptr : library_.allocator(); }

 private:
  static constexpr std::size_t kInputs = count - 2;

  static nb::handle first(const nb::tuple& given) {
    if (given.size() != kInputs) throw nb::type_error("another number of tensors");
    return PyTuple_GetItem(given.ptr(), 0);
  }

  const Array& read(std::size_t i, nb::handle object) {
    const Array& array = arrays_.emplace_back(object, members_[i].name, stream_);
    arguments_.*members_[i].view = array.view();
    return array;
  }

  void write(std::size_t i, nb::handle object) {
    if (!read(i, object).read_only()) return;
    throw_invalid(members_[i].name, "the array is read-only", "an array that may be written",
                  "pass another array");
  }

  const Members& members_;
  Library library_;
  bool stream_given_;
  std::uintptr_t stream_ = 0;
  std::vector<Array> arrays_;
  Arguments arguments_;
  nb::object out_, given_out_, lse_;
};

using ForwardTensors = Tensors<ForwardArguments, kForwardMembers.size()>;

/// q's rows and heads, v's head_dim; lse [B, Hq, Sq], packed [Hq, Tq]. Shapes that fit no rule are the
/// library's to refuse.
void add_outputs(ForwardTensors& tensors, nb::handle out, bool return_lse, bool heads_first = false) {
  const TensorView &q = tensors.arguments().q, &v = tensors.arguments().v;
  const auto rank = static_cast<std::size_t>(q.rank);
  auto out_shape = q.shape, lse_shape = q.shape;
  if (v.present()) out_shape[rank - 1] = v.shape[static_cast<std::size_t>(v.rank) - 1];
  if (rank >= 3 && !heads_first) std::swap(lse_shape[rank - 3], lse_shape[rank - 2]);
  tensors.add_outputs(out, {out_shape.data(), rank}, return_lse, {lse_shape.data(), rank - 1});
}

/// The same tensors as [batch, seqlen, heads, head_dim], which are given as [batch, heads, seqlen, head_dim].
ForwardArguments rows_before_heads(ForwardArguments args) {
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out}) *view = transpose(*view, 1, 2);
  return args;
}

DeviceInfo device_named(const std::string& name) {
  if (name == "this-cpu") return this_cpu();
  if (const std::optional<DeviceInfo> device = find_device(name)) return *device;
  std::vector<std::string> known = known_devices();
  known.insert(known.begin(), "this-cpu");
  throw_invalid("plan", fmt::format("device is '{}'", name), joined(known), "pass one of these names");
}

nb::object forward_call(const ForwardOptions& options, const nb::tuple& given, nb::handle out,
                        bool return_lse, nb::handle stream, bool check_values, bool heads_first) {
  ForwardTensors tensors(kForwardMembers, given, stream, check_values);
  add_outputs(tensors, out, return_lse, heads_first);
  const ForwardArguments args = heads_first ? rows_before_heads(tensors.arguments()) : tensors.arguments();
  {
    const nb::gil_scoped_release others_run;
    const dlpack::ExchangeApi* const allocator = tensors.allocator();
    if (args.q.device == DeviceKind::Cpu || allocator == nullptr) {
      forward(args, options, tensors.stream());
    } else {
      const std::shared_ptr<const Plan> plan = prepared_forward("forward", args, options);
      const LibraryMemory workspace(*allocator, args.q.device_idx, plan->workspace_bytes());
      launch(*plan, args, workspace.bytes(), tensors.stream());
    }
  }
  return tensors.results();
}

Plan plan_call(const ForwardOptions& options, const std::optional<std::string>& device,
               const nb::tuple& given, bool return_lse) {
  ForwardTensors tensors(kForwardMembers, given, nb::none(), /*check_values=*/false);
  add_outputs(tensors, nb::none(), return_lse);
  return device ? plan(tensors.arguments(), options, device_named(*device))
                : plan(tensors.arguments(), options);
}

nb::object merge_call(int num_threads, const nb::tuple& given, nb::handle out, bool return_lse,
                      nb::handle stream) {
  Tensors<MergeArguments, kMergeMembers.size()> tensors(kMergeMembers, given, stream, /*check_values=*/true);
  const auto shape = [](const TensorView& view) {
    return Extents(view.shape.data(), static_cast<std::size_t>(view.rank));
  };
  const MergeArguments& args = tensors.arguments();
  tensors.add_outputs(out, shape(args.out_a), return_lse, shape(args.lse_a));
  {
    const nb::gil_scoped_release others_run;
    merge(args, threads_to_use(num_threads), tensors.stream());
  }
  return tensors.results();
}

/// The tensors of a backward call: those that it reads, then those that it writes.
struct BackwardMember {
  const char* name;
  TensorView& (*view)(BackwardArguments&);
};

constexpr std::array<BackwardMember, 19> kBackwardMembers = {
    {{"q", [](BackwardArguments& a) -> TensorView& { return a.forward.q; }},
     {"k", [](BackwardArguments& a) -> TensorView& { return a.forward.k; }},
     {"v", [](BackwardArguments& a) -> TensorView& { return a.forward.v; }},
     {"cu_seqlens_q", [](BackwardArguments& a) -> TensorView& { return a.forward.cu_seqlens_q; }},
     {"cu_seqlens_k", [](BackwardArguments& a) -> TensorView& { return a.forward.cu_seqlens_k; }},
     {"seqused_q", [](BackwardArguments& a) -> TensorView& { return a.forward.seqused_q; }},
     {"seqused_k", [](BackwardArguments& a) -> TensorView& { return a.forward.seqused_k; }},
     {"alibi_slopes", [](BackwardArguments& a) -> TensorView& { return a.forward.alibi_slopes; }},
     {"bias", [](BackwardArguments& a) -> TensorView& { return a.forward.bias; }},
     {"sinks", [](BackwardArguments& a) -> TensorView& { return a.forward.sinks; }},
     {"out", [](BackwardArguments& a) -> TensorView& { return a.forward.out; }},
     {"softmax_lse", [](BackwardArguments& a) -> TensorView& { return a.forward.softmax_lse; }},
     {"dout", [](BackwardArguments& a) -> TensorView& { return a.dout; }},
     {"dlse", [](BackwardArguments& a) -> TensorView& { return a.dlse; }},
     {"dq", [](BackwardArguments& a) -> TensorView& { return a.dq; }},
     {"dk", [](BackwardArguments& a) -> TensorView& { return a.dk; }},
     {"dv", [](BackwardArguments& a) -> TensorView& { return a.dv; }},
     {"dbias", [](BackwardArguments& a) -> TensorView& { return a.dbias; }},
     {"dsinks", [](BackwardArguments& a) -> TensorView& { return a.dsinks; }}}};

void backward_call(const ForwardOptions& options, const nb::tuple& given) {
  if (given.size() != kBackwardMembers.size()) throw nb::type_error("another number of tensors");
  const nb::handle q = PyTuple_GetItem(given.ptr(), 0);
  const Library library(q, "q");
  const std::uintptr_t handle = library.current_stream();
  std::vector<Array> arrays;
  arrays.reserve(kBackwardMembers.size());
  BackwardArguments args;
  for (std::size_t i = 0; i < kBackwardMembers.size(); ++i) {
    const nb::handle object = PyTuple_GetItem(given.ptr(), static_cast<Py_ssize_t>(i));
    if (object.is_none()) continue;
    kBackwardMembers[i].view(args) = arrays.emplace_back(object, kBackwardMembers[i].name, handle).view();
  }
  const nb::gil_scoped_release others_run;
  const dlpack::ExchangeApi* const allocator = library.allocator();
  if (args.forward.q.device == DeviceKind::Cpu || allocator == nullptr) {
    return backward(args, options, stream_of(handle));
  }
  const std::shared_ptr<const Plan> plan = prepared_backward("backward", args, options);
  const LibraryMemory workspace(*allocator, args.forward.q.device_idx, plan->workspace_bytes());
  launch(*plan, args, workspace.bytes(), stream_of(handle));
}

nb::object cascade_call(const ForwardOptions& options, const nb::tuple& given, const nb::tuple& of_prefix,
                        nb::handle out, bool return_lse, nb::handle stream) {
  constexpr std::array<Member<CascadeArguments>, 4> kMembers = {
      {{"k_prefix", &CascadeArguments::k_prefix},
       {"v_prefix", &CascadeArguments::v_prefix},
       {"prefix_table", &CascadeArguments::prefix_table},
       {"prefix_seqlen", &CascadeArguments::prefix_seqlen}}};
  if (of_prefix.size() != kMembers.size()) throw nb::type_error("another number of tensors");
  ForwardTensors tensors(kForwardMembers, given, stream, /*check_values=*/true);
  add_outputs(tensors, out, return_lse);
  CascadeArguments args;
  args.own = tensors.arguments();
  std::vector<Array> arrays;
  arrays.reserve(kMembers.size());
  for (std::size_t i = 0; i < kMembers.size(); ++i) {
    const nb::object object = of_prefix[i];
    if (object.is_none()) continue;
    const auto handle = reinterpret_cast<std::uintptr_t>(tensors.stream().handle);
    args.*kMembers[i].view = arrays.emplace_back(object, kMembers[i].name, handle).view();
  }
  {
    const nb::gil_scoped_release others_run;
    const dlpack::ExchangeApi* const allocator = tensors.allocator();
    if (args.own.q.device == DeviceKind::Cpu || allocator == nullptr) {
      cascade(args, options, tensors.stream());
    } else {
      const CascadePlan plan = prepared_cascade("cascade", args, options);
      const LibraryMemory workspace(*allocator, args.own.q.device_idx, plan.workspace_bytes());
      run_prepared("cascade", plan, args, workspace.bytes(), tensors.stream());
    }
  }
  return tensors.results();
}

/// Whether torch must see an operation on these tensors; None is absent.
bool are_more_than_values(const nb::tuple& tensors) {
  const Torch* const torch = Torch::loaded();
  for (const nb::handle tensor : tensors) {
    if (!tensor.is_none() && (torch == nullptr || torch->is_more_than_values(tensor))) return true;
  }
  return false;
}

}  // namespace

void bind_calls(nb::module_& module) {
  module.def(
      "backward", backward_call, nb::arg("options"), nb::arg("tensors"),
      "onepass::backward of (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, bias, "
      "sinks, out, softmax_lse, dout, dlse), into the given (dq, dk, dv, dbias, dsinks): one tuple of all.");
  module.def("forward", forward_call, nb::arg("options"), nb::arg("tensors"), nb::arg("out").none(),
             nb::arg("return_lse"), nb::arg("stream").none(), nb::arg("check_values"), nb::arg("heads_first"),
             "onepass::forward of (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table, "
             "alibi_slopes, bias, sinks, k_descale, v_descale): out, or (out, lse). With heads_first q, k, v "
             "and out "
             "are [batch, heads, seqlen, head_dim].");
  module.def(
      "plan", plan_call, nb::arg("options"), nb::arg("device").none(), nb::arg("tensors"),
      nb::arg("return_lse"),
      "onepass::plan of the tensors of forward, for a device by name or, with None, for the one that they "
      "are on.");
  module.def("merge", merge_call, nb::arg("num_threads"), nb::arg("tensors"), nb::arg("out").none(),
             nb::arg("return_lse"), nb::arg("stream").none(),
             "onepass::merge of (out_a, lse_a, out_b, lse_b): out, or (out, lse).");
  module.def("cascade", cascade_call, nb::arg("options"), nb::arg("tensors"), nb::arg("prefix"),
             nb::arg("out").none(), nb::arg("return_lse"), nb::arg("stream").none(),
             "onepass::cascade of the tensors of forward and (k_prefix, v_prefix, prefix_table, "
             "prefix_seqlen): out, or (out, lse).");
  module.def("are_more_than_values", are_more_than_values, nb::arg("tensors"),
             "Whether torch has more to do with an operation on any of these tensors than their values.");
}

}  // namespace onepass::python
