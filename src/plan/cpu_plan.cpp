#include "plan/cpu_plan.h"

#include <algorithm>

#include "backends/cpu/backend.h"
#include "dispatch/heuristics_backward.h"
#include "dispatch/heuristics_forward.h"
#include "dispatch/kernel_name.h"
#include "plan/workspace.h"

namespace onepass {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

void lay_out_cpu_simd(Plan& plan, const PlanRequest& request) {
  const AttentionProblem& problem = *plan.problem;
  const CpuForwardConfig config =
      choose_cpu_forward(problem, plan.device, request.num_threads, request.num_splits);
  plan.tile_m = config.tile_m;
  plan.tile_n = config.tile_n;
  plan.tile_heads = problem.group();
  plan.item_heads = config.item_heads;
  plan.num_splits = config.num_splits;
  plan.num_threads = config.num_threads;
  plan.steps.push_back({forward_kernel_name("cpu_simd_forward", problem, config.tile_m, config.tile_n),
                        count_cpu_items(problem, config), config.num_threads});
  add_workspace_piece(
      plan, kPieceThreadScratch,
      workspace_product(kPieceThreadScratch, cpu::simd_scratch_bytes(problem, config.tile_m, config.tile_n),
                        static_cast<std::size_t>(config.num_threads)));
  if (config.num_splits == 1) return;

  plan.steps.push_back({"cpu_merge_splits", problem.batch * problem.num_heads_q, config.num_threads});
  add_split_pieces(plan);
}

void lay_out_cpu_simd_backward(Plan& plan, const PlanRequest& request) {
  const AttentionProblem& problem = *plan.problem;
  const CpuBackwardConfig config = choose_cpu_backward(problem, plan.device, request.num_threads);
  plan.tile_m = config.tile_m;
  plan.tile_n = config.tile_n;
  plan.tile_heads = problem.group();
  plan.num_threads = config.num_threads;
  const std::int64_t rows = problem.total_q * problem.num_heads_q;
  plan.steps.push_back({"cpu_backward_delta", rows, config.num_threads});
  plan.steps.push_back({forward_kernel_name("cpu_simd_backward", problem, config.tile_m, config.tile_n),
                        config.num_items, config.num_threads});
  const GradientProblem& gradient = *problem.gradient;
  if (gradient.has_dbias) {
    const auto& bias = gradient.dbias_shape;
    plan.steps.push_back(
        {"cpu_backward_bias",
         bias[0] * bias[1] * ceil_div(bias[2], cpu::kBiasRows) * ceil_div(bias[3], config.tile_n),
         config.num_threads});
  }
  if (gradient.has_dsinks) {
    plan.steps.push_back({"cpu_backward_sinks", problem.num_heads_q, config.num_threads});
  }
  add_workspace_piece(plan, kPieceDelta,
                      workspace_product(kPieceDelta, static_cast<std::size_t>(rows), sizeof(float)));
  add_workspace_piece(
      plan, kPieceThreadScratch,
      workspace_product(kPieceThreadScratch,
                        cpu::simd_gradient_scratch_bytes(problem, config.tile_n, config.tile_m),
                        static_cast<std::size_t>(config.num_threads)));
}

void lay_out_cpu_reference(Plan& plan, const PlanRequest& request) {
  const AttentionProblem& problem = *plan.problem;
  const std::int64_t rows = problem.total_q * problem.num_heads_q;
  const int threads = request.num_threads > 0 ? request.num_threads : plan.device.num_processors;
  plan.tile_m = 1;
  plan.tile_n = std::max<std::int64_t>(1, problem.seqlen_k);
  plan.tile_heads = problem.group();
  plan.num_threads = static_cast<int>(std::clamp<std::int64_t>(rows, 1, std::max(1, threads)));
  plan.steps.push_back({forward_kernel_name("cpu_reference_forward", problem, plan.tile_m, plan.tile_n), rows,
                        plan.num_threads});
}

void lay_out_cpu_reference_backward(Plan& plan, const PlanRequest& request) {
  const AttentionProblem& problem = *plan.problem;
  plan.tile_m = 1;
  plan.tile_n = std::max<std::int64_t>(1, problem.seqlen_k);
  plan.tile_heads = problem.group();
  const int threads = request.num_threads > 0 ? request.num_threads : plan.device.num_processors;
  const std::int64_t rows = problem.total_q * problem.num_heads_q;
  plan.num_threads = static_cast<int>(std::clamp<std::int64_t>(rows, 1, std::max(1, threads)));
  plan.steps.push_back({forward_kernel_name("cpu_reference_backward", problem, plan.tile_m, plan.tile_n),
                        problem.batch * problem.num_heads_k, plan.num_threads});
}

}  // namespace onepass
