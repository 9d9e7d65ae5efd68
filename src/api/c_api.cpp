// The C interface: plain structs to views and options, exceptions to statuses. No rule of attention lives
// here.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "api/c_structs.h"
#include "api/status_guard.h"
#include "onepass/append_kv.h"
#include "onepass/attention.h"
#include "onepass/cascade.h"
#include "onepass/onepass.h"
#include "support/message.h"

/// The handle behind onepass_plan*.
struct onepass_plan {  // NOLINT(readability-identifier-naming): named by onepass.h
  onepass::Plan value;
  mutable std::mutex explain_mutex;
  mutable std::string explanation;  // made by the first onepass_plan_explain
};

/// The handle behind onepass_cascade_plan*.
struct onepass_cascade_plan {  // NOLINT(readability-identifier-naming): named by onepass.h
  onepass::CascadePlan value;
};

namespace onepass::c {
namespace {

static_assert(TensorView::kMaxRank == ONEPASS_MAX_RANK);
static_assert(static_cast<int>(DType::F32) == ONEPASS_DTYPE_F32 &&
              static_cast<int>(DType::F16) == ONEPASS_DTYPE_F16 &&
              static_cast<int>(DType::BF16) == ONEPASS_DTYPE_BF16 &&
              static_cast<int>(DType::F8E4M3) == ONEPASS_DTYPE_F8E4M3 &&
              static_cast<int>(DType::F8E5M2) == ONEPASS_DTYPE_F8E5M2 &&
              static_cast<int>(DType::I32) == ONEPASS_DTYPE_I32 &&
              static_cast<int>(DType::I8) == ONEPASS_DTYPE_I8);
static_assert(static_cast<int>(DeviceKind::Cpu) == ONEPASS_DEVICE_CPU &&
              static_cast<int>(DeviceKind::Cuda) == ONEPASS_DEVICE_CUDA);
static_assert(static_cast<int>(Causal::None) == ONEPASS_CAUSAL_NONE &&
              static_cast<int>(Causal::BottomRight) == ONEPASS_CAUSAL_BOTTOM_RIGHT &&
              static_cast<int>(Causal::TopLeft) == ONEPASS_CAUSAL_TOP_LEFT);
static_assert(static_cast<int>(Backend::Auto) == ONEPASS_BACKEND_AUTO &&
              static_cast<int>(Backend::Cpu) == ONEPASS_BACKEND_CPU &&
              static_cast<int>(Backend::Reference) == ONEPASS_BACKEND_REFERENCE &&
              static_cast<int>(Backend::Cuda) == ONEPASS_BACKEND_CUDA);

// No padding at the end: a later field must not land where an older caller left garbage.
static_assert(sizeof(onepass_tensor) == offsetof(onepass_tensor, device_idx) + sizeof(std::int32_t));
static_assert(sizeof(onepass_forward_args) == offsetof(onepass_forward_args, stream) + sizeof(void*));
static_assert(sizeof(onepass_forward_options) ==
              offsetof(onepass_forward_options, batch_invariant) + sizeof(std::int32_t));
static_assert(sizeof(onepass_backward_args) == offsetof(onepass_backward_args, dbias) + sizeof(void*));
static_assert(sizeof(onepass_merge_args) == offsetof(onepass_merge_args, stream) + sizeof(void*));
static_assert(sizeof(onepass_cascade_args) == offsetof(onepass_cascade_args, prefix_seqlen) + sizeof(void*));
static_assert(sizeof(onepass_append_args) == offsetof(onepass_append_args, v_descale) + sizeof(void*));

constexpr onepass_tensor kTensorDefaults = ONEPASS_TENSOR_INIT;
constexpr onepass_forward_args kArgsDefaults = ONEPASS_FORWARD_ARGS_INIT;
constexpr onepass_forward_options kOptionsDefaults = ONEPASS_FORWARD_OPTIONS_INIT;
constexpr onepass_backward_args kBackwardDefaults = ONEPASS_BACKWARD_ARGS_INIT;
constexpr onepass_merge_args kMergeDefaults = ONEPASS_MERGE_ARGS_INIT;
constexpr onepass_append_args kAppendDefaults = ONEPASS_APPEND_ARGS_INIT;
constexpr onepass_cascade_args kCascadeDefaults = ONEPASS_CASCADE_ARGS_INIT;

// What even the oldest caller gives.
constexpr std::size_t kTensorMinimum = offsetof(onepass_tensor, device);
constexpr std::size_t kArgsMinimum = offsetof(onepass_forward_args, softmax_lse);
constexpr std::size_t kOptionsMinimum = sizeof(std::size_t);
constexpr std::size_t kBackwardMinimum = offsetof(onepass_backward_args, dlse);
constexpr std::size_t kMergeMinimum = offsetof(onepass_merge_args, lse);
constexpr std::size_t kAppendMinimum = offsetof(onepass_append_args, cu_seqlens_new);
constexpr std::size_t kCascadeMinimum = offsetof(onepass_cascade_args, prefix_table);

void require(const char* call, const void* pointer, const char* name, const char* meaning) {
  if (pointer != nullptr) return;
  throw_invalid(call, fmt::format("{} is NULL", name), meaning, fmt::format("pass {}", name));
}

/// `value` as an enum whose last enumerator is `last`; `allowed` lists them. A tensor's field is named in two
/// parts ("q", ".dtype"), which only a message joins.
template <class Enum>
Enum enum_value(const char* call, const char* name, const char* field, std::int32_t value, Enum last,
                const char* allowed) {
  if (value < 0 || value > static_cast<std::int32_t>(last)) {
    throw_invalid(call, fmt::format("{}{} is {}", name, field, value), allowed,
                  fmt::format("use a constant of onepass.h for {}{}", name, field));
  }
  return static_cast<Enum>(value);
}

DType dtype_value(const char* call, const char* name, const char* field, std::int32_t value) {
  return enum_value(call, name, field, value, DType::I8,
                    "0 (f32), 1 (f16), 2 (bf16), 3 (f8e4m3), 4 (f8e5m2), 5 (i32), 6 (i8)");
}

bool flag(const char* call, const char* name, std::int32_t value) {
  if (value != 0 && value != 1)
    throw_invalid(call, fmt::format("{} is {}", name, value), "0 or 1", "use one of them");
  return value == 1;
}

/// Fills `view`, which stays absent for NULL, and for rank 0. Ranks, extents and strides are validate.cpp's
/// business.
void read_view(const char* call, const char* name, const onepass_tensor* given, TensorView& view) {
  if (given == nullptr) return;
  const onepass_tensor tensor = read_struct(call, name, given, kTensorDefaults, kTensorMinimum);
  view.data = tensor.data;
  view.dtype = dtype_value(call, name, ".dtype", tensor.dtype);
  view.rank = tensor.rank;
  std::copy(std::begin(tensor.shape), std::end(tensor.shape), view.shape.begin());
  std::copy(std::begin(tensor.strides), std::end(tensor.strides), view.strides.begin());
  view.device = enum_value(call, name, ".device", tensor.device, DeviceKind::Cuda, "0 (CPU), 1 (CUDA)");
  if (view.device == DeviceKind::Cuda) view.device_idx = tensor.device_idx;
}

void write_view(const char* call, onepass_tensor* target, std::size_t size, const TensorView& view) {
  onepass_tensor tensor = kTensorDefaults;
  tensor.data = view.data;
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), std::begin(tensor.shape));
  std::copy(view.strides.begin(), view.strides.end(), std::begin(tensor.strides));
  tensor.device = static_cast<std::int32_t>(view.device);
  tensor.device_idx = view.device_idx;
  write_struct(call, "tensor", target, size, tensor, kTensorDefaults);
}

ForwardArguments arguments_of(const char* call, const onepass_forward_args* given) {
  const onepass_forward_args a = read_struct(call, "args", given, kArgsDefaults, kArgsMinimum);
  ForwardArguments args;
  read_view(call, "q", a.q, args.q);
  read_view(call, "k", a.k, args.k);
  read_view(call, "v", a.v, args.v);
  read_view(call, "out", a.out, args.out);
  read_view(call, "softmax_lse", a.softmax_lse, args.softmax_lse);
  read_view(call, "cu_seqlens_q", a.cu_seqlens_q, args.cu_seqlens_q);
  read_view(call, "cu_seqlens_k", a.cu_seqlens_k, args.cu_seqlens_k);
  read_view(call, "seqused_q", a.seqused_q, args.seqused_q);
  read_view(call, "seqused_k", a.seqused_k, args.seqused_k);
  read_view(call, "block_table", a.block_table, args.block_table);
  read_view(call, "alibi_slopes", a.alibi_slopes, args.alibi_slopes);
  read_view(call, "bias", a.bias, args.bias);
  read_view(call, "sinks", a.sinks, args.sinks);
  read_view(call, "k_descale", a.k_descale, args.k_descale);
  read_view(call, "v_descale", a.v_descale, args.v_descale);
  return args;
}

Stream stream_of(const char* call, const onepass_forward_args* given) {
  return {read_struct(call, "args", given, kArgsDefaults, kArgsMinimum).stream};
}

onepass_backward_args read_backward(const char* call, const onepass_backward_args* given) {
  const onepass_backward_args a = read_struct(call, "args", given, kBackwardDefaults, kBackwardMinimum);
  require(call, a.forward, "args->forward", "the arguments of the forward call");
  return a;
}

BackwardArguments arguments_of(const char* call, const onepass_backward_args* given) {
  const onepass_backward_args a = read_backward(call, given);
  BackwardArguments args;
  args.forward = arguments_of(call, a.forward);
  read_view(call, "dout", a.dout, args.dout);
  read_view(call, "dq", a.dq, args.dq);
  read_view(call, "dk", a.dk, args.dk);
  read_view(call, "dv", a.dv, args.dv);
  read_view(call, "dlse", a.dlse, args.dlse);
  read_view(call, "dsinks", a.dsinks, args.dsinks);
  read_view(call, "dbias", a.dbias, args.dbias);
  return args;
}

Stream stream_of(const char* call, const onepass_backward_args* given) {
  return stream_of(call, read_backward(call, given).forward);
}

/// -1 is C's way to leave a bound out; other negative values reach validate.cpp.
std::optional<std::int64_t> bound_of(std::int64_t value) {
  return value == -1 ? std::nullopt : std::optional(value);
}

ForwardOptions options_of(const char* call, const onepass_forward_options* given) {
  ForwardOptions options;
  if (given == nullptr) return options;
  const onepass_forward_options o = read_struct(call, "options", given, kOptionsDefaults, kOptionsMinimum);
  options.causal =
      enum_value(call, "causal", "", o.causal, Causal::TopLeft, "0 (none), 1 (bottom-right), 2 (top-left)");
  if (o.has_softmax_scale != 0) {
    options.softmax_scale = o.softmax_scale;
  } else if (o.softmax_scale != 0.0) {
    throw_invalid(call, fmt::format("softmax_scale is {}, but has_softmax_scale is 0", o.softmax_scale),
                  "softmax_scale 0 when has_softmax_scale is 0 (the scale is 1 / sqrt(head_dim) then)",
                  "set has_softmax_scale to 1");
  }
  options.softcap = o.softcap;
  options.window_left = o.window_left;
  options.window_right = o.window_right;
  options.max_seqlen_q = bound_of(o.max_seqlen_q);
  options.max_seqlen_k = bound_of(o.max_seqlen_k);
  options.backend =
      enum_value(call, "backend", "", o.backend, Backend::Cuda, "0 (auto), 1 (cpu), 2 (reference), 3 (cuda)");
  options.num_threads = o.num_threads;
  options.num_splits = o.num_splits;
  if (o.batch_invariant != 0 && o.batch_invariant != 1) {
    throw_invalid(call, fmt::format("batch_invariant is {}", o.batch_invariant), "0 or 1", "set it to 0");
  }
  options.batch_invariant = o.batch_invariant != 0;
  return options;
}

DeviceInfo device_named(const char* call, const char* name) {
  if (const auto device = find_device(name)) return *device;
  throw_invalid(
      call, fmt::format("device is \"{}\"", name),
      fmt::format("NULL for the device that the tensors are on, or one of {}", joined(known_devices())),
      "correct the name");
}

template <class Args>
Plan plan_of(const char* call, const Args* args, const onepass_forward_options* options, const char* device) {
  const auto arguments = arguments_of(call, args);
  const ForwardOptions chosen = options_of(call, options);
  if (device == nullptr) return onepass::plan(arguments, chosen);
  return onepass::plan(arguments, chosen, device_named(call, device));
}

template <class Args>
onepass_status create_plan(const char* call, const Args* args, const onepass_forward_options* options,
                           const char* device, onepass_plan** plan) {
  return guarded(call, [&] {
    require(call, plan, "plan", "the address of a pointer that receives the plan");
    *plan = nullptr;
    auto made = std::make_unique<onepass_plan>();
    made->value = plan_of(call, args, options, device);
    *plan = made.release();
  });
}

std::span<std::byte> workspace_of(const char* call, void* workspace, std::size_t bytes) {
  if (workspace == nullptr && bytes > 0) {
    throw_invalid(call, fmt::format("workspace is NULL, but workspace_bytes is {}", bytes),
                  "the address of workspace_bytes bytes, or NULL and 0", "pass the workspace");
  }
  return {static_cast<std::byte*>(workspace), bytes};
}

template <class Args>
onepass_status run_plan(const char* call, const onepass_plan* plan, const Args* args, void* workspace,
                        std::size_t workspace_bytes) {
  return guarded(call, [&] {
    require(call, plan, "plan", "a plan made by onepass_plan_create");
    const std::span<std::byte> memory = workspace_of(call, workspace, workspace_bytes);
    onepass::run(plan->value, arguments_of(call, args), memory, stream_of(call, args));
  });
}

onepass_cascade_args cascade_args(const char* call, const onepass_cascade_args* given) {
  const onepass_cascade_args a = read_struct(call, "args", given, kCascadeDefaults, kCascadeMinimum);
  require(call, a.own, "args.own", "the address of an onepass_forward_args");
  return a;
}

CascadeArguments cascade_arguments_of(const char* call, const onepass_cascade_args* given) {
  const onepass_cascade_args a = cascade_args(call, given);
  CascadeArguments args;
  args.own = arguments_of(call, a.own);
  read_view(call, "k_prefix", a.k_prefix, args.k_prefix);
  read_view(call, "v_prefix", a.v_prefix, args.v_prefix);
  read_view(call, "prefix_table", a.prefix_table, args.prefix_table);
  read_view(call, "prefix_seqlen", a.prefix_seqlen, args.prefix_seqlen);
  return args;
}

/// DLPack's DLTensor, whose layout has not changed since dlpack.h 0.2.
struct DlTensor {
  void* data;
  struct {
    std::int32_t device_type, device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
static_assert(DlpackTensor<DlTensor>);

}  // namespace
}  // namespace onepass::c

using namespace onepass::c;  // NOLINT(google-build-using-namespace): the functions below are C's

const char* onepass_version(void) { return onepass::version(); }

const char* onepass_last_error_message(void) { return last_error(); }

onepass_status onepass_forward_options_init(onepass_forward_options* options, size_t struct_size) {
  constexpr const char* kCall = "onepass_forward_options_init";
  return guarded(kCall, [&] {
    require(kCall, options, "options", "the address of a struct");
    check_struct_size(kCall, "options", struct_size, kOptionsMinimum, alignof(onepass_forward_options));
    write_struct(kCall, "options", options, struct_size, kOptionsDefaults, kOptionsDefaults);
  });
}

onepass_status onepass_tensor_make(const void* data, int32_t dtype, int32_t rank, const int64_t* shape,
                                   const int64_t* strides, onepass_tensor* tensor) {
  constexpr const char* kCall = "onepass_tensor_make";
  return guarded(kCall, [&] {
    const std::size_t size = struct_size(kCall, "tensor", tensor, kTensorMinimum, alignof(onepass_tensor));
    require(kCall, shape, "shape", "the address of rank extents");
    const onepass::DType type = dtype_value(kCall, "dtype", "", dtype);
    if (rank < 0) {
      onepass::throw_invalid(kCall, fmt::format("rank is {}", rank), fmt::format("1 to {}", ONEPASS_MAX_RANK),
                             "pass the number of dimensions");
    }
    const std::span extents(shape, static_cast<std::size_t>(rank));
    write_view(kCall, tensor, size,
               strides == nullptr
                   ? onepass::make_view(data, type, extents)
                   : onepass::make_view(data, type, extents, std::span(strides, extents.size())));
  });
}

onepass_status onepass_tensor_from_dlpack(const void* dl_tensor, onepass_tensor* tensor) {
  constexpr const char* kCall = "onepass_tensor_from_dlpack";
  return guarded(kCall, [&] {
    require(kCall, dl_tensor, "dl_tensor", "the address of a DLTensor");
    const std::size_t size = struct_size(kCall, "tensor", tensor, kTensorMinimum, alignof(onepass_tensor));
    write_view(kCall, tensor, size, onepass::from_dlpack(*static_cast<const DlTensor*>(dl_tensor)));
  });
}

onepass_status onepass_forward(const onepass_forward_args* args, const onepass_forward_options* options) {
  constexpr const char* kCall = "onepass_forward";
  return guarded(kCall, [&] {
    onepass::forward(arguments_of(kCall, args), options_of(kCall, options), stream_of(kCall, args));
  });
}

onepass_status onepass_plan_create(const onepass_forward_args* args, const onepass_forward_options* options,
                                   const char* device, onepass_plan** plan) {
  return create_plan("onepass_plan_create", args, options, device, plan);
}

void onepass_plan_destroy(onepass_plan* plan) { delete plan; }

onepass_status onepass_plan_workspace_bytes(const onepass_plan* plan, size_t* bytes) {
  constexpr const char* kCall = "onepass_plan_workspace_bytes";
  return guarded(kCall, [&] {
    require(kCall, plan, "plan", "a plan made by onepass_plan_create");
    require(kCall, bytes, "bytes", "the address of a size_t that receives the number");
    *bytes = plan->value.workspace_bytes();
  });
}

onepass_status onepass_plan_explain(const onepass_plan* plan, const char** text) {
  constexpr const char* kCall = "onepass_plan_explain";
  return guarded(kCall, [&] {
    require(kCall, plan, "plan", "a plan made by onepass_plan_create");
    require(kCall, text, "text", "the address of a pointer that receives the text");
    const std::lock_guard lock(plan->explain_mutex);
    if (plan->explanation.empty()) plan->explanation = plan->value.explain();
    *text = plan->explanation.c_str();
  });
}

onepass_status onepass_plan_run(const onepass_plan* plan, const onepass_forward_args* args, void* workspace,
                                size_t workspace_bytes) {
  return run_plan("onepass_plan_run", plan, args, workspace, workspace_bytes);
}

onepass_status onepass_workspace_bytes(const onepass_forward_args* args,
                                       const onepass_forward_options* options, const char* device,
                                       size_t* bytes) {
  constexpr const char* kCall = "onepass_workspace_bytes";
  return guarded(kCall, [&] {
    require(kCall, bytes, "bytes", "the address of a size_t that receives the number");
    *bytes = plan_of(kCall, args, options, device).workspace_bytes();
  });
}

onepass_status onepass_backward(const onepass_backward_args* args, const onepass_forward_options* options) {
  constexpr const char* kCall = "onepass_backward";
  return guarded(kCall, [&] {
    onepass::backward(arguments_of(kCall, args), options_of(kCall, options), stream_of(kCall, args));
  });
}

onepass_status onepass_backward_plan_create(const onepass_backward_args* args,
                                            const onepass_forward_options* options, const char* device,
                                            onepass_plan** plan) {
  return create_plan("onepass_backward_plan_create", args, options, device, plan);
}

onepass_status onepass_backward_plan_run(const onepass_plan* plan, const onepass_backward_args* args,
                                         void* workspace, size_t workspace_bytes) {
  return run_plan("onepass_backward_plan_run", plan, args, workspace, workspace_bytes);
}

onepass_status onepass_merge(const onepass_merge_args* args, int32_t num_threads) {
  constexpr const char* kCall = "onepass_merge";
  return guarded(kCall, [&] {
    const onepass_merge_args a = read_struct(kCall, "args", args, kMergeDefaults, kMergeMinimum);
    onepass::MergeArguments merge;
    read_view(kCall, "out_a", a.out_a, merge.out_a);
    read_view(kCall, "lse_a", a.lse_a, merge.lse_a);
    read_view(kCall, "out_b", a.out_b, merge.out_b);
    read_view(kCall, "lse_b", a.lse_b, merge.lse_b);
    read_view(kCall, "out", a.out, merge.out);
    read_view(kCall, "lse", a.lse, merge.lse);
    onepass::merge(merge, num_threads, {a.stream});
  });
}

onepass_status onepass_append_kv(const onepass_append_args* args, int32_t num_threads) {
  constexpr const char* kCall = "onepass_append_kv";
  return guarded(kCall, [&] {
    const onepass_append_args a = read_struct(kCall, "args", args, kAppendDefaults, kAppendMinimum);
    onepass::AppendArguments append;
    read_view(kCall, "k_new", a.k_new, append.k_new);
    read_view(kCall, "v_new", a.v_new, append.v_new);
    read_view(kCall, "k_cache", a.k_cache, append.k_cache);
    read_view(kCall, "v_cache", a.v_cache, append.v_cache);
    read_view(kCall, "cu_seqlens_new", a.cu_seqlens_new, append.cu_seqlens_new);
    read_view(kCall, "seqused_new", a.seqused_new, append.seqused_new);
    read_view(kCall, "cache_seqlens", a.cache_seqlens, append.cache_seqlens);
    read_view(kCall, "block_table", a.block_table, append.block_table);
    read_view(kCall, "cache_batch_idx", a.cache_batch_idx, append.cache_batch_idx);
    read_view(kCall, "rotary_cos", a.rotary_cos, append.rotary_cos);
    read_view(kCall, "rotary_sin", a.rotary_sin, append.rotary_sin);
    read_view(kCall, "rotary_positions", a.rotary_positions, append.rotary_positions);
    read_view(kCall, "q", a.q, append.q);
    read_view(kCall, "q_out", a.q_out, append.q_out);
    read_view(kCall, "cu_seqlens_q", a.cu_seqlens_q, append.cu_seqlens_q);
    read_view(kCall, "seqlens_out", a.seqlens_out, append.seqlens_out);
    read_view(kCall, "overflow", a.overflow, append.overflow);
    read_view(kCall, "k_descale", a.k_descale, append.k_descale);
    read_view(kCall, "v_descale", a.v_descale, append.v_descale);
    const onepass::AppendOptions options{
        .rotary_interleaved = flag(kCall, "rotary_interleaved", a.rotary_interleaved),
        .q_at_first_position = flag(kCall, "q_at_first_position", a.q_at_first_position),
        .num_threads = num_threads};
    onepass::append_kv(append, options, {a.stream});
  });
}

onepass_status onepass_cascade(const onepass_cascade_args* args, const onepass_forward_options* options) {
  constexpr const char* kCall = "onepass_cascade";
  return guarded(kCall, [&] {
    const onepass::CascadeArguments arguments = cascade_arguments_of(kCall, args);
    onepass::cascade(arguments, options_of(kCall, options), stream_of(kCall, cascade_args(kCall, args).own));
  });
}

onepass_status onepass_cascade_plan_create(const onepass_cascade_args* args,
                                           const onepass_forward_options* options, const char* device,
                                           onepass_cascade_plan** plan) {
  constexpr const char* kCall = "onepass_cascade_plan_create";
  return guarded(kCall, [&] {
    require(kCall, plan, "plan", "the address of a pointer that receives the plan");
    *plan = nullptr;
    const onepass::CascadeArguments arguments = cascade_arguments_of(kCall, args);
    const onepass::ForwardOptions chosen = options_of(kCall, options);
    auto made = std::make_unique<onepass_cascade_plan>();
    made->value = device == nullptr ? onepass::plan(arguments, chosen)
                                    : onepass::plan(arguments, chosen, device_named(kCall, device));
    *plan = made.release();
  });
}

void onepass_cascade_plan_destroy(onepass_cascade_plan* plan) { delete plan; }

onepass_status onepass_cascade_plan_workspace_bytes(const onepass_cascade_plan* plan, size_t* bytes) {
  constexpr const char* kCall = "onepass_cascade_plan_workspace_bytes";
  return guarded(kCall, [&] {
    require(kCall, plan, "plan", "a plan made by onepass_cascade_plan_create");
    require(kCall, bytes, "bytes", "the address of a size_t that receives the number");
    *bytes = plan->value.workspace_bytes();
  });
}

onepass_status onepass_cascade_plan_run(const onepass_cascade_plan* plan, const onepass_cascade_args* args,
                                        void* workspace, size_t workspace_bytes) {
  constexpr const char* kCall = "onepass_cascade_plan_run";
  return guarded(kCall, [&] {
    require(kCall, plan, "plan", "a plan made by onepass_cascade_plan_create");
    const std::span<std::byte> memory = workspace_of(kCall, workspace, workspace_bytes);
    const onepass::CascadeArguments arguments = cascade_arguments_of(kCall, args);
    onepass::run(plan->value, arguments, memory, stream_of(kCall, cascade_args(kCall, args).own));
  });
}
