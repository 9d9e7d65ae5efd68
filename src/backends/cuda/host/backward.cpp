#include "backends/cuda/host/backward.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "backends/cuda/host/call.h"
#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/sm90_backward.h"
#include "plan/cuda_plan.h"
#include "plan/make_plan.h"
#include "plan/planned_kernel.h"
#include "problem/attention_problem.h"

namespace onepass::cuda {
namespace {

/// dO as the kernels read it: the caller's or its copy in the workspace.
TensorParams dout_params(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace) {
  const AttentionProblem& p = *plan.problem;
  const std::span<std::byte> copy = workspace_piece(plan, workspace, kPieceDout);
  if (copy.empty()) return tensor_params(args.dout, p.gradient->dout);
  const std::int64_t pitch = dout_copy_pitch(p.head_dim_v);
  const bool packed = p.q_layout == SequenceLayout::Packed;
  const std::int64_t rows = packed ? p.total_q : p.seqlen_q;
  return {copy.data(), packed ? 0 : p.num_heads_q * rows * pitch, pitch, rows * pitch};
}

/// The plan's kernel of a family; null where it has none.
const PlannedKernel* kernel_of(const Plan& plan, KernelFamily family) {
  for (const PlanStep& step : plan.steps) {
    if (step.gpu_kernel->spec.family == family) return step.gpu_kernel.get();
  }
  return nullptr;
}

/// Its spec; one of 2-byte pieces where there is none.
KernelSpec spec_of(const Plan& plan, KernelFamily family) {
  const PlannedKernel* const kernel = kernel_of(plan, family);
  if (kernel != nullptr) return kernel->spec;
  KernelSpec none;
  none.load_bytes = none.store_bytes = 2;
  return none;
}

bool has_score_terms(const Plan& plan) {
  return std::any_of(plan.steps.begin(), plan.steps.end(),
                     [](const PlanStep& step) { return step.gpu_kernel->spec.score_terms; });
}

/// What the kernels of one call take. A launch holds addresses of it.
struct CallParams {
  BackwardParams backward{};
  std::optional<Sm90BackwardParams> sm90;  // for kernels of that family
};

KernelParameters kernel_parameters(KernelFamily family, CallParams& params) {
  switch (family) {
    case KernelFamily::Sm90BackwardPrepare:
    case KernelFamily::Sm90Backward:
    case KernelFamily::Sm90BackwardFinish: return {&params.sm90.value()};
    case KernelFamily::FillGradients:
    case KernelFamily::BackwardPrepare:
    case KernelFamily::BackwardSinks:
    case KernelFamily::Sm80BackwardKeys:
    case KernelFamily::Sm80BackwardQueries:
    case KernelFamily::Sm80BackwardBias: return {&params.backward};
    default: break;
  }
  throw_unknown_kernel("backward");
}

/// `count` heads of a tensor, whose heads are the last dimension but `behind`.
TensorView heads_of(TensorView view, int behind, std::int64_t first, std::int64_t count) {
  if (!view.present()) return view;
  const auto dim = static_cast<std::size_t>(view.rank - 1 - behind);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(view.dtype));
  view.data = static_cast<std::byte*>(view.data) + first * view.strides[dim] * bytes;
  view.shape[dim] = count;
  return view;
}

/// @throws InvalidArgument for what the kernels could not read or write.
void check_pointers(const Call& call, const Plan& plan, const BackwardArguments& args,
                    std::span<std::byte> workspace) {
  const Plan& steps = plan.parts.empty() ? plan : plan.parts.front();
  const PlannedKernel* const sm90 = kernel_of(steps, KernelFamily::Sm90Backward);  // makes all three
  const KernelSpec keys = sm90 != nullptr ? sm90->spec : spec_of(steps, KernelFamily::Sm80BackwardKeys);
  const KernelSpec queries = sm90 != nullptr ? sm90->spec : spec_of(steps, KernelFamily::Sm80BackwardQueries);
  const int load_bytes = std::max(keys.load_bytes, queries.load_bytes);
  const bool copied = !workspace_piece(plan, workspace, kPieceDout).empty();
  call.check_forward(args.forward, load_bytes, sm90 != nullptr ? load_bytes : 2);
  call.check("dout", args.dout, copied ? 2 : load_bytes);
  call.check("dlse", args.dlse, 4);
  call.check("dq", args.dq, queries.store_bytes);
  call.check("dk", args.dk, keys.store_bytes);
  call.check("dv", args.dv, keys.store_bytes);
  call.check("dsinks", args.dsinks, 4);
  call.check("dbias", args.dbias, static_cast<int>(dtype_bytes(args.dbias.dtype)));
  call.check_workspace(workspace);
}

/// Kernels loaded and parameters filled of the steps of one plan.
class PreparedBackward {
 public:
  PreparedBackward(const Call& call, const Plan& plan, const BackwardArguments& args,
                   std::span<std::byte> workspace)
      : call_(call), params_{backward_params(plan, args, workspace), std::nullopt} {
    params_.backward.forward.error_flag = call.error_flag();
    if (const PlannedKernel* const sm90 = kernel_of(plan, KernelFamily::Sm90Backward)) {
      const auto encode = [&](const TiledTensor& tensor) { return encode_tensor_map(call.driver(), tensor); };
      params_.sm90 = sm90_backward_params(plan, *sm90, args, workspace, params_.backward, encode);
    }
    launches_ = call.prepare(plan, [&](KernelFamily family) { return kernel_parameters(family, params_); });
  }
  PreparedBackward(const PreparedBackward&) = delete;  // launches hold addresses of the parameters
  PreparedBackward& operator=(const PreparedBackward&) = delete;

  void queue(Stream stream) const { call_.queue(launches_, stream); }

 private:
  const Call& call_;
  CallParams params_;
  Call::Launches launches_;
};

}  // namespace

BackwardParams backward_params(const Plan& plan, const BackwardArguments& args,
                               std::span<std::byte> workspace) {
  const AttentionProblem& p = *plan.problem;
  const GradientProblem& g = *p.gradient;
  BackwardParams params{};
  params.forward = call_params(p, args.forward, has_score_terms(plan));
  params.dout = dout_params(plan, args, workspace);
  params.dq = tensor_params(args.dq, g.dq);
  params.dk = tensor_params(args.dk, g.dk);
  params.dv = tensor_params(args.dv, g.dv);
  params.dout_source = tensor_params(args.dout, g.dout);
  params.dout_source_dim_stride = g.dout.dim;
  if (g.has_dlse) {
    const TensorView& t = args.dlse;
    const auto first = static_cast<std::size_t>(t.rank - 2);
    params.dlse = static_cast<const float*>(t.data);
    params.dlse_batch_stride = t.rank == 3 ? t.strides[0] : 0;
    params.dlse_head_stride = t.strides[first];
    params.dlse_row_stride = t.strides[first + 1];
  }
  params.lse_log2 = reinterpret_cast<float*>(workspace_piece(plan, workspace, kPieceLseLog2).data());
  params.delta = reinterpret_cast<float*>(workspace_piece(plan, workspace, kPieceDelta).data());
  if (g.has_dsinks) {
    params.dsinks = static_cast<float*>(args.dsinks.data);
    params.dsinks_stride = args.dsinks.strides[0];
  }
  if (g.has_dbias) {
    const TensorView& t = args.dbias;
    params.dbias = t.data;
    params.dbias_batch_stride = t.strides[0];
    params.dbias_head_stride = t.strides[1];
    params.dbias_row_stride = t.strides[2];
    params.dbias_key_stride = t.strides[3];
    params.dbias_batch = static_cast<int>(t.shape[0]);
    params.dbias_heads = static_cast<int>(t.shape[1]);
    params.dbias_rows = static_cast<int>(t.shape[2]);
    params.dbias_keys = static_cast<int>(t.shape[3]);
    params.dbias_is_f32 = t.dtype == DType::F32;
  }
  return params;
}

BackwardArguments part_arguments(const Plan& plan, std::size_t part, const BackwardArguments& args) {
  std::int64_t first_k = 0;
  for (std::size_t i = 0; i < part; ++i) first_k += plan.parts[i].problem->num_heads_k;
  const AttentionProblem& p = *plan.parts[part].problem;
  const std::int64_t first_q = first_k * p.group();
  BackwardArguments of = args;
  ForwardArguments& forward = of.forward;
  for (TensorView* rows : {&forward.q, &forward.out, &of.dout, &of.dq})
    *rows = heads_of(*rows, 1, first_q, p.num_heads_q);
  for (TensorView* rows : {&forward.k, &forward.v, &of.dk, &of.dv})
    *rows = heads_of(*rows, 1, first_k, p.num_heads_k);
  for (TensorView* lse : {&forward.softmax_lse, &of.dlse}) *lse = heads_of(*lse, 1, first_q, p.num_heads_q);
  for (TensorView* sinks : {&forward.sinks, &of.dsinks}) *sinks = heads_of(*sinks, 0, first_q, p.num_heads_q);
  return of;
}

void run_backward(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
                  Stream stream) {
  const Call call(args.forward.q);
  check_pointers(call, plan, args, workspace);
  std::deque<PreparedBackward> prepared;  // all, before the first one is queued
  prepared.emplace_back(call, plan, args, workspace);
  const std::span<std::byte> memory = workspace_piece(plan, workspace, kPieceParts);
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    prepared.emplace_back(call, plan.parts[i], part_arguments(plan, i, args),
                          memory.first(plan.parts[i].workspace_bytes()));
  }
  for (const PreparedBackward& part : prepared) part.queue(stream);
}

}  // namespace onepass::cuda
