#include "cli/run_inputs.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "cli/interrupt.h"
#include "support/float_types.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass run";

std::string call_for(const char* option) { return fmt::format("{}: {}", kCall, option); }

class Loader {
 public:
  Loader(const RunOptions& options, RunInputs& inputs) : options_(options), inputs_(inputs) {}

  void read(const char* option, const std::string& spec, TensorView& target) {
    if (!spec.empty()) target = keep(io::read_tensor(spec, call_for(option)));
  }

  /// q, k and v: in the layout and dtype that were asked for.
  void read_rows(const char* option, const std::string& spec, TensorView& target) {
    if (spec.empty()) {
      throw_invalid(kCall, fmt::format("{} is missing", option),
                    "--q, --k and --v, each a file with one tensor",
                    fmt::format("add {} x.npy or {} x.safetensors:name", option, option));
    }
    read(option, spec, target);
    if (options_.dtype && target.dtype != *options_.dtype)
      target = converted(option, target, *options_.dtype);
    if (options_.heads_first && target.rank == 4) target = transpose(target, 1, 2);
  }

  /// A new tensor in the layout of q's file; `shape` is [B, S, H, Dv] or [T, H, Dv].
  TensorView allocate_rows(std::vector<std::int64_t> shape, TensorView& in_file) {
    const bool exchange = options_.heads_first && shape.size() == 4;
    if (exchange) std::swap(shape[1], shape[2]);
    in_file = keep(io::allocate_tensor(inputs_.args.q.dtype, shape));
    return exchange ? transpose(in_file, 1, 2) : in_file;
  }

  TensorView allocate(DType dtype, const std::vector<std::int64_t>& shape) {
    return keep(io::allocate_tensor(dtype, shape));
  }

 private:
  TensorView keep(io::HostTensor tensor) {
    inputs_.storage.push_back(std::move(tensor));
    return inputs_.storage.back().view();
  }

  // The same order in memory, so that strides stay. Values past the target's range are the caller's mistake.
  TensorView converted(const char* option, const TensorView& from, DType dtype) {
    if (from.dtype == DType::I32) {
      throw_invalid(kCall, fmt::format("{} holds i32", option),
                    "f32, f16, bf16, f8e4m3, f8e5m2 or i8 elements",
                    fmt::format("store {} as a float type", option));
    }
    io::HostTensor tensor =
        io::allocate_tensor(dtype, std::span(from.shape.data(), static_cast<std::size_t>(from.rank)));
    tensor.strides.assign(from.strides.begin(), from.strides.begin() + from.rank);
    for (std::int64_t i = 0; i < from.num_elements(); ++i) {
      const float value = load_float(from.data, from.dtype, i);
      store_float(tensor.storage.get(), dtype, i, value);
      if (std::isfinite(value) && !std::isfinite(load_float(tensor.storage.get(), dtype, i))) {
        throw_invalid(kCall,
                      fmt::format("{} holds {}, which {} cannot hold", option, value, dtype_name(dtype)),
                      fmt::format("values that stay finite in {}", dtype_name(dtype)),
                      "choose --dtype bf16 or f32, or scale the tensor");
      }
    }
    return keep(std::move(tensor));
  }

  const RunOptions& options_;
  RunInputs& inputs_;
};

std::vector<std::int64_t> extents(const TensorView& view) {
  return {view.shape.begin(), view.shape.begin() + view.rank};
}

void check_outputs(const RunOptions& o) {
  const DeferInterrupts remove_probes_first;
  if (!o.out.empty()) io::check_writable(o.out, call_for("--out"));
  if (!o.lse.empty()) io::check_writable(o.lse, call_for("--lse"));
  if (!o.out.empty() && !o.lse.empty()) io::check_writable(std::array{o.out, o.lse}, kCall);
}

}  // namespace

RunInputs load_run_inputs(const RunOptions& o) {
  check_outputs(o);
  RunInputs inputs;
  ForwardArguments& args = inputs.args;
  Loader loader(o, inputs);
  loader.read_rows("--q", o.q, args.q);
  loader.read_rows("--k", o.k, args.k);
  loader.read_rows("--v", o.v, args.v);
  const struct {
    const char* option;
    const std::string& spec;
    TensorView& target;
  } others[] = {{"--cu-seqlens-q", o.cu_seqlens_q, args.cu_seqlens_q},
                {"--cu-seqlens-k", o.cu_seqlens_k, args.cu_seqlens_k},
                {"--seqused-q", o.seqused_q, args.seqused_q},
                {"--seqused-k", o.seqused_k, args.seqused_k},
                {"--block-table", o.block_table, args.block_table},
                {"--alibi", o.alibi, args.alibi_slopes},
                {"--bias", o.bias, args.bias},
                {"--sinks", o.sinks, args.sinks},
                {"--k-descale", o.k_descale, args.k_descale},
                {"--v-descale", o.v_descale, args.v_descale}};
  for (const auto& other : others) loader.read(other.option, other.spec, other.target);

  // Shapes are checked by the planner; outputs of wrong inputs only need to exist until then.
  std::vector<std::int64_t> shape = extents(args.q);
  if (args.v.rank > 0) shape.back() = args.v.shape[static_cast<std::size_t>(args.v.rank - 1)];
  args.out = loader.allocate_rows(shape, inputs.out_file);
  if (shape.size() == 4) args.softmax_lse = loader.allocate(DType::F32, {shape[0], shape[2], shape[1]});
  if (shape.size() == 3) args.softmax_lse = loader.allocate(DType::F32, {shape[1], shape[0]});
  return inputs;
}

}  // namespace onepass::cli
