#include "plan/mixed_plan.h"

#include <algorithm>
#include <vector>

#include "dispatch/accounting.h"
#include "plan/cuda_plan.h"
#include "plan/planned_kernel.h"
#include "plan/workspace.h"

namespace onepass {
namespace {

/// The plan for sequences of up to `seqlen_q` rows, whose lengths another kernel writes. Rows of no sequence
/// are not its own to fill: those of the other launches look the same.
Plan part_of(const char* call, AttentionProblem problem, const PlanRequest& request, const DeviceInfo& device,
             std::int64_t seqlen_q) {
  problem.has_seqused_q = true;
  problem.seqlen_q = seqlen_q;
  Plan part = make_plan_of_one_launch(call, problem, request, device);
  std::erase_if(part.steps,
                [](const PlanStep& step) { return step.gpu_kernel->spec.family == KernelFamily::FillRows; });
  return part;
}

}  // namespace

Plan make_mixed_plan(const char* call, const AttentionProblem& problem, const PlanRequest& request,
                     const DeviceInfo& device, std::span<const std::int64_t> launch_rows) {
  Plan plan;
  plan.implementation = kMixedForward;
  plan.device = device;
  plan.problem = std::make_shared<const AttentionProblem>(problem);
  std::size_t workspace_bytes = 0;  // of the largest: one launch after the other has it
  for (const std::int64_t rows : launch_rows) {
    plan.parts.push_back(part_of(call, problem, request, device, rows));
    workspace_bytes = std::max(workspace_bytes, plan.parts.back().workspace_bytes());
  }
  const Plan& many = plan.parts[0];
  plan.tile_m = many.tile_m;
  plan.tile_n = many.tile_n;
  plan.tile_heads = many.tile_heads;
  plan.num_threads = many.num_threads;
  lay_out_lengths(plan);
  const std::size_t list_bytes = static_cast<std::size_t>(problem.batch) * sizeof(std::int32_t);
  add_workspace_piece(plan, kPiecePartLengths, plan.parts.size() * list_bytes);
  add_workspace_piece(plan, kPieceParts, workspace_bytes);
  plan.accounting = account(problem, device, plan.tile_m, plan.tile_heads);
  return plan;
}

}  // namespace onepass
