#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <vector>

#include "arrays.h"
#include "library.h"
#include "module.h"
#include "onepass/append_kv.h"
#include "support/message.h"
#include "threads.h"
#include "torch.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

enum class Use { Values, Indices, Written };

struct AppendMember {
  const char* name;
  TensorView AppendArguments::*view;
  Use use;
};

/// In the order in which Python gives them.
constexpr std::array<AppendMember, 19> kAppendMembers = {
    {{"k_new", &AppendArguments::k_new, Use::Values},
     {"v_new", &AppendArguments::v_new, Use::Values},
     {"k_cache", &AppendArguments::k_cache, Use::Written},
     {"v_cache", &AppendArguments::v_cache, Use::Written},
     {"cu_seqlens_new", &AppendArguments::cu_seqlens_new, Use::Indices},
     {"seqused_new", &AppendArguments::seqused_new, Use::Indices},
     {"cache_seqlens", &AppendArguments::cache_seqlens, Use::Indices},
     {"block_table", &AppendArguments::block_table, Use::Indices},
     {"cache_batch_idx", &AppendArguments::cache_batch_idx, Use::Indices},
     {"rotary_cos", &AppendArguments::rotary_cos, Use::Values},
     {"rotary_sin", &AppendArguments::rotary_sin, Use::Values},
     {"rotary_positions", &AppendArguments::rotary_positions, Use::Indices},
     {"q", &AppendArguments::q, Use::Values},
     {"cu_seqlens_q", &AppendArguments::cu_seqlens_q, Use::Indices},
     {"seqlens_out", &AppendArguments::seqlens_out, Use::Written},
     {"overflow", &AppendArguments::overflow, Use::Written},
     {"k_descale", &AppendArguments::k_descale, Use::Values},
     {"v_descale", &AppendArguments::v_descale, Use::Values},
     {"q_out", &AppendArguments::q_out, Use::Written}}};

constexpr std::size_t kQuery = 12;

/// q_out, a new one where it is None; None without q.
nb::object append_call(const nb::tuple& given, bool rotary_interleaved, bool q_at_first_position,
                       int num_threads, nb::handle stream, bool check_values) {
  if (given.size() != kAppendMembers.size()) throw nb::type_error("another number of tensors");
  const Library library(given[0], kAppendMembers[0].name);
  const std::uintptr_t handle = stream.is_none() ? library.current_stream() : handle_of(stream);
  const Torch* const torch = check_values ? Torch::loaded() : nullptr;
  std::vector<Array> arrays;
  arrays.reserve(kAppendMembers.size());
  AppendArguments args;
  const auto read = [&](const AppendMember& member, nb::handle object) {
    const Array& array = arrays.emplace_back(object, member.name, handle);
    args.*member.view = array.view();
    if (member.use != Use::Written || !array.read_only()) return;
    throw_invalid(member.name, "the array is read-only", "an array that may be written",
                  "pass another array");
  };
  for (std::size_t i = 0; i < kAppendMembers.size(); ++i) {
    const AppendMember& member = kAppendMembers[i];
    const nb::object object = given[i];
    if (object.is_none()) continue;
    if (member.use == Use::Written) check_out(object);
    if (torch != nullptr && member.use != Use::Indices && torch->is_tensor(object)) {
      torch->check_values(object, member.name);
    }
    read(member, object);
  }
  nb::object q_out = given[kAppendMembers.size() - 1];
  std::optional<Library> made_by;
  if (args.q.present() && q_out.is_none()) {
    made_by.emplace(given[kQuery], kAppendMembers[kQuery].name);
    q_out = made_by->empty(args.q, {args.q.shape.data(), static_cast<std::size_t>(args.q.rank)});
    read(kAppendMembers.back(), q_out);
  }
  {
    const nb::gil_scoped_release others_run;
    append_kv(args,
              {.rotary_interleaved = rotary_interleaved,
               .q_at_first_position = q_at_first_position,
               .num_threads = threads_to_use(num_threads)},
              {reinterpret_cast<void*>(handle)});
  }
  return made_by ? made_by->finish(q_out) : q_out;
}

}  // namespace

void bind_append(nb::module_& module) {
  module.def("append_kv", append_call, nb::arg("tensors"), nb::arg("rotary_interleaved"),
             nb::arg("q_at_first_position"), nb::arg("num_threads"), nb::arg("stream").none(),
             nb::arg("check_values"),
             "onepass::append_kv of (k_new, v_new, k_cache, v_cache, cu_seqlens_new, seqused_new, "
             "cache_seqlens, block_table, cache_batch_idx, rotary_cos, rotary_sin, rotary_positions, q, "
             "cu_seqlens_q, seqlens_out, overflow, k_descale, v_descale, q_out): q_out, or None.");
}

}  // namespace onepass::python
