#include "plan/cuda_plan.h"

#include "backends/cuda/kernels/common/gradient_rows.h"
#include "dispatch/heuristics_decode.h"
#include "dispatch/heuristics_sm80.h"
#include "dispatch/heuristics_sm80_backward.h"
#include "dispatch/heuristics_sm90.h"
#include "dispatch/heuristics_sm90_backward.h"
#include "plan/planned_kernel.h"
#include "plan/workspace.h"

namespace onepass {
namespace {

constexpr int kRowWarps = 4;     // warps of the row-wise kernels, a row each
constexpr int kAppendWarps = 8;  // 256 pieces: K and V of a token with 8 heads of 128 elements
constexpr int kSinkWarps = 8;    // of the block that adds up a head's rows

/// Rows of q or k may belong to no sequence, so that their gradients have to be filled.
bool has_unowned_gradients(const AttentionProblem& p) {
  return has_unowned_rows(p) || p.has_seqused_k || p.k_layout == SequenceLayout::Packed;
}

/// One kernel for every head_dim.
KernelSpec row_kernel(KernelFamily family, const KernelSpec& forward) {
  KernelSpec spec;
  spec.family = family;
  spec.architecture = forward.architecture;
  spec.dtype = forward.dtype;
  spec.num_warps = kRowWarps;
  return spec;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class... Order>
void add_step(Plan& plan, const KernelSpec& spec, std::int64_t grid, const Order&... order) {
  if (grid == 0) return;
  plan.steps.push_back(
      {kernel_name(spec), grid, num_threads(spec), std::make_shared<const PlannedKernel>(spec, order...)});
}

/// Rows of no sequence, where there may be any.
void add_fill_gradients_step(Plan& plan, const KernelSpec& backward) {
  const AttentionProblem& p = *plan.problem;
  if (!has_unowned_gradients(p)) return;
  add_step(plan, row_kernel(KernelFamily::FillGradients, backward),
           ceil_div(p.total_q + p.total_k, kRowWarps));
}

/// The gradients of sinks, where they are asked for.
void add_sinks_step(Plan& plan, const KernelSpec& backward) {
  if (!plan.problem->gradient->has_dsinks) return;
  KernelSpec sinks = row_kernel(KernelFamily::BackwardSinks, backward);
  sinks.num_warps = kSinkWarps;
  add_step(plan, sinks, plan.problem->num_heads_q);
}

/// Statistics of the query rows of a backward call; how many rows these are.
std::size_t add_gradient_row_pieces(Plan& plan) {
  const auto rows = static_cast<std::size_t>(gradient_rows(*plan.problem));
  const std::size_t bytes = workspace_product(kPieceDelta, rows, sizeof(float));
  add_workspace_piece(plan, kPieceLseLog2, bytes);
  add_workspace_piece(plan, kPieceDelta, bytes);
  return rows;
}

/// The gradients of a problem's heads, those of rows of no sequence aside.
void lay_out_sm90_backward_heads(Plan& plan) {
  const AttentionProblem& p = *plan.problem;
  const Sm90BackwardConfig config = choose_sm90_backward(p, plan.device);
  plan.tile_m = config.backward.tile_m;
  plan.tile_n = config.backward.tile_n;
  plan.tile_heads = p.group();
  plan.num_threads = num_threads(config.backward);
  add_step(plan, config.prepare, config.rows_grid);
  add_step(plan, config.backward, config.grid, config.order);
  add_step(plan, config.finish, config.rows_grid);
  add_sinks_step(plan, config.backward);
  const std::size_t rows = add_gradient_row_pieces(plan);
  const auto columns = static_cast<std::size_t>(sm90_dq_sum_columns(config.backward));
  add_workspace_piece(plan, kPieceDqSums, workspace_product(kPieceDqSums, rows, columns * sizeof(float)));
  add_workspace_piece(plan, kPieceTurns, rows / static_cast<std::size_t>(plan.tile_m) * sizeof(int));
  add_workspace_piece(plan, kPieceTicket, sizeof(std::uint64_t));
}

/// The plan for heads_k key heads of the problem and the query heads that share them.
Plan sm90_backward_part(const Plan& whole, std::int64_t heads_k) {
  AttentionProblem problem = *whole.problem;
  problem.num_heads_q = heads_k * problem.group();
  problem.num_heads_k = heads_k;
  Plan part;
  part.implementation = whole.implementation;
  part.device = whole.device;
  part.problem = std::make_shared<const AttentionProblem>(problem);
  lay_out_sm90_backward_heads(part);
  return part;
}

}  // namespace

void lay_out_sm80_forward(Plan& plan, const PlanRequest& request) {
  const AttentionProblem& problem = *plan.problem;
  const Sm80ForwardConfig config = choose_sm80_forward(problem, plan.device, request.num_splits);
  plan.tile_m = config.forward.tile_m;
  plan.tile_n = config.forward.tile_n;
  plan.tile_heads = config.forward.pack_gqa ? problem.group() : 1;
  plan.num_splits = config.num_splits;
  plan.num_threads = num_threads(config.forward);
  if (has_unowned_rows(problem)) {
    add_step(plan, row_kernel(KernelFamily::FillRows, config.forward), ceil_div(problem.total_q, kRowWarps));
  }
  add_step(plan, config.forward, config.grid);
  if (!config.forward.split) return;
  KernelSpec merge = row_kernel(KernelFamily::MergeSplits, config.forward);
  merge.parts = config.forward.parts;
  add_step(plan, merge, ceil_div(problem.seqlen_q, kRowWarps) * problem.num_heads_q * problem.batch);
  add_split_pieces(plan);
}

void lay_out_sm90_forward(Plan& plan, const PlanRequest& /*request*/) {
  const AttentionProblem& problem = *plan.problem;
  const Sm90ForwardConfig config = choose_sm90_forward(problem, plan.device);
  plan.tile_m = config.forward.tile_m;
  plan.tile_n = config.forward.tile_n;
  plan.num_threads = num_threads(config.forward);
  if (has_unowned_rows(problem)) {
    add_step(plan, row_kernel(KernelFamily::FillRows, config.forward), ceil_div(problem.total_q, kRowWarps));
  }
  add_step(plan, config.forward, config.grid, config.order);
  if (config.forward.ticket && config.grid > 0)
    add_workspace_piece(plan, kPieceTicket, sizeof(std::uint64_t));
}

void lay_out_sm90_decode(Plan& plan, const PlanRequest& request) {
  const AttentionProblem& problem = *plan.problem;
  const Sm90DecodeConfig config = choose_sm90_decode(problem, plan.device, request.num_splits);
  plan.tile_m = config.decode.tile_m;
  plan.tile_n = config.decode.tile_n;
  plan.tile_heads = problem.group();
  plan.num_splits = config.num_splits;
  plan.num_threads = num_threads(config.decode);
  if (has_unowned_rows(problem)) {
    add_step(plan, row_kernel(KernelFamily::FillRows, config.decode), ceil_div(problem.total_q, kRowWarps));
  }
  add_step(plan, config.decode, config.grid, config.order);
  if (config.decode.stays && config.decode.ragged) {
    const auto blocks = static_cast<std::size_t>(config.grid);
    const std::size_t rows = 2 * blocks * static_cast<std::size_t>(config.decode.tile_m);  // params.h
    add_workspace_piece(plan, kPieceSplitOut,
                        rows * static_cast<std::size_t>(problem.head_dim_v) * sizeof(float));
    add_workspace_piece(plan, kPieceSplitLse, rows * sizeof(float));
    add_workspace_piece(plan, kPieceArrivals, blocks * sizeof(std::uint64_t));
    return;
  }
  if (!config.decode.split || config.decode.cluster) return;
  add_split_pieces(plan);
  add_workspace_piece(plan, kPieceArrivals, static_cast<std::size_t>(config.tiles) * sizeof(std::uint64_t));
}

void lay_out_sm90_backward(Plan& plan, const PlanRequest& /*request*/) {
  add_fill_gradients_step(plan, choose_sm90_backward(*plan.problem, plan.device).backward);
  const std::int64_t heads_k = plan.problem->num_heads_k;
  const std::int64_t num_parts = choose_sm90_backward_parts(*plan.problem, plan.device);
  if (num_parts == 1) {
    lay_out_sm90_backward_heads(plan);
    return;
  }
  for (std::int64_t i = 0; i < num_parts; ++i) {
    plan.parts.push_back(sm90_backward_part(plan, heads_k * (i + 1) / num_parts - heads_k * i / num_parts));
  }
  const Plan& largest = plan.parts.back();
  plan.tile_m = largest.tile_m;
  plan.tile_n = largest.tile_n;
  plan.tile_heads = largest.tile_heads;
  plan.num_threads = largest.num_threads;
  add_workspace_piece(plan, kPieceParts, largest.workspace_bytes());
}

void lay_out_sm80_backward(Plan& plan, const PlanRequest& /*request*/) {
  const AttentionProblem& p = *plan.problem;
  const Sm80BackwardConfig config = choose_sm80_backward(p, plan.device);
  plan.tile_m = config.keys.tile_m;
  plan.tile_n = config.keys.tile_n;
  plan.num_threads = num_threads(config.keys);
  add_fill_gradients_step(plan, config.keys);
  const std::int64_t padded = cuda::gradient_rows_per_head(false, 1, p.seqlen_q, 0);
  add_step(plan, row_kernel(KernelFamily::BackwardPrepare, config.keys),
           padded / kRowWarps * p.num_heads_q * p.batch);
  add_step(plan, config.keys, config.keys_grid);
  add_step(plan, config.queries, config.queries_grid);
  add_step(plan, config.bias, config.bias_grid);
  add_sinks_step(plan, config.keys);
  add_gradient_row_pieces(plan);
  if (copies_dout(p)) {
    add_workspace_piece(plan, kPieceDout,
                        workspace_product(kPieceDout, static_cast<std::size_t>(p.total_q * p.num_heads_q),
                                          2 * static_cast<std::size_t>(dout_copy_pitch(p.head_dim_v))));
  }
}

void lay_out_lengths(Plan& plan) {
  const AttentionProblem& problem = *plan.problem;
  KernelSpec spec;
  spec.architecture = plan.device.compute_capability;
  spec.dtype = problem.q_dtype;
  add_step(plan, row_kernel(KernelFamily::FillRows, spec), ceil_div(problem.total_q, kRowWarps));
  const KernelSpec lengths = part_lengths_kernel(plan.device.compute_capability);
  add_step(plan, lengths, ceil_div(problem.batch, num_threads(lengths)));
}

const PlannedKernel* forward_kernel(const Plan& plan) {
  for (const PlanStep& step : plan.steps) {
    const KernelFamily family = step.gpu_kernel->spec.family;
    if (family == KernelFamily::Sm80Forward || family == KernelFamily::Sm90Forward ||
        family == KernelFamily::Sm90Decode) {
      return step.gpu_kernel.get();
    }
  }
  return nullptr;
}

std::int64_t num_row_tiles(const Plan& plan) {
  return ceil_div(plan.problem->seqlen_q * plan.tile_heads, plan.tile_m);
}

KernelSpec merge_states_kernel(int compute_capability) {
  KernelSpec spec;
  spec.family = KernelFamily::MergeStates;
  spec.architecture = compute_capability;
  spec.num_warps = kRowWarps;
  return spec;
}

KernelSpec part_lengths_kernel(int compute_capability) {
  KernelSpec spec;
  spec.family = KernelFamily::PartLengths;
  spec.architecture = compute_capability;
  spec.num_warps = kRowWarps;
  return spec;
}

KernelSpec append_kv_kernel(int compute_capability, DType dtype, DType stored, int load_bytes) {
  KernelSpec spec;
  spec.family = KernelFamily::AppendKv;
  spec.architecture = compute_capability;
  spec.dtype = dtype;
  if (stored != dtype) spec.kv_dtype = stored;
  spec.num_warps = kAppendWarps;
  spec.load_bytes = spec.store_bytes = load_bytes;
  return spec;
}

}  // namespace onepass
