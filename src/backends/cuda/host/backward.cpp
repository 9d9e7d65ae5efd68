#include "backends/cuda/host/backward.h"

#include <algorithm>
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

void run_backward(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
                  Stream stream) {
  const Call call(args.forward.q);
  const PlannedKernel* const sm90 = kernel_of(plan, KernelFamily::Sm90Backward);  // makes all three
  const KernelSpec keys = sm90 != nullptr ? sm90->spec : spec_of(plan, KernelFamily::Sm80BackwardKeys);
  const KernelSpec queries = sm90 != nullptr ? sm90->spec : spec_of(plan, KernelFamily::Sm80BackwardQueries);
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

  CallParams params{backward_params(plan, args, workspace), std::nullopt};
  params.backward.forward.error_flag = call.error_flag();
  if (sm90 != nullptr) {
    const auto encode = [&](const TiledTensor& tensor) { return encode_tensor_map(call.driver(), tensor); };
    params.sm90 = sm90_backward_params(plan, *sm90, args, workspace, params.backward, encode);
  }
  call.launch(plan, stream, [&](KernelFamily family) { return kernel_parameters(family, params); });
}

}  // namespace onepass::cuda
